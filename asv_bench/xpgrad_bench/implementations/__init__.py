"""The implementations of works: ours and the peers', one file for each.

A module has two functions. ``make(work)`` returns an object with the methods ``step`` and ``backward`` (or
only one of them), which take no arguments and finish their work before they return. ``describe()`` is a line
about the version and the code path. A missing work raises NotImplementedError: asv skips the benchmark, the
command line says why. A module may also have ``path(run, what)``, the functions that a run really calls, and
``product_rate(dtype, seconds)`` for its own matrix product.
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
    """What the process of an implementation needs in its environment."""
    _, keras, backend = name.rpartition("keras-")
    return {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"} if keras else {}


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
    """A function of xpgrad; an old version may lack it."""
    function = getattr(importlib.import_module("xpgrad"), name, None)
    if function is None:
        raise NotImplementedError(f"this xpgrad has no {name}")
    return function
