"""An engine that writes down what a kernel asks for, instead of doing it: the result is a program.

A kernel whose calls have one form (shapes, strides, attributes) asks for the same things every time. Written
down once, they are run again without the kernel, its checks and its views: see `program`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from xpgrad.engine import array_loops
from xpgrad.engine.compiled.machine import Machine
from xpgrad.engine.formulas.formula import Formula
from xpgrad.engine.formulas.row_formula import RowFormula
from xpgrad.engine.process import guard
from xpgrad.engine.programs.instructions import Block, array_loop
from xpgrad.engine.programs.program import Program
from xpgrad.engine.programs.recorded import (
    CannotRecordError,
    Recorded,
    Sizes,
    Strides,
    check_fixed,
    row_major,
)
from xpgrad.engine.programs.recorded_loops import RecordedLoops
from xpgrad.engine.programs.schedule import steps_of_call

__all__ = ["CannotRecordError", "Joined", "Recorded", "Recorder", "row_major"]


class Joined(NamedTuple):
    """Several of a call's arrays that are one operand, each behind the other along the first axis.

    `layouts` holds the shape and strides of each; `shape` is that of the operand.
    """

    layouts: Sequence[tuple[tuple[int, ...], Strides]]
    shape: tuple[int, ...]


class Recorder(RecordedLoops):
    """Has an engine's methods, as `StandardEngine` describes them.

    Parameters
    ----------
    machine : Machine
        The one on whose threads the program is to run.
    arrays : dict of str to (tuple, tuple) or Joined
        Sizes and strides of the call's arrays, in elements: integers, or multiples of `steps_of_call`.
    dtype : dtype
        Of all of them.
    steps : int, optional
        The largest T of the calls that share the program; 0 if all have the same.
    is_full : bool, optional
        Whether the lengths of all calls are T, which resets stand behind.
    """

    name = "recorder"

    def __init__(
        self,
        machine: Machine,
        arrays: Mapping[str, tuple[Sizes, Strides] | Joined],
        dtype: Any,
        steps: int = 0,
        is_full: bool = False,
    ) -> None:
        super().__init__(machine, dtype, is_full)
        self.steps = steps_of_call(steps) if steps else None
        self._joined = {name: place for name, place in arrays.items() if isinstance(place, Joined)}
        self._pieces = {
            name: [
                Recorded(self, self._draft.new_input(), 0, *layout)
                for layout in (place.layouts if isinstance(place, Joined) else (place,))
            ]
            for name, place in arrays.items()
        }
        self._inputs = {name: pieces[0] for name, pieces in self._pieces.items() if name not in self._joined}

    @classmethod
    def of_unnamed(
        cls, machine: Machine, layouts: Iterable[tuple[tuple[int, ...], Strides]], dtype: Any
    ) -> tuple[Recorder, list[Recorded]]:
        """A recorder of arrays without names, and these."""
        named = {str(number): layout for number, layout in enumerate(layouts)}
        recorder = cls(machine, named, dtype)
        return recorder, [recorder.input(name) for name in named]

    def input(self, name: str) -> Recorded:
        """One of the call's arrays, or several that are joined when the first one asks for them."""
        if name not in self._inputs:
            pieces = self._pieces[name]
            whole = pieces[0] if len(pieces) == 1 else self.xp.concat(pieces)
            self._inputs[name] = self.xp.reshape(whole, self._joined[name].shape)
        return self._inputs[name]

    def pieces(self, name: str, array: Recorded | None) -> list[Recorded | None]:
        """An array of the shape of an operand that is joined, in the shapes of what was joined to it."""
        shapes = [shape for shape, _ in self._joined[name].layouts]
        if array is None:
            return [None] * len(shapes)
        if array.shape != self._joined[name].shape:
            raise CannotRecordError("pieces of an array of another shape")
        rows = self.xp.reshape(array, (sum(shape[0] for shape in shapes), *shapes[0][1:]))
        ends = list(itertools.accumulate(shape[0] for shape in shapes))
        return [rows[end - shape[0] : end, ...] for shape, end in zip(shapes, ends, strict=True)]

    def program(self, results: Sequence[Recorded | None]) -> Program:
        """What was written down, to be run for these results. The recorder has ended then."""
        outputs: list[tuple[Block, Sizes] | None] = []
        taken = set(self._draft.inputs)
        for result in results:
            if result is None:
                outputs.append(None)
                continue
            own, placed = result, self._draft.is_placed(result.block)
            # Under a guard every result is computed in the arena, between red zones.
            if guard.on or placed or own.block in taken or own.size != own.block.size or not own.contiguous:
                own = self.fresh(own.sizes)
                self.copy(own, result)
            taken.add(own.block)
            outputs.append((own.block, own.sizes))
        program = Program(self._draft, outputs, self._machine, self.dtype)
        # Recorded arrays know their recorder. If it kept them, they would wait for Python's collector of
        # cycles, of which one run takes a tenth of a second in a process with PyTorch.
        vars(self).clear()
        return program

    def lower(self, array: Recorded) -> Recorded:
        """Results stay what they are until the program runs."""
        return array

    def quiet(self) -> Any:
        """Compiled code does not warn."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def lane(self, number: int) -> Iterator[None]:
        """What is recorded within belongs to a lane of the program."""
        self._draft.lane = number
        yield
        self._draft.lane = None

    # --- formulas over whole arrays

    def elementwise(
        self, formula: Formula, inputs: Sequence[Recorded | None], numbers: Sequence[float] = ()
    ) -> Recorded:
        """The one result of a formula of contiguous arrays: of one shape, or of one element."""
        given = [x for x in inputs if x is not None]
        check_fixed(*given)
        shape = max((x.shape for x in given), key=prod)
        kinds = tuple(None if x is None else "each" if x.shape == shape else "one" for x in inputs)
        if any(x.shape != shape and x.size != 1 for x in given):
            raise CannotRecordError("broadcasting")
        result = self.fresh(shape)
        code = array_loops.element_code(formula, kinds, None, self._name)
        arrays = [self.contiguous(x) for x in (*given, result)]
        self._add_array_loop(code, result.size, result.size, (), arrays, numbers)
        return result

    def over_rows(
        self, formula: RowFormula, operands: Sequence[Recorded | None], numbers: Sequence[float] = ()
    ) -> tuple[Recorded, ...]:
        """The outputs of a row formula of contiguous arrays (A, n, 1), rows (A, 1, 1), columns (1, n, 1)."""
        given = [x for x in operands if x is not None]
        check_fixed(*given)
        A, n, _ = given[0].shape
        kinds = tuple(None if x is None else "integers" if x.is_integer else "each" for x in operands)
        code = array_loops.row_code(formula, kinds, None, self._name)
        results = {
            name: self.fresh((A, n if name == formula.each_output else 1, 1)) for name in formula.outputs
        }
        # the result of every element comes before the numbers of rows
        ordered = sorted(results, key=lambda name: name != formula.each_output)
        arrays = [*given, *(results[name] for name in ordered)]
        self._add_array_loop(code, A, A * n, (n,), arrays, numbers)
        return tuple(results[name] for name in formula.outputs)

    def _add_array_loop(
        self, code: Any, count: int, elements: int, sizes: Sequence[int], arrays: Sequence[Recorded],
        numbers: Sequence[float],
    ) -> None:  # fmt: skip
        function, places = code.part, [array.place for array in arrays]
        self._draft.add(array_loop(function, count, elements, sizes, places, numbers, self._machine.team))
