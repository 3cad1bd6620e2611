"""What convolutions ask of an engine: blocks of a batch, products, shifted sums, windows, spectra.

The methods here use only the array API; they are the standard engine's, and the oracle of all other engines.
A `target` is memory that an engine may use for a result; callers use the returned array.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, Protocol

from xpgrad.engine.images.padding import interleaved, padded
from xpgrad.engine.images.parts import Part, each_slice
from xpgrad.engine.images.shifts import (
    Embedding,
    Shifts,
    images_of_patches,
    patches,
    products_of_shifts,
    sum_of_shifts,
)
from xpgrad.engine.images.windows import Transform, Windows, from_windows, to_windows


class FourierTransforms(Protocol):
    """An engine's Fourier transforms."""

    xp: Any

    def can_transform(self) -> bool:
        """Whether there is a Fourier transform."""
        return hasattr(self.xp, "fft")

    def rfft(self, array: Any, n: int, axis: int) -> Any:
        """Spectrum of real numbers along an axis, padded with zeros to `n` elements."""
        return self.xp.fft.rfft(array, n=n, axis=axis)

    def irfft(self, array: Any, n: int, axis: int) -> Any:
        """The inverse of `rfft`."""
        return self.xp.fft.irfft(array, n=n, axis=axis)

    def fft(self, array: Any, n: int, axis: int) -> Any:
        """Spectrum along an axis, padded with zeros to `n` elements."""
        return self.xp.fft.fft(array, n=n, axis=axis)

    def ifft(self, array: Any, n: int, axis: int) -> Any:
        """The inverse of `fft`."""
        return self.xp.fft.ifft(array, n=n, axis=axis)


