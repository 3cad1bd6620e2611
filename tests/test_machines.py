"""Processors and systems that are not here: what they lack is taken away, one thing at a time."""

import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("numba", reason="numba is not installed: nothing is compiled")

from llvmlite import binding, ir

from xpgrad.engine.compiled import register_tiles
from xpgrad.engine.compiled.vector_code import VectorCode
from xpgrad.engine.process import numba_private

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
    sums = [[code.variable(code.load(target))]]
    code.multiply_add(sums, factor, None, [code.load(vector)])
    code.store(sums, target, ir.IntType(64)(0))
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
        from xpgrad.engine.compiled.register_tiles import features, tiles

        assert "fma" not in features() and tiles().bytes == 16
        rng = np.random.default_rng(0)
        X = rng.standard_normal((1, 16, 9, 9), dtype="float32")
        W = rng.standard_normal((24, 16, 3, 3), dtype="float32")
        Y = xpgrad.conv(X, W, pads=1, method="taps")
        with xpgrad.use_engine("standard"):
            expected = xpgrad.conv(X.astype("float64"), W.astype("float64"), pads=1)
        np.testing.assert_allclose(Y, expected, rtol=0, atol=1e-4)
        """,
        NUMBA_CPU_NAME="x86-64-v2", NUMBA_CPU_FEATURES=WITHOUT_FMA, XPGRAD_JIT="1", XPGRAD_PRODUCTS="own",
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
def test_tiles_follow_the_features_that_numba_gives_llvm(triple, features, size, tall, monkeypatch):
    monkeypatch.setattr(numba_private, "target", lambda: (triple, features))
    shape = register_tiles.tiles.__wrapped__()
    assert (shape.bytes, shape.tall) == (size, tall)


@pytest.mark.parametrize(
    ("variables", "size"),
    [({"NUMBA_CPU_NAME": "generic"}, 16), ({"NUMBA_ENABLE_AVX": "0"}, 16)],
    ids=["a name alone", "numba's switch for AVX"],
)
def test_what_numba_is_told_is_told_to_tiles(variables, size):
    code = "from xpgrad.engine.compiled.register_tiles import tiles; print(tiles().bytes)"
    assert int(in_new_process(code, **variables)) == size


# --- systems that lack functions of the C library

WATCH_NAMES = """
from llvmlite import binding

names = set()
add_module = binding.ExecutionEngine.add_module


def watched(engine, module):
    declared = [*module.functions, *module.global_variables]
    names.update(value.name for value in declared if value.is_declaration)
    return add_module(engine, module)


binding.ExecutionEngine.add_module = watched
"""


def test_compiled_code_names_no_function_of_the_system(tmp_path):
    """A name that a system lacks ends the process; numba's and Python's are everywhere."""
    code = """
        from xpgrad.engine.programs import entry_points

        entry_points.compiled_task()
        entry_points.compiled_parallel()
        entry_points.compiled_linker("float32")
        known = ("llvm.", "numba_", "NRT_", "Py", "_Py", "_ZN")
        assert {name for name in names if not name.startswith(known)} == {"xpgrad_system_calls"}
    """
    in_new_process(WATCH_NAMES + textwrap.dedent(code), XPGRAD_CACHE_DIR=str(tmp_path), XPGRAD_JIT="1")


WITHOUT_FUNCTIONS = """
import sys

from numba.core import types

from xpgrad.engine.process import blas

lacking = sys.argv[1:]
by_name, symbol = types.ExternalFunction.__init__, blas.symbol
types.ExternalFunction.__init__ = lambda self, name, kind: by_name(self, name + "_" * (name in lacking), kind)
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
        (["malloc"], "OSError: the C library has no malloc and free that compiled code could call"),
    ],
    ids=["no advice", "no yield", "neither", "no memory"],
)
def test_programs_in_xla_without_functions_of_the_system(lacking, reason):
    """Results of 4 MB, for which memory is advised, in two threads, of which one may have to wait."""
    pytest.importorskip("jax", reason="jax not installed")
    out = in_new_process(WITHOUT_FUNCTIONS, *lacking, XPGRAD_JIT="1", XPGRAD_NUM_THREADS="2")
    assert out.strip() == reason
