"""Calls of functions that have no wrapper for Python, because compiled code alone calls them."""


def from_python(function):
    """The function, called by a compiled one that has a wrapper."""
    from numba import njit

    return njit(lambda *arguments: function(*arguments))
