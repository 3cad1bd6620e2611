"""Calls of one form: checked and planned once, afterwards run from their program.

What an operator does, and whether a call is right, depends on its arrays' shapes, strides and dtype and on
its attributes, not on the numbers in them. Where an engine has programs, the first call of a form writes one
down, and runs it as all later ones do: the same call gives the same bits every time.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from xpgrad import engine as engines
from xpgrad.engine.programs.foreign import ForeignEngine, ForeignProgram
from xpgrad.engine.programs.program import Program, address_of
from xpgrad.engine.programs.recorder import CannotRecordError, Joined, Recorder, row_major

_MOST = 512  # forms
_known: dict[tuple, Any] = {}  # of each form its program and the type of its results, None without a program
_writing = threading.RLock()  # a signal handler may call a kernel
_writing_for: ContextVar[_Writing | None] = ContextVar("xpgrad_writing_for", default=None)
_NEW = object()
_NONE: Mapping[str, Any] = MappingProxyType({})
_CONSTANT = {type(None), bool, int, str, frozenset}  # kinds of options that stay what they are


class Lengths(NamedTuple):
    """The lengths of a call's sequences.

    `usable` tells whether they are right and can be a program's; `numbers` are 64-bit integers one behind the
    other, None where there are none that matter.
    """

    usable: bool
    numbers: np.ndarray | None


class Plan(NamedTuple):
    """A program, what makes a call's result of its own ones, and the names of its arrays."""

    program: Program
    result: Callable[[list[Any]], Any]
    names: tuple[str, ...]


def planned(
    compute: Callable[..., Any],
    operator: str,
    arrays: Mapping[str, Any],
    options: Mapping[str, Any],
    lengths_of: Callable[[Any, Mapping[str, Any], Mapping[str, Any]], Lengths],
    seen: list[Plan] | None = None,
    joined: Mapping[str, Sequence[Any]] = _NONE,
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
    joined : mapping of str to sequence of array, optional
        Of arrays that were joined along the first axis: from which. A program takes these, and what it
        returns for them, in fields with their names behind a d, are tuples of arrays of their shapes.
    """
    if (writing := _writing_for.get()) is not None:
        return writing.record(compute, operator, arrays, options)
    given = {name: array for name, array in arrays.items() if array is not None and name != "sequence_lens"}
    engine = engines.of_type(next(iter(given.values()), None))
    flat = (
        [x for name, array in given.items() for x in joined.get(name, (array,))] if joined else given.values()
    )
    form = None if engine is None else engine.form(flat)
    if form is None and (tracing := engines.traced_by(given.values())) is not None:
        outputs = tracing.traced_call(operator, arrays, options)
        if outputs is not None:
            return outputs
    if form is None:
        return compute(operator, arrays, None, **options)
    lengths = lengths_of(engine, arrays, options)
    if not lengths.usable:
        return compute(operator, arrays, None, **options)
    numbers = lengths.numbers
    if numbers is None:
        arrays = {**arrays, "sequence_lens": None}
    try:
        counts = tuple([(len(joined[name]), given[name].shape) if name in joined else None for name in given])
        key = (compute, engine, form, numbers is None, tuple(given), counts, *map(_typed, options.values()))
        known = _known.get(key, _NEW)
    except TypeError:  # something that has no hash, and that `compute` may not take
        return compute(operator, arrays, None, **options)
    if known is _NEW:
        each = iter(form.layouts)
        layouts = {
            name: Joined([next(each) for _ in joined[name]], tuple(array.shape))
            if name in joined
            else next(each)
            for name, array in given.items()
        }
        if numbers is not None:
            layouts["sequence_lens"] = (numbers.shape, (1,))
        known = _plan(compute, operator, arrays, options, engine, layouts, form.dtype)
        _remember(key, known)
    if known is None:
        return compute(operator, arrays, None, **options)
    program, result = known
    if seen is not None:
        seen.append(Plan(program, result, tuple(given)))
    return result(engine.run(program, flat, numbers))


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
) -> tuple[Program, Callable[[list[Any]], Any]] | None:
    try:
        recorder = Recorder(engine, layouts, dtype)
        result = compute(operator, arrays, recorder, **options)
        joined = {f"d{name}": name for name, layout in layouts.items() if isinstance(layout, Joined)}
        fields = getattr(result, "_fields", ())
        if not joined.keys() & fields:
            return recorder.program(result), type(result)._make
        results: list[Any] = []
        counts: list[int] = []
        for field, array in zip(fields, result, strict=True):
            pieces = recorder.pieces(joined[field], array) if field in joined else [array]
            results += pieces
            counts.append(len(pieces) if field in joined else 0)
        return recorder.program(results), functools.partial(_grouped, type(result), counts)
    except CannotRecordError:
        return None


def _grouped(kind: Any, counts: Sequence[int], results: Sequence[Any]) -> Any:
    """A named tuple of that kind; where a count is not 0, of so many results a tuple."""
    each = iter(results)
    return kind._make(
        [tuple([next(each) for _ in range(count)]) if count else next(each) for count in counts]
    )


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


def write_parts(
    write: Callable[..., Sequence[Any]], engine: ForeignEngine, forms: Sequence[tuple[tuple[int, ...], Any]]
) -> ForeignProgram:
    """The program of what ``write(recorder, *arrays)`` asks a recorder for, and returns, for a host.

    Parameters
    ----------
    write : callable
        Takes arrays that stand for those to come.
    engine : ForeignEngine
        For the machine.
    forms : sequence of (tuple of int, dtype)
        Shapes and dtypes of these, which will be contiguous. The first one's is that of all but integers,
        which have 32 bits.

    Raises
    ------
    CannotRecordError
        Where it asks for what has no instruction.
    """
    layouts = {str(number): (shape, row_major(shape)) for number, (shape, _) in enumerate(forms)}
    recorder = Recorder(engine, layouts, forms[0][1])
    arrays = [recorder.input(name) for name in layouts]
    for array, (_, dtype) in zip(arrays, forms, strict=True):
        array.is_integer = np.dtype(dtype).kind == "i"
    results = write(recorder, *arrays)
    return ForeignProgram(recorder.program(results), range(len(forms) + len(results)))
