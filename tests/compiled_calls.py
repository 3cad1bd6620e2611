"""Compiled functions for tests, and calls of such that have no wrapper for Python."""

TEXT = """
from xpgrad.engine.compiled.cache import cfunc, njit

@njit()
def twice(x):
    return 2 * x

@cfunc("float64(float64)")
def thrice(x):
    return 3 * x
"""
"""A text as the cache folder keeps it."""


def from_python(function):
    """The function, called by a compiled one that has a wrapper."""
    from numba import njit

    return njit(lambda *arguments: function(*arguments))
