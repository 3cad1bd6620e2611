"""Compiled functions for tests."""

import ctypes
import itertools

TEXT = """
from xpgrad.engine.compiled.cache import cfunc

@cfunc("float64(float64)")
def twice(x):
    return 2 * x

@cfunc("float64(float64)")
def thrice(x):
    return 3 * x
"""
"""A text as the cache folder keeps its functions."""

_TYPES = {
    "void": None, "int64": ctypes.c_int64, "int32": ctypes.c_int32, "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}  # fmt: skip
_numbers = itertools.count()


def called(address, signature):
    """The C function at an address, for Python."""
    result, _, arguments = signature.rstrip(")").partition("(")
    kinds = [_TYPES[kind.strip()] for kind in arguments.split(",") if kind.strip()]
    return ctypes.CFUNCTYPE(_TYPES[result], *kinds)(address)


def written(function, signature):
    """LLVM's module of a function of the part of Python that is compiled, and the name that it has there."""
    from llvmlite import ir

    from xpgrad.engine.compiled.translate import CFunction

    name = f"tested_{next(_numbers)}"
    module = ir.Module(name)
    CFunction(function, signature).write(module, name)
    return module, name


def compiled(function, signature):
    """The same, compiled, for Python."""
    from xpgrad.engine.compiled.machine_code import linker

    module, name = written(function, signature)
    linker().link(linker().compiled(module))
    return called(linker().address(name), signature)
