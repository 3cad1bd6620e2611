"""Detection and hints of ``python -m xpgrad info``, on made-up readings, and the command itself."""

import ctypes
import importlib.util
import json
import re
from types import SimpleNamespace

import pytest

from xpgrad.__main__ import main
from xpgrad.cli import info, options
from xpgrad.cli.info import CPU, Hint, InfoReport, Pool

FLAGS = "avx avx2 fma avx512f avx512dq avx512bw avx512vl"
CPUINFO = f"processor\t: 0\nmodel name\t: Some CPU @ 2 GHz \nflags\t\t: fpu {FLAGS}\n\nprocessor\t: 1\n"
EVERYTHING = {"numpy": "2", "torch": "2", "jax": "0.10", "onnx": "1", "llvmlite": "0.44"}
REQUIRED = {"numpy", "array-api-compat"}
OPENBLAS = Pool("blas", "openblas", "/lib/libopenblas.so", 2, "SkylakeX")
OPENMP = Pool("openmp", "libgomp", "/lib/libgomp.so.1", 2, None)


def report(**changes):
    good = InfoReport(
        versions=EVERYTHING,
        engines={},
        products={},
        cpu=CPU("Some CPU", "x86_64", 2, avx512=True),
        blas="scipy-openblas 0.3",
        pools=[OPENBLAS],
        variables={},
    )
    return good._replace(**changes)


def without(package):
    return {name: version for name, version in EVERYTHING.items() if name != package}


def only_hint(given: InfoReport) -> Hint:
    (hint,) = info.hints(given)
    return hint


def test_a_variable_that_has_no_effect_any_more_is_shown_as_such(capsys):
    info._print(report(variables={"XPGRAD_PRODUCTS": "blas", "XPGRAD_JIT": "1"}), [])
    lines = capsys.readouterr().out.splitlines()
    (shown,) = (line for line in lines if line.startswith("XPGRAD_PRODUCTS"))
    assert "blas (has no effect any more" in shown
    (other,) = (line for line in lines if line.startswith("XPGRAD_JIT"))
    assert other.split() == ["XPGRAD_JIT", "1"]


def test_a_good_machine_gets_no_hints():
    assert info.hints(report()) == []


@pytest.mark.parametrize("kernels", ["Haswell", "Zen", "Prescott"])
def test_openblas_without_avx512_on_a_cpu_that_has_it(kernels):
    hint = only_hint(report(pools=[OPENBLAS._replace(kernels=kernels)]))
    assert kernels in hint.what
    assert "OPENBLAS_CORETYPE=SkylakeX" in hint.how


@pytest.mark.parametrize("kernels", ["SkylakeX", "Cooperlake", "SapphireRapids", "SAPPHIRERAPIDS", None])
def test_openblas_with_avx512_needs_nothing(kernels):
    assert info.hints(report(pools=[OPENBLAS._replace(kernels=kernels)])) == []


def test_haswell_kernels_are_right_without_avx512():
    given = report(cpu=CPU("Old", "x86_64", 2, avx512=False), pools=[OPENBLAS._replace(kernels="Haswell")])
    assert info.hints(given) == []


def test_llvmlite_missing_or_switched_off():
    assert only_hint(report(versions=without("llvmlite"))).how == "pip install llvmlite"
    assert only_hint(report(variables={"XPGRAD_JIT": "0"})).how == "unset XPGRAD_JIT"
    assert info.hints(report(variables={"XPGRAD_JIT": "1"})) == []


@pytest.mark.parametrize("package", [name for name in info.PACKAGES if name not in REQUIRED])
def test_every_missing_package_has_a_purpose(package):
    there = dict.fromkeys(info.PACKAGES, "1")
    assert info.missing(report(versions=there)) == []
    del there[package]
    given = report(versions=there)
    [hint] = info.missing(given) if package != "llvmlite" else info.hints(given)
    assert re.match(rf"{package} is not installed: \S.{{25}}", hint.what)
    assert hint.how == f"pip install {package}"


