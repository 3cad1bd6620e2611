r"""Large kernels by Fourier transforms: in the spectrum a sum over taps is one multiplication.

With the padded input :math:`\tilde X` and a transform at least as long as it, no product wraps around, and

.. math::

    \hat Y = \hat{\tilde X}\,\overline{\hat W} \qquad \hat{d\tilde X} = \hat{dY}\,\hat W \qquad
    \hat{dW} = \hat{\tilde X}\,\overline{\hat{dY}}

at every frequency; the products are matrix products over channels or samples. The cost hardly depends on the
kernel's size. Weights are transformed in blocks of channels: all spectra together would need much memory.

Source: M. Mathieu, M. Henaff, Y. LeCun, "Fast Training of Convolutional Networks through FFTs" (2014),
arXiv:1312.5851.
"""

from __future__ import annotations

import functools
from math import prod
from typing import Any

from xpgrad._conv.geometry import ConvGeometry, Sizes
from xpgrad._conv.method import Method, with_bias
from xpgrad.engine.images.parts import each_slice
from xpgrad.engine.protocol import Engine
from xpgrad.engine.symbols import of_numbers


class Fourier(Method):
    """Products of spectra, block by block of channels."""

    name = "fft"

    def why_not(self, geometry: ConvGeometry, transforms: bool) -> str | None:
        """It needs stride and dilation 1, and a namespace with transforms."""
        for name, values in (("strides", geometry.strides), ("dilations", geometry.dilations)):
            if prod(values) != 1:
                return f"{name} are {values}, not 1"
        if not transforms:
            return "the namespace has no fft extension"
        return None

    def forward(self, engine: Engine, geometry: ConvGeometry, X: Any, W: Any, B: Any) -> Any:
        """See `Method`."""
        g, spectra = geometry, Spectra(engine, geometry)
        x = spectra.of_images(spectra.padded(X))  # (F, group, N, C / group)

        def block(part: slice, target: Any) -> Any:
            groups, w = spectra.of_weights(W, part)
            y = engine.xp.matmul(x[:, groups, ...], engine.xp.conj(engine.xp.matrix_transpose(w)))
            Y = spectra.images(y, g.output_size)
            return with_bias(engine, Y, None if B is None else B[part], target)

        return engine.assemble(
            block, spectra.parts(g.outputs, g.channels), axis=1, shape=g.output_shape, like=X
        )

    def input_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, W: Any, B: Any = None) -> Any:
        """See `Method`."""
        g, spectra = geometry, Spectra(engine, geometry)
        dy = spectra.of_images(dY)
        made, channels_in = g.outputs // g.group, g.channels // g.group

        def block(part: slice, target: Any) -> Any:
            if g.group == 1:
                groups, w = spectra.of_weights(W[:, part, ...], slice(0, made))
            else:
                first, last = part.start // channels_in, part.stop // channels_in
                groups, w = spectra.of_weights(W, slice(first * made, last * made))
            dX = spectra.images(engine.xp.matmul(dy[:, groups, ...], w), g.extent)
            behind = [size + b - e for size, b, e in zip(g.size, g.begin, g.extent, strict=True)]
            dX = engine.pad(dX, [-b for b in g.begin], behind)
            return with_bias(engine, dX, None if B is None else B[part], target)

        return engine.assemble(
            block, spectra.parts(g.channels, g.outputs), axis=1, shape=g.input_shape, like=dY
        )

    def weight_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, X: Any) -> Any:
        """See `Method`."""
        xp, g, spectra = engine.xp, geometry, Spectra(engine, geometry)
        x = spectra.of_images(spectra.padded(X))

        def block(part: slice, target: Any) -> Any:
            groups = spectra.groups_of(part)
            dy = spectra.of_images(dY[:, part, ...], groups.stop - groups.start)
            # (F, groups, O / group, C / group)
            dw = xp.matmul(xp.conj(xp.matrix_transpose(dy)), x[:, groups, ...])
            dw = xp.permute_dims(dw, (1, 2, 3, 0))
            return spectra.inverse(xp.reshape(dw, (-1, g.weight_shape[1], *spectra.shape)), g.kernel)

        return engine.assemble(block, spectra.parts(g.outputs, g.channels), shape=g.weight_shape, like=X)


