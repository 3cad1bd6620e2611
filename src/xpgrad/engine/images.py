"""What convolutions ask of an engine: a batch in blocks, sums of products and of shifted rows, windows, spectra.

The methods here are pure array API, and the oracle for `NumpyImages`. A `target` is memory in which an engine
may put a result: who calls uses what is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from xpgrad.engine.padding import interleaved, padded
from xpgrad.engine.windows import Transform, Windows, from_windows, to_windows


class Images:
    """The part of the engine of the standard that works on batches of images."""

    xp: Any

    # --- which part of the work at a time

    def blocks(self, count: int, size: int) -> list[slice]:
        """The images of a batch, in blocks to compute at a time; `size` is the elements that an image takes."""
        return [slice(0, count)]

    def bands(self, count: int, size: int, multiple: int = 1) -> list[slice]:
        """Columns or rows, in bands to compute one after the other; `size` is the elements that each takes.

        All bands but the last hold a multiple of so many.
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
    ) -> Any:
        """The array of which ``function(part, target)`` is each slice of an axis.

        The parts do not depend on one another. Those of a whole array, with its `shape` and an array of its
        dtype, may be computed at the same time; parts of a `target` are computed one after the other.
        """
        made = [function(part, None) for part in parts]
        return made[0] if len(made) == 1 else self.xp.concat(made, axis=axis)

    def accumulate(
        self, function: Callable[[slice, list[Any] | None], list[Any]], blocks: Sequence[slice]
    ) -> list[Any]:
        """The sums over all blocks; ``function(block, totals)`` adds a block's own, None standing for none yet."""
        totals = None
        for block in blocks:
            totals = function(block, totals)
        return totals or []

    def room(self, shape: Sequence[int], like: Any) -> Any:
        """Memory to be a target of `assemble`, or None."""
        return None

    # --- sums and products

    def product(self, a: Any, b: Any, target: Any = None) -> Any:
        """Matrix product."""
        return self.xp.matmul(a, b)

    def pad(self, array: Any, before: Sequence[int], behind: Sequence[int]) -> Any:
        """Zeros before and behind the last axes; negative numbers take elements away."""
        return padded(self.xp, array, before, behind)

    def spread(self, array: Any, size: Sequence[int], lead: int) -> Any:
        """The last dimensions at the begin of larger ones of that size, flat, with `lead` zeros before all."""
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
        """Some elements of the last dimensions of `padding.interleaved`: so many from there on, zeros behind."""
        whole = interleaved(self.xp, parts, steps)
        sizes = zip(size, begin, whole.shape[-len(size) :], strict=True)
        return padded(self.xp, whole, [-b for b in begin], [s + b - large for s, b, large in sizes])

    def add(self, a: Any, b: Any, target: Any = None) -> Any:
        """The sum."""
        return a + b

    def add_shifted(self, total: Any, part: Any, shift: int) -> Any:
        """The total plus a part whose last axis begins at `shift` of the total's, perhaps in its memory."""
        behind = total.shape[-1] - shift - part.shape[-1]
        return total + padded(self.xp, part, (shift,), (behind,))

    def last_axis_sums(self, array: Any) -> Any:
        """The sums over the last axis."""
        return self.xp.sum(array, axis=-1)

    # --- rows and weights, without a matrix product: where groups are small

    def sum_of_shifts(self, rows: Any, weights: Any, terms: Sequence[tuple[int, int]], length: int) -> Any:
        """Weighted sums of shifted rows.

        Parameters
        ----------
        rows : array, shape (n, group, J, L)
            The rows.
        weights : array, shape (group, I, K)
            A weight for each term.
        terms : sequence of (int, int)
            For each k the row j and the shift s that it takes.
        length : int
            Of the sums.

        Returns
        -------
        array, shape (n, group, I, length)
            ``sum over k of weights[g, i, k] * rows[n, g, j[k], s[k] : s[k] + length]``.
        """
        total = None
        for k, (j, shift) in enumerate(terms):
            part = weights[:, :, k, None] * rows[:, :, j, None, shift : shift + length]
            total = part if total is None else total + part
        return total

    def products_of_shifts(self, a: Any, rows: Any, terms: Sequence[tuple[int, int]]) -> Any:
        """The inner products of rows with shifted rows, summed over images: the gradient of `sum_of_shifts`.

        Parameters
        ----------
        a, rows : array, shapes (n, group, I, length), (n, group, J, L)
            The rows.
        terms : sequence of (int, int)
            For each k the row j and the shift s.

        Returns
        -------
        array, shape (group, I, K)
            ``sum over n of a[n, g, i, :] @ rows[n, g, j[k], s[k] : s[k] + length]``.
        """
        length = a.shape[3]
        parts = [
            self.xp.sum(a * rows[:, :, j, None, shift : shift + length], axis=(0, 3)) for j, shift in terms
        ]
        return self.xp.stack(parts, axis=-1)

    # --- square windows of images, transformed along both axes

    def from_windows(self, X: Any, windows: Windows, transform: Transform, target: Any = None) -> Any:
        """The transformed windows of images; see `windows.from_windows`."""
        return from_windows(self.xp, X, windows, transform)

    def to_windows(
        self, M: Any, windows: Windows, transform: Transform, B: Any, shape: Sequence[int], target: Any = None
    ) -> Any:
        """Images of transformed windows; see `windows.to_windows`."""
        return to_windows(self.xp, M, windows, transform, B, shape)

    # --- spectra

    def can_transform(self) -> bool:
        """Whether there is a Fourier transform."""
        return hasattr(self.xp, "fft")

    def rfft(self, array: Any, n: int, axis: int) -> Any:
        """Spectrum of real numbers along an axis, padded with zeros to `n` elements."""
        return self.xp.fft.rfft(array, n=n, axis=axis)

    def irfft(self, array: Any, n: int, axis: int) -> Any:
        """The way back of `rfft`."""
        return self.xp.fft.irfft(array, n=n, axis=axis)

    def fft(self, array: Any, n: int, axis: int) -> Any:
        """Spectrum along an axis, padded with zeros to `n` elements."""
        return self.xp.fft.fft(array, n=n, axis=axis)

    def ifft(self, array: Any, n: int, axis: int) -> Any:
        """The way back of `fft`."""
        return self.xp.fft.ifft(array, n=n, axis=axis)
