"""Processors and systems that are not here: what they lack is taken away, one thing at a time."""

import errno
import os
import platform
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import xpgrad

pytest.importorskip("llvmlite", reason="llvmlite is not installed: nothing is compiled")

from llvmlite import binding, ir

from xpgrad.engine.compiled import machine_code, register_tiles
from xpgrad.engine.compiled.vector_code import TileSums, VectorCode
from xpgrad.engine.process import settings

WITHOUT_FMA = "+cmov,+cx8,+cx16,+fxsr,+mmx,+popcnt,+sahf,+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2"


def in_new_process(code, *words, **variables):
    """What the code prints in a process of its own, where warnings are errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *words],
        env=os.environ | variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- processors without a fused multiply-add


def assembly(triple, cpu, dtype, lanes):
    """What LLVM makes of one multiply-add of a vector, for a processor by its name."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple(triple).create_target_machine(cpu=cpu)
    module = ir.Module()
    module.triple = triple
    pointer = ir.IntType(8).as_pointer()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer] * 3), "multiply_add")
    code = VectorCode(ir.IRBuilder(function.append_basic_block()), dtype, lanes)
    real = {"float32": ir.FloatType(), "float64": ir.DoubleType()}[dtype].as_pointer()
    target, factor, vector = (code.builder.bitcast(argument, real) for argument in function.args)
    sums = TileSums(code, [[code.load(target)]])
    sums.multiply_add(factor, None, [code.load(vector)])
    sums.store(target, ir.IntType(64)(0))
    code.builder.ret_void()
    return machine.emit_assembly(binding.parse_assembly(str(module)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("vectors", [1, 16, 32, 64], ids="{} bytes".format)
@pytest.mark.parametrize(
    ("triple", "cpu", "fused"),
    [
        ("x86_64-unknown-linux-gnu", "x86-64", None),
        ("x86_64-unknown-linux-gnu", "x86-64-v2", None),
        ("x86_64-pc-windows-msvc", "goldmont", None),
        ("x86_64-unknown-linux-gnu", "x86-64-v3", "vfmadd"),
        ("x86_64-apple-darwin", "x86-64-v4", "vfmadd"),
        ("aarch64-unknown-linux-gnu", "generic", "fmla"),
        ("arm64-apple-darwin", "apple-m1", "fmla"),
    ],
)
def test_a_multiply_add_calls_no_function(triple, cpu, fused, vectors, dtype):
    """It is one instruction where the processor has it, else two."""
    lanes = max(1, vectors // (4 if dtype == "float32" else 8))
    text = assembly(triple, cpu, dtype, lanes)
    words = text.split()
    assert not {"callq", "call", "bl", "jmp", "b"} & {*words}, text
    names = {"fmla": ("fmla", "fmadd"), "vfmadd": ("vfmadd",), None: ("mulss", "mulsd", "mulps", "mulpd")}
    assert any(word.startswith(names[fused]) for word in words), text


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="this processor is none of x86")
def test_a_convolution_calls_no_function_for_each_element():
    """The C library's fma and fmaf end the process, so nothing calls them."""
    in_new_process(
        """
        import ctypes, os
        import numpy as np
        from llvmlite import binding

        def stop():
            os.write(2, b"fma was called")
            os._exit(3)

        kept = ctypes.CFUNCTYPE(None)(stop)
        for name in ("fma", "fmaf"):
            binding.add_symbol(name, ctypes.cast(kept, ctypes.c_void_p).value)

        import xpgrad
        from xpgrad.engine.compiled.machine_code import features
        from xpgrad.engine.compiled.register_tiles import tiles

        assert "fma" not in features() and tiles().bytes == 16
        rng = np.random.default_rng(0)
        X = rng.standard_normal((1, 16, 9, 9), dtype="float32")
        W = rng.standard_normal((24, 16, 3, 3), dtype="float32")
        Y = xpgrad.conv(X, W, pads=1, method="taps")
        with xpgrad.use_engine("standard"):
            expected = xpgrad.conv(X.astype("float64"), W.astype("float64"), pads=1)
        np.testing.assert_allclose(Y, expected, rtol=0, atol=1e-4)
        """,
        XPGRAD_CPU="x86-64-v2", XPGRAD_CPU_FEATURES=WITHOUT_FMA, XPGRAD_JIT="1",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("triple", "features", "size", "tall"),
    [
        ("x86_64-unknown-linux-gnu", WITHOUT_FMA, 16, (4, 3)),
        ("x86_64-unknown-linux-gnu", f"{WITHOUT_FMA},+avx,-avx2,-avx512f", 16, (4, 3)),
        ("x86_64-unknown-linux-gnu", f"{WITHOUT_FMA},+avx,+avx2,+fma,-avx512f", 32, (4, 3)),
        ("x86_64-unknown-linux-gnu", "+avx2,+avx512f,+fma", 64, (8, 3)),
        ("aarch64-unknown-linux-gnu", "-aes,-sve", 16, (8, 3)),
        ("arm64-apple-darwin", "", 16, (8, 3)),
        ("x86_64-unknown-linux-gnu", "", 16, (4, 3)),
    ],
)
def test_tiles_follow_the_features_that_llvm_may_use(triple, features, size, tall, monkeypatch):
    for module in (machine_code, register_tiles):
        monkeypatch.setattr(module, "target", lambda: (triple, "a cpu", features))
    shape = register_tiles.tiles.__wrapped__()
    assert (shape.bytes, shape.tall) == (size, tall)


@pytest.mark.parametrize(
    ("variables", "size"),
    [({"XPGRAD_CPU": "x86-64"}, 16), ({"XPGRAD_CPU_FEATURES": "+avx,+avx2,-avx512f"}, 32)],
    ids=["a name alone", "features"],
)
def test_what_the_environment_says_is_told_to_tiles(variables, size):
    code = "from xpgrad.engine.compiled.register_tiles import tiles; print(tiles().bytes)"
    assert int(in_new_process(code, **variables)) == size


# --- systems that lack functions of the C library

WATCH_NAMES = """
from llvmlite import binding

names = set()
parse = binding.parse_assembly


def watched(text):
    module = parse(text)
    declared = [*module.functions, *module.global_variables]
    names.update(value.name for value in declared if value.is_declaration)
    return module


binding.parse_assembly = watched
"""


def test_compiled_code_names_no_function_of_the_system(tmp_path):
    """A name that a system lacks ends the process."""
    code = """
        from xpgrad.engine.programs.foreign import HostTeam
        from xpgrad.engine.programs.program import _linker

        assert all(HostTeam().addresses) and _linker()
        assert {name for name in names if not name.startswith("llvm.")} == {"xpgrad_system_calls"}
    """
    in_new_process(WATCH_NAMES + textwrap.dedent(code), XPGRAD_CACHE_DIR=str(tmp_path), XPGRAD_JIT="1")


WITHOUT_FUNCTIONS = """
import sys

from xpgrad.engine.process import blas

lacking = sys.argv[1:]
symbol = blas.symbol
blas.symbol = lambda library, name: 0 if name in lacking else symbol(library, name)

import jax
import numpy as np

import xpgrad
import xpgrad_jax

print(xpgrad_jax.why_plain())
rng = np.random.default_rng(0)
X, W, R = (rng.standard_normal(s, dtype="float32") / 30 for s in ((64, 128, 32), (1, 128, 32), (1, 128, 128)))
for _ in range(2):
    found = jax.jit(xpgrad_jax.rnn)(X, W, R)[0]
np.testing.assert_allclose(found, xpgrad.rnn(X, W, R).H_all, rtol=0, atol=1e-5)
"""


@pytest.mark.parametrize(
    ("lacking", "reason"),
    [
        (["madvise"], "None"),
        (["sched_yield"], "None"),
        (["madvise", "sched_yield"], "None"),
    ],
    ids=["no advice", "no yield", "neither"],
)
def test_programs_in_xla_without_functions_of_the_system(lacking, reason):
    """Results of 4 MB, for which memory is advised, in two threads, of which one may have to wait."""
    pytest.importorskip("jax", reason="jax not installed")
    out = in_new_process(WITHOUT_FUNCTIONS, *lacking, XPGRAD_JIT="1", XPGRAD_NUM_THREADS="2")
    assert out.strip() == reason


# --- systems that lack files, modules and functions of Python's

LACKING = {
    "no /proc, no /sys": """
        import builtins, io, os, pathlib

        def refuse(path):
            if str(path).startswith(("/proc", "/sys")):
                raise FileNotFoundError(2, "No such file or directory", str(path))

        opened, found = io.open, os.stat
        io.open = builtins.open = lambda path, *rest, **more: (refuse(path), opened(path, *rest, **more))[1]
        os.stat = lambda path, *rest, **more: (refuse(path), found(path, *rest, **more))[1]
    """,
    "no fork": """
        import os

        for name in ("fork", "forkpty", "register_at_fork"):
            vars(os).pop(name, None)
    """,
    "no users, no modules of POSIX": """
        import os, sys

        for name in ("getuid", "getgid"):
            vars(os).pop(name, None)
        sys.modules.update(dict.fromkeys(("fcntl", "grp", "pwd", "resource")))
    """,
    "a console for ASCII": "import sys\nsys.stdout.reconfigure(encoding='ascii')",
}
STEP = """
import sys

sys.modules.update(jax=None, torch=None)  # they need some of it themselves

import numpy as np

import xpgrad
from xpgrad.__main__ import main

assert main(["info"]) == 0
del sys.modules["jax"], sys.modules["torch"]
rng = np.random.default_rng(0)
X, W, R = (rng.standard_normal(shape, dtype="float32") for shape in ((5, 4, 3), (1, 24, 3), (1, 24, 6)))
outputs, pullback = xpgrad.vjp(xpgrad.lstm, X, W, R, sequence_lens=[5, 2, 0, 4])
found = pullback(outputs.H_all).dR
with xpgrad.use_engine("standard"):
    outputs, pullback = xpgrad.vjp(xpgrad.lstm, X, W, R, sequence_lens=[5, 2, 0, 4])
    expected = pullback(outputs.H_all).dR
np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
"""


@pytest.mark.parametrize("lacking", LACKING)
def test_a_system_that_lacks(lacking):
    in_new_process(textwrap.dedent(LACKING[lacking]) + STEP)


@pytest.mark.parametrize(("cores", "threads"), [(3, 3), (None, 1)])
def test_threads_where_the_system_tells_no_affinity(cores, threads, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.delenv("XPGRAD_NUM_THREADS", raising=False)
    assert settings.thread_count() == settings.schedulable_cores() == threads


def test_peak_memory_is_told_by_no_system_without_proc_and_resource(monkeypatch):
    from xpgrad_bench import memory

    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.setattr(memory, "Path", lambda path: Path("/nowhere") / path.lstrip("/"))
    with pytest.raises(NotImplementedError, match="does not tell a process's peak memory"):
        memory.peak(lambda: None, lambda: None)


def test_the_load_is_told_by_no_system_without_proc(monkeypatch):
    from xpgrad_bench import load

    monkeypatch.setattr(load, "Path", lambda path: Path("/nowhere") / path.lstrip("/"))
    assert load.Watch([]).others() is None


SPAWNED = """
import multiprocessing

import numpy as np

import xpgrad


def step(seed):
    X = np.random.default_rng(seed).standard_normal((4, 3, 2))
    return xpgrad.rnn(X, np.ones((1, 5, 2)), np.ones((1, 5, 5)) / 9).H_t


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(step, range(3))
    np.testing.assert_array_equal(found, [step(seed) for seed in range(3)])
"""


def test_processes_that_are_spawned(tmp_path):
    """Windows and macOS have no others. What a child computes has the parent's bits."""
    path = tmp_path / "spawned.py"
    path.write_text(SPAWNED, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


WITHOUT_OPENMP = """
import numpy as np
import torch

from xpgrad.engine.process import blas, team

team.symbol = lambda library, name: 0 if name == "GOMP_parallel" else blas.symbol(library, name)

import xpgrad_torch
from xpgrad_torch.engine import TorchEngine

torch.manual_seed(0)
assert isinstance(TorchEngine().team, team.PoolTeam)
theirs = torch.nn.LSTM(6, 12)
ours = xpgrad_torch.LSTM(6, 12)
ours.load_state_dict(theirs.state_dict())
x = torch.randn(9, 64, 6)
for _ in range(3):
    for module in (theirs, ours):
        module.zero_grad()
        module(x)[0].square().sum().backward()
for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)
image = torch.randn(2, 8, 9, 9)
theirs, ours = torch.nn.Conv2d(8, 16, 3, padding=1), xpgrad_torch.Conv2d(8, 16, 3, padding=1)
ours.load_state_dict(theirs.state_dict())
torch.testing.assert_close(ours(image), theirs(image), rtol=1e-4, atol=1e-4)
"""


@pytest.mark.parametrize("threads", ["1", "2"])
def test_tensors_where_openmp_has_no_entry_of_gcc(threads):
    """macOS' and Windows' PyTorch have other OpenMP runtimes, so threads are our own."""
    pytest.importorskip("torch", reason="torch is not installed")
    in_new_process(WITHOUT_OPENMP, XPGRAD_NUM_THREADS=threads)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "intp", "long"])
def test_lengths_of_every_integer(dtype, rng):
    """C's long has 32 bits on Windows."""
    X, W, R = (rng.normal(size=shape).astype("float32") for shape in ((5, 3, 2), (1, 4, 2), (1, 4, 4)))
    expected = xpgrad.rnn(X, W, R, sequence_lens=[5, 0, 3])
    for _ in range(3):
        found = xpgrad.rnn(X, W, R, sequence_lens=np.asarray([5, 0, 3], dtype))
        np.testing.assert_array_equal(found.H_all, expected.H_all)
        np.testing.assert_array_equal(found.H_t, expected.H_t)


class WindowsPipe:
    """A pipe whose reader has ended, as Windows answers."""

    def write(self, text):
        raise OSError(errno.EINVAL, "Invalid argument")

    flush = close = lambda self: self.write("")


def test_a_worker_that_ended_where_that_is_an_invalid_argument():
    from xpgrad_bench.processes import Worker

    worker = Worker("xpgrad-numpy")
    worker._process.kill()
    worker._requests.close()
    worker._requests = WindowsPipe()
    with pytest.raises(RuntimeError, match="xpgrad-numpy ended while it was asked for its version"):
        worker.ask("its version")
    worker.close()


def test_hash_seeds_share_compiled_code(tmp_path):
    """The text of what is compiled has no order of a set: another process finds what one has compiled."""
    code = """
        import numpy as np

        import xpgrad

        xpgrad.gelu(np.ones(5, "float32"), approximate="tanh")
        xpgrad.softmax(np.ones((2, 5), "float32"))
    """
    found = []
    for seed in "0", "1", "12345":
        in_new_process(code, XPGRAD_CACHE_DIR=str(tmp_path), XPGRAD_JIT="1", PYTHONHASHSEED=seed)
        found.append({(path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*.o")})
    assert found[0]
    assert found[1] == found[2] == found[0]
