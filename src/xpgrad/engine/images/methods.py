"""The engines' part of convolutions: a batch in blocks, products, shifted sums, windows, spectra.

The methods here are pure array API, and the oracle for `NumpyImages`. A `target` is memory that an engine may
use for a result; the caller uses the returned array.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, Protocol

from xpgrad.engine.images.padding import interleaved, padded
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
    """An engine's part for batches of images; the methods here are those of the standard engine."""

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """The function of each item, in threads if the engine has some; the items are independent."""
        return [function(item) for item in items]

    def whole(
        self, compute: Callable[..., Any], arrays: Sequence[Any], shape: Sequence[int], key: tuple[Any, ...]
    ) -> Any:
        """``compute(engine, *arrays)``, a sum of this shape, as a whole.

        Parameters
        ----------
        compute : callable
            Computes with what an engine has; for any other engine and its arrays, too.
        arrays : sequence of array or None
            All that it works on.
        shape : sequence of int
            The result's.
        key : tuple
            What it computes, apart from the arrays' forms; its text is the same in any process.
        """
        return compute(self, *arrays)

    def compiles(self) -> bool:
        """Whether the loops of `sum_of_shifts` and of windows are compiled."""
        return False

    # --- which part of the work at a time

    def blocks(self, count: int, size: int, most: int | None = None, least: int = 0) -> list[slice]:
        """The images of a batch, in blocks that are computed together; an image has `size` elements.

        An engine that takes some at a time takes `most` images at most, and at least those of `least`
        elements: work that each block does again takes so long.
        """
        return [slice(0, count)]

    def bands(self, count: int, size: int, multiple: int = 1, least: int = 0) -> list[slice]:
        """Bands of columns or rows, computed one after the other; each column or row has `size` elements.

        All bands except the last hold a multiple of `multiple`; for `least` see `blocks`.
        """
        return [slice(0, count)]

    def assemble(
        self,
        function: Callable[[slice, Any], Any],
        parts: Sequence[slice],
        *,
        axis: int = 0,
        shape: Sequence[int] = (),
        like: Any = None,
        target: Any = None,
        memory: Any = None,
    ) -> Any:
        """The array whose slices along an axis are ``function(part, target)``.

        The parts are independent. Those of a whole array, given by its `shape` and an array of its dtype, may
        be computed at the same time; parts of a `target` are computed one after the other. An engine may put
        a whole array into the `memory`.
        """
        made = [function(part, None) for part in parts]
        return made[0] if len(made) == 1 else self.xp.concat(made, axis=axis)

    def accumulate(
        self, function: Callable[[slice, list[Any] | None], list[Any]], blocks: Sequence[slice], size: int = 0
    ) -> list[Any]:
        """The sums over all blocks; ``function(block, totals)`` adds a block; totals are None at first.

        `size` is how many elements they have.
        """
        totals = None
        for block in blocks:
            totals = function(block, totals)
        return totals or []

    def room(self, shape: Sequence[int], like: Any) -> Any:
        """Memory for a target of `assemble`, or None."""
        return None

    @contextlib.contextmanager
    def temporary(self, shape: Sequence[int], like: Any) -> Iterator[Any]:
        """Memory for matrices that no one uses behind the context, or None."""
        yield None

    # --- sums and products

    def product(self, a: Any, b: Any, target: Any = None) -> Any:
        """Matrix product."""
        return self.xp.matmul(a, b)

    def pad(self, array: Any, before: Sequence[int], behind: Sequence[int]) -> Any:
        """Zeros before and after the last axes; negative numbers crop."""
        return padded(self.xp, array, before, behind)

    def spread(self, array: Any, size: Sequence[int], lead: int) -> Any:
        """The last dimensions at the beginning of larger ones of that size, flat, after `lead` zeros."""
        behind = [large - small for large, small in zip(size, array.shape[-len(size) :], strict=True)]
        whole = padded(self.xp, array, (0,) * len(size), behind)
        whole = self.xp.reshape(whole, (*array.shape[: -len(size)], prod(size)))
        return padded(self.xp, whole, (lead,), (0,))

    def interleave(
        self,
        parts: Mapping[tuple[int, ...], Any],
        steps: Sequence[int],
        begin: Sequence[int],
        size: Sequence[int],
        target: Any = None,
    ) -> Any:
        """Some of the elements of `padding.interleaved`: `size` from `begin` on, zeros after them."""
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
        """The weights of several parts in the form for `sum_of_shifts`.

        Parameters
        ----------
        weights : array, shape (group, I, J, taps)
            A weight for each image and tap.
        taps : sequence of sequence of int
            The taps of each part.

        Returns
        -------
        object
            The weights in an engine's form.
        """
        return [self.xp.stack([weights[..., tap] for tap in part], axis=-1) for part in taps]

    def sum_of_shifts(self, images: Any, weights: Any, shifts: Shifts, B: Any = None) -> Any:
        """Weighted sums of shifted images; outside all parts' phases zero, or B.

        Parameters
        ----------
        images : array, shape (n, group * J, *size)
            The images.
        weights : object
            What `pack_taps` returns, with the taps of each part.
        shifts : Shifts
            Where the images are in the grid, and the sums.
        B : array, shape (group * I,), optional
            What is added.

        Returns
        -------
        array, shape (n, group * I, *shifts.size)
            In the flat grid, with the k-th tap of a part at layer l[k] and shift s[k], the part's sums are
            ``sum over j and k of weights[g, i, j, k] * grid[n, g, l[k], j, s[k] : s[k] + length]``.
        """
        return sum_of_shifts(self.xp, images, weights, shifts, B)

    def products_of_shifts(
        self, a: Any, images: Any, places: Sequence[Embedding], taps: Sequence[tuple[int, int]], group: int
    ) -> Any:
        """Inner products of images with shifted images, summed over n: the gradient of `sum_of_shifts`.

        Parameters
        ----------
        a : array, shape (n, group * I, *size)
            Images at the beginning of the grid.
        images, places
            As in `sum_of_shifts`.
        taps : sequence of (int, int)
            Like those of a part.
        group : int
            The number of groups of channels.

        Returns
        -------
        array, shape (group, I, J, taps)
            In the flat grid ``sum over n of a[n, g, i] @ grid[n, g, l[k], j, s[k] : s[k] + length]``.
        """
        return products_of_shifts(self.xp, a, images, places, taps, group)

    # --- patches: the elements of shifted images as a matrix

    def patches(self, images: Any, places: Sequence[Embedding], group: int) -> Any:
        """The elements of images that are in a small grid, once for each place.

        Parameters
        ----------
        images : array, shape (n, C, *size)
            The images.
        places : sequence of Embedding
            Which elements, and where in the grid; no place leaves out elements at the beginning.
        group : int
            The number of groups of channels.

        Returns
        -------
        array, shape (group, C / group * places, n * positions)
            The grid's positions are flat.
        """
        return patches(self.xp, images, places, group)

    def add_patches(
        self,
        total: Any,
        P: Any,
        places: Sequence[Embedding],
        shape: Sequence[int],
        B: Any = None,
        target: Any = None,
    ) -> Any:
        """The adjoint of `patches`: images of that shape, to whose elements those of P are added.

        They are the `total`, perhaps in its memory, or without one begin with B (C,), or with zeros.
        """
        made = images_of_patches(self.xp, P, places, shape)
        if total is not None:
            return total + made
        return made if B is None else made + self.xp.reshape(B, (-1, *[1] * (len(shape) - 2)))

    # --- square windows of images, transformed along both axes

    def from_windows(self, X: Any, windows: Windows, transform: Transform, target: Any = None) -> Any:
        """The transformed windows of images; see `windows.from_windows`."""
        return from_windows(self.xp, X, windows, transform)

    def to_windows(
        self, M: Any, windows: Windows, transform: Transform, B: Any, shape: Sequence[int], target: Any = None
    ) -> Any:
        """Images of transformed windows; see `windows.to_windows`."""
        return to_windows(self.xp, M, windows, transform, B, shape)
