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

import numpy as np

from xpgrad.engine.arrays import array_loops
from xpgrad.engine.compiled.machine import LoopWeight, Machine, Resets
from xpgrad.engine.compiled.products.matrix import compiled_products
from xpgrad.engine.formulas.formula import Elementwise, Formula, Product, Span
from xpgrad.engine.formulas.row_formula import RowFormula
from xpgrad.engine.process import guard
from xpgrad.engine.process.memory import LINE, name_of
from xpgrad.engine.programs.instructions import (
    Arithmetic,
    ArrayLoop,
    Block,
    Location,
    Multiply,
    MultiplyEach,
    Pack,
    Planned,
    Quantity,
    RunTimeLoop,
    most,
)
from xpgrad.engine.programs.program import BlockOffset, Draft, Program
from xpgrad.engine.programs.recorded import (
    CannotRecordError,
    Recorded,
    RecordedNamespace,
    Sizes,
    Strides,
    check_fixed,
    row_major,
)
from xpgrad.engine.programs.recorded_images import RecordedImages
from xpgrad.engine.programs.schedule import (
    MoveRows,
    RowSlice,
    Schedule,
    ScheduledChunk,
    ScheduledSteps,
    steps_of_call,
)
from xpgrad.engine.standard import first_row

_PIECES = 1024  # of an array with more axes than an instruction has
_ALIASED = 2048  # bytes: rows that lie so far apart, or a multiple of it, meet in few lines of the caches


class Joined(NamedTuple):
    """Several of a call's arrays that are one operand, each behind the other along the first axis.

    `layouts` holds the shape and strides of each; `shape` is that of the operand.
    """

    layouts: Sequence[tuple[tuple[int, ...], Strides]]
    shape: tuple[int, ...]


