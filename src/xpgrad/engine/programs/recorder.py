"""An engine that records what a kernel asks for, instead of computing it: the result is a program.

A kernel asks for the same work in all calls of one form (shapes, strides, attributes). Once recorded, this
work runs again without the kernel, its checks and its views: see `program`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from xpgrad.engine import array_loops
from xpgrad.engine.compiled.machine import Machine
from xpgrad.engine.formulas.formula import Formula
from xpgrad.engine.formulas.row_formula import RowFormula
from xpgrad.engine.process import guard
from xpgrad.engine.programs.instructions import Block, CannotRecordError, Location, Quantity, array_loop
from xpgrad.engine.programs.program import Program
from xpgrad.engine.programs.recorded import Recorded, Sizes, Strides, check_fixed
from xpgrad.engine.programs.recorded_loops import RecordedLoops


class Joined(NamedTuple):
    """Several of a call's arrays, concatenated along the first axis to one operand.

    `layouts` holds the shape and strides of each array; `shape` is the operand's shape. Its first axes may
    divide the rows, as directions do.
    """

    layouts: Sequence[tuple[tuple[int, ...], Strides]]
    shape: tuple[int, ...]

    def of_others(self, layouts: Sequence[tuple[tuple[int, ...], Strides]]) -> Joined:
        """The operand of other arrays, of as many rows for each index of its first axes."""
        rest = layouts[0][0][1:]
        first = self.shape[: len(self.shape) - len(rest) - 1]
        rows = sum([shape[0] for shape, _ in layouts])
        return Joined((*layouts,), (*first, rows // prod(first), *rest))


class Recorder(RecordedLoops):
    """Has an engine's methods, as `StandardEngine` describes them.

    The threads of `machine` will run the program. `arrays` has the sizes and strides of the call's arrays, in
    elements: integers, or multiples of `steps_of_call`. All have the `dtype`. `steps` is T where the calls
    that share the program have several, else None. `is_full` says whether the lengths, which have resets, are
    T in all calls.
    """

    name = "recorder"

    def __init__(
        self,
        machine: Machine,
        arrays: Mapping[str, tuple[Sizes, Strides] | Joined],
        dtype: Any,
        steps: Quantity | None = None,
        is_full: bool = False,
        has_symbols: bool = False,
    ) -> None:
        super().__init__(machine, dtype, is_full)
        self.steps = steps
        self.has_symbols = self._draft.has_symbols = has_symbols
        self._joined = {name: place for name, place in arrays.items() if isinstance(place, Joined)}
        self._pieces = {
            name: [
                Recorded(self, Location(self._draft.new_input(), 0, strides), sizes)
                for sizes, strides in (place.layouts if isinstance(place, Joined) else (place,))
            ]
            for name, place in arrays.items()
        }
        self._inputs = {name: pieces[0] for name, pieces in self._pieces.items() if name not in self._joined}

    def input(self, name: str) -> Recorded:
        """An operand: one of the call's arrays, or several, which its first use joins."""
        if name not in self._inputs:
            pieces = self._pieces[name]
            whole = pieces[0] if len(pieces) == 1 else self.xp.concat(pieces)
            self._inputs[name] = self.xp.reshape(whole, self._joined[name].shape)
        return self._inputs[name]

    def joins(self, name: str) -> bool:
        """Whether the operand is joined of several of the call's arrays."""
        return name in self._joined

    def pieces(self, name: str, array: Recorded | None) -> list[Recorded | None]:
        """Split an array shaped like a joined operand into the shapes of its parts."""
        shapes = [shape for shape, _ in self._joined[name].layouts]
        if array is None:
            return [None] * len(shapes)
        if array.shape != self._joined[name].shape:
            raise CannotRecordError("pieces of an array of another shape")
        rows = self.xp.reshape(array, (sum(shape[0] for shape in shapes), *shapes[0][1:]))
        ends = list(itertools.accumulate(shape[0] for shape in shapes))
        return [rows[end - shape[0] : end, ...] for shape, end in zip(shapes, ends, strict=True)]

    def program(self, results: Sequence[Recorded | None]) -> Program:
        """The recorded program, with these results. The recorder cannot be used afterwards."""
        outputs: list[tuple[Block, Sizes] | None] = []
        taken = set(self._draft.inputs)
        for result in results:
            if result is None:
                outputs.append(None)
                continue
            own = result
            is_whole = own.size == own.block.size and own.contiguous
            is_inside = self._draft.whole(own.block).block is not own.block
            # under a guard every result is computed in the arena, between red zones
            if guard.on or is_inside or not is_whole or own.block in taken:
                own = self.fresh(own.sizes)
                self.copy(own, result)
            taken.add(own.block)
            outputs.append((own.block, own.sizes))
        program = Program(self._draft, outputs, self._machine, self.dtype)
        # Recorded arrays refer to their recorder. If it kept them, only Python's collector of cycles could
        # free them, and one of its runs takes a tenth of a second in a process with PyTorch.
        vars(self).clear()
        return program

    def lower(self, array: Recorded) -> Recorded:
        """The array: it is lowered when the program runs."""
        return array

    def quiet(self) -> Any:
        """Compiled code does not warn."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def lane(self, number: int) -> Iterator[None]:
        """Context whose instructions belong to a lane of the program."""
        self._draft.lane = number
        yield
        self._draft.lane = None

    # --- formulas over whole arrays

    def elementwise(
        self, formula: Formula, inputs: Sequence[Recorded | None], numbers: Sequence[float] = ()
    ) -> Recorded:
        """The result of a formula of contiguous arrays: of one shape, or of one element."""
        given = [x for x in inputs if x is not None]
        check_fixed(*given)
        shape = max((x.shape for x in given), key=prod)
        kinds = tuple(None if x is None else "each" if x.shape == shape else "one" for x in inputs)
        if any(x.shape != shape and x.size != 1 for x in given):
            raise CannotRecordError("broadcasting")
        result = self.fresh(shape)
        code = array_loops.loop_code(formula, kinds, None, self._name)
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
        code = array_loops.loop_code(formula, kinds, None, self._name)
        results = {
            name: self.fresh((A, n if name == formula.each_output else 1, 1)) for name in formula.outputs
        }
        # the result with all elements comes before the results with one number for each row
        ordered = sorted(results, key=lambda name: name != formula.each_output)
        arrays = [*given, *(results[name] for name in ordered)]
        self._add_array_loop(code, A, A * n, (n,), arrays, numbers)
        return tuple(results[name] for name in formula.outputs)

    def _add_array_loop(
        self, code: Any, count: int, elements: int, sizes: Sequence[int], arrays: Sequence[Recorded],
        numbers: Sequence[float],
    ) -> None:  # fmt: skip
        function, places = code.part, [array.place for array in arrays]
        self._draft.add(array_loop(function, count, elements, sizes, places, numbers, self._team))
