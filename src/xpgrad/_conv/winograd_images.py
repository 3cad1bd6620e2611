"""Inputs, outputs and kernels of a convolution as Winograd's filtering takes them, and its results back."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from xpgrad._conv.geometry import ConvGeometry
from xpgrad._conv.winograd_sizes import zeros_before
from xpgrad.engine.protocol import Engine


class AsImages(NamedTuple):
    """Sequences as images of rows and dilated images as volumes, see `of_images`, and back; others stay.

    In each dimension so many zeros before what is split, `before`, and before what is joined, `behind`, are
    part of the phases. Kernels are filled up to these `sides`, in their last dimensions.
    """

    engine: Engine
    g: ConvGeometry
    sides: Sequence[int]
    before: Sequence[int]
    behind: Sequence[int]

    @classmethod
    def of_forward(cls, engine: Engine, g: ConvGeometry, images: ConvGeometry) -> AsImages:
        """For inputs and outputs of a geometry, which has this one of images."""
        before = [begin % step for begin, step in zip(g.begin, g.dilations, strict=True)]
        return cls(engine, g, images.kernel[-min(g.rank, 2) :], before, [0] * g.rank)

    def adjoint(self) -> AsImages:
        """For outputs and inputs."""
        return self._replace(before=self.behind, behind=self.before)

    @property
    def _in_phases(self) -> bool:
        return max(self.g.dilations) > 1

    def _zeros(self) -> tuple[list[int], list[int]]:
        """The zeros before and behind a kernel's taps, in its last dimensions."""
        before = zeros_before(self.g)[-2:]
        each = zip(self.sides, self.g.kernel[-2:], before, strict=True)
        return [*before], [side - k - zero for side, k, zero in each]

    def of_kernel(self, W: Any) -> Any:
        """Kernels filled up with zeros, those of sequences as one row, of dilated images as one slice."""
        W = self.engine.pad(W, *self._zeros())
        apart = self.g.rank == 1 or self._in_phases
        return self.engine.xp.expand_dims(W, axis=2) if apart else W

    def kernels_of(self, dW: Any) -> Any:
        """The gradient of kernels from that of the filled ones."""
        if dW.ndim > len(self.g.weight_shape):
            dW = dW[:, :, 0, ...]
        before, behind = self._zeros()
        if max(*before, *behind) == 0:
            return dW
        taps = (slice(zero, zero + k) for zero, k in zip(before, self.g.kernel[-2:], strict=True))
        return dW[(..., *taps)]

    def split(self, x: Any) -> Any:
        """The images of sequences, or the volumes of images."""
        engine, xp, steps = self.engine, self.engine.xp, self.g.dilations
        if not self._in_phases:
            return x if self.g.rank > 1 else xp.expand_dims(x, axis=2)
        (n, channels, *size), rank = x.shape, self.g.rank
        x = engine.pad(
            x, self.before, [-(s + b) % step for s, b, step in zip(size, self.before, steps, strict=True)]
        )
        sizes = [s // step for s, step in zip(x.shape[2:], steps, strict=True)]
        x = xp.reshape(x, (n, channels, *(one for pair in zip(sizes, steps, strict=True) for one in pair)))
        x = xp.permute_dims(x, (0, 1, *range(3, 3 + 2 * rank, 2), *range(2, 2 + 2 * rank, 2)))
        # in memory of its own, which each band of windows reads
        x = engine.interleave({(0,) * rank: x}, (1,) * rank, (0,) * rank, sizes)
        return xp.reshape(x, (n, channels, prod(steps), *sizes))

    def place(self, target: Any) -> Any:
        """Memory of sequences for their images; None for phases."""
        if target is None or self._in_phases:
            return None
        return target if self.g.rank > 1 else self.engine.xp.expand_dims(target, axis=2)

    def joined(self, x: Any, size: Sequence[int], target: Any) -> Any:
        """The sequences or images of this size."""
        if not self._in_phases:
            return x if self.g.rank > 1 else x[:, :, 0, :]
        xp, steps, rank = self.engine.xp, self.g.dilations, self.g.rank
        (n, channels, _, *sizes) = x.shape
        x = xp.reshape(x, (n, channels, *steps, *sizes))
        x = xp.permute_dims(x, (0, 1, *(axis for k in range(2, 2 + rank) for axis in (rank + k, k))))
        x = xp.reshape(x, (n, channels, *(s * step for s, step in zip(sizes, steps, strict=True))))
        return self.engine.interleave({(0,) * rank: x}, (1,) * rank, self.behind, size, target)
