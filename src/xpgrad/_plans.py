"""Calls of one form: checked and planned once, afterwards run from their program.

What an operator does, and whether a call is right, depends on its arrays' shapes, strides and dtype and on
its attributes, not on the numbers in them. Where an engine has programs, the first call of a form writes one
down, and runs it as all later ones do: the same call gives the same bits every time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from xpgrad import engine as engines
from xpgrad.engine.programs.foreign import ForeignEngine, ForeignProgram
from xpgrad.engine.programs.program import Program, address_of
from xpgrad.engine.programs.recorder import CannotRecordError, Recorder, row_major

_MOST = 512  # forms
_known: dict[tuple, Any] = {}  # of each form its program and the type of its results, None without a program
_writing = threading.RLock()  # a signal handler may call a kernel
_writing_for: ContextVar[_Writing | None] = ContextVar("xpgrad_writing_for", default=None)
_NEW = object()
_CONSTANT = {type(None), bool, int, str, frozenset}  # kinds of options that stay what they are


class Lengths(NamedTuple):
    """The lengths of a call's sequences.

    `usable` tells whether they are right and can be a program's; `numbers` are 64-bit integers one behind the
    other, None where there are none that matter.
    """

    usable: bool
    numbers: np.ndarray | None


class Plan(NamedTuple):
    """A program, the engine that runs it, the type of its results, and the names of its arrays."""

    engine: Any
    program: Program
    kind: Any
    names: tuple[str, ...]

    def run(self, arrays: Iterable[Any]) -> Any:
        """What a call for these arrays returns."""
        return self.kind._make(self.engine.run(self.program, arrays))


def planned(
    compute: Callable[..., Any],
    operator: str,
    arrays: Mapping[str, Any],
    options: Mapping[str, Any],
    lengths_of: Callable[[Any, Mapping[str, Any], Mapping[str, Any]], Lengths],
    seen: list[Plan] | None = None,
) -> Any:
    """What ``compute(operator, arrays, recorder, **options)`` returns, a named tuple of arrays and None.

    Parameters
    ----------
    compute : callable
        Checks and computes. With a recorder, its results are what that recorded.
    operator : str
        For messages.
    arrays : mapping of str to array or None
        All that it works on; `sequence_lens` are its lengths.
    options : mapping of str to object
        All that it depends on otherwise.
    lengths_of : callable
        Gives the lengths, by engine, arrays and options.
    seen : list, optional
        Takes the program from which the call ran, for callers that find it again by themselves.
    """
    if (writing := _writing_for.get()) is not None:
        return writing.record(compute, operator, arrays, options)
    given = {name: array for name, array in arrays.items() if array is not None and name != "sequence_lens"}
    engine = engines.of_type(next(iter(given.values()), None))
    form = None if engine is None else engine.form(given.values())
    if form is None:
        return compute(operator, arrays, None, **options)
    lengths = lengths_of(engine, arrays, options)
    if not lengths.usable:
        return compute(operator, arrays, None, **options)
    numbers = lengths.numbers
    if numbers is None:
        arrays = {**arrays, "sequence_lens": None}
    try:
        key = (compute, engine, form, numbers is None, tuple(given), *map(_typed, options.values()))
        known = _known.get(key, _NEW)
    except TypeError:  # something that has no hash, and that `compute` may not take
        return compute(operator, arrays, None, **options)
    if known is _NEW:
        layouts = dict(zip(given, form.layouts, strict=True))
        if numbers is not None:
            layouts["sequence_lens"] = (numbers.shape, (1,))
        known = _plan(compute, operator, arrays, options, engine, layouts, form.dtype)
        _remember(key, known)
    if known is None:
        return compute(operator, arrays, None, **options)
    program, kind = known
    if seen is not None and numbers is None:
        seen.append(Plan(engine, program, kind, tuple(given)))
    return kind._make(engine.run(program, given.values(), numbers))


def _typed(value: Any) -> Any:
    """An option with its type: 1, 1.0 and True are equal, and not all of them are allowed.

    Floats by their digits: 0.0 and -0.0 are equal too, and NaN is not even equal to itself.
    """
    kind = type(value)
    if isinstance(value, list | tuple):
        return kind, tuple(map(_typed, value))
    if kind is float:
        return kind, value.hex()
    if kind not in _CONSTANT:  # an array, whose number may be another at the next call
        raise TypeError(f"{kind.__name__} is no part of a form")
    return kind, value


def _remember(key: tuple, value: Any) -> None:
    with _writing:
        if len(_known) >= _MOST and key not in _known:
            _known.pop(next(iter(_known)), None)
        _known[key] = value


def _plan(
    compute: Callable[..., Any],
    operator: str,
    arrays: Mapping[str, Any],
    options: Mapping[str, Any],
    engine: Any,
    layouts: dict[str, Any],
    dtype: Any,
) -> tuple[Program, type] | None:
    try:
        recorder = Recorder(engine, layouts, dtype)
        result = compute(operator, arrays, recorder, **options)
        return recorder.program(result), type(result)
    except CannotRecordError:
        return None


# --- for a host that runs programs itself


class _Writing:
    """A call that is written down for a host, on arrays that stand for those to come."""

    def __init__(self, engine: ForeignEngine) -> None:
        self._engine = engine
        self.recorder: Recorder | None = None
        self.arrays: list[Any] = []

    def record(
        self,
        compute: Callable[..., Any],
        operator: str,
        arrays: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> Any:
        """What ``compute`` returns: recorded arrays."""
        given = {name: array for name, array in arrays.items() if array is not None}
        self.arrays = list(given.values())
        layouts = {name: (array.shape, row_major(array.shape)) for name, array in given.items()}
        self.recorder = Recorder(self._engine, layouts, self.arrays[0].dtype)
        return compute(operator, arrays, self.recorder, **options)


def write_program(
    kernel: Callable[..., Any],
    engine: ForeignEngine,
    arrays: Mapping[str, tuple[tuple[int, ...], Any]],
    options: Mapping[str, Any],
) -> ForeignProgram:
    """The program of ``kernel(**arrays, **options)`` for a host.

    Parameters
    ----------
    kernel : callable
        A kernel that is `planned`; its result is an array or a tuple of arrays and None.
    engine : ForeignEngine
        For the machine.
    arrays : mapping of str to (tuple of int, dtype)
        Shapes and dtypes of its arrays, which will be contiguous.
    options : mapping of str to object
        Its other arguments.

    Raises
    ------
    CannotRecordError
        Where it asks for what has no instruction.
    """
    standing = {name: np.broadcast_to(np.zeros((), dtype), shape) for name, (shape, dtype) in arrays.items()}
    number_of = {address_of(array): number for number, array in enumerate(standing.values())}
    writing = _Writing(engine)
    token = _writing_for.set(writing)
    try:
        outputs = kernel(**standing, **options)
    finally:
        _writing_for.reset(token)
    if writing.recorder is None:
        raise CannotRecordError(f"{kernel.__name__} has no program")
    results = list(outputs) if isinstance(outputs, tuple) else [outputs]
    program = writing.recorder.program(results)
    inputs = [number_of[address_of(array)] for array in writing.arrays]
    made = sum(result is not None for result in results)
    return ForeignProgram(program, [*inputs, *range(len(standing), len(standing) + made)])
