"""Calls of one form are checked and planned once; later calls run the form's program.

A form is what a call depends on besides its numbers: the shapes, strides and dtype of its arrays, and its
attributes. If the engine has programs, the first call of a form writes one, and runs it as all later calls
do: the same call gives the same bits every time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from xpgrad import engine as engines
from xpgrad._calls.shared_steps import SharedSteps, shared_steps
from xpgrad.engine import Adapter
from xpgrad.engine.process.memory import address_of
from xpgrad.engine.process.remembered import Remembered
from xpgrad.engine.programs.foreign import ForeignMachine, ForeignProgram
from xpgrad.engine.programs.instructions import CannotRecordError, most
from xpgrad.engine.programs.program import Form, Program
from xpgrad.engine.programs.recorded import row_major
from xpgrad.engine.programs.recorder import Joined, Recorder


class CallCache:
    """Programs, each with what makes the call's result of the program's results; None for a form without one.

    `calls` finds them by what one look at a call shows, its T among that. `programs` has each once, by all
    that it depends on: many T that share a program push no other out.
    """

    def __init__(self) -> None:
        self.calls: Remembered[Any] = Remembered()
        self.programs: Remembered[Any] = Remembered()

    def clear(self) -> None:
        """Forget all."""
        self.calls.clear()
        self.programs.clear()


_known = CallCache()
_writing_for: ContextVar[_Writing | None] = ContextVar("xpgrad_writing_for", default=None)
_NEW = object()
_NONE: Mapping[str, Any] = MappingProxyType({})
_CONSTANT = {type(None), bool, int, str, frozenset}  # kinds of options that stay what they are


class Lengths(NamedTuple):
    """The lengths of a call's sequences.

    `usable` says whether they are valid and a program can take them. `numbers` are contiguous 64-bit
    integers, with resets (N, 1 + T), None if all sequences are full and have none. `is_full` says whether
    all are full beside resets.
    """

    usable: bool
    numbers: np.ndarray | None
    is_full: bool = False

    @property
    def kind(self) -> int:
        """One, two with resets, three where all are full beside these, zero for none: programs differ."""
        return 0 if self.numbers is None else self.numbers.ndim + self.is_full


class Asked(NamedTuple):
    """What a caller asked of a kernel: the kernel's name, all arrays by name, None for those left out.

    Where the call is recorded, its recorder stands in the engine's place.
    """

    operator: str
    arrays: Mapping[str, Any]
    recorder: Recorder | None = None


@dataclass(frozen=True)
class TracedKernel:
    """What a call computes, for other arrays in the place of its own."""

    compute: Callable[..., Any]
    operator: str
    options: Mapping[str, Any]

    def __call__(self, arrays: Mapping[str, Any]) -> Any:
        """The call's named tuple for these arrays."""
        return self.compute(Asked(self.operator, arrays), **self.options)

    @property
    def owner(self) -> Any:
        """The object whose method computes, a `Cell` for the user's own operators; None if there is none."""
        return getattr(self.compute, "__self__", None)


class PlannedCall(NamedTuple):
    """A program, the function from its results to the call's, and the names of its arrays."""

    program: Program
    result: Callable[[list[Any]], Any]
    names: tuple[str, ...]


