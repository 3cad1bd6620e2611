"""The implementations of works: ours and the peers', one file for each.

A module has a table ``RUNS``. By the name of a work's class it has a function from the work to an object with
the methods ``step`` and ``backward``, or one of them. These take no arguments, and return when all is
computed. ``describe()`` is a line about the version and the code path. A missing work raises
NotImplementedError: asv skips the benchmark, the command line says why. A module may also have ``path(run,
what)``, the functions that a run really calls, and ``product_rate(dtype, seconds)`` for its own matrix
product.
"""

import importlib
from types import ModuleType
from typing import Any

from ..keras_models import BACKENDS

MODULES = {
    "xpgrad-numpy": "arrays",
    "xpgrad-torch": "adapter",
    "xpgrad-jax": "jax_adapter",
    "torch": "pytorch",
    "ort": "onnx_runtime",
    "jax": "jax_xla",
    **{f"xpgrad-keras-{backend}": "keras_adapter" for backend in BACKENDS},
    **{f"keras-{backend}": "keras_own" for backend in BACKENDS},
}
OURS = tuple(name for name in MODULES if name.startswith("xpgrad-"))


def environment(name: str) -> dict[str, str]:
    """The environment variables for the process of an implementation."""
    _, keras, backend = name.rpartition("keras-")
    return {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"} if keras else {}


def module_of(name: str) -> ModuleType:
    """The module of an implementation."""
    return importlib.import_module(f".{MODULES[name]}", __name__)


def make(name: str, work: Any) -> Any:
    """One implementation of a work, ready to run."""
    run = module_of(name).RUNS.get(type(work).__name__)
    if run is None:
        raise NotImplementedError(f"not measured in {name}: {work.label}")
    return run(work)


def need(name: str) -> Any:
    """Import an optional module, or say that it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotImplementedError(f"{name} is not installed") from error


def kernel(name: str) -> Any:
    """A function of xpgrad; an old version may lack it."""
    function = getattr(importlib.import_module("xpgrad"), name, None)
    if function is None:
        raise NotImplementedError(f"this xpgrad has no {name}")
    return function
