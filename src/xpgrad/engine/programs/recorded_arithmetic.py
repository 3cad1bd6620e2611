"""The base of the recorder: memory, arithmetic and products."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from xpgrad.engine.compiled.machine import Machine
from xpgrad.engine.process.memory import name_of
from xpgrad.engine.programs import instructions
from xpgrad.engine.programs.instructions import AXES, Block, Location, Quantity, Work
from xpgrad.engine.programs.program import BlockOffset, Draft
from xpgrad.engine.programs.recorded import (
    CannotRecordError,
    Recorded,
    RecordedNamespace,
    Sizes,
    Strides,
    check_fixed,
    row_major,
    shape_of,
)

_SHORT = 8  # elements of a row that take less time than the row itself
_LINE_ELEMENTS = 16  # elements of a cache line
_PIECE, _LEAST_PIECE = 512, 64  # elements of a piece of a row
_PIECES = 1024  # the most instructions for an array with more axes than an instruction has


class RecordedArithmetic:
    """Records arithmetic and products of arrays of one dtype, for the threads of a machine."""

    def __init__(self, machine: Machine, dtype: Any) -> None:
        self._machine, self._team = machine, machine.team
        self.dtype, self._name = dtype, name_of(dtype)
        self._draft = Draft()
        self.moving: Mapping[int, int | None] = {}
        """The ids of the slices that are the part for which work on parts that are alike is recorded.

        Their size, if no axis ends within them.
        """
        self.xp: Any = RecordedNamespace(self)

    # --- memory

    def fresh(self, sizes: Sizes) -> Recorded:
        """A new array, not cleared."""
        sizes = tuple(sizes)
        return Recorded(self, Location(Block(prod(shape_of(sizes))), 0, row_major(sizes)), sizes)

    def place(self, x: Recorded, target: Recorded) -> bool:
        """Make an array's block a part of the target's, if the array fills its block; tell whether it was."""
        whole = x.size == x.block.size and x.contiguous
        return whole and self._draft.place(x.block, BlockOffset(target.block, target.offset, target.shifts))

    def contiguous(self, x: Recorded) -> Recorded:
        """The array, or a contiguous copy."""
        if x.contiguous:
            return x
        result = self.fresh(x.sizes)
        self.copy(result, x)
        return result

    def by_rows(self, x: Recorded) -> Recorded:
        """The matrix, or a copy, with contiguous rows that do not overlap."""
        rows, columns = real_strides(x)
        return x if columns == 1 and rows >= x.shape[1] else self.contiguous(x)

    def copy(self, target: Recorded, x: Recorded) -> None:
        """Write an array into another."""
        self.emit_arithmetic("copy", target, [x])

    # --- arithmetic

    def arithmetic(self, kind: str, *operands: Recorded, shape: Sizes | None = None) -> Recorded:
        """A new array, element by element from arrays whose shapes broadcast to one shape."""
        if any(x.sizes != operands[0].sizes for x in operands):
            if len({x.ndim for x in operands}) > 1:
                raise CannotRecordError("broadcasting")
            common = _broadcast_sizes([x.sizes for x in operands])
            operands = tuple(self.broadcast(x, common) for x in operands)
        result = self.fresh(operands[0].sizes if shape is None else tuple(shape))
        self.emit_arithmetic(kind, result, operands)
        return result

    def broadcast(self, array: Recorded, sizes: Sizes) -> Recorded:
        """A view of these sizes."""
        pairs = zip(array.sizes, array.strides, sizes, strict=True)
        strides = tuple(stride if own == size else 0 for own, stride, size in pairs)
        return array.view(array.offset, sizes, strides)

    def emit_arithmetic(self, kind: str, target: Recorded, operands: Sequence[Recorded]) -> None:
        """Arithmetic on arrays of the target's shape; several instructions if it has too many axes."""
        sizes, strides = merged(target.sizes, [target.strides, *(x.strides for x in operands)])
        _put_a_long_axis_last(sizes, strides)
        _keep_lines_near(sizes, strides)
        if len(sizes) > AXES:
            known = [k for k, size in enumerate(target.sizes) if not isinstance(size, Quantity) and size > 1]
            axis = min(known, key=target.shape.__getitem__)
            if target.shape[axis] > _PIECES:
                raise CannotRecordError("an array with many axes")
            for number in range(target.shape[axis]):
                here = (*[slice(None)] * axis, number)
                self.emit_arithmetic(kind, target[here], [x[here] for x in operands])
            return
        pairs = zip([target, *operands], strides, strict=True)
        places = [x.place._replace(strides=tuple(own)) for x, own in pairs]
        self._add_arithmetic(kind, sizes, places)

    def _add_arithmetic(self, kind: str, sizes: Sequence[int | Quantity], places: Sequence[Location]) -> None:
        self._draft.add(instructions.arithmetic(kind, sizes, places, self._team, self._name))

    def column_sums(self, array: Recorded) -> Recorded:
        """The sum over the rows, in one pass."""
        return self._sum_over_rows("column_sums", array)

    def column_dots(self, a: Recorded, b: Recorded) -> Recorded:
        """The sum over the rows of the product a b, in one pass."""
        return self._sum_over_rows("column_sums_of_products", a, b)

    def _sum_over_rows(self, kind: str, *operands: Recorded) -> Recorded:
        sizes = operands[0].sizes
        result = self.fresh(sizes[1:])
        places = [Location(result.block, 0, (0, 1)), *(self.by_rows(x).place for x in operands)]
        self._add_arithmetic(kind, sizes, places)
        return result

    # --- products and compiled functions

    def multiply(self, target: Recorded, a: Recorded, b: Recorded, add: bool = False) -> None:
        """Write a matrix product to the target, or add it."""
        if not target.size:
            return
        factors = [self.by_rows(x.T).T if real_strides(x)[0] == 1 else self.by_rows(x) for x in (a, b)]
        sizes = (target.sizes[0], target.sizes[1], a.sizes[1])
        places = [x.place._replace(strides=real_strides(x)) for x in (target, *factors)]
        self._draft.add(instructions.multiply(sizes, places, add, self._team, self.dtype))

    def multiply_stack(self, target: Recorded, a: Recorded, b: Recorded, add: bool) -> bool:
        """The same for stacks of matrices, in one instruction; False where it does not fit them.

        Their distances must be equal, and each thread needs a matrix. A stack of factors may have fewer axes
        than the target's.
        """
        check_fixed(target, a, b)
        lead, team = target.shape[:-2], self._team
        if prod(lead) < team.size():
            return False
        steps = [(*[0] * (target.ndim - x.ndim), *x.strides[:-2]) for x in (target, a, b)]
        sizes, own_steps = merged(lead, steps)
        matrices = [x.view(x.offset, x.sizes[-2:], x.strides[-2:]) for x in (target, a, b)]
        strides = [real_strides(x) for x in matrices]
        if len(sizes) != 1 or any(1 not in own for own in strides) or strides[0][1] != 1:
            return False
        places = [x.place._replace(strides=own) for x, own in zip(matrices, strides, strict=True)]
        m, k, n = *matrices[1].shape, matrices[2].shape[1]
        apart = [own[0] for own in own_steps]
        one = instructions.multiply_each((m, n, k), prod(lead), apart, places, add, team, self.dtype)
        self._draft.add(one)
        return True

    def run_planned(
        self, function: int, parts: int, numbers: Any, arrays: Sequence[Recorded], kept: Any = None,
        multiplications: int = 0,
    ) -> None:  # fmt: skip
        """Call a compiled function on arrays; see `Work`."""
        places = [array.place for array in arrays]
        team, sizes = self._team, [array.shape for array in arrays]
        self._draft.add(Work("Images", sizes, function, parts, team, places, numbers, kept, multiplications))