def planned(
    compute: Callable[..., Any],
    operator: str,
    arrays: Mapping[str, Any],
    options: Mapping[str, Any],
    lengths_of: Callable[[Adapter, Mapping[str, Any], Mapping[str, Any]], Lengths],
    plans_out: list[PlannedCall] | None = None,
    joined: Mapping[str, Sequence[Any]] = _NONE,
) -> Any:
    """Return what ``compute(asked, **options)`` returns, by a program if there is one.

    Parameters
    ----------
    compute : callable
        Takes an `Asked`, checks and computes, and returns a named tuple of arrays and None. With a recorder
        it returns recorded arrays.
    operator : str
        For messages.
    arrays : mapping of str to array or None
        All arrays of the call; `sequence_lens` are its lengths.
    options : mapping of str to object
        Everything else that the result depends on.
    lengths_of : callable
        Finds the lengths: ``lengths_of(engine, arrays, options)``.
    plans_out : list, optional
        Gets the call's plan, for callers that keep it.
    joined : mapping of str to sequence of array, optional
        The parts of each array that was joined along the first axis. A program takes the parts, and returns
        their gradients (the field d + name) as tuples of arrays of the parts' shapes.
    """
    if (writing := _writing_for.get()) is not None:
        return writing.record(compute, operator, arrays, options)
    given = {name: array for name, array in arrays.items() if array is not None and name != "sequence_lens"}
    engine = engines.of_type(next(iter(given.values()), None))
    flat = (
        [x for name, array in given.items() for x in joined.get(name, (array,))] if joined else given.values()
    )
    look = None if engine is None else engine.look(flat)
    if engine is None or look is None:
        if (tracing := engines.traced_by(given.values())) is not None:
            kernel = TracedKernel(compute, operator, options)
            outputs = tracing.traced_kernel(operator, arrays, options, kernel)
            if outputs is not None:
                return outputs
        return compute(Asked(operator, arrays), **options)
    lengths = lengths_of(engine, arrays, options)
    if not lengths.usable:
        return compute(Asked(operator, arrays), **options)
    numbers = lengths.numbers
    if numbers is None and "sequence_lens" in arrays:
        arrays = {**arrays, "sequence_lens": None}
    try:
        counts = tuple([(len(joined[name]), given[name].shape) if name in joined else None for name in given])
        options_key = tuple(map(_typed, options.values()))
        key = (compute, look.form, lengths.kind, tuple(given), counts, options_key)
        known = _known.calls.get(key, _NEW)
    except TypeError:  # an option has no hash; `compute` may refuse it
        known = None
    if known is _NEW:
        layouts = _layouts(look.form, given, joined)
        call = _UnplannedCall(compute, operator, arrays, options, options_key, look.form, layouts, lengths)
        known = _known.calls[key] = call.found(joined)
    if known is None:
        return compute(Asked(operator, arrays), **options)
    program, result = known
    if plans_out is not None:
        plans_out.append(PlannedCall(program, result, tuple(given)))
    if numbers is not None:
        look.addresses.append(address_of(numbers))
    return result(program.run(look.addresses, look.fresh))


