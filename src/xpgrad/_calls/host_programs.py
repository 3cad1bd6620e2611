"""Programs of kernels for a host that runs them itself, such as XLA or TensorFlow (`programs/foreign.py`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from xpgrad._calls.families import CallFamily
from xpgrad._calls.new_sizes import Plan
from xpgrad._calls.plans import Asked, options_key, recording_for_host
from xpgrad.engine.process.memory import address_of
from xpgrad.engine.process.variables import with_value
from xpgrad.engine.programs.foreign import ForeignMachine, ForeignProgram
from xpgrad.engine.programs.instructions import CannotRecordError, Quantity
from xpgrad.engine.programs.recorded import row_major
from xpgrad.engine.programs.recorder import Recorder


class _Call(NamedTuple):
    """An operator's call that a kernel makes."""

    compute: Callable[..., Any]
    operator: str
    arrays: Mapping[str, Any]
    options: Mapping[str, Any]


class _FoundError(Exception):
    """Ends a kernel at its call of an operator."""


class _HostCall:
    """A kernel with its options, on placeholders for arrays: shapes and dtypes by name."""

    def __init__(
        self, kernel: Callable[..., Any], machine: ForeignMachine, arrays: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self._kernel, self._machine, self._options = kernel, machine, options
        self._standing = {
            name: np.broadcast_to(np.zeros((), dtype), shape) for name, (shape, dtype) in arrays.items()
        }

    def _run(self, record: Callable[..., Any]) -> list[Any]:
        """The kernel's results, with `record` in the place of the operator's call."""
        kernel = functools.partial(self._kernel, **self._standing, **self._options)
        results = with_value(recording_for_host, record, kernel)
        return list(results) if isinstance(results, tuple) else [results]

    def _found(self) -> _Call:
        """The call of an operator that the kernel makes."""
        found: list[_Call] = []

        def note(*call: Any) -> None:
            found.append(_Call(*call))
            raise _FoundError

        try:
            self._run(note)
        except _FoundError:
            return found[0]
        raise CannotRecordError(f"{self._kernel} has no program")

    def plan(self, several: bool) -> Plan:
        """The program, and the function that makes the host's program of it; for `several` T and N if so."""
        call = self._found()
        layouts = {
            name: (array.shape, row_major(array.shape))
            for name, array in call.arrays.items()
            if array is not None
        }
        try:
            key = options_key(call.options) if several else None
        except TypeError:  # an option may change
            key = None
        if key is None:
            return self._recorded(layouts)
        forms = tuple([(name, array.dtype) for name, array in self._standing.items()])
        form = self._kernel, self._machine, self._machine.program_threads(), forms
        family = CallFamily(call.compute, form, call.options, key, (), "sequence_lens" in call.arrays, 0)
        plan = family.plan(layouts, self._recorded)
        if plan is None:
            raise CannotRecordError(f"{self._kernel} has no program")
        return plan

    def _recorded(
        self, layouts: Mapping[str, Any], has_symbols: bool = False, steps: Quantity | None = None
    ) -> Plan:
        """The plan of a call of these layouts."""
        inputs: list[Any] = []
        recorders: list[Recorder] = []

        def record(*call: Any) -> Any:
            compute, operator, arrays, options = call
            inputs.extend([array for array in arrays.values() if array is not None])
            recorders.append(
                Recorder(self._machine, layouts, inputs[0].dtype, steps, has_symbols=has_symbols)
            )
            return compute(Asked(operator, arrays, recorders[0]), **options)

        results = self._run(record)
        number_of = {address_of(array): number for number, array in enumerate(self._standing.values())}
        ends = range(len(number_of), len(number_of) + sum(result is not None for result in results))
        memories = [*[number_of[address_of(array)] for array in inputs], *ends]
        return Plan(recorders[0].program(results), functools.partial(ForeignProgram, memories=memories))


def write_program(
    kernel: Callable[..., Any],
    machine: ForeignMachine,
    arrays: Mapping[str, tuple[tuple[int, ...], Any]],
    options: Mapping[str, Any],
    several: bool = False,
) -> ForeignProgram:
    """Write the program of ``kernel(**arrays, **options)`` for a host.

    Parameters
    ----------
    kernel : callable
        A kernel that calls `planned` once; it returns an array, or a tuple of arrays and None.
    machine : ForeignMachine
        What the program will run on.
    arrays : mapping of str to (tuple of int, dtype)
        The shapes and dtypes of its arrays, which will be contiguous.
    options : mapping of str to object
        Its other arguments.
    several : bool
        More calls of a recurrent operator will follow that have another T or N: mostly their programs need
        no recording, as in the core.

    Raises
    ------
    CannotRecordError
        If the kernel needs something that has no instruction.
    """
    program, made = _HostCall(kernel, machine, arrays, options).plan(several)
    host_program: ForeignProgram = made(program)
    return host_program


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
