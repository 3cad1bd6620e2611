"""What every part of a recorder is made of: memory, arithmetic and products, written down."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from xpgrad.engine.compiled.machine import Machine
from xpgrad.engine.process.memory import name_of
from xpgrad.engine.programs import instructions
from xpgrad.engine.programs.instructions import AXES, Block, Location, Quantity, Work, most
from xpgrad.engine.programs.program import BlockOffset, Draft
from xpgrad.engine.programs.recorded import (
    CannotRecordError,
    Recorded,
    RecordedNamespace,
    Sizes,
    Strides,
    check_fixed,
    row_major,
)

_PIECES = 1024  # of an array with more axes than an instruction has


class RecordedArithmetic:
    """Writes down arithmetic and products on arrays of one dtype, for the threads of a machine."""

    def __init__(self, machine: Machine, dtype: Any) -> None:
        self._machine, self.dtype, self._name = machine, dtype, name_of(dtype)
        self._draft = Draft()
        self.xp: Any = RecordedNamespace(self)

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

    def by_rows(self, x: Recorded) -> Recorded:
        """The matrix, or a copy, whose rows' elements follow one another and no other's."""
        rows, columns = real_strides(x)
        return x if columns == 1 and rows >= x.shape[1] else self.contiguous(x)

    def copy(self, target: Recorded, x: Recorded) -> None:
        """Write an array into another."""
        self.emit_arithmetic("copy", target, [x])

    # --- arithmetic

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

    def broadcast(self, array: Recorded, shape: tuple[int, ...]) -> Recorded:
        """A view."""
        check_fixed(array)
        pairs = zip(array.shape, array.strides, shape, strict=True)
        strides = tuple(stride if own == size else 0 for own, stride, size in pairs)
        return array.view(array.offset, shape, strides)

    def emit_arithmetic(self, kind: str, target: Recorded, operands: Sequence[Recorded]) -> None:
        """Arithmetic on arrays of the target's shape: along more axes than an instruction has, in several."""
        sizes, strides = merged(target.sizes, [target.strides, *(x.strides for x in operands)])
        if len(sizes) > AXES:
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
        self._draft.add(instructions.arithmetic(kind, sizes, places, self._machine.team, self._name))

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
        places = [x.place for x in (every_row, *map(self.by_rows, operands))]
        self._add_arithmetic(kind, sizes, places)
        return result

    # --- products and other work

    def multiply(self, target: Recorded, a: Recorded, b: Recorded, add: bool = False) -> None:
        """Matrix product, written to the target or added to it."""
        if not target.size:
            return
        factors = [self.by_rows(x.T).T if real_strides(x)[0] == 1 else self.by_rows(x) for x in (a, b)]
        sizes = (target.sizes[0], target.sizes[1], a.sizes[1])
        places = [x.place._replace(strides=real_strides(x)) for x in (target, *factors)]
        self._draft.add(instructions.multiply(sizes, places, add, self._machine.team, self.dtype))

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
        sizes, own_steps = merged(lead, steps)
        matrices = [x[(*[0] * (x.ndim - 2), ...)] for x in (target, a, b)]
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
        """A compiled function on arrays; see `Work`."""
        places = [array.place for array in arrays]
        team, sizes = self._machine.team, [array.shape for array in arrays]
        self._draft.add(Work("Images", sizes, function, parts, team, places, numbers, kept, multiplications))


def real_strides(x: Recorded) -> Strides:
    """A matrix's strides, with those of an axis of size 1 as if it were longer and row-major."""
    rows, columns = x.strides
    if x.shape[1] == 1:
        columns = 1
    if x.shape[0] == 1:
        rows = max(x.shape[1], 1) if columns == 1 else 1
    return rows, columns


def merged(shape: Sizes, strides: Sequence[Strides]) -> tuple[list[int | Quantity], list[list[int]]]:
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
