"""Show what xpgrad runs on here, and what would make it faster.

Shows versions, engines, the CPU, BLAS libraries with their threads and kernel sets, environment variables for
threads, the gain of each option, and hints. Sends nothing and changes nothing.
"""

import argparse
import ctypes
import importlib
import itertools
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xpgrad.engine.process.settings import has_sources, schedulable_cores, wants_jit

from . import options
from .console import paragraph, table

__all__ = ["add_arguments", "hints", "read_cpu", "run"]

PACKAGES = {
    "numpy": "",
    "array-api-compat": "",
    "torch": "xpgrad_torch (modules and autograd functions for PyTorch) needs it",
    "jax": "xpgrad_jax (functions for JAX's jit, grad and vmap) needs it",
    "keras": "xpgrad_keras (Keras' recurrent layers, faster) needs it",
    "tensorflow": "xpgrad_keras needs it for Keras on TensorFlow",
    "onnx": "xpgrad_onnx (operators for its evaluator, training graphs) needs it",
    "llvmlite": "",
    "array-api-strict": "'check' leaves out the strictest namespace",
    "threadpoolctl": "this report finds libraries with threads on Linux only",
    "rich": "tables and progress bars are plain text",
    "matplotlib": "the demos and 'bench --plot' draw no pictures",
    "scikit-learn": "'demo digits' has no pictures to read",
}
"""The packages. Each optional package has a text for its absence; the text for llvmlite is in `hints`."""
VARIABLES = (
    "XPGRAD_JIT",
    "XPGRAD_NUM_THREADS",
    "XPGRAD_PRODUCTS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OPENBLAS_CORETYPE",
    "MKL_NUM_THREADS",
    "XPGRAD_CPU",
    "XPGRAD_CPU_FEATURES",
    "VECLIB_MAXIMUM_THREADS",
)
WITHOUT_EFFECT = {"XPGRAD_PRODUCTS": "has no effect any more: compiled code has products of its own"}
# OpenBLAS's names of its x86-64 kernel sets that use AVX-512; every other one stops at AVX2 or before.
AVX512_KERNELS = frozenset({"skylakex", "cooperlake", "sapphirerapids"})
X86 = ("x86_64", "AMD64")


# ------------------------------------------------------------------------------------------ the report


class CPU(NamedTuple):
    """The processor, as far as this process may use it."""

    name: str
    architecture: str
    cores: int
    avx512: bool

    @property
    def label(self) -> str:
        """The name for tables of results; one name may mean processors with AVX-512 and without."""
        lacks = not self.avx512 and self.architecture in X86
        return f"{self.name} without AVX-512" if lacks else self.name


class Pool(NamedTuple):
    """A loaded library with its own threads."""

    kind: str  # "blas" or "openmp"
    library: str  # "openblas", "mkl", "libgomp" ...
    file: str
    threads: int | None
    kernels: str | None  # the kernel set that OpenBLAS has chosen


class Hint(NamedTuple):
    """Something that would help, and how to do it."""

    what: str
    how: str


class InfoReport(NamedTuple):
    """Everything that the command shows."""

    versions: dict[str, str]
    engines: dict[str, str]
    products: dict[str, str]
    cpu: CPU
    blas: str  # what NumPy was built with
    pools: list[Pool]
    variables: dict[str, str]


# ------------------------------------------------------------------------------------- pure detection