class Spectra:
    """Transforms of the arrays of one geometry: batches of matrices, one for each of F frequencies."""

    def __init__(self, engine: Engine, geometry: ConvGeometry) -> None:
        self._engine, self._geometry = engine, geometry
        self._lengths = tuple(_fast_length(e) for e in geometry.extent)
        self.shape = spectrum_shape(geometry)

    def parts(self, count: int, others: int) -> list[slice]:
        """Slices of one side's channels, of whole groups; a slice's weights are transformed together."""
        g = self._geometry
        each = count // g.group if g.group > 1 else 1
        size = 2 * prod(self.shape) * others // g.group * each
        blocks = each_slice(self._engine.blocks(count // each, size))
        return [slice(s.start * each, s.stop * each) for s in blocks]

    def groups_of(self, part: slice) -> slice:
        """The groups of some outputs; a part of a single group counts as this group."""
        made = self._geometry.outputs // self._geometry.group
        return slice(0, 1) if self._geometry.group == 1 else slice(part.start // made, part.stop // made)

    def padded(self, X: Any) -> Any:
        """X with the geometry's padding."""
        return self._engine.pad(X, self._geometry.begin, self._geometry.end)

    def of_images(self, images: Any, groups: int | None = None) -> Any:
        """Spectra of (n, channels, *size) as (F, group, n, channels / group)."""
        xp, (n, channels) = self._engine.xp, images.shape[:2]
        groups = self._geometry.group if groups is None else groups
        spectra = xp.reshape(self._forward(images), (n, groups, channels // groups, prod(self.shape)))
        return xp.permute_dims(spectra, (3, 1, 0, 2))

    def of_weights(self, W: Any, part: slice) -> tuple[slice, Any]:
        """The groups of some outputs, and their weights' spectra, (F, groups, O / group, C / group)."""
        xp, groups, spectra = self._engine.xp, self.groups_of(part), self._forward(W[part, ...])
        count = groups.stop - groups.start
        spectra = xp.reshape(spectra, (count, spectra.shape[0] // count, W.shape[1], prod(self.shape)))
        return groups, xp.permute_dims(spectra, (3, 0, 1, 2))

    def images(self, spectra: Any, size: Sizes) -> Any:
        """The inverse: (F, groups, n, channels / group) as (n, channels, *size)."""
        xp = self._engine.xp
        _, groups, n, channels = spectra.shape
        spectra = xp.reshape(xp.permute_dims(spectra, (2, 1, 3, 0)), (n, groups * channels, *self.shape))
        return self.inverse(spectra, size)

    def _forward(self, array: Any) -> Any:
        """Spectra over the spatial axes; each axis is padded just before its own transform."""
        rank = len(self._lengths)
        array = self._engine.rfft(array, self._lengths[-1], array.ndim - 1)
        for axis in range(rank - 2, -1, -1):
            array = self._engine.fft(array, self._lengths[axis], array.ndim - rank + axis)
        return array

    def inverse(self, array: Any, size: Sizes) -> Any:
        """The first elements of each axis of the inverse transform."""
        rank = len(self._lengths)
        for axis in range(rank - 1):
            place = array.ndim - rank + axis
            array = self._engine.ifft(array, self._lengths[axis], place)
            array = array[(*(slice(None),) * place, slice(0, size[axis]), ...)]
        array = self._engine.irfft(array, self._lengths[-1], array.ndim - 1)
        return array[..., : size[-1]]


def spectrum_shape(geometry: ConvGeometry) -> Sizes:
    """The number of frequencies in each dimension; of real numbers the last dimension needs only half."""
    *others, last = (_fast_length(e) for e in geometry.extent)
    return (*others, last // 2 + 1)


@of_numbers
@functools.cache
def _fast_length(least: int) -> int:
    """The smallest even number from `least` on without prime factors above 5."""
    odd = [1]
    for factor in (3, 5):
        for number in odd:  # the list grows during the loop
            if number * factor < least:
                odd.append(number * factor)
    return min(number << max((-(-least // number) - 1).bit_length(), 1) for number in odd)