def test_numpy_without_a_fast_blas():
    assert "no BLAS library" in only_hint(report(blas="", pools=[])).what
    assert info.hints(report(blas="accelerate", pools=[])) == []
    # a generic BLAS at build time that is OpenBLAS when it runs
    assert info.hints(report(blas="blas 3.9")) == []


def test_more_threads_than_cores():
    hint = only_hint(report(pools=[OPENBLAS._replace(threads=64)]))
    assert "64 threads" in hint.what
    assert "OMP_NUM_THREADS=2" in hint.how


def test_threads_limited_to_one():
    assert "OMP_NUM_THREADS=1" in only_hint(report(variables={"OMP_NUM_THREADS": "1"})).what
    single = CPU("Small", "x86_64", 1, avx512=False)
    quiet = report(cpu=single, variables={"OMP_NUM_THREADS": "1"}, pools=[OPENBLAS._replace(threads=1)])
    assert info.hints(quiet) == []
    assert info.hints(report(variables={"OMP_NUM_THREADS": "2"})) == []


def test_thread_pools_that_can_meet():
    hint = only_hint(report(pools=[OPENBLAS, OPENMP]))
    assert "openblas (2) and libgomp (2)" in hint.what
    assert info.hints(report(pools=[OPENBLAS._replace(threads=1), OPENMP])) == []


def test_two_openmp_runtimes():
    other = Pool("openmp", "libiomp", "/lib/libiomp5.so", 1, None)
    hint = only_hint(report(pools=[OPENMP, other]))
    assert "2 OpenMP runtimes" in hint.what
    assert "/lib/libiomp5.so" in hint.what


def test_avx512_from_cpuinfo_and_from_numpy():
    assert info.cpu_has_avx512(CPUINFO, [])
    assert not info.cpu_has_avx512(CPUINFO.replace("avx512vl", ""), ["X86_V4"])  # the CPU's word counts
    assert info.cpu_has_avx512("", ["X86_V3", "X86_V4"])
    assert info.cpu_has_avx512("", ["AVX512_SKX"])
    assert not info.cpu_has_avx512("", ["X86_V3"])


def test_label_tells_processors_of_one_name_apart():
    assert CPU("EPYC", "x86_64", 2, avx512=True).label == "EPYC"
    assert CPU("EPYC", "AMD64", 2, avx512=False).label == "EPYC without AVX-512"
    assert CPU("Neoverse", "aarch64", 2, avx512=False).label == "Neoverse"


def test_cpu_name():
    assert info.cpu_name(CPUINFO) == "Some CPU @ 2 GHz"
    assert info.cpu_name("Processor: ARM") is None


@pytest.mark.parametrize(
    ("affinity", "cpu_max", "cores"),
    [
        (8, "", 8),
        (8, "max 100000\n", 8),
        (8, "200000 100000\n", 2),
        (2, "800000 100000", 2),
        (8, "10000 100000", 1),
    ],
)
def test_usable_cores(affinity, cpu_max, cores):
    assert info.usable_cores(affinity, cpu_max) == cores


def test_libraries_in_maps():
    maps = "\n".join(
        [
            "7f00-7f01 r--p 0000 fe:00 1  /a b/numpy.libs/libscipy_openblas64_-32a4.so",
            "7f01-7f02 r-xp 0000 fe:00 1  /a b/numpy.libs/libscipy_openblas64_-32a4.so",
            "7f02-7f03 r-xp 0000 fe:00 2  /torch/lib/libgomp-a34b.so.1",
            "7f03-7f04 r-xp 0000 fe:00 3  /usr/lib/libomp.so.5",
            "7f04-7f05 r-xp 0000 fe:00 4  /usr/lib/libc.so.6",
            "7f05-7f06 rw-p 0000 00:00 0  [heap]",
        ]
    )
    assert info.libraries_in_maps(maps) == [
        ("blas", "openblas", "/a b/numpy.libs/libscipy_openblas64_-32a4.so"),
        ("openmp", "libgomp", "/torch/lib/libgomp-a34b.so.1"),
        ("openmp", "libomp", "/usr/lib/libomp.so.5"),
    ]


