"""Engines: what kernels need of the machine beyond the array API.

``choose`` picks the engine for the arrays of a call; ``use_engine`` lets the caller decide.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

import array_api_compat

from xpgrad.engine.formulas.formula import Elementwise, Formula, Operand, Product, Span
from xpgrad.engine.formulas.row_formula import RowFormula, Step
from xpgrad.engine.numpy_engine import NumpyEngine
from xpgrad.engine.process.memory import COMPUTED
from xpgrad.engine.process.settings import jit_enabled, thread_count
from xpgrad.engine.process.team import Host, forked
from xpgrad.engine.process.variables import with_value
from xpgrad.engine.programs.recorder import Recorder
from xpgrad.engine.protocol import Adapter, Engine, TimeLoops
from xpgrad.engine.standard import AdapterEngine, ShapesEngine, StandardEngine

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "Adapter",
    "AdapterEngine",
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
    "only_shapes",
    "thread_count",
    "traced_by",
    "use_engine",
]

_Result = TypeVar("_Result")
_forced: ContextVar[str | None] = ContextVar("xpgrad_engine", default=None)
_SHAPES = "shapes"  # `only_shapes` forces it; `use_engine` does not know the name


def _loaded() -> Iterator[Adapter]:
    """The engines of the frameworks that this process has imported: only they can be a host, or trace."""
    engines = (_adapter(name) for name in _entries() if name in sys.modules)
    return (engine for engine in engines if engine is not None)


def _host() -> Host | None:
    """The engine of a loaded framework whose threads this process should use, or None."""
    if forked():
        return None
    return next((adapter.host for adapter in _loaded() if adapter.host is not None), None)


_numpy_engine = NumpyEngine(_host)
_by_type: dict[type, Adapter] = dict.fromkeys(_numpy_engine.array_types, _numpy_engine)


def choose(xp: Any, arrays: Sequence[Any], operator: str) -> Engine:
    """The engine for the arrays of one call, all of the namespace `xp`."""
    forced = _forced.get()
    if forced == "standard":
        return _standard(xp, arrays)
    if forced == _SHAPES:
        return ShapesEngine(xp)
    if array_api_compat.is_numpy_namespace(xp):
        if forced in (None, "numpy"):
            return _numpy_engine
    else:
        known = _by_type.get(type(arrays[0]))
        for adapter in _loaded() if known is None else (known,):
            if forced in (None, adapter.name) and adapter.takes(xp, arrays):
                return adapter
    if forced is not None:
        raise TypeError(
            f"{operator}: the engine {forced!r} is forced by use_engine, and does not take "
            f"{getattr(xp, '__name__', xp)} arrays such as these"
        )
    return _standard(xp, arrays)


def _standard(xp: Any, arrays: Sequence[Any]) -> Engine:
    """The standard engine for a namespace: an adapter's own if it has one."""
    for adapter in _loaded():
        if (own := adapter.standard(xp)) is not None:
            return own
    if array_api_compat.is_torch_namespace(xp):
        return StandardEngine(xp, launches=any(x.device.type not in ("cpu", "meta") for x in arrays))
    return StandardEngine(xp)


def is_traced(array: Any) -> bool:
    """Whether an array has no values yet, because a framework is tracing the operations on it."""
    known = _by_type.get(type(array))
    if known is not None:
        return known.is_traced(array)
    return any(adapter.is_traced(array) for adapter in _loaded())


def traced_by(arrays: Iterable[Any]) -> Adapter | None:
    """The engine of the framework that traces one of these arrays; None if an engine is forced."""
    if _forced.get() is not None:
        return None
    given = list(arrays)
    return next((adapter for adapter in _loaded() if any(map(adapter.is_traced, given))), None)


def of_type(array: Any) -> Adapter | None:
    """The engine for arrays of this type; None if the type is unknown or another engine is forced."""
    kind = type(array)
    engine = _by_type.get(kind)
    if engine is None:
        # a framework's first array loads its adapter's engine, so that it takes the same path as later arrays
        name = kind.__module__.partition(".")[0]
        if name in _entries() and _adapter(name) is not None:
            engine = _by_type.get(kind)
    forced = _forced.get()
    return engine if forced is None or engine is None or engine.name == forced else None


