"""What convolutions ask of an engine, written down: patches are copied, and products multiply them.

The compiled loops over shifted images and windows, and Fourier transforms, have no instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from xpgrad.engine.images.in_place import BLOCK_ELEMENTS, InPlaceImages, slices
from xpgrad.engine.images.padding import Index
from xpgrad.engine.programs.recorded import CannotRecordError, Recorded, Sizes

_MOST = 4096  # instructions for the products of a stack


def _unwritable(what: str) -> Callable[..., Any]:
    def method(*_: Any, **__: Any) -> Any:
        raise CannotRecordError(what)

    return method


class RecordedImages(InPlaceImages):
    """The part of the recorder for batches of images; threads share the work of each instruction."""

    fresh: Callable[[Sizes], Recorded]
    copy: Callable[[Recorded, Recorded], None]
    broadcast: Callable[[Recorded, tuple[int, ...]], Recorded]
    emit_arithmetic: Callable[[str, Recorded, Sequence[Recorded]], None]
    multiply: Callable[..., None]

    writes_down = True

    def can_transform(self) -> bool:
        """True, so that a convolution for which a Fourier transform is fastest is not recorded."""
        return True

    rfft = irfft = fft = ifft = _unwritable("Fourier transforms")
    sum_of_shifts = products_of_shifts = pack_taps = _unwritable("loops over shifted images")
    from_windows = to_windows = _unwritable("loops over windows")

    def blocks(self, count: int, size: int) -> list[slice]:
        """As many images as stay in a cache."""
        return slices(count, max(1, BLOCK_ELEMENTS // max(1, size)))

    def room(self, shape: Sequence[int], like: Any) -> Recorded:
        """New memory."""
        return self.fresh(tuple(shape))

    def product(
        self, a: Recorded, b: Recorded, target: Recorded | None = None, add: bool = False
    ) -> Recorded:
        """Each matrix of the stacks with its own, those of the smaller stack again and again."""
        lead = max(a.shape[:-2], b.shape[:-2], key=len)
        if prod(lead) > _MOST:
            raise CannotRecordError("products of many matrices")
        result = self.fresh((*lead, a.shape[-2], b.shape[-1])) if target is None else target
        for number in range(prod(lead)):
            index: list[int] = []
            for size in reversed(lead):
                index.insert(0, number % size)
                number //= size
            factors = [x[(*index[len(lead) - x.ndim + 2 :], ...)] for x in (result, a, b)]
            self.multiply(*factors, add=add)
        return result

    def add(self, a: Recorded, b: Recorded, target: Recorded | None = None) -> Recorded:
        """The sum; b has as many axes as a behind its first ones, or 1 in their places."""
        result = self.fresh(a.shape) if target is None else target
        while b.ndim < a.ndim:
            b = self.xp.expand_dims(b, axis=0)
        self.emit_arithmetic("add", result, [a, self.broadcast(b, a.shape)])
        return result

    def add_shifted(self, total: Recorded, part: Recorded, shift: int) -> Recorded:
        """In the memory of the total."""
        place = total[..., shift : shift + part.shape[-1]]
        self.emit_arithmetic("add", place, [place, part])
        return total

    def _zeros(self, shape: Sequence[int], like: Any) -> Recorded:
        result = self.room(shape, like)
        self._clear(result)
        return result

    def _clear(self, target: Recorded) -> None:
        self.emit_arithmetic("zero", target, [])

    def _write(self, target: Recorded, places: Index, part: Recorded) -> None:
        if part.size:
            self.copy(target[places], part)

    def _is_in(self, part: Recorded, place: Recorded) -> bool:
        return (part.block, part.offset, part.strides) == (place.block, place.offset, place.strides)

    def _split_last(self, array: Recorded, sizes: Sequence[int]) -> Recorded:
        return array.split_last(tuple(sizes))
