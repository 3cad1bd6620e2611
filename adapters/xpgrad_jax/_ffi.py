"""XLA's calls of our programs: the handler, its registration, and whether it fits this JAX."""

from __future__ import annotations

import functools
import hashlib
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from xpgrad.engine.process.machine import jit_enabled
from xpgrad.engine.programs.foreign import ForeignProgram

TARGET = "xpgrad_program"


@functools.cache
def _process_words() -> np.ndarray:
    """What compiled code looks up by its symbol: the process's word, and the address of `schedule`."""
    return np.asarray([secrets.randbits(62), 0], dtype=np.int64)


@functools.cache
def why_not() -> str | None:
    """Why programs cannot run in XLA's own calls here; None where they can; XLA then knows them."""
    if not jit_enabled():
        return "numba is not there, or XPGRAD_JIT is 0"
    try:
        _register()
    except Exception as error:  # whatever another version of numba, XLA or the system says
        return f"{type(error).__name__}: {error}"
    return None


def _register() -> None:
    from llvmlite import binding

    from xpgrad.engine.compiled.cache import load
    from xpgrad.engine.compiled.source import versions
    from xpgrad_jax import native_frame

    own = hashlib.sha256(Path(native_frame.__file__).read_bytes()).hexdigest()[:20]
    binding.add_symbol(native_frame.PROCESS, _process_words().ctypes.data)
    text = f"""# XLA's calls of programs, {own}; generated, {versions()}
from numba import cfunc

from xpgrad_jax.native_frame import handle, schedule


@cfunc("int64(int64, int64, int64)", cache=True)
def run_schedule(host, task, data):
    return schedule(host, task, data)


@cfunc("int64(int64)", cache=True)
def run(frame):
    return handle(frame)
"""
    module = load("xla_handler", text)
    handler, _process_words()[1] = module.run, module.run_schedule.address
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(handler.ctypes), platform="cpu")


def call(
    program: ForeignProgram, arrays: Sequence[Any], results: Sequence[jax.ShapeDtypeStruct]
) -> list[Any]:
    """The program's results, as one call of XLA's."""
    function = jax.ffi.ffi_call(TARGET, list(results), vmap_method="sequential")
    attributes = {"process": np.int64(_process_words()[0]), "program": np.int64(program.address)}
    return list(function(*arrays, **attributes))