class Images(FourierTransforms, Protocol):
    """An engine's methods for batches of images, arrays (N, C, *size)."""

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """The function of each item, in threads if the engine has threads; the items are independent."""
        return [function(item) for item in items]

    def whole(
        self, compute: Callable[..., Any], arrays: Sequence[Any], shape: Sequence[int], key: tuple[Any, ...]
    ) -> Any:
        """``compute(engine, *arrays)``, a sum of this shape; the engine may be another one, with its arrays.

        `key` says what is computed, apart from the arrays' shapes; its text is the same in every process.
        """
        return compute(self, *arrays)

    def compiles(self) -> bool:
        """Whether the loops over images are compiled."""
        return False

    def has_two_units(self) -> bool:
        """Whether compiled loops multiply twice as much in a cycle as on most machines."""
        return False

    def launches(self) -> bool:
        """Whether operations are launched on a GPU, where few large ones are faster than many small ones."""
        return False

    # --- parts of the work

    def blocks(
        self, count: int, size: int, most: int | None = None, least: int = 0, fits: int = 0
    ) -> Sequence[Part]:
        """Blocks of a batch of `count` images with `size` elements each; `most` limits an engine's blocks.

        A block has at least `least` elements if the batch has: each block does some work anew. If the blocks
        of all threads have more than `fits` elements, and that is not 0, threads compute each block together.
        """
        return [slice(0, count)]

    def bands(self, count: int, size: int, multiple: int = 1, least: int = 0) -> list[slice]:
        """Bands of `count` rows or columns with `size` elements each, computed one after the other.

        All bands except the last have a multiple of `multiple` rows; for `least` see `blocks`.
        """
        return [slice(0, count)]

    def assemble(
        self, function: Callable[[slice, Any], Any], parts: Sequence[Part], *, axis: int = 0,
        shape: Sequence[int] = (), like: Any = None, target: Any = None, memory: Any = None,
        alike: bool = False,
    ) -> Any:  # fmt: skip
        """The array whose slices along an axis are ``function(part, target)``; the parts are independent.

        Without a `target` the array has this `shape` and the dtype of `like`; an engine may use the `memory`
        for it, and compute parts at the same time. Parts are `alike` if the function uses a part only as an
        index of arrays, besides its size: then an engine may call the function once for parts of one size.
        """
        made = [function(part, None) for part in each_slice(parts)]
        return made[0] if len(made) == 1 else self.xp.concat(made, axis=axis)

    def accumulate(
        self, function: Callable[[slice, list[Any] | None], list[Any]], blocks: Sequence[Part], size: int = 0
    ) -> list[Any]:
        """The sums over all blocks, with `size` elements in total.

        ``function(block, totals)`` adds a block; `totals` are None at first. Blocks are alike: see
        `assemble`.
        """
        totals = None
        for block in each_slice(blocks):
            totals = function(block, totals)
        return totals or []

    def room(self, shape: Sequence[int], like: Any) -> Any:
        """Memory for a target of `assemble`, or None."""
        return None

    @contextlib.contextmanager
    def temporary(self, shape: Sequence[int], like: Any) -> Iterator[Any]:
        """Memory for matrices that are used only within the context, or None."""
        yield None

    # --- sums and products

    def product(self, a: Any, b: Any, target: Any = None) -> Any:
        """Matrix product."""
        return self.xp.matmul(a, b)

    def pad(self, array: Any, before: Sequence[int], behind: Sequence[int]) -> Any:
        """Zeros before and after the last axes; negative numbers crop."""
        return padded(self.xp, array, before, behind)

    def spread(self, array: Any, size: Sequence[int], lead: int) -> Any:
        """The array, flat, with `lead` zeros in front, and zeros that make its last dimensions this size."""
        behind = [large - small for large, small in zip(size, array.shape[-len(size) :], strict=True)]
        whole = padded(self.xp, array, (0,) * len(size), behind)
        whole = self.xp.reshape(whole, (*array.shape[: -len(size)], prod(size)))
        return padded(self.xp, whole, (lead,), (0,))

    def interleave(
        self, parts: Mapping[tuple[int, ...], Any], steps: Sequence[int], begin: Sequence[int],
        size: Sequence[int], target: Any = None,
    ) -> Any:  # fmt: skip
        """`size` elements of `padding.interleaved` from `begin` on; beyond its end they are 0."""
        whole = interleaved(self.xp, parts, steps)
        sizes = zip(size, begin, whole.shape[-len(size) :], strict=True)
        return padded(self.xp, whole, [-b for b in begin], [s + b - large for s, b, large in sizes])

    def add(self, a: Any, b: Any, target: Any = None) -> Any:
        """The sum."""
        return a + b

    def last_axis_sums(self, array: Any) -> Any:
        """The sums over the last axis."""
        return self.xp.sum(array, axis=-1)

    # --- channels and taps: shifted images

    def pack_taps(self, weights: Any, taps: Sequence[Sequence[int]]) -> Any:
        """Weights (group, I, J, taps), each part's `taps`, in an engine's form for `sum_of_shifts`."""
        return [self.xp.stack([weights[..., tap] for tap in part], axis=-1) for part in taps]

    def sum_of_shifts(self, images: Any, weights: Any, shifts: Shifts, B: Any = None) -> Any:
        """Weighted sums of shifted images (n, group * J, *size) plus B (group * I,).

        The result is (n, group * I, *shifts.size). `weights` come from `pack_taps`. In the flat grid a
        part's k-th tap is at layer l[k] and shift s[k], and the part's sums are
        ``sum over j and k of weights[g, i, j, k] * grid[n, g, l[k], j, s[k] : s[k] + length]``. Results that
        belong to no part are 0, or B.
        """
        return sum_of_shifts(self.xp, images, weights, shifts, B)

    def products_of_shifts(
        self, a: Any, images: Any, places: Sequence[Embedding], taps: Sequence[tuple[int, int]], group: int
    ) -> Any:
        """Inner products of images with shifted images, the gradient of `sum_of_shifts`: (group, I, J, taps).

        The images a, (n, group * I, *size), are at the beginning of the grid; the other arguments are as in
        `sum_of_shifts`. In the flat grid the results are
        ``sum over n of a[n, g, i] @ grid[n, g, l[k], j, s[k] : s[k] + length]``.
        """
        return products_of_shifts(self.xp, a, images, places, taps, group)

    # --- patches: the elements of shifted images as a matrix

    def patches(self, images: Any, places: Sequence[Embedding], group: int) -> Any:
        """Images' elements in a small flat grid for each place: (group, C / group * places, n * positions).

        No place leaves out elements at the grid's beginning.
        """
        return patches(self.xp, images, places, group)

    def add_patches(
        self, total: Any, P: Any, places: Sequence[Embedding], shape: Sequence[int], B: Any = None,
        target: Any = None,
    ) -> Any:  # fmt: skip
        """The adjoint of `patches`: images of this shape plus P's elements.

        The images are the `total`, perhaps in its memory. If it is None, they are B (C,), or 0.
        """
        made = images_of_patches(self.xp, P, places, shape)
        if total is not None:
            return total + made
        return made if B is None else made + self.xp.reshape(B, (1, -1, *[1] * (len(shape) - 2)))

    # --- square windows of images, transformed along both axes

    def from_windows(self, X: Any, windows: Windows, transform: Transform, target: Any = None) -> Any:
        """The transformed windows of images; see `windows.from_windows`."""
        return from_windows(self.xp, X, windows, transform)

    def to_windows(
        self, M: Any, windows: Windows, transform: Transform, B: Any, shape: Sequence[int], target: Any = None
    ) -> Any:
        """Images of transformed windows; see `windows.to_windows`."""
        return to_windows(self.xp, M, windows, transform, B, shape)
