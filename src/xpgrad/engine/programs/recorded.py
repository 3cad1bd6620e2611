"""Arrays of a program that is being recorded: they have a place, but no values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from xpgrad.engine.programs.instructions import Block, CannotRecordError, Location, Quantity, most
from xpgrad.engine.programs.schedule import RowSlice
from xpgrad.engine.symbols import is_symbol, of_numbers

if TYPE_CHECKING:
    from xpgrad.engine.programs.recorded_arithmetic import RecordedArithmetic

Sizes = tuple[int | Quantity, ...]
Strides = tuple[Any, ...]  # integers, or quantities if they depend on a call's T
_ALL = slice(None)


class Recorded:
    """An array of a program that is being recorded: it has a place, but no values.

    `sizes` is NumPy's shape, with quantities for sizes that a call decides; `shape` has the largest sizes.
    """

    device = "cpu"
    is_integer = False
    """Whether it holds integers of 32 bits; only the call's own arrays can."""

    def __init__(self, recorder: RecordedArithmetic, place: Location, sizes: Sizes) -> None:
        self._recorder, self.place, self.dtype = recorder, place, recorder.dtype
        self.block, self.offset, self.strides, self.shifts, _ = place
        self.sizes, self.shape = sizes, shape_of(sizes)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The largest number of elements."""
        return prod(self.shape)

    @property
    def T(self) -> Recorded:
        """A view with the axes in reverse order."""
        return self.view(self.offset, self.sizes[::-1], self.strides[::-1])

    @property
    def contiguous(self) -> bool:
        """Whether the elements are contiguous in memory, row by row."""
        expected = row_major(self.sizes)
        return all(
            size <= 1 or stride == own
            for size, stride, own in zip(self.shape, self.strides, expected, strict=True)
        )

    def view(self, offset: int, sizes: Sizes, strides: Strides) -> Recorded:
        """Another array in the same memory."""
        block, _, _, shifts, by_part = self.place
        return Recorded(self._recorder, Location(block, offset, strides, shifts, by_part), sizes)

    def moved(self, distance: int, own: Callable[[Block], Block]) -> Recorded:
        """The array of a part that is alike; see `Location.moved`."""
        return Recorded(self._recorder, self.place.moved(distance, own), self.sizes)

    def split_last(self, sizes: tuple[int, ...]) -> Recorded:
        """A view with the last axis divided into several."""
        strides = tuple(self.strides[-1] * step for step in row_major(sizes))
        return self.view(self.offset, (*self.sizes[:-1], *sizes), (*self.strides[:-1], *strides))

    def part(self, part: RowSlice) -> Recorded:
        """A view of rows whose numbers the lengths decide."""
        line = self.strides[0]
        if isinstance(line, Quantity):
            raise CannotRecordError("rows whose distance a call decides")
        sizes = (part.rows, *self.sizes[1:])
        if not isinstance(part.start, Quantity):
            return self.view(self.offset + part.start * line, sizes, self.strides)
        shifts = (*self.shifts, (part.start, line))
        return Recorded(self._recorder, self.place._replace(shifts=shifts), sizes)

    def __getitem__(self, key: Any) -> Recorded:
        keys = list(key) if isinstance(key, tuple) else [key]
        if Ellipsis in keys:
            place = keys.index(Ellipsis)
            keys[place : place + 1] = [_ALL] * (self.ndim - len(keys) + 1)
        keys += [_ALL] * (self.ndim - len(keys))
        if isinstance(keys[0], RowSlice):
            return self.part(keys[0])[(_ALL, *keys[1:])]
        block, offset, _, shifts, by_part = self.place
        sizes, strides = list[int | Quantity](), []
        moving = self._recorder.moving
        for k, size, stride in zip(keys, self.sizes, self.strides, strict=True):
            start, step = 0, 1
            if k is _ALL:
                sizes.append(size)
            elif k.__class__ is not slice:
                if isinstance(size, Quantity):
                    raise CannotRecordError("one place along a size that a call decides")
                start, step = k % size, 0
            elif k.start is None and isinstance(k.stop, Quantity):
                sizes.append(k.stop)
            elif k.start is k.stop is k.step is None:
                sizes.append(size)
            else:
                step = 1 if k.step is None else k.step
                if step < 1 or isinstance(size, Quantity):
                    raise CannotRecordError("steps backwards, or parts of a size that a call decides")
                count = moving.get(id(k))
                if count is None:
                    start, count = _first_and_count(k, size, step)
                else:  # each of several parts, which are within the axis
                    start = k.start
                sizes.append(count)
            if step:
                strides.append(stride * step if step != 1 else stride)
            if is_symbol(start) or start:
                if isinstance(stride, Quantity):
                    shifts = [*shifts, (stride, start)]
                else:
                    offset += start * stride
            if id(k) in moving:
                by_part += stride
        here = Location(block, offset, tuple(strides), shifts, by_part)
        return Recorded(self._recorder, here, tuple(sizes))

    def __add__(self, other: Recorded) -> Recorded:
        return self._recorder.arithmetic("add", self, other)

    def __mul__(self, other: Recorded) -> Recorded:
        return self._recorder.arithmetic("multiply", self, other)


class RecordedNamespace:
    """The functions of the array API that can be recorded."""

    def __init__(self, recorder: RecordedArithmetic) -> None:
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        raise CannotRecordError(name)

    def zeros(self, shape: tuple[int, ...], dtype: Any = None, device: Any = None) -> Recorded:
        """Zeros."""
        return self._recorder.arithmetic("zero", shape=shape)

    def reshape(self, x: Recorded, shape: tuple[int, ...]) -> Recorded:
        """The same elements in another shape."""
        x = self._recorder.contiguous(x)
        check_fixed(x)
        if -1 in shape:
            rest = x.size // max(1, -prod(shape))
            shape = tuple(rest if size == -1 else size for size in shape)
        return x.view(x.offset, tuple(shape), row_major(shape))

    def expand_dims(self, x: Recorded, *, axis: int) -> Recorded:
        """A view with one more axis of size 1."""
        sizes, strides, axis = list(x.sizes), list(x.strides), axis % (x.ndim + 1)
        sizes.insert(axis, 1)
        strides.insert(axis, 0)
        return x.view(x.offset, tuple(sizes), tuple(strides))

    def permute_dims(self, x: Recorded, axes: Sequence[int]) -> Recorded:
        """A view with the axes in another order."""
        return x.view(x.offset, tuple(x.sizes[k] for k in axes), tuple(x.strides[k] for k in axes))

    def matrix_transpose(self, x: Recorded) -> Recorded:
        """A view with the last two axes exchanged."""
        return self.permute_dims(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))

    def concat(self, arrays: Sequence[Recorded], *, axis: int = 0) -> Recorded:
        """The arrays, concatenated.

        Along the first axis, an array that fills its block is not copied: the block becomes a part of the
        result's, before anything is written to it. No kernel writes to arrays after it has concatenated them.
        """
        sizes, axis = list(arrays[0].sizes), axis % arrays[0].ndim
        if any(isinstance(x.sizes[axis], Quantity) for x in arrays):
            raise CannotRecordError("joining arrays whose sizes a call decides")
        sizes[axis] = sum(x.shape[axis] for x in arrays)
        result, start = self._recorder.fresh(tuple(sizes)), 0
        for x in arrays:
            stop = start + x.shape[axis]
            target = result[(*[slice(None)] * axis, slice(start, stop))]
            if axis or not self._recorder.place(x, target):
                self._recorder.copy(target, x)
            start = stop
        return result

    def stack(self, arrays: Sequence[Recorded], *, axis: int = 0) -> Recorded:
        """The arrays, stacked along a new axis."""
        return self.concat([self.expand_dims(x, axis=axis) for x in arrays], axis=axis)

    def sum(self, x: Recorded, *, axis: int) -> Recorded:
        """The sum along the first axis."""
        if axis != 0:
            raise CannotRecordError("sums along other axes than the first")
        rows = self.reshape(x, (x.shape[0], prod(x.shape[1:])))
        return self.reshape(self._recorder.column_sums(rows), x.shape[1:])

    def roll(self, x: Recorded, shift: int, *, axis: int) -> Recorded:
        """The elements moved along an axis; the last elements become the first ones."""
        cut = (*[slice(None)] * axis, slice(-shift % x.shape[axis], None))
        rest = (*[slice(None)] * axis, slice(0, -shift % x.shape[axis]))
        return self.concat([x[cut], x[rest]], axis=axis)


def _first_and_count(part: slice, size: int, step: int) -> tuple[int, int]:
    """The first element and the number of elements of a slice of an axis, as Python counts."""
    start, stop = 0 if part.start is None else part.start, size if part.stop is None else part.stop
    if not _is_within(start, stop, size):
        start, stop = (max(0, end + size) if end < 0 else min(end, size) for end in (start, stop))
        stop = max(start, stop)
    count = stop - start
    return start, count if step == 1 else -(-count // step)


@of_numbers
def _is_within(start: int, stop: int, size: int) -> bool:
    """Whether Python takes the ends of a slice as they are: for symbols one condition instead of five."""
    return 0 <= start <= stop <= size


def check_fixed(*arrays: Recorded) -> None:
    """Raise a CannotRecordError for an array whose sizes or strides a call decides."""
    for x in arrays:
        if x.sizes != x.shape or any(isinstance(stride, Quantity) for stride in x.strides):
            raise CannotRecordError("sizes that a call decides")


def shape_of(sizes: Sizes) -> tuple[int, ...]:
    """The largest sizes."""
    return tuple(map(most, sizes)) if Quantity in map(type, sizes) else sizes  # type: ignore[return-value]


def row_major(sizes: Sequence[int | Quantity]) -> Strides:
    """The strides, in elements, of an array that is contiguous row by row."""
    strides: list[int | Quantity] = [1] * len(sizes)
    for axis in range(len(sizes) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * sizes[axis]
    return tuple(strides)
