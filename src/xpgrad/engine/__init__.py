"""What a kernel asks of the machine beyond the array API, and who answers.

Kernels know the operator, engines know the machine. ``choose`` picks the engine for a call's arrays;
``use_engine`` lets the caller decide.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import array_api_compat

from xpgrad.engine.compiled.products import choice as product_choice
from xpgrad.engine.formulas.formula import Elementwise, Formula, Operand, Product, Span
from xpgrad.engine.formulas.row_formula import RowFormula, Step
from xpgrad.engine.numpy_engine import NumpyEngine
from xpgrad.engine.process.machine import jit_enabled, thread_count
from xpgrad.engine.process.team import forked
from xpgrad.engine.programs.recorder import Recorder
from xpgrad.engine.protocol import Engine, TimeLoops
from xpgrad.engine.standard import StandardEngine

__all__ = [
    "Elementwise",
    "Engine",
    "Formula",
    "NumpyEngine",
    "Operand",
    "Product",
    "Recorder",
    "RowFormula",
    "Span",
    "StandardEngine",
    "Step",
    "TimeLoops",
    "agreed",
    "choose",
    "describe_engines",
    "describe_products",
    "is_traced",
    "thread_count",
    "use_engine",
]

_forced: ContextVar[str | None] = ContextVar("xpgrad_engine", default=None)


def _host() -> Any:
    """The engine of a framework that is loaded in this process, whose threads and BLAS to use; else None."""
    if forked():
        return None
    for name in _entries():
        if name in sys.modules and (adapter := _adapter(name)) is not None and adapter.is_host:
            return adapter
    return None


_numpy_engine = NumpyEngine(_host)
_by_type: dict[type, Any] = dict.fromkeys(_numpy_engine.array_types, _numpy_engine)


def choose(xp: Any, arrays: Sequence[Any], operator: str) -> Engine:
    """The engine for the arrays of one call, all of the namespace `xp`."""
    forced = _forced.get()
    if forced == "standard":
        return _standard(xp)
    if array_api_compat.is_numpy_namespace(xp):
        if forced in (None, "numpy"):
            return _numpy_engine
    else:
        for name, adapter in _adapters().items():
            if forced in (None, name) and adapter.takes(xp, arrays):
                return adapter
    if forced is not None:
        raise TypeError(
            f"{operator}: the engine {forced!r} is forced by use_engine, and does not take "
            f"{getattr(xp, '__name__', xp)} arrays such as these"
        )
    return _standard(xp)


def _standard(xp: Any) -> StandardEngine:
    """The engine of the standard for a namespace: an adapter's own where it has one."""
    for adapter in _adapters().values():
        if (own := adapter.standard(xp)) is not None:
            return own
    return StandardEngine(xp)


def is_traced(array: Any) -> bool:
    """Whether it is not known yet what is in an array: a framework writes down what is done with it."""
    loaded = (_adapter(name) for name in _entries() if name in sys.modules)  # no other can write down
    return any(adapter is not None and adapter.is_traced(array) for adapter in loaded)


def of_type(array: Any) -> Any:
    """The engine for arrays of this one's type, where it is known and no other is forced; else None."""
    kind = type(array)
    engine = _by_type.get(kind)
    if engine is None:
        # An adapter's engine is loaded by the first array of its framework, which goes the way of all others.
        name = kind.__module__.partition(".")[0]
        if name in _entries() and _adapter(name) is not None:
            engine = _by_type.get(kind)
    forced = _forced.get()
    return engine if forced is None or engine is None or engine.name == forced else None


def agreed(arrays: Sequence[Any]) -> Any:
    """The engine whose arrays these obviously are, of one dtype and shape; else None: then look closer."""
    engine = of_type(arrays[0])
    return engine if engine is not None and engine.agrees(arrays) else None


@functools.cache
def _entries() -> dict[str, EntryPoint]:
    """What loads the adapters' engines, by name; an engine has the name of its framework's module."""
    return {entry.name: entry for entry in sorted(entry_points(group="xpgrad.engines"))}


@functools.cache
def _adapter(name: str) -> Any:
    try:
        adapter = _entries()[name].load()()
    except ImportError:  # its framework is not installed, so none of its arrays will come
        return None
    _by_type.update(dict.fromkeys(adapter.array_types, adapter))
    return adapter


def _adapters() -> dict[str, Any]:
    """Engines of adapters whose frameworks are loaded, as they are where their arrays come; by name."""
    found = {name: _adapter(name) for name in _entries() if name in sys.modules}
    return {name: adapter for name, adapter in found.items() if adapter is not None}


class use_engine:  # noqa: N801 - reads as the function it is for its callers
    """Force one engine, from now on or within a ``with`` block.

    Parameters
    ----------
    name : str or None
        ``"standard"``: pure array API. ``"numpy"``: for NumPy arrays. ``"torch"``: for PyTorch CPU tensors,
        where the adapter is installed. None: each call's arrays decide, which is the default.

    Raises
    ------
    ValueError
        For a name that no engine has.

    Notes
    -----
    The choice belongs to the current thread or task (it is a context variable). A call whose arrays the
    forced engine does not take raises TypeError.

    Examples
    --------
    >>> import xpgrad
    >>> with xpgrad.use_engine("standard"):
    ...     pass  # kernels called here run on the standard engine
    """

    def __init__(self, name: str | None) -> None:
        if name is not None and name not in (known := {"standard", "numpy", *_entry_names()}):
            raise ValueError(f"use_engine: name is {name!r}, expected None or one of {sorted(known)}")
        self._token = _forced.set(name)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc_info: object) -> None:
        _forced.reset(self._token)


def _entry_names() -> set[str]:
    return set(_entries())


def describe_engines() -> dict[str, str]:
    """Each engine of this installation, in a line.

    Returns
    -------
    dict of str to str
        The engine's name and how it works here.

    Examples
    --------
    >>> from xpgrad.engine import describe_engines
    >>> "numpy" in describe_engines()
    True
    """
    threads = _numpy_engine.team.size()
    if jit_enabled():
        import numba

        from xpgrad.engine.compiled.cache import cache_folder

        how = f"formulas compiled by numba {numba.__version__}, kept in {cache_folder()}"
    else:
        how = "formulas in cache-sized blocks, without numba"
    lines = {
        "standard": "pure array API, any namespace",
        "numpy": f"NumPy arrays: {how}; {threads} threads",
    }
    adapters = {name: _adapter(name) for name in _entries()}
    return lines | {name: adapter.describe() for name, adapter in adapters.items() if adapter is not None}


def describe_products() -> dict[str, str]:
    """Whose matrix products each engine takes, by class of sizes and dtype; empty without numba.

    Returns
    -------
    dict of str to str
        ``"own"`` or ``"blas"``, and why. `XPGRAD_PRODUCTS` set to one of these decides; else a class is
        measured when it is first asked for, and that is remembered in the cache folder.

    Examples
    --------
    >>> from xpgrad.engine import describe_products
    >>> all("rows" in name for name in describe_products())
    True
    """
    if not jit_enabled():
        return {}
    lines: dict[str, str] = {}
    for engine in (_numpy_engine, *(_adapter(name) for name in _entries())):
        if isinstance(engine, NumpyEngine):
            lines |= product_choice.describe(engine)
    return lines