def _broadcast_sizes(all_sizes: Sequence[Sizes]) -> Sizes:
    """The sizes to which arrays broadcast."""
    common: list[int | Quantity] = []
    for sizes in zip(*all_sizes, strict=True):
        wide = [size for size in sizes if size != 1] or [1]
        if any(size != wide[0] for size in wide):
            raise CannotRecordError("broadcasting")
        common.append(wide[0])
    return tuple(common)


def real_strides(x: Recorded) -> Strides:
    """A matrix's strides; an axis of size 1 gets the stride that it would have in a row-major matrix."""
    rows, columns = x.strides
    if columns != 1 and x.shape[1] == 1:
        columns = 1
    if x.shape[0] == 1:
        rows = max(x.shape[1], 1) if columns == 1 else 1
    return rows, columns


def _put_a_long_axis_last(sizes: list[int | Quantity], strides: Sequence[list[int]]) -> None:
    """Exchange a last axis of few elements for a longer one: each row costs as much as some elements.

    It is the next one that is long enough, or else the longest: far out, its elements are far apart.
    """
    known = [0 if isinstance(size, Quantity) else size for size in sizes]
    if not known or not 0 < known[-1] < _SHORT:
        return
    long = next((k for k in reversed(range(len(known))) if known[k] >= _SHORT), known.index(max(known)))
    sizes[long], sizes[-1] = sizes[-1], sizes[long]
    for own in strides:
        own[long], own[-1] = own[-1], own[long]


def _keep_lines_near(sizes: list[int | Quantity], strides: Sequence[list[int]]) -> None:
    """Order known axes so that a cache line is used up soon: transposed weights take a third of the time.

    If an operand's elements of a row are in lines of their own, its axis of neighbours becomes the one before
    the last. Long rows whose elements are apart are cut: the first axis counts the pieces.
    """
    lists: list[list[Any]] = [sizes, *strides]
    if len(sizes) < 2 or any(type(number) is not int for own in lists for number in own):
        return
    for own in strides:
        near = min((k for k, stride in enumerate(own) if stride), key=own.__getitem__, default=len(own))
        if own[-1] > _LINE_ELEMENTS and near < len(own) - 2:
            for each in lists:
                each.insert(-1, each.pop(near))
    long, apart = lists[0][-1], [own[-1] for own in strides]
    piece = math.gcd(long, _PIECE)
    if long > _PIECE and piece >= _LEAST_PIECE and max(apart) > 1 and len(sizes) < AXES:
        for own, first in zip(lists, [long // piece, *(piece * stride for stride in apart)], strict=True):
            own.insert(0, first)
        sizes[-1] = piece


def merged(shape: Sizes, strides: Sequence[Strides]) -> tuple[list[int | Quantity], list[list[int]]]:
    """Join axes of a shape where the strides of all operands allow it; return the sizes and strides."""
    sizes: list[int | Quantity] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        here, last = [own[axis] for own in strides], sizes[-1] if sizes else None
        fits = [own[-1:] == [step * size] for own, step in zip(steps, here, strict=True)]
        if last is not None and Quantity not in (type(last), type(size)) and all(fits):
            sizes[-1] = last * size
            for own in steps:
                own.pop()
        else:
            sizes.append(size)
        for own, step in zip(steps, here, strict=True):
            own.append(step)
    return sizes, steps
