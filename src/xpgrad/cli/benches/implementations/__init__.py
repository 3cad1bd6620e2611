"""Who runs the works: ours and the peers, one file for each.

A module offers ``make(work)``, which returns an object with the methods ``step`` and ``backward`` (one of
them where it has no other) that take nothing and finish their work before they return, and ``describe()``, a
line about the version and the path that is taken. What it does not have raises NotImplementedError: asv skips
such a benchmark, the command line says why. Where it can tell, it offers ``path(run, what)``: what a run
really calls; where it has a matrix product of its own ``product_rate(dtype, seconds)``.
"""

import importlib
from types import ModuleType
from typing import Any

MODULES = {
    "xpgrad-numpy": "arrays",
    "xpgrad-torch": "adapter",
    "xpgrad-jax": "jax_adapter",
    "torch": "pytorch",
    "ort": "onnx_runtime",
    "jax": "jax_xla",
}
OURS = ("xpgrad-numpy", "xpgrad-torch", "xpgrad-jax")


def module_of(name: str) -> ModuleType:
    """The module of an implementation."""
    return importlib.import_module(f".{MODULES[name]}", __name__)


def make(name: str, work: Any) -> Any:
    """One implementation of a work, ready to run."""
    return module_of(name).make(work)


def need(name: str) -> Any:
    """Import an optional module, or say that it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotImplementedError(f"{name} is not installed") from error


def kernel(name: str) -> Any:
    """A function of xpgrad's; an old version may lack it."""
    function = getattr(importlib.import_module("xpgrad"), name, None)
    if function is None:
        raise NotImplementedError(f"this xpgrad has no {name}")
    return function