class Recorder(RecordedImages):
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
        self._machine, self.dtype, self._name = machine, dtype, name_of(dtype)
        self._is_full = is_full
        self.steps = steps_of_call(steps) if steps else None
        self._draft = Draft()
        self._schedule: Schedule | None = None
        self._has_one_step = False
        self._carried: dict[int, Recorded] = {}
        self._joined = {name: place for name, place in arrays.items() if isinstance(place, Joined)}
        self._pieces = {
            name: [
                Recorded(self, self._draft.new_input(), 0, *layout)
                for layout in (place.layouts if isinstance(place, Joined) else (place,))
            ]
            for name, place in arrays.items()
        }
        self._inputs = {name: pieces[0] for name, pieces in self._pieces.items() if name not in self._joined}

    @property
    def xp(self) -> RecordedNamespace:
        """The standard's functions on what it records."""
        return RecordedNamespace(self)

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
        """What was written down, to be run for these results."""
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
        self._draft = Draft()
        for tables in (self._pieces, self._inputs, self._carried):
            tables.clear()
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

    # --- memory

    def fresh(self, sizes: Sizes) -> Recorded:
        """New memory, to be written first."""
        shape = tuple(map(most, sizes))
        return Recorded(self, Block(prod(shape)), 0, tuple(sizes), row_major(sizes))

    def place(self, x: Recorded, target: Recorded) -> bool:
        """Let an array's memory be the target's, where it is all of a memory that is free for it."""
        whole = x.size == x.block.size and x.contiguous
        return whole and self._draft.place(x.block, BlockOffset(target.block, target.offset, target.shifts))

    def contiguous(self, x: Recorded) -> Recorded:
        """The array, or a copy whose elements follow one another."""
        if x.contiguous:
            return x
        result = self.fresh(x.sizes)
        self.copy(result, x)
        return result

    def _by_rows(self, x: Recorded) -> Recorded:
        """The matrix, or a copy, whose rows' elements follow one another and no other's."""
        rows, columns = _real_strides(x)
        return x if columns == 1 and rows >= x.shape[1] else self.contiguous(x)

    def copy(self, target: Recorded, x: Recorded) -> None:
        """Write an array into another."""
        self.emit_arithmetic("copy", target, [x])

    def arithmetic(self, kind: str, *operands: Recorded, shape: Sizes | None = None) -> Recorded:
        """A new array, element by element from arrays of one shape, or whose shapes broadcast to one."""
        if len({x.sizes for x in operands}) > 1:
            operands = self._broadcast(operands)
        result = self.fresh(operands[0].sizes if shape is None else tuple(shape))
        self.emit_arithmetic(kind, result, operands)
        return result

    def _broadcast(self, arrays: Sequence[Recorded]) -> tuple[Recorded, ...]:
        """Views of one shape."""
        if len({x.ndim for x in arrays}) > 1:
            raise CannotRecordError("broadcasting")
        check_fixed(*arrays)
        shape = np.broadcast_shapes(*(x.shape for x in arrays))
        return tuple(self.broadcast(x, shape) for x in arrays)

    def emit_arithmetic(self, kind: str, target: Recorded, operands: Sequence[Recorded]) -> None:
        """Arithmetic on arrays of the target's shape: along more axes than an instruction has, in several."""
        sizes, strides = _merged(target.sizes, [target.strides, *(x.strides for x in operands)])
        if len(sizes) > Arithmetic.AXES:
            known = [k for k, size in enumerate(target.sizes) if isinstance(size, int) and size > 1]
            axis = min(known, key=target.shape.__getitem__)
            if target.shape[axis] > _PIECES:
                raise CannotRecordError("an array with many axes")
            for number in range(target.shape[axis]):
                here = (*[slice(None)] * axis, number)
                self.emit_arithmetic(kind, target[here], [x[here] for x in operands])
            return
        places = [x.place._replace(strides=s) for x, s in zip([target, *operands], strides, strict=True)]
        self._add_arithmetic(kind, sizes, places)

    def _add_arithmetic(self, kind: str, sizes: Sequence[int | Quantity], places: Sequence[Location]) -> None:
        self._draft.add(Arithmetic(kind, sizes, places, self._machine.team, self._name))

    # --- row buffers

    def wrap(self, array: Recorded) -> Recorded:
        """The array itself, its rows made contiguous."""
        return self._by_rows(array)

    def rows(self, count: int | Quantity, width: int, like: Any) -> Recorded:
        """New memory."""
        return self.fresh((count, width))

    def scratch(self, count: int | Quantity, width: int, like: Any) -> Recorded:
        """New memory, its rows kept off distances at which they would push one another out of the caches."""
        pad = LINE // self.dtype.itemsize if width * self.dtype.itemsize % _ALIASED == 0 else 0
        return self.fresh((count, width + pad))[:, :width]

    def product_rows(self, a: Recorded, b: Recorded) -> Recorded:
        """The product, in new memory."""
        return self.matmul(a, b)

    def carry(self, array: Recorded) -> Recorded:
        """A copy of the array."""
        result = self.scratch(array.sizes[0], array.shape[1], like=array)
        self.copy(result, array)
        self._carried[id(result)] = result
        return result

    def columns(self, rows: Recorded, start: int, stop: int) -> Recorded:
        """A view."""
        return rows[:, start:stop]

    def array(self, rows: Recorded) -> Recorded:
        """The buffer itself."""
        return rows

    # --- what is computed

    def chunk(self, width: int, like: Any) -> int:
        """As the engine."""
        return self._machine.chunk(width, like)

    def matmul(self, a: Recorded, b: Recorded) -> Recorded:
        """Matrix product, in new memory."""
        if a.ndim != 2 or b.ndim != 2:
            return self.product(a, b)
        result = self.fresh((a.sizes[0], b.sizes[1]))
        self.multiply(result, a, b)
        return result

    def write_product(self, a: Recorded, b: Recorded, target: Recorded, first: int | Quantity) -> None:
        """Matrix product, into the target's rows."""
        if isinstance(first, Quantity):
            self.multiply(target.part(RowSlice(first, a.sizes[0])), a, b)
        else:
            check_fixed(a)
            self.multiply(target[first : first + a.shape[0], :], a, b)

    def add_product(self, total: Recorded | None, a: Recorded, b: Recorded) -> Recorded:
        """Matrix product, added to the total in place."""
        if total is None:
            return self.matmul(a, b)
        return self.product(a, b, total, add=True)

    def scale(self, array: Recorded, factors: Recorded) -> Recorded:
        """Each row times its factor, in place."""
        strides = (factors.strides[0], 0)
        self.emit_arithmetic("multiply", array, [array, factors.view(factors.offset, array.sizes, strides)])
        return array

    def broadcast(self, array: Recorded, shape: tuple[int, ...]) -> Recorded:
        """A view."""
        check_fixed(array)
        pairs = zip(array.shape, array.strides, shape, strict=True)
        strides = tuple(stride if own == size else 0 for own, stride, size in pairs)
        return array.view(array.offset, shape, strides)

    def roots(self, squares: Recorded) -> Recorded:
        """In new memory."""
        return self.arithmetic("root", squares)

    def column_sums(self, array: Recorded) -> Recorded:
        """The sum over the rows, in one pass."""
        return self._sum_over_rows("column_sums", array)

    def column_dots(self, a: Recorded, b: Recorded) -> Recorded:
        """The sum over the rows of a b, in one pass."""
        return self._sum_over_rows("column_sums_of_products", a, b)

    def _sum_over_rows(self, kind: str, *operands: Recorded) -> Recorded:
        sizes = operands[0].sizes
        result = self.fresh(sizes[1:])
        every_row = Recorded(self, result.block, 0, sizes, (0, 1))
        places = [x.place for x in (every_row, *map(self._by_rows, operands))]
        self._add_arithmetic(kind, sizes, places)
        return result

    def multiply(self, target: Recorded, a: Recorded, b: Recorded, add: bool = False) -> None:
        """Matrix product, written to the target or added to it."""
        if not target.size:
            return
        factors = [self._by_rows(x.T).T if _real_strides(x)[0] == 1 else self._by_rows(x) for x in (a, b)]
        sizes = (target.sizes[0], target.sizes[1], a.sizes[1])
        places = [x.place._replace(strides=_real_strides(x)) for x in (target, *factors)]
        self._draft.add(Multiply(sizes, places, add, self._machine.team, self.dtype))

    def multiply_stack(self, target: Recorded, a: Recorded, b: Recorded, add: bool) -> bool:
        """The same for stacks of matrices, in one instruction; False where it does not fit them.

        Their distances must be equal, and each thread needs a matrix. A stack of factors may have fewer axes
        than the target's.
        """
        check_fixed(target, a, b)
        lead, team = target.shape[:-2], self._machine.team
        if prod(lead) < team.size():
            return False
        steps = [(*[0] * (target.ndim - x.ndim), *x.strides[:-2]) for x in (target, a, b)]
        sizes, merged = _merged(lead, steps)
        matrices = [x[(*[0] * (x.ndim - 2), ...)] for x in (target, a, b)]
        strides = [_real_strides(x) for x in matrices]
        if len(sizes) != 1 or any(1 not in own for own in strides) or strides[0][1] != 1:
            return False
        places = [x.place._replace(strides=own) for x, own in zip(matrices, strides, strict=True)]
        m, k, n = *matrices[1].shape, matrices[2].shape[1]
        apart = [own[0] for own in merged]
        self._draft.add(MultiplyEach((m, n, k), prod(lead), apart, places, add, team, self.dtype))
        return True

    def pack(self, weight: Recorded) -> Recorded:
        """As NumpyEngine.pack."""
        return self.contiguous(weight)

    def loop_weight(self, weight: Recorded, times: int) -> LoopWeight:
        """See NumpyEngine.loop_weight; packing is part of the program."""
        if times == 1 and self._schedule is None:  # products of a single step need no loop
            self._has_one_step = True
            return LoopWeight(weight)
        functions = compiled_products(self._name)
        *lead, k, n = weight.shape
        source = weight if _is_stack(weight) else self.contiguous(weight)
        _, (steps,) = _merged(tuple(lead), [source.strides[:-2]])
        first = source[(*[0] * len(lead), ...)]
        panels = self.fresh((functions.panels(weight.shape),))
        places = [first.place._replace(strides=_real_strides(first)), panels.place]
        self._draft.add(Pack(functions, (k, n), prod(lead), sum(steps), places, self._machine.team))
        return LoopWeight(weight, panels)

    def scan(self, stages: Sequence[Elementwise | Product], steps: np.ndarray | ScheduledSteps) -> None:
        """The time loop, compiled."""
        if not len(steps):
            return
        if isinstance(steps, ScheduledSteps):
            loop = self._machine.time_loop(stages, steps.spans(), True, self._resets(steps))
            loop = loop._replace(head=steps.put_into(loop.head, 1 if loop.head.stages else loop.parts))
        elif self._has_one_step and any(isinstance(stage, Product) for stage in stages):
            self._scan_one_step(stages, steps)
            return
        else:
            loop = self._machine.time_loop(stages, steps, by_stages=True)
        self._draft.add(RunTimeLoop(loop, stages, self._machine.team))

    def _resets(self, steps: ScheduledSteps) -> Resets | None:
        """What the loop reads of resets, where there are any: a table in memory that the schedule writes."""
        marks = steps.marks()
        if marks is None or marks.block is None:
            return None
        unit = self.dtype.itemsize
        table = Recorded(self, marks.block, marks.bytes // unit, (steps.rows_at_most * 8 // unit,), (1,))
        return Resets(self.xp.reshape(table, (1, -1)), self._carried)

    def _scan_one_step(self, stages: Sequence[Elementwise | Product], steps: np.ndarray) -> None:
        """The stages one after the other, with products that take a weight as it is."""
        span = Span._make(steps[0].tolist())
        for stage in stages:
            if isinstance(stage, Product):
                first, weight = first_row(stage.source, span), stage.weight.array
                rows = stage.source.rows[first : first + span.rows, :]
                self._multiply_once(stage.target[: span.rows, :], rows, weight)
            else:
                self.scan([stage], steps)

    def _multiply_once(self, target: Recorded, rows: Recorded, weight: Recorded) -> None:
        """Rows times a weight as it is; one of heads block by block."""
        if weight.ndim == 2:
            self.multiply(target, rows, weight)
            return
        blocks, heads, k, n = weight.shape
        sources, targets = self._by_head(rows, heads, k), self._by_head(target, heads, n)
        for block in range(blocks):
            source, to = block % sources.shape[0], block % targets.shape[0]
            self.product(sources[source, ...], weight[block, ...], targets[to, ...], add=block > to)

    def _by_head(self, x: Recorded, heads: int, width: int) -> Recorded:
        """A matrix whose columns stand by block and head, as blocks of the heads' matrices."""
        parted = x.split_last((x.shape[1] // (heads * width), heads, width))
        return self.xp.permute_dims(parted, (1, 2, 0, 3))

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

    def run_planned(
        self, function: int, parts: int, numbers: Any, arrays: Sequence[Recorded], kept: Any = None,
        multiplications: int = 0,
    ) -> None:  # fmt: skip
        """A compiled function on arrays; see `Planned`."""
        places = [array.place for array in arrays]
        team = self._machine.team
        self._draft.add(Planned(function, parts, numbers, places, kept, team, multiplications))

    def _add_array_loop(
        self, code: Any, count: int, elements: int, sizes: Sequence[int], arrays: Sequence[Recorded],
        numbers: Sequence[float],
    ) -> None:  # fmt: skip
        function, places = code.part, [array.place for array in arrays]
        self._draft.add(ArrayLoop(function, count, elements, sizes, places, numbers, self._machine.team))

    # --- sequences of uneven lengths

    def schedule(self, lengths: Recorded | None, steps: int, batch: int) -> Schedule:
        """What lengths and T decide; found once, in front of everything that asks for it."""
        if self._schedule is None:
            block, resets = None, 0
            if lengths is not None:
                block, resets = lengths.block, int(lengths.ndim == 2) * (1 + self._is_full)
            itemsize, team = self.dtype.itemsize, self._machine.team
            self._schedule = Schedule(block, steps, batch, resets, itemsize, team)
            self._draft.add(self._schedule)
        return self._schedule

    def move_rows(
        self,
        kind: str,
        array: Recorded,
        sizes: Sizes,
        *,
        reverse: bool = False,
        initial: Recorded | None = None,
        chunk: ScheduledChunk | None = None,
    ) -> Recorded:
        """Rows in another order, in new memory of these sizes; for the rest see `MoveRows`."""
        if self._schedule is None:
            raise CannotRecordError("rows of lengths that are not known")
        result = self.fresh(sizes)
        places = [x.place for x in (result, array, initial) if x is not None]
        dtype, width = self._name, result.shape[-1]
        self._draft.add(
            MoveRows(kind, self._schedule, reverse, places, width, chunk, self._machine.team, dtype)
        )
        return result


def _is_stack(x: Recorded) -> bool:
    """Whether it is a matrix by rows or by columns, or several of these at equal distances."""
    sizes, _ = _merged(x.sizes[:-2], [x.strides[:-2]])
    return len(sizes) <= 1 and 1 in _real_strides(x[(*[0] * (x.ndim - 2), ...)])


def _real_strides(x: Recorded) -> Strides:
    """A matrix's strides, with those of an axis of size 1 as if it were longer and row-major."""
    rows, columns = x.strides
    if x.shape[1] == 1:
        columns = 1
    if x.shape[0] == 1:
        rows = max(x.shape[1], 1) if columns == 1 else 1
    return rows, columns


def _merged(shape: Sizes, strides: Sequence[Strides]) -> tuple[list[int | Quantity], list[list[int]]]:
    """A shape with as few axes as the strides of all operands allow."""
    sizes: list[int | Quantity] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        last = sizes[-1] if sizes else None
        if (
            isinstance(last, int)
            and isinstance(size, int)
            and all(own[-1] == s[axis] * size for own, s in zip(steps, strides, strict=True))
        ):
            sizes[-1] = last * size
            for own, s in zip(steps, strides, strict=True):
                own[-1] = s[axis]
        else:
            sizes.append(size)
            for own, s in zip(steps, strides, strict=True):
                own.append(s[axis])
    return sizes, steps
