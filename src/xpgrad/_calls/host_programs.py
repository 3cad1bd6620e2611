"""Programs of kernels for a host that runs them itself, such as XLA or TensorFlow (`programs/foreign.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from xpgrad._calls.plans import Asked, recording_for_host
from xpgrad.engine.process.memory import address_of
from xpgrad.engine.programs.foreign import ForeignMachine, ForeignProgram
from xpgrad.engine.programs.instructions import CannotRecordError
from xpgrad.engine.programs.recorded import row_major
from xpgrad.engine.programs.recorder import Recorder


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
    token = recording_for_host.set(writing.record)
    try:
        outputs = kernel(**standing, **options)
    finally:
        recording_for_host.reset(token)
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