@pytest.mark.parametrize(
    "name", ["openblas_get_corename", "scipy_openblas_get_corename64_", "openblas_get_corename64_"]
)
def test_openblas_function_under_its_names(name):
    library = SimpleNamespace(**{name: SimpleNamespace()})
    function = info.openblas_function(library, "get_corename", ctypes.c_char_p)
    assert function is getattr(library, name)
    assert function.restype is ctypes.c_char_p


def test_openblas_function_missing():
    assert info.openblas_function(SimpleNamespace(), "get_corename", ctypes.c_char_p) is None


def test_both_ways_of_reading_the_pools_agree():
    pytest.importorskip("threadpoolctl")
    by_maps = info._pools_by_maps()
    if not by_maps:
        pytest.skip("no /proc/self/maps here")
    readings = [
        {(p.library, p.threads, p.kernels) for p in pools if p.library == "openblas"}
        for pools in (by_maps, info._pools_by_threadpoolctl())
    ]
    assert readings[0] == readings[1]


def test_the_command_prints_a_report_and_hints(monkeypatch, capsys):
    given = report(versions={"numpy": "9.8.7"}, pools=[OPENBLAS._replace(kernels="Haswell")])
    monkeypatch.setattr(info, "read_machine", lambda: given)
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    for part in (
        "9.8.7",
        "not installed",
        "Haswell",
        "OPENBLAS_CORETYPE=SkylakeX",
        "pip install llvmlite",
        "AVX-512",
    ):
        assert part in text


def test_json_on_this_machine(capsys):
    assert main(["info", "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert read["versions"]["xpgrad"]
    assert {"numpy", "standard"} <= set(read["engines"])
    assert read["cpu"]["cores"] >= 1
    assert all({"what", "how"} == set(hint) for hint in read["hints"])


def test_a_torch_that_does_not_import_is_reported(monkeypatch, capsys):
    real = info.importlib.import_module

    def broken(name, *args):
        if name == "torch":
            raise OSError("libtorch is gone")
        return real(name, *args)

    monkeypatch.setattr(info, "version", lambda name: "1.0")
    monkeypatch.setattr(info.importlib, "import_module", broken)
    monkeypatch.setattr(info, "_pools_by_threadpoolctl", list)
    assert "does not import: libtorch is gone" in info.read_machine().versions["torch"]


def test_options_are_shown_as_speedups():
    times = options.Times("m", {"as it is": {"a": 2.0}, "without llvmlite": {"a": 8.0}})
    assert times.lines() == [["as it is", "2 ms, 1.00x"], ["without llvmlite", "8 ms, 0.25x"]]


def test_options_are_measured_here_and_kept(capsys, monkeypatch, tmp_path):
    assert list(options.stated().rows) == [option.name for option in options.OPTIONS]
    monkeypatch.setattr(options, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(
        options, "OPTIONS", [option for option in options.OPTIONS if "llvmlite" in option.name]
    )
    here = [option.name for option in options.OPTIONS if available(option)]
    monkeypatch.setattr(info, "read_machine", lambda: report(cpu=CPU("Some CPU", "x86_64", 2, avx512=True)))
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert f"What options are worth, measured on {options.stated().machine}" in out
    assert all(option.name in out for option in options.OPTIONS)
    assert "info --measure measures it here" in out
    assert main(["info", "--measure", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)["options"]
    assert measured["machine"] == "Some CPU, 2 cores"
    assert list(measured["rows"]) == here
    assert all(ms > 0 for times in measured["rows"].values() for ms in times.values())
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert "What options are worth, measured on Some CPU, 2 cores" in out
    assert all(name in out for name in here)
    assert "measures it here" not in out
    assert options.kept("Another CPU, 2 cores") is None
    (tmp_path / "options.json").write_text("{")
    assert options.kept("Some CPU, 2 cores") is None


def available(option):
    return all(importlib.util.find_spec(name) for name in option.needs)