def agreed(arrays: Sequence[Any]) -> Adapter | None:
    """The engine of arrays that certainly belong to it and have one dtype and shape; else None."""
    engine = of_type(arrays[0])
    return engine if engine is not None and engine.agrees(arrays) else None


@functools.cache
def _entries() -> dict[str, EntryPoint]:
    """The entry points of the adapters' engines by name, which is the name of the framework's module."""
    from importlib.metadata import entry_points  # loading it takes a tenth of the time of xpgrad's import

    return {entry.name: entry for entry in sorted(entry_points(group="xpgrad.engines"))}


@functools.cache
def _adapter(name: str) -> Adapter | None:
    """The engine of an entry point, made once; None if its framework is not installed."""
    try:
        adapter: Adapter = _entries()[name].load()()
    except (ImportError, OSError):  # a library that the framework needs may be missing
        return None
    _by_type.update(dict.fromkeys(adapter.array_types, adapter))
    return adapter


class use_engine:  # noqa: N801 - callers use it like a function
    """Force one engine, from now on or within a ``with`` block.

    Parameters
    ----------
    name : str or None
        ``"standard"``: pure array API. ``"numpy"``: for NumPy arrays. ``"torch"``, for PyTorch's CPU tensors,
        and other adapters' engines, if they are installed: `describe_engines` lists them. None, the default:
        the arrays of each call decide.

    Raises
    ------
    ValueError
        For a name that no engine has.

    Notes
    -----
    The choice belongs to the current thread or task (it is a context variable). A call with arrays that the
    forced engine does not accept raises TypeError.

    Examples
    --------
    >>> import xpgrad
    >>> with xpgrad.use_engine("standard"):
    ...     pass  # kernels called here run on the standard engine
    """

    def __init__(self, name: str | None) -> None:
        known = ["numpy", "standard", *_entries()]  # a list: a name may have no hash
        if name is not None and name not in known:
            raise ValueError(f"use_engine: name is {name!r}, expected None or one of {sorted(known)}")
        self._token = _forced.set(name)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc_info: object) -> None:
        _forced.reset(self._token)


def only_shapes(function: Callable[[], _Result]) -> _Result:
    """Call the function; its kernels return arrays with right shapes and dtypes, but meaningless values."""
    return with_value(_forced, _SHAPES, function)


def describe_engines() -> dict[str, str]:
    """The engines of this installation, one line each.

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
    own, current = thread_count(), _numpy_engine.team.size()
    threads = f"threads: {own}" + (f", with PyTorch loaded {current}" if current != own else "")
    if jit_enabled():
        import llvmlite

        from xpgrad.engine.compiled.folder import described

        how = f"formulas compiled by llvmlite {llvmlite.__version__}, {described()}"
    else:
        how = "formulas in cache-sized blocks, not compiled"
    lines = {
        "standard": "pure array API, any namespace",
        "numpy": f"NumPy arrays: {how}; {threads}",
    }
    adapters = {name: _adapter(name) for name in _entries()}
    return lines | {name: adapter.describe() for name, adapter in adapters.items() if adapter is not None}


def describe_products() -> dict[str, str]:
    """Whose matrix products each engine uses, by dtype; empty without llvmlite, where NumPy multiplies.

    Returns
    -------
    dict of str to str
        By the engine's name and the dtype ``"own"`` and the reason. Products of other dtypes are NumPy's.

    Examples
    --------
    >>> from xpgrad.engine import describe_products
    >>> all(name.endswith(("float32", "float64")) for name in describe_products())
    True
    """
    if not jit_enabled():
        return {}
    engines = (_numpy_engine, *(_adapter(name) for name in _entries()))
    names = [engine.name for engine in engines if isinstance(engine, NumpyEngine)]
    return {f"{name}, {dtype}": "own: compiled for this CPU" for name in names for dtype in COMPUTED.values()}
