r"""Winograd's minimal filtering: fewer products of kernels of 3 x 3, of 4 x 4, or of one row of taps.

An output tile of m elements and a kernel of r taps need an input window of n = m + r - 1 elements. Window and
kernel are polynomials: they are evaluated at n points and multiplied point by point, and the result is
interpolated. For an input window d, a kernel g and an output tile Y along one axis

.. math:: Y = A^T\,[\,(G\,g) \odot (B^T d)\,]

and along two axes :math:`Y = A^T\,[\,(G\,g\,G^T) \odot (B^T d\,B)\,]\,A`. Over all channels and tiles the
products at one point are one matrix product. The weight gradient of a tile is the same kind of problem, with
a tile of cotangents in place of the kernel, at the same points.

- **3 x 3 kernels at stride 1**, F(4 x 4, 3 x 3): 36 products for 144. **5 x 5**, F(4 x 4, 5 x 5): 64 for 400.
  Kernels of other sizes are filled up with zeros.
- **Stride 2**: each phase of the input (see `shifted`) meets the taps of one phase of the kernel, of 4 x 4
  kernels in F(4 x 4, 2 x 2), of 6 x 6 kernels in F(4 x 4, 3 x 3). With all four phases these are 100 products
  for 256, and 144 for 576. Smaller kernels are filled up: 144 products for 400 with 5 x 5. The phases are
  channels of the input; in the input gradient each has tiles of its own.
- **Volumes**: a kernel of three axes is a sum over the taps of its first axis, each a product of shifted
  slices.
- **A row of taps**, of sequences or of kernels of 1 x k: 3 taps in F(4, 3), 6 products for 12. More taps are
  pieces of 4, the last one filled up with zeros, in F(4, 4), 7 products for 16: a window meets the next piece
  one window on, so all pieces share the windows. 7 taps have 14 products for 28, 11 taps 21 for 44.
- **Dilation**: the phases of a sequence are the rows of an image, those of an image the slices of a volume.

Source: A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks" (2016), arXiv:1509.09308.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

from xpgrad._conv.geometry import ConvGeometry
from xpgrad._conv.method import Method, by_groups
from xpgrad._conv.winograd_formulas import TILE, Scheme
from xpgrad._conv.winograd_images import AsImages
from xpgrad._conv.winograd_sizes import (
    WindowSums,
    elements_of_kernels,
    fits_a_square,
    of_images,
    points_of_kernels,
    scheme_of,
    takes_rows,
    taps_apart,
)
from xpgrad.engine.images.parts import InTurn, Part
from xpgrad.engine.images.windows import Transform, Windows
from xpgrad.engine.protocol import Engine

_PART = 16  # kernels of a part, or a multiple of it
_LARGE_PART = 1 << 21  # elements of a part of kernels that all together are too large to keep
_FEW_IMAGES = 1 << 21  # elements of all images' windows
_LARGE_KERNELS = 1 << 20  # elements at the points; threads work on them together if memory is short
_KEPT = 15 << 20  # elements of an arena that a thread keeps; a larger one is new memory in each call


class Winograd(Method):
    """Products of transformed windows and transformed kernels, block by block of images."""

    name = "winograd"

    def why_not(self, geometry: ConvGeometry, transforms: bool) -> str | None:
        """It needs small kernels at a stride of 1 or 2, or a row of taps."""
        g = geometry
        if g.rank > 3:
            return f"there are {g.rank} spatial dimensions, not 1 to 3"
        is_row = takes_rows(g) and g.kernel[-1] > 2 and max(g.strides) == 1
        strides, sides = set(g.strides[-2:]), set(g.kernel[-2:])
        is_square = g.rank > 1 and strides in ({1}, {2}) and min(sides) > 1 and fits_a_square(g)
        if not (is_row or is_square):
            return (
                f"the kernel has shape {g.kernel}, strides are {g.strides} and pads begin with {g.begin}, "
                "not 2 to 5 taps with strides of 1, or 2 to 6 (5 for even pads) with strides of 2, in each "
                "of the last two dimensions, or one row of 3 taps or more with strides of 1"
            )
        takes_dilations = g.rank == 1 or (g.rank == 2 and not is_row and strides == {1})
        if any(d != 1 for d in g.dilations) and not takes_dilations:
            return (
                f"dilations are {g.dilations} with a kernel of shape {g.kernel} and strides of {g.strides}, "
                "not 1, or of sequences, or of images with strides of 1"
            )
        if g.rank == 3 and not (g.strides[0] == 1 and max(g.begin[0], g.end[0]) < g.kernel[0]):
            return (
                f"the first dimension has stride {g.strides[0]} and pads of {g.begin[0]} and {g.end[0]}, "
                f"expected 1 and less than its kernel's {g.kernel[0]}"
            )
        return None

    def forward(self, engine: Engine, geometry: ConvGeometry, X: Any, W: Any, B: Any) -> Any:
        """In the order of the equation: G g, then for each block B^T d, the products, A^T m."""
        if geometry.group > 1:
            return by_groups(self.forward, engine, geometry, (X, W, B), (1, 0, 0, 1), geometry.output_shape)
        g = of_images(geometry)
        images = AsImages.of_forward(engine, geometry, g)
        kernels = _Kernels(engine, images.of_kernel(W), scheme_of(g).kernel, False)
        return _convolved(images, g, WindowSums.of_forward(g), X, kernels, B, geometry.output_size)

    def input_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, W: Any, B: Any = None) -> Any:
        """A forward of the adjoint geometry."""
        if geometry.group > 1:
            return by_groups(
                self.input_gradient, engine, geometry, (dY, W, B), (1, 0, 0, 1), geometry.input_shape
            )
        g, scheme = of_images(geometry), scheme_of(geometry)
        images = AsImages.of_forward(engine, geometry, g).adjoint()
        kernels = _Kernels(engine, images.of_kernel(W), scheme.back_kernel, True)
        return _convolved(images, g, WindowSums.of_input_gradient(g), dY, kernels, B, geometry.size)

    def weight_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, X: Any) -> Any:
        """Sums of products over all tiles, and one interpolation at the end."""
        if geometry.group > 1:
            return by_groups(
                self.weight_gradient, engine, geometry, (dY, X), (1, 1, 0), geometry.weight_shape
            )
        g = of_images(geometry)
        images = AsImages.of_forward(engine, geometry, g)
        sums = WindowSums.of_forward(g)
        gradient = _WeightGradient(engine, g, images, scheme_of(g), sums, dY, X)
        parts = _parts_of_kernels(engine, g, g.outputs, g.channels)
        if _take_parts(parts, g, sums):
            blocks = _blocks_of_parts(engine, g, sums)
            (dW,) = engine.accumulate(partial(gradient.in_parts, parts), blocks, prod(g.weight_shape))
        else:
            totals = elements_of_kernels(g)
            # each block reads and writes the totals
            blocks = engine.blocks(g.batch, sums.elements, least=min(totals // 2, _FEW_IMAGES))
            dW = gradient.taps(engine.accumulate(gradient.add_block, blocks, totals))
        return images.kernels_of(dW)


class _Kernels(NamedTuple):
    """Kernels W (O, C, *kernel), or those of the input gradient: from O to C channels, and backwards."""

    engine: Engine
    W: Any
    transform: Transform
    backwards: bool

    @contextlib.contextmanager
    def at_points(self, part: slice) -> Iterator[list[Any]]:
        """Those of some of the channels made, (points, made, taken): of each tap apart, or of each piece."""
        W = self.W[:, part, ...] if self.backwards else self.W[part, ...]
        if self.transform.flat:
            side = self.transform.taken
            taps = [W[..., k : k + side] for k in range(0, W.shape[3], side)]
        else:
            taps = [W] if W.ndim == 4 else [W[:, :, k, ...] for k in range(W.shape[2])]
        if self.backwards:
            taps.reverse()
        with contextlib.ExitStack() as stack:
            yield [self._of_tap(tap, stack) for tap in taps]

    def _of_tap(self, W: Any, stack: contextlib.ExitStack) -> Any:
        (outputs, channels), (engine, xp) = W.shape[:2], (self.engine, self.engine.xp)

        def block(part: slice, target: Any) -> Any:
            # every kernel is a window of its own
            image = xp.permute_dims(xp.expand_dims(W[part, ...], axis=0), (0, 1, 3, 2, 4))
            return engine.from_windows(
                image, Windows(W.shape[3], (0, 0), 1, channels), self.transform, target
            )

        shape = self.transform.shape(outputs, channels)
        memory = stack.enter_context(engine.temporary(shape, W))
        blocks = engine.blocks(outputs, prod(shape) // outputs)
        U = engine.assemble(block, blocks, axis=1, shape=shape, like=W, memory=memory, alike=True)
        return xp.matrix_transpose(U) if self.backwards else U


def _convolved(
    images: AsImages, g: ConvGeometry, sums: WindowSums, X: Any, kernels: _Kernels, B: Any,
    size: Sequence[int],
) -> Any:  # fmt: skip
    """Y, of this size: the kernels are transformed once, in parts if all images are one block."""
    engine = images.engine
    outputs, channels = kernels.W.shape[:2]
    made, taken = (channels, outputs) if kernels.backwards else (outputs, channels)
    parts = _parts_of_kernels(engine, g, made, taken)
    in_parts = _take_parts(parts, g, sums)
    blocks = _blocks_of_parts(engine, g, sums) if in_parts else _large_blocks(engine, g, sums)
    if not in_parts:
        with kernels.at_points(slice(0, made)) as U:

            def products(V: Any, M: Any) -> Any:
                return _products(engine, sums, U, V, M)

            return _by_blocks(images, g, sums, X, (made, *size), blocks, products, B)

    def products_in_parts(V: Any, M: Any) -> Any:
        def some(part: slice, target: Any) -> Any:
            with kernels.at_points(part) as U:
                return _products(engine, sums, U, V, target)

        shape = (V.shape[0], made, _columns_made(sums, V.shape[2]))
        return engine.assemble(some, parts, axis=1, shape=shape, like=X, target=M, alike=True)

    return _by_blocks(images, g, sums, X, (made, *size), blocks, products_in_parts, B)


def _columns_made(sums: WindowSums, columns: int) -> int:
    size, made, _ = sums.depth(columns)
    return columns // size * made


def _products(engine: Engine, sums: WindowSums, U: list[Any], V: Any, M: Any) -> Any:
    """The products of kernels with windows: a sum over the taps of the first of three axes, or pieces."""
    size, made, begin = sums.depth(V.shape[2])
    if len(U) == 1:
        return engine.product(U[0], V, M)
    each = V.shape[2] // size  # windows of a slice
    # slices that meet the same taps are computed together
    meets = range(len(U))
    if sums.tile.flat:  # of the windows behind the last row the first piece is enough
        meets = range(len(U) - 1, len(U))
    found = [0, made, *(min(max(0, begin - k), made) for k in meets),
             *(min(max(0, size + begin - k), made) for k in meets)]  # fmt: skip
    ends = [end for end, _ in itertools.groupby(sorted(found))]
    parts = [slice(each * low, each * high) for low, high in itertools.pairwise(ends)]

    def some(part: slice, target: Any) -> Any:
        total, columns = None, part.stop - part.start
        for k, kernels in enumerate(U):
            at = part.start + each * (k - begin)
            if at < 0 or at + columns > V.shape[2]:
                continue
            windows = V[:, :, at : at + columns]
            if total is None:
                total = engine.product(kernels, windows, target)
            else:
                total = engine.add_product(total, kernels, windows)
        return total

    return engine.assemble(
        some, parts, axis=2, shape=(V.shape[0], U[0].shape[1], each * made), like=V, target=M
    )


def _by_blocks(
    images: AsImages,
    g: ConvGeometry,
    sums: WindowSums,
    X: Any,
    shape: Sequence[int],
    blocks: Sequence[Part],
    products: Callable[[Any, Any], Any],
    B: Any,
) -> Any:
    """Y, from ``products(V, M)``: of the kernels with windows at the points, perhaps in the memory M.

    Each of its images has this shape.
    """
    engine, rank, made = images.engine, len(sums.made), shape[0]

    def block(some: slice, target: Any) -> Any:
        part = images.split(X[some, ...])

        def band(own: slice, target: Any) -> Any:
            windows = sums.windows(own)
            with _at_points(engine, part, windows, sums.window) as V:
                columns = _columns_made(sums, V.shape[2])
                with engine.temporary(sums.tile.shape(made, columns), part) as M:
                    sizes = [part.shape[0], made, *sums.made]
                    sizes[sums.axis] = own.stop - own.start
                    made_windows = windows._replace(slices=sizes[2] if rank == 3 else 0)
                    return engine.to_windows(products(V, M), made_windows, sums.tile, B, sizes, target)

        bands = _bands(engine, sums, some, _least(g))
        Y = engine.assemble(
            band, InTurn(bands) if _are_too_large(g) else bands, axis=rank + 2 + sums.axis,
            shape=(part.shape[0], made, *sums.made), like=X, target=images.place(target),
        )  # fmt: skip
        return images.joined(Y, shape[1:], target)

    return engine.assemble(block, blocks, shape=(X.shape[0], *shape), like=X, alike=True)


@contextlib.contextmanager
def _at_points(engine: Engine, X: Any, windows: Windows, transform: Transform) -> Iterator[Any]:
    """The windows of images or volumes at the points."""
    windows = windows._replace(slices=X.shape[2] if X.ndim == 5 else 0)
    columns = X.shape[0] * max(1, windows.slices) * windows.rows * windows.columns
    with engine.temporary(transform.shape(X.shape[1], columns), X) as memory:
        yield engine.from_windows(X, windows, transform, memory)


class _WeightGradient(NamedTuple):
    """dW, from the points of the cotangents and of the windows."""

    engine: Engine
    g: ConvGeometry
    as_images: AsImages
    scheme: Scheme
    sums: WindowSums
    dY: Any
    X: Any

    def _images(self, images: slice) -> tuple[Any, Any]:
        """Some images, and their cotangents."""
        own = self.as_images
        return own.split(self.X[images, ...]), own.adjoint().split(self.dY[images, ...])

    @contextlib.contextmanager
    def _points(self, X: Any, dY: Any, band: slice) -> Iterator[tuple[Any, Any]]:
        """Those of a band of images."""
        engine, scheme = self.engine, self.scheme
        windows = self.sums.windows(band)
        flat, end = scheme.tile.flat, slice(0, band.stop)
        tiles = windows._replace(step=TILE, begin=(0, -band.start) if flat else (-band.start, 0))
        # what comes after the band belongs to the next one
        cotangents = dY[..., end] if flat else dY[..., end, :]
        with (
            _at_points(engine, X, windows, scheme.window) as V,
            _at_points(engine, cotangents, tiles, scheme.cotangent) as D,
        ):
            yield D, engine.xp.matrix_transpose(V)

    def _factors(self, D: Any, V: Any) -> list[tuple[Any, Any]]:
        """The factors of each tap along the first of three axes, or of each piece: what meets there."""
        g, columns = self.g, D.shape[2]
        if self.scheme.tile.flat:  # cotangents behind a row's end are 0
            return [(D[:, :, : columns - k], V[:, k:, :]) for k in range(taps_apart(g))]
        if g.rank == 2:
            return [(D, V)]
        each, found = D.shape[2] // g.output_size[0], []
        for k in range(g.kernel[0]):
            shift = k - g.begin[0]
            low = max(0, -shift)
            high = max(low, min(g.output_size[0], g.size[0] - shift))
            own, other = slice(each * low, each * high), slice(each * (low + shift), each * (high + shift))
            found.append((D[:, :, own], V[:, other, :]))
        return found

    def add_block(self, images: slice, totals: list[Any] | None) -> list[Any]:
        """The totals and what some images give."""
        both = self._images(images)
        for band in _bands(self.engine, self.sums, images):
            with self._points(*both, band) as points:
                factors = self._factors(*points)
                added = zip(totals or [None] * len(factors), factors, strict=True)
                totals = [self.engine.add_product(total, *pair) for total, pair in added]
        return totals or []

    def taps(self, totals: list[Any], target: Any = None) -> Any:
        """The gradients of kernels from those at the points, perhaps in the memory of the target."""
        xp, (channels, side) = self.engine.xp, (self.g.channels, self.scheme.side)
        flat = self.scheme.taps.flat
        found, windows = [], Windows(side, (0, 0), 1, channels)
        joins = flat and len(totals) > 1
        for k, M in enumerate(totals):
            place = None if joins else target
            if place is not None and self.g.rank == 3:
                place = place[:, :, k, ...]
            if place is not None:
                place = xp.permute_dims(xp.expand_dims(place, axis=0), (0, 1, 3, 2, 4))
            # every kernel is a window of its own
            shape = (1, M.shape[1], 1 if flat else side, channels, side)
            dW = self.engine.to_windows(M, windows, self.scheme.taps, None, shape, place)
            found.append(xp.permute_dims(dW[0, ...], (0, 2, 1, 3)))
        if joins:
            return xp.concat(found, axis=3)
        return found[0] if self.g.rank == 2 else xp.stack(found, axis=2)

    def in_parts(self, parts: list[slice], images: slice, totals: list[Any] | None) -> list[Any]:
        """The total and what some images give, some outputs' kernels after the others.

        At the points they are four times as large.
        """
        both = self._images(images)
        (total,) = totals or (None,)
        for band in _bands(self.engine, self.sums, images, max(_room(self.g), _FEW_IMAGES)):
            with self._points(*both, band) as (D, V):
                total = self._kernels_in_parts(parts, D, V, total)
        return [total]

    def _kernels_in_parts(self, parts: list[slice], D: Any, V: Any, total: Any) -> Any:
        def some(outputs: slice, target: Any) -> Any:
            with contextlib.ExitStack() as stack:
                factors = self._factors(D[:, outputs, :], V)
                products = [self._product(*pair, stack) for pair in factors]
                if total is None:
                    return self.taps(products, target)
                return self.engine.add(target, self.taps(products), target)

        shape = self.g.weight_shape
        return self.engine.assemble(some, parts, shape=shape, like=self.X, target=total, alike=True)

    def _product(self, D: Any, V: Any, stack: contextlib.ExitStack) -> Any:
        M = stack.enter_context(self.engine.temporary((D.shape[0], D.shape[1], V.shape[2]), D))
        return self.engine.product(D, V, M)


def _parts_of_kernels(engine: Engine, g: ConvGeometry, made: int, taken: int) -> list[slice]:
    """Kernels that are transformed together."""
    size = 4 * points_of_kernels(g) * taken
    if not _are_too_large(g):
        return engine.bands(made, size, _PART)
    # memory for one part, not for a part of each thread
    return InTurn(engine.bands(made, size, _PART, 4 * _LARGE_PART))


def _are_too_large(g: ConvGeometry) -> bool:
    """Whether all kernels at their points are more than a thread keeps."""
    return elements_of_kernels(g) > _KEPT


def _take_parts(parts: Sequence[slice], g: ConvGeometry, sums: WindowSums) -> bool:
    """Whether kernels come in parts: all windows stay in a cache, or all kernels do not fit into memory."""
    return len(parts) > 1 and (_are_too_large(g) or g.batch * sums.elements <= _FEW_IMAGES)


def _blocks_of_parts(engine: Engine, g: ConvGeometry, sums: WindowSums) -> Sequence[Part]:
    """Blocks for which all kernels are transformed anew, in parts: one, or as large as fit into memory."""
    if not _are_too_large(g):
        return [slice(0, g.batch)]
    return engine.blocks(g.batch, sums.elements, least=_room(g), fits=_room(g))


def _large_blocks(engine: Engine, g: ConvGeometry, sums: WindowSums) -> Sequence[Part]:
    """Blocks for which it pays to read all kernels at their points."""
    fits = _room(g) if elements_of_kernels(g) > _LARGE_KERNELS else 0
    return engine.blocks(g.batch, sums.elements, least=_least(g), fits=fits)


def _least(g: ConvGeometry) -> int:
    """Elements of windows for which it pays to read all kernels at their points; both fit into memory."""
    return min(2 * elements_of_kernels(g), _room(g))


def _room(g: ConvGeometry) -> int:
    """Elements of windows and products that fit into memory beside the kernels, or two parts of them."""
    return _KEPT - (2 * _LARGE_PART if _are_too_large(g) else elements_of_kernels(g))


def _bands(engine: Engine, sums: WindowSums, images: slice, least: int = 0) -> list[slice]:
    """The results' rows of some images, or columns of flat windows, in bands of whole tiles."""
    size = sums.made[sums.axis]
    return engine.bands(size, (images.stop - images.start) * sums.elements // size, sums.tile.made, least)