def cpu_has_avx512(cpuinfo: str, numpy_features: Iterable[str]) -> bool:
    """Whether the CPU has the AVX-512 of BLAS kernels (F, BW, DQ, VL), by the text of ``/proc/cpuinfo``.

    If the text has no flags, by the features that NumPy found: AVX512_SKX, or X86_V4 since NumPy 2.4.
    """
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    if flags:
        return {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= set(flags[1].split())
    return not {"AVX512_SKX", "X86_V4"}.isdisjoint(numpy_features)


def cpu_name(cpuinfo: str) -> str | None:
    """The model in the text of ``/proc/cpuinfo``, or None."""
    found = re.search(r"^model name\s*:\s*(.+?)\s*$", cpuinfo, re.MULTILINE)
    return found[1] if found else None


def usable_cores(affinity: int, cpu_max: str) -> int:
    """The number of cores for this process: its affinity, or less by its control group's ``cpu.max``.

    That file holds "200000 100000" for two cores, and "max 100000" for no limit.
    """
    quota = re.fullmatch(r"(\d+) (\d+)", cpu_max.strip())
    return min(affinity, max(1, round(int(quota[1]) / int(quota[2])))) if quota else affinity


def libraries_in_maps(maps: str) -> list[tuple[str, str, str]]:
    """Find BLAS and OpenMP libraries in the text of ``/proc/self/maps``: kind, library, file."""
    known = (
        ("blas", "openblas", re.compile(r"openblas")),
        ("blas", "mkl", re.compile(r"^libmkl_rt")),
        ("blas", "blis", re.compile(r"^libblis")),
        ("openmp", "libgomp", re.compile(r"^libgomp")),
        ("openmp", "libiomp", re.compile(r"^libiomp")),
        ("openmp", "libomp", re.compile(r"^libomp[.-]")),
    )
    files = dict.fromkeys(re.findall(r"(/\S.*\.so\S*)$", maps, re.MULTILINE))
    return [
        (kind, library, file)
        for file in files
        for kind, library, pattern in known
        if pattern.search(file.rsplit("/", 1)[1])
    ]


def hints(report: InfoReport) -> list[Hint]:
    """Changes that would make this machine faster, the most effective first."""
    rules: tuple[Callable[[InfoReport], Hint | None], ...] = (
        _kernel_set,
        _llvmlite,
        _numpy_blas,
        _too_many_threads,
        _too_few_threads,
        _openmp_copies,
        _pools,
    )
    return [hint for rule in rules if (hint := rule(report)) is not None]


def _kernel_set(report: InfoReport) -> Hint | None:
    if not report.cpu.avx512 or report.cpu.architecture not in X86:
        return None
    for pool in report.pools:
        if pool.library == "openblas" and pool.kernels and pool.kernels.lower() not in AVX512_KERNELS:
            return Hint(
                f"OpenBLAS has picked its {pool.kernels} kernels, which don't use this CPU's AVX-512: large "
                "matrix products of NumPy run at about half the speed that they could have",
                "set OPENBLAS_CORETYPE=SkylakeX in the environment before Python starts, and compare",
            )
    return None


def _llvmlite(report: InfoReport) -> Hint | None:
    if "llvmlite" not in report.versions:
        return Hint(
            "llvmlite is not installed: the formulas run in NumPy, block by block, instead of compiled",
            "pip install llvmlite",
        )
    if not has_sources():
        return Hint(
            "xpgrad's source files are missing: formulas run in NumPy, block by block, instead of compiled",
            "pack the .py files of xpgrad and its adapters, as our hook for PyInstaller does",
        )
    if (word := report.variables.get("XPGRAD_JIT", "")) and not wants_jit(word):
        return Hint(
            f"XPGRAD_JIT={word} keeps llvmlite from compiling the elementwise formulas",
            "unset XPGRAD_JIT",
        )
    return None


def _numpy_blas(report: InfoReport) -> Hint | None:
    fast = ("openblas", "mkl", "blis", "accelerate", "armpl", "nvpl", "flexiblas")
    if any(name in report.blas.lower() for name in fast):
        return None
    # A distribution's NumPy may be built with a generic BLAS that is OpenBLAS when it runs.
    if any(pool.kind == "blas" for pool in report.pools):
        return None
    return Hint(
        f"NumPy was built with {report.blas or 'no BLAS library'}: matrix products may run many times slower "
        "than in its official wheels, which bring OpenBLAS",
        "pip install --force-reinstall --only-binary numpy numpy",
    )


def _too_many_threads(report: InfoReport) -> Hint | None:
    most = max((pool.threads or 0 for pool in report.pools), default=0)
    if most <= report.cpu.cores:
        return None
    return Hint(
        f"a library runs {most} threads, but this process has {report.cpu.cores} core(s): threads that wait "
        "for each other cost much time",
        f"set OMP_NUM_THREADS={report.cpu.cores} and OPENBLAS_NUM_THREADS={report.cpu.cores}",
    )


def _too_few_threads(report: InfoReport) -> Hint | None:
    variables = report.variables.items()
    single = [f"{name}=1" for name, value in variables if name.endswith("_THREADS") and value == "1"]
    if not single or report.cpu.cores == 1:
        return None
    return Hint(
        f"{', '.join(single)}: only one thread computes, on {report.cpu.cores} cores",
        "unset it, unless other processes keep those cores busy",
    )


def _openmp_copies(report: InfoReport) -> Hint | None:
    openmp = [pool for pool in report.pools if pool.kind == "openmp"]
    if len(openmp) < 2:
        return None
    return Hint(
        f"{len(openmp)} OpenMP runtimes are loaded ({', '.join(pool.file for pool in openmp)}): each "
        "keeps its own threads, and these slow each other down",
        "use packages of one origin (all from pip or all from conda), or set OMP_WAIT_POLICY=PASSIVE",
    )


def missing(report: InfoReport) -> list[Hint]:
    """A hint for each optional package that is not installed."""
    return [
        Hint(f"{package} is not installed: {purpose}", f"pip install {package}")
        for package, purpose in PACKAGES.items()
        if purpose and package not in report.versions
    ]


def _pools(report: InfoReport) -> Hint | None:
    busy = [pool for pool in report.pools if (pool.threads or 0) > 1]
    if len({pool.kind for pool in busy}) < 2:
        return None
    names = " and ".join(f"{pool.library} ({pool.threads})" for pool in busy)
    return Hint(
        f"several thread pools are loaded: {names}. A program that keeps several of them busy at the same "
        "time is much slower",
        "compute in NumPy or in torch, not in both at once; OPENBLAS_NUM_THREADS=1 if only torch computes",
    )


# ------------------------------------------------------------------------------------ reading the machine


def read_machine() -> InfoReport:
    """Read everything, with torch and llvmlite imported, as in a program."""
    from ..engine import describe_engines, describe_products

    versions = _versions()
    for name in ("torch", "llvmlite"):
        if name in versions:
            try:
                importlib.import_module(name)
            except Exception as error:  # an installation may be broken in any way
                versions[name] += f" (does not import: {error})"
    engines, products = describe_engines(), describe_products()
    np.ones((64, 64)) @ np.ones((64, 64))  # a BLAS library may load, and choose its kernels, on first use
    build: Any = np.show_config(mode="dicts")
    blas = build.get("Build Dependencies", {}).get("blas", {})
    return InfoReport(
        versions=versions,
        engines=engines,
        products=products,
        cpu=read_cpu(),
        blas=" ".join(str(blas[key]) for key in ("name", "version") if blas.get(key)),
        pools=_pools_by_threadpoolctl() if "threadpoolctl" in versions else _pools_by_maps(),
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
    )


def read_cpu() -> CPU:
    """The processor of this process."""
    build: Any = np.show_config(mode="dicts")
    cpuinfo = _text("/proc/cpuinfo")
    return CPU(
        name=cpu_name(cpuinfo) or _cpu_name_elsewhere(),
        architecture=platform.machine(),
        cores=usable_cores(schedulable_cores(), _text("/sys/fs/cgroup/cpu.max")),
        avx512=cpu_has_avx512(cpuinfo, build.get("SIMD Extensions", {}).get("found", [])),
    )


def _versions() -> dict[str, str]:
    from .. import __version__

    found = {"Python": f"{platform.python_version()} ({platform.system()})", "xpgrad": __version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _cpu_name_elsewhere() -> str:
    """The CPU's name on other systems than Linux."""
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            pass
    return platform.processor() or platform.machine()


def _pools_by_threadpoolctl() -> list[Pool]:
    from threadpoolctl import threadpool_info

    return [
        Pool(
            kind=entry["user_api"],
            library=entry["internal_api"] if entry["user_api"] == "blas" else entry["prefix"],
            file=entry["filepath"],
            threads=entry["num_threads"],
            kernels=entry.get("architecture"),
        )
        for entry in threadpool_info()
    ]


def _pools_by_maps() -> list[Pool]:
    """The same without threadpoolctl, on Linux only, from the loaded libraries."""
    pools = []
    for kind, library, file in libraries_in_maps(_text("/proc/self/maps")):
        try:
            handle = ctypes.CDLL(file)
        except OSError:  # an old file, replaced while it was loaded
            continue
        if library == "openblas":
            corename = openblas_function(handle, "get_corename", ctypes.c_char_p)
            threads = openblas_function(handle, "get_num_threads", ctypes.c_int)
            kernels = corename().decode() if corename else None
        else:
            kernels = None
            threads = getattr(handle, "omp_get_max_threads", None) if kind == "openmp" else None
        pools.append(Pool(kind, library, file, int(threads()) if threads else None, kernels))
    return pools


def openblas_function(library: Any, name: str, result: Any) -> Any:
    """The library's ``openblas_<name>``, with the prefix and suffix of any build, or None."""
    for prefix, suffix in itertools.product(("", "scipy_"), ("", "64_", "_64", "64")):
        function = getattr(library, f"{prefix}openblas_{name}{suffix}", None)
        if function is not None:
            function.restype, function.argtypes = result, []
            return function
    return None


# ------------------------------------------------------------------------------------------ the command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument(
        "--measure",
        action="store_true",
        help="measure the gain of llvmlite, threads and the BLAS here, in some seconds; later calls show it",
    )


def run(args: argparse.Namespace) -> int:
    """Read the machine and print the report; always 0."""
    report = read_machine()
    found = hints(report)
    machine = f"{report.cpu.name}, {report.cpu.cores} cores"
    times = options.measure(machine) if args.measure else options.kept(machine) or options.stated()
    if args.json:
        print(json.dumps(as_json(report, found, times), indent=2))
    else:
        _print(report, found)
        _print_options(times, machine)
    return 0


def as_json(report: InfoReport, found: Sequence[Hint], times: options.Times) -> dict[str, Any]:
    """The report in JSON types."""
    return {
        **report._asdict(),
        "cpu": report.cpu._asdict(),
        "pools": [pool._asdict() for pool in report.pools],
        "options": times._asdict(),
        "hints": [hint._asdict() for hint in found],
        "missing": [hint._asdict() for hint in missing(report)],
    }


def _print(report: InfoReport, found: Sequence[Hint]) -> None:
    def pairs(title: str, entries: Mapping[str, object]) -> None:
        table(title, ("", ""), list(entries.items()))
        print()

    absent = {name: "not installed" for name in PACKAGES if name not in report.versions}
    pairs("Versions", report.versions | absent)
    pairs("Engines", report.engines)
    if report.products:
        pairs("Matrix products", report.products)
    avx512 = ", with AVX-512" if report.cpu.avx512 else ""
    cpu = {"CPU": f"{report.cpu.name} ({report.cpu.architecture}{avx512})", "cores": report.cpu.cores}
    pairs("Machine", cpu | {"BLAS": f"NumPy is built with {report.blas or 'an unknown BLAS'}"})
    if report.pools:
        columns = ("library", "threads", "kernels", "file")
        rows = [(p.library, p.threads or "unknown", p.kernels or "-", p.file) for p in report.pools]
        table("Libraries with threads of their own", columns, rows)
        print()
    if report.variables:
        notes = {name: f" ({note})" for name, note in WITHOUT_EFFECT.items()}
        pairs("Environment", {name: value + notes.get(name, "") for name, value in report.variables.items()})
    print("What would be faster" if found else "Nothing that xpgrad knows of would make this machine faster.")
    for hint in found:
        paragraph(f"- {hint.what}.\n    {hint.how}", indent="    ")
    without = missing(report)
    if without:
        print("\nWhat is missing, and what it is for")
    for hint in without:
        paragraph(f"- {hint.what}.\n    {hint.how}", indent="    ")


STEP = "A step is forward and backward of 50 steps, 32 sequences, 64 inputs, 64 units."
"""The meaning of the first column's name."""


def _print_options(times: options.Times, machine: str) -> None:
    print()
    works = next(iter(times.rows.values()))
    table(
        f"What options are worth, measured on {times.machine}",
        ["option", *works],
        times.lines(),
        footer=f"1.25x: 1.25 times as fast as the first line's option. {STEP}",
    )
    if times.machine != machine:
        print("python -m xpgrad info --measure measures it here.")