def _layouts(form: Form, given: Mapping[str, Any], joined: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The layout of each array by name; of an array that was joined, those of its parts."""
    each = iter(form.layouts)
    return {
        name: Joined(tuple([next(each) for _ in joined[name]]), tuple(array.shape))
        if name in joined
        else next(each)
        for name, array in given.items()
    }


class _UnplannedCall(NamedTuple):
    """A call whose program is looked for, or written."""

    compute: Callable[..., Any]
    operator: str
    arrays: Mapping[str, Any]
    options: Mapping[str, Any]
    options_key: tuple
    form: Form
    layouts: Mapping[str, Any]
    lengths: Lengths

    def found(self, joined: Mapping[str, Any]) -> tuple[Program, Callable[[list[Any]], Any]] | None:
        """Its program, which may serve other T too; and what makes the result of the program's results."""
        shared = None
        if "sequence_lens" in self.arrays and self.lengths.kind < 2:  # T is in the shape of resets
            whole = {name: layout for name, layout in self.layouts.items() if name not in joined}
            shared = shared_steps(whole, self.options)
        known = None if shared is None else self._planned(shared)
        if known is None or shared is None:
            return self._planned(None)
        program, result = known
        return program.for_steps(shared.steps), result

    def _planned(self, shared: SharedSteps | None) -> tuple[Program, Callable[[list[Any]], Any]] | None:
        layouts = self.layouts if shared is None else {**self.layouts, **shared.layouts}
        form = self.form.dtype, self.form.machine, self.form.threads
        key = self.compute, form, self.lengths.kind, *layouts.items(), self.options_key
        known = _known.programs.pop(key, _NEW)
        if known is _NEW:
            known = self._written(layouts, shared)
        _known.programs[key] = known  # the last one used goes last
        return known

    def _written(self, layouts: Mapping[str, Any], shared: SharedSteps | None) -> Any:
        numbers = self.lengths.numbers
        if numbers is not None:
            layouts = {**layouts, "sequence_lens": (numbers.shape, row_major(numbers.shape))}
        if shared is None:
            recorder = Recorder(self.form.machine, layouts, self.form.dtype, is_full=self.lengths.is_full)
            return _plan(recorder, layouts, self.compute, self.operator, self.arrays, self.options)
        recorder = Recorder(self.form.machine, layouts, self.form.dtype, shared.most)
        arrays = dict.fromkeys(self.arrays)
        for name, layout in layouts.items():
            shape = layout.shape if isinstance(layout, Joined) else tuple(map(most, layout[0]))
            arrays[name] = np.broadcast_to(np.zeros((), self.form.dtype), shape)
        if numbers is not None:
            arrays["sequence_lens"] = numbers
        try:
            return _plan(recorder, layouts, self.compute, self.operator, arrays, self.options)
        except (TypeError, ValueError):  # the call itself says what is wrong, of its own sizes
            return None


def _typed(value: Any) -> Any:
    """An option with its type: 1, 1.0 and True are equal, but not all of them are allowed.

    Floats become text, because 0.0 equals -0.0 and NaN does not equal itself.
    """
    kind = type(value)
    if isinstance(value, list | tuple):
        return kind, tuple(map(_typed, value))
    if kind is float:
        return kind, value.hex()
    if kind not in _CONSTANT:  # the number in an array may change
        raise TypeError(f"{kind.__name__} is no part of a form")
    return kind, value


def _plan(
    recorder: Recorder,
    layouts: Mapping[str, Any],
    compute: Callable[..., Any],
    operator: str,
    arrays: Mapping[str, Any],
    options: Mapping[str, Any],
) -> tuple[Program, Callable[[list[Any]], Any]] | None:
    try:
        result = compute(Asked(operator, arrays, recorder), **options)
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
    """A named tuple of that kind; a count above 0 groups as many results into a tuple."""
    each = iter(results)
    return kind._make(
        [tuple([next(each) for _ in range(count)]) if count else next(each) for count in counts]
    )


# --- programs that a host runs


class _Writing:
    """A call that is recorded for a host, on placeholders for its arrays."""

    def __init__(self, machine: ForeignMachine) -> None:
        self._machine = machine
        self.recorder: Recorder | None = None
        self.arrays: list[Any] = []

    def record(
        self,
        compute: Callable[..., Any],
        operator: str,
        arrays: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> Any:
        """Return what ``compute`` returns: recorded arrays."""
        given = {name: array for name, array in arrays.items() if array is not None}
        self.arrays = list(given.values())
        layouts = {name: (array.shape, row_major(array.shape)) for name, array in given.items()}
        self.recorder = Recorder(self._machine, layouts, self.arrays[0].dtype)
        return compute(Asked(operator, arrays, self.recorder), **options)


def write_program(
    kernel: Callable[..., Any],
    machine: ForeignMachine,
    arrays: Mapping[str, tuple[tuple[int, ...], Any]],
    options: Mapping[str, Any],
) -> ForeignProgram:
    """Write the program of ``kernel(**arrays, **options)`` for a host.

    Parameters
    ----------
    kernel : callable
        A kernel that calls `planned`; it returns an array, or a tuple of arrays and None.
    machine : ForeignMachine
        What the program will run on.
    arrays : mapping of str to (tuple of int, dtype)
        The shapes and dtypes of its arrays, which will be contiguous.
    options : mapping of str to object
        Its other arguments.

    Raises
    ------
    CannotRecordError
        If the kernel needs something that has no instruction.
    """
    standing = {name: np.broadcast_to(np.zeros((), dtype), shape) for name, (shape, dtype) in arrays.items()}
    number_of = {address_of(array): number for number, array in enumerate(standing.values())}
    writing = _Writing(machine)
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
    write: Callable[..., Sequence[Any]], machine: ForeignMachine, forms: Sequence[tuple[tuple[int, ...], Any]]
) -> ForeignProgram:
    """Write the program of ``write(recorder, *arrays)`` for a host; its results are the program's.

    Parameters
    ----------
    write : callable
        Takes a recorder and placeholders for the arrays.
    machine : ForeignMachine
        What the program will run on.
    forms : sequence of (tuple of int, dtype)
        The shapes and dtypes of the arrays, which will be contiguous. Integers have 32 bits; all other arrays
        have the first one's dtype.

    Raises
    ------
    CannotRecordError
        If it needs something that has no instruction.
    """
    layouts = {str(number): (shape, row_major(shape)) for number, (shape, _) in enumerate(forms)}
    recorder = Recorder(machine, layouts, forms[0][1])
    arrays = [recorder.input(name) for name in layouts]
    for array, (_, dtype) in zip(arrays, forms, strict=True):
        array.is_integer = np.dtype(dtype).kind == "i"
    results = write(recorder, *arrays)
    return ForeignProgram(recorder.program(results), range(len(forms) + len(results)))
