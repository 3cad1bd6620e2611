r"""Winograd's minimal filtering along two axes: a fourth of the products of 3 x 3 kernels, or fewer.

An output tile of m x m and a kernel of r x r need an input window of n x n, n = m + r - 1. Window and kernel
are polynomials: they are evaluated at n points (one of them infinity) and multiplied point by point, and the
result is interpolated. For an input window d, a kernel g and an output tile Y

.. math:: Y = A^T\,[\,(G\,g\,G^T) \odot (B^T d\,B)\,]\,A

Over all channels and tiles the products at one point are one matrix product. The weight gradient of a tile is
the same kind of problem, with a tile of cotangents in place of the kernel, at the same points.

- **3 x 3 kernels at stride 1**, F(4 x 4, 3 x 3): 36 products for 144.
- **4 x 4 kernels at stride 2**: each phase of the input (see `shifted`) meets a kernel of 2 x 2, in
  F(4 x 4, 2 x 2). With all four these are 100 products for 256. The phases are channels of the input; in the
  input gradient each has tiles of its own.
- **Volumes**: a kernel of three axes is a sum over the taps of its first axis, each a product of shifted
  slices.

With the points 0, +-a, +-b and infinity, or without 0 for kernels of 2 x 2, each transform splits into even
and odd parts; the formulas below are written this way. a and b are 5/8 and 3/2, or 1/2 and 3/2, which are
exact and keep the factors near 1. In float32 the error, relative to the largest value, is about seven times
that of direct sums, 2e-6 with 128 channels, and a quarter of that of the usual 1 and 2.

Source: A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks" (2016), arXiv:1509.09308;
points: B. Barabasz et al., "Error Analysis and Improving the Accuracy of Winograd Convolution for Deep
Neural Networks" (2020), arXiv:1803.10986.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from xpgrad._conv.geometry import ConvGeometry
from xpgrad._conv.method import Method
from xpgrad.engine.formulas.formula import Formula
from xpgrad.engine.images.windows import Transform, Windows
from xpgrad.engine.protocol import Engine

_TILE = 4
_PART = 16  # kernels of a part, or a multiple of it
_FEW_IMAGES = 1 << 21  # elements of all images' windows
_KEPT = 15 << 20  # elements of an arena that a thread keeps; a larger one is new memory in each call


_POINTS, _POINTS_2 = {"a": 0.625, "b": 1.5}, {"a": 0.5, "b": 1.5}


def _window(xp: Any, d0: Any, d1: Any, d2: Any, d3: Any, d4: Any, d5: Any, *, a: Any, b: Any) -> tuple:
    """B^T d: an input window at the points 0, a, -a, b, -b and infinity."""
    aa, bb = a * a, b * b
    even_a, odd_a = d4 - bb * d2, a * (d3 - bb * d1)
    even_b, odd_b = d4 - aa * d2, b * (d3 - aa * d1)
    return (
        d4 - (aa + bb) * d2 + aa * bb * d0,
        even_a + odd_a,
        even_a - odd_a,
        even_b + odd_b,
        even_b - odd_b,
        d5 - (aa + bb) * d3 + aa * bb * d1,
    )


def _kernel(xp: Any, g0: Any, g1: Any, g2: Any, *, a: Any, b: Any) -> tuple:
    """G g: a kernel of three taps at the points."""
    aa, bb = a * a, b * b
    scale_a, scale_b = 1 / (2 * aa * (aa - bb)), 1 / (2 * bb * (bb - aa))
    even_a, odd_a = scale_a * (g0 + aa * g2), scale_a * a * g1
    even_b, odd_b = scale_b * (g0 + bb * g2), scale_b * b * g1
    return 1 / (aa * bb) * g0, even_a + odd_a, even_a - odd_a, even_b + odd_b, even_b - odd_b, g2


def _cotangent(xp: Any, g0: Any, g1: Any, g2: Any, g3: Any, *, a: Any, b: Any) -> tuple:
    """G g for four taps: an output's tile of cotangents at the points."""
    aa, bb = a * a, b * b
    scale_a, scale_b = 1 / (2 * aa * (aa - bb)), 1 / (2 * bb * (bb - aa))
    even_a, odd_a = scale_a * (g0 + aa * g2), scale_a * a * (g1 + aa * g3)
    even_b, odd_b = scale_b * (g0 + bb * g2), scale_b * b * (g1 + bb * g3)
    return 1 / (aa * bb) * g0, even_a + odd_a, even_a - odd_a, even_b + odd_b, even_b - odd_b, g3


def _tile(xp: Any, m0: Any, m1: Any, m2: Any, m3: Any, m4: Any, m5: Any, *, a: Any, b: Any) -> tuple:
    """A^T m: four outputs from the products at the points."""
    aa, bb = a * a, b * b
    even_a, odd_a, even_b, odd_b = m1 + m2, a * (m1 - m2), m3 + m4, b * (m3 - m4)
    return m0 + even_a + even_b, odd_a + odd_b, aa * even_a + bb * even_b, aa * odd_a + bb * odd_b + m5


def _taps(xp: Any, m0: Any, m1: Any, m2: Any, m3: Any, m4: Any, m5: Any, *, a: Any, b: Any) -> tuple:
    """A^T m for three results: a kernel's gradient from the products at the points."""
    even_a, odd_a, even_b, odd_b = m1 + m2, a * (m1 - m2), m3 + m4, b * (m3 - m4)
    return m0 + even_a + even_b, odd_a + odd_b, a * a * even_a + b * b * even_b + m5


def _kernel_backwards(xp: Any, g0: Any, g1: Any, g2: Any, *, a: float, b: float) -> tuple:
    """The same for the taps in reverse order."""
    return _kernel(xp, g2, g1, g0, a=a, b=b)


# --- the phases of a stride of 2: the points a, -a, b, -b and infinity of each


def _window_2(xp: Any, d0: Any, d1: Any, d2: Any, d3: Any, d4: Any, *, a: float, b: float) -> tuple:
    """B^T d: an input window for two taps."""
    aa, bb = a * a, b * b
    even_a, odd_a = a * (d2 - bb * d0), d3 - bb * d1
    even_b, odd_b = b * (d2 - aa * d0), d3 - aa * d1
    last = d4 - (aa + bb) * d2 + aa * bb * d0
    return even_a + odd_a, even_a - odd_a, even_b + odd_b, even_b - odd_b, last


def _kernel_2(xp: Any, g0: Any, g1: Any, *, a: float, b: float) -> tuple:
    """G g: a kernel of two taps."""
    scale_a, scale_b = 1 / (2 * a * (a * a - b * b)), 1 / (2 * b * (b * b - a * a))
    even_a, odd_a, even_b, odd_b = scale_a * g0, scale_a * a * g1, scale_b * g0, scale_b * b * g1
    return even_a + odd_a, even_a - odd_a, even_b + odd_b, even_b - odd_b, g1


def _cotangent_2(xp: Any, g0: Any, g1: Any, g2: Any, g3: Any, *, a: float, b: float) -> tuple:
    """G g for four taps: an output's tile of cotangents."""
    aa, bb = a * a, b * b
    scale_a, scale_b = 1 / (2 * a * (aa - bb)), 1 / (2 * b * (bb - aa))
    even_a, odd_a = scale_a * (g0 + aa * g2), scale_a * a * (g1 + aa * g3)
    even_b, odd_b = scale_b * (g0 + bb * g2), scale_b * b * (g1 + bb * g3)
    return even_a + odd_a, even_a - odd_a, even_b + odd_b, even_b - odd_b, g3


def _tile_2(xp: Any, m0: Any, m1: Any, m2: Any, m3: Any, m4: Any, *, a: float, b: float) -> tuple:
    """A^T m: four outputs."""
    aa, bb = a * a, b * b
    even_a, odd_a, even_b, odd_b = m0 + m1, a * (m0 - m1), m2 + m3, b * (m2 - m3)
    return even_a + even_b, odd_a + odd_b, aa * even_a + bb * even_b, aa * odd_a + bb * odd_b + m4


def _taps_2(xp: Any, m0: Any, m1: Any, m2: Any, m3: Any, m4: Any, *, a: float, b: float) -> tuple:
    """A^T m for two results: the gradient of two taps."""
    return m0 + m1 + (m2 + m3), a * (m0 - m1) + b * (m2 - m3) + m4


def _windows_of_phases(
    xp: Any, d0: Any, d1: Any, d2: Any, d3: Any, d4: Any, d5: Any, d6: Any, d7: Any, d8: Any, d9: Any,
    *, a: float, b: float,
) -> tuple:  # fmt: skip
    """The windows of both phases."""
    even, odd = _window_2(xp, d0, d2, d4, d6, d8, a=a, b=b), _window_2(xp, d1, d3, d5, d7, d9, a=a, b=b)
    return (*even, *odd)


def _kernels_of_phases(xp: Any, g0: Any, g1: Any, g2: Any, g3: Any, *, a: float, b: float) -> tuple:
    """The taps that each phase meets."""
    return (*_kernel_2(xp, g0, g2, a=a, b=b), *_kernel_2(xp, g1, g3, a=a, b=b))


def _taps_of_phases(
    xp: Any, m0: Any, m1: Any, m2: Any, m3: Any, m4: Any, m5: Any, m6: Any, m7: Any, m8: Any, m9: Any,
    *, a: float, b: float,
) -> tuple:  # fmt: skip
    """Their gradients."""
    g0, g2 = _taps_2(xp, m0, m1, m2, m3, m4, a=a, b=b)
    g1, g3 = _taps_2(xp, m5, m6, m7, m8, m9, a=a, b=b)
    return g0, g1, g2, g3


# In the input gradient an input of the first phase meets the taps 0 and 2, and it is one further on: the
# padding is odd.


def _windows_for_phases(
    xp: Any, d0: Any, d1: Any, d2: Any, d3: Any, d4: Any, d5: Any, *, a: float, b: float
) -> tuple:
    """The cotangents that the inputs of each phase meet."""
    return (*_window_2(xp, d1, d2, d3, d4, d5, a=a, b=b), *_window_2(xp, d0, d1, d2, d3, d4, a=a, b=b))


def _kernels_for_phases(xp: Any, g0: Any, g1: Any, g2: Any, g3: Any, *, a: float, b: float) -> tuple:
    """The taps that they meet, backwards."""
    return (*_kernel_2(xp, g2, g0, a=a, b=b), *_kernel_2(xp, g3, g1, a=a, b=b))


def _tiles_of_phases(
    xp: Any, m0: Any, m1: Any, m2: Any, m3: Any, m4: Any, m5: Any, m6: Any, m7: Any, m8: Any, m9: Any,
    *, a: float, b: float,
) -> tuple:  # fmt: skip
    """Eight inputs' sums, of both phases in turns."""
    y1, y3, y5, y7 = _tile_2(xp, m0, m1, m2, m3, m4, a=a, b=b)
    y0, y2, y4, y6 = _tile_2(xp, m5, m6, m7, m8, m9, a=a, b=b)
    return y0, y1, y2, y3, y4, y5, y6, y7


class _Scheme(NamedTuple):
    """The transforms for kernels of a side and a stride, and the points in both directions.

    `window`, `kernel` and `tile` are those of the forward, `cotangent` and `taps` of the weight gradient
    besides. The input gradient has its own ones.
    """

    side: int
    stride: int
    points: int
    window: Transform
    kernel: Transform
    tile: Transform
    cotangent: Transform
    taps: Transform
    back_window: Transform
    back_kernel: Transform
    back_tile: Transform


def _dense() -> _Scheme:
    def transform(function: Callable[..., tuple], taken: int, made: int) -> Transform:
        return Transform(Formula(function, _POINTS), taken, made)

    window, tile = transform(_window, 6, 6), transform(_tile, 6, 4)
    return _Scheme(
        3, 1, 36, window, transform(_kernel, 3, 6), tile, transform(_cotangent, 4, 6), transform(_taps, 6, 3),
        window, transform(_kernel_backwards, 3, 6), tile,
    )  # fmt: skip


def _strided() -> _Scheme:
    """The phases are channels, behind one another; in the input gradient they have matrices of their own."""

    def transform(function: Callable[..., tuple], taken: int, made: int, axis: int) -> Transform:
        return Transform(Formula(function, _POINTS_2), taken, made, 2, axis)

    return _Scheme(
        4, 2, 25,
        transform(_windows_of_phases, 10, 10, 1),
        transform(_kernels_of_phases, 4, 10, 2),
        Transform(Formula(_tile_2, _POINTS_2), 5, 4),
        Transform(Formula(_cotangent_2, _POINTS_2), 4, 5),
        transform(_taps_of_phases, 10, 4, 2),
        transform(_windows_for_phases, 6, 10, 0),
        transform(_kernels_for_phases, 4, 10, 0),
        transform(_tiles_of_phases, 10, 8, 0),
    )  # fmt: skip


_DENSE, _STRIDED = _dense(), _strided()


def _scheme_of(g: ConvGeometry) -> _Scheme:
    return _DENSE if g.strides[-1] == 1 else _STRIDED


class Winograd(Method):
    """Products of transformed windows and transformed kernels, block by block of images."""

    name = "winograd"

    def why_not(self, geometry: ConvGeometry, transforms: bool) -> str | None:
        """It needs 3 x 3 kernels at stride 1, or of 4 x 4 at stride 2, and no dilations or groups."""
        g = geometry
        if g.rank not in (2, 3):
            return f"there are {g.rank} spatial dimensions, not 2 or 3"
        if (g.kernel[-2:], g.strides[-2:]) not in (((3, 3), (1, 1)), ((4, 4), (2, 2))):
            return (
                f"the kernel has shape {g.kernel} and strides are {g.strides}, not (3, 3) with strides of 1 "
                "or (4, 4) with strides of 2 in the last two dimensions"
            )
        if any(d != 1 for d in g.dilations):
            return f"dilations are {g.dilations}, not 1"
        if g.group != 1:
            return f"group is {g.group}, not 1"
        if g.strides[-1] == 2 and not g.begin[-1] % 2 == g.begin[-2] % 2 == 1:
            return f"strides are {g.strides} with pads of {g.begin[-2:]}, not odd ones"
        if g.rank == 3 and not (g.strides[0] == 1 and max(g.begin[0], g.end[0]) < g.kernel[0]):
            return (
                f"the first dimension has stride {g.strides[0]} and pads of {g.begin[0]} and {g.end[0]}, "
                f"expected 1 and less than its kernel's {g.kernel[0]}"
            )
        return None

    def forward(self, engine: Engine, geometry: ConvGeometry, X: Any, W: Any, B: Any) -> Any:
        """In the order of the equation: G g, then for each block B^T d, the products, A^T m."""
        g, scheme = geometry, _scheme_of(geometry)
        sums = _WindowSums(scheme.window, scheme.tile, g.begin, _TILE * scheme.stride, g.size, g.output_size)
        return _convolved(engine, g, sums, X, _Kernels(engine, W, scheme.kernel, False), B)

    def input_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, W: Any, B: Any = None) -> Any:
        """A forward of the adjoint geometry."""
        g, scheme = geometry, _scheme_of(geometry)
        begin = [k - 1 - b for k, b in zip(g.kernel, g.begin, strict=True)]
        if scheme is _STRIDED:  # a kernel has two taps of each phase
            begin[-2:] = [(3 - b) // 2 for b in g.begin[-2:]]
        sums = _WindowSums(scheme.back_window, scheme.back_tile, tuple(begin), _TILE, g.output_size, g.size)
        return _convolved(engine, g, sums, dY, _Kernels(engine, W, scheme.back_kernel, True), B)

    def weight_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, X: Any) -> Any:
        """Sums of products over all tiles, and one interpolation at the end."""
        gradient = _WeightGradient(engine, geometry, _scheme_of(geometry), dY, X)
        parts = _parts_of_kernels(engine, geometry, geometry.outputs, geometry.channels)
        if len(parts) > 1 and _is_one_block(geometry):
            return gradient.in_parts(parts)
        totals = elements_of_kernels(geometry)
        # each block reads and writes the totals
        blocks = _blocks(engine, geometry, min(totals // 2, _FEW_IMAGES))
        return gradient.taps(engine.accumulate(gradient.add_block, blocks, totals))


class _WindowSums(NamedTuple):
    """Which windows of images become which results: transforms, where the first window begins, their step.

    The sizes are those of the images and of the results.
    """

    window: Transform
    tile: Transform
    begin: tuple[int, ...]
    step: int
    size: tuple[int, ...]
    made: tuple[int, ...]

    def windows(self, rows: slice) -> Windows:
        """Those of a band of the results' rows."""
        side = self.tile.made
        tiles = -(-(rows.stop - rows.start) // side), -(-self.made[-1] // side)
        return Windows(self.step, (self.begin[-2] - rows.start * self.step // side, self.begin[-1]), *tiles)

    def bands(self, engine: Engine, g: ConvGeometry, images: slice) -> list[slice]:
        """The results' rows, in bands."""
        return _bands(engine, g, images, self.made[-2], self.tile.made, _least(g))

    @property
    def depth(self) -> tuple[int, int, int]:
        """Along the first of three axes: sizes of images and results, and where the first one begins."""
        return (self.size[0], self.made[0], self.begin[0]) if len(self.size) == 3 else (1, 1, 0)


class _Kernels(NamedTuple):
    """Kernels W (O, C, *kernel), or those of the input gradient: from O to C channels, and backwards."""

    engine: Engine
    W: Any
    transform: Transform
    backwards: bool

    @contextlib.contextmanager
    def at_points(self, part: slice) -> Iterator[list[Any]]:
        """Those of some of the channels made, (points, made, taken), of each tap of a first axis of three."""
        W = self.W[:, part, ...] if self.backwards else self.W[part, ...]
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
                image, Windows(W.shape[2], (0, 0), 1, channels), self.transform, target
            )

        shape = self.transform.shape(outputs, channels)
        memory = stack.enter_context(engine.temporary(shape, W))
        blocks = engine.blocks(outputs, prod(shape) // outputs)
        U = engine.assemble(block, blocks, axis=1, shape=shape, like=W, memory=memory, alike=True)
        return xp.matrix_transpose(U) if self.backwards else U


def _convolved(engine: Engine, g: ConvGeometry, sums: _WindowSums, X: Any, kernels: _Kernels, B: Any) -> Any:
    """Y: the kernels are transformed once, in parts if all images are one block."""
    outputs, channels = kernels.W.shape[:2]
    made, taken = (channels, outputs) if kernels.backwards else (outputs, channels)
    parts = _parts_of_kernels(engine, g, made, taken)
    in_parts = len(parts) > 1 and _is_one_block(g)
    blocks = [slice(0, g.batch)] if in_parts else _blocks(engine, g, _least(g))
    if not in_parts:
        with kernels.at_points(slice(0, made)) as U:

            def products(V: Any, M: Any) -> Any:
                return _products(engine, sums, U, V, M)

            return _by_blocks(engine, g, sums, X, made, blocks, products, B)

    def products_in_parts(V: Any, M: Any) -> Any:
        def some(part: slice, target: Any) -> Any:
            with kernels.at_points(part) as U:
                return _products(engine, sums, U, V, target)

        shape = (V.shape[0], made, _columns_made(sums, V.shape[2]))
        return engine.assemble(some, parts, axis=1, shape=shape, like=X, target=M, alike=True)

    return _by_blocks(engine, g, sums, X, made, blocks, products_in_parts, B)


def _columns_made(sums: _WindowSums, columns: int) -> int:
    size, made, _ = sums.depth
    return columns // size * made


def _products(engine: Engine, sums: _WindowSums, U: list[Any], V: Any, M: Any) -> Any:
    """The products of kernels with windows: a sum over the taps of the first of three axes."""
    size, made, begin = sums.depth
    if len(U) == 1:
        return engine.product(U[0], V, M)
    each = V.shape[2] // size  # windows of a slice
    # slices that meet the same taps are computed together
    ends = sorted({0, made, *(min(max(0, begin - k), made) for k in range(len(U))),
                   *(min(max(0, size + begin - k), made) for k in range(len(U)))})  # fmt: skip
    parts = [slice(each * low, each * high) for low, high in itertools.pairwise(ends)]

    def some(part: slice, target: Any) -> Any:
        total, first = None, part.start // each
        for k, kernels in enumerate(U):
            at = first + k - begin
            if not 0 <= at < size:
                continue
            windows = V[:, :, each * at : each * at + part.stop - part.start]
            if total is None:
                total = engine.product(kernels, windows, target)
            else:
                total = engine.add_product(total, kernels, windows)
        return total

    return engine.assemble(
        some, parts, axis=2, shape=(V.shape[0], U[0].shape[1], each * made), like=V, target=M
    )


def _by_blocks(
    engine: Engine,
    g: ConvGeometry,
    sums: _WindowSums,
    X: Any,
    made: int,
    blocks: Sequence[slice],
    products: Callable[[Any, Any], Any],
    B: Any,
) -> Any:
    """Y, from ``products(V, M)``: of the kernels with windows at the points, perhaps in the memory M."""
    rank = len(sums.made)

    def block(images: slice, target: Any) -> Any:
        part = X[images, ...]

        def band(rows: slice, target: Any) -> Any:
            windows = sums.windows(rows)
            with _at_points(engine, part, windows, sums.window) as V:
                columns = _columns_made(sums, V.shape[2])
                with engine.temporary(sums.tile.shape(made, columns), part) as M:
                    shape = (part.shape[0], made, *sums.made[:-2], rows.stop - rows.start, sums.made[-1])
                    made_windows = windows._replace(slices=shape[2] if rank == 3 else 0)
                    return engine.to_windows(products(V, M), made_windows, sums.tile, B, shape, target)

        return engine.assemble(band, sums.bands(engine, g, images), axis=rank, target=target)

    return engine.assemble(block, blocks, shape=(X.shape[0], made, *sums.made), like=X, alike=True)


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
    scheme: _Scheme
    dY: Any
    X: Any

    def bands(self, images: slice) -> list[slice]:
        """The output's rows, in bands."""
        return _bands(self.engine, self.g, images, self.g.output_size[-2], _TILE)

    @contextlib.contextmanager
    def _points(self, images: slice, rows: slice) -> Iterator[tuple[Any, Any]]:
        """Those of a band of some images."""
        engine, g, scheme = self.engine, self.g, self.scheme
        sums = _WindowSums(scheme.window, scheme.tile, g.begin, _TILE * scheme.stride, g.size, g.output_size)
        windows = sums.windows(rows)
        tiles = windows._replace(step=_TILE, begin=(-rows.start, 0))
        # rows of dY after the band belong to the next one
        cotangents = self.dY[images, ..., : rows.stop, :]
        with (
            _at_points(engine, self.X[images, ...], windows, scheme.window) as V,
            _at_points(engine, cotangents, tiles, scheme.cotangent) as D,
        ):
            yield D, engine.xp.matrix_transpose(V)

    def _factors(self, D: Any, V: Any) -> list[tuple[Any, Any]]:
        """The factors of each tap along the first of three axes: the slices that meet there."""
        g = self.g
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
        for rows in self.bands(images):
            with self._points(images, rows) as points:
                factors = self._factors(*points)
                added = zip(totals or [None] * len(factors), factors, strict=True)
                totals = [self.engine.add_product(total, *both) for total, both in added]
        return totals or []

    def taps(self, totals: list[Any], target: Any = None) -> Any:
        """The gradients of kernels from those at the points, perhaps in the memory of the target."""
        xp, (channels, side) = self.engine.xp, (self.g.channels, self.scheme.side)
        found, windows = [], Windows(side, (0, 0), 1, channels)
        for k, M in enumerate(totals):
            place = target if target is None or self.g.rank == 2 else target[:, :, k, ...]
            if place is not None:
                place = xp.permute_dims(xp.expand_dims(place, axis=0), (0, 1, 3, 2, 4))
            # every kernel is a window of its own
            shape = (1, M.shape[1], side, channels, side)
            dW = self.engine.to_windows(M, windows, self.scheme.taps, None, shape, place)
            found.append(xp.permute_dims(dW[0, ...], (0, 2, 1, 3)))
        return found[0] if self.g.rank == 2 else xp.stack(found, axis=2)

    def in_parts(self, parts: list[slice]) -> Any:
        """Some outputs' kernels after the others: at the points they are four times as large."""
        with self._points(slice(0, self.g.batch), slice(0, self.g.output_size[-2])) as (D, V):

            def some(outputs: slice, target: Any) -> Any:
                with contextlib.ExitStack() as stack:
                    factors = self._factors(D[:, outputs, :], V)
                    return self.taps([self._product(*both, stack) for both in factors], target)

            return self.engine.assemble(some, parts, shape=self.g.weight_shape, like=self.X, alike=True)

    def _product(self, D: Any, V: Any, stack: contextlib.ExitStack) -> Any:
        M = stack.enter_context(self.engine.temporary((D.shape[0], D.shape[1], V.shape[2]), D))
        return self.engine.product(D, V, M)


def _parts_of_kernels(engine: Engine, g: ConvGeometry, made: int, taken: int) -> list[slice]:
    """Kernels that are transformed together."""
    return engine.bands(made, 4 * points_of_kernels(g) * taken, _PART)


def points_of_kernels(g: ConvGeometry) -> int:
    """The number of points of a kernel, all phases and all taps of a first axis of three together."""
    scheme = _scheme_of(g)
    return scheme.points * scheme.stride**2 * prod(g.kernel[:-2])


def points_of_products(g: ConvGeometry) -> int:
    """The number of products of all windows of an image, for each pair of channels."""
    return _points_of_windows(g) * _scheme_of(g).stride ** 2 * prod(g.kernel[:-2])


def _points_of_windows(g: ConvGeometry) -> int:
    """The number of points of all windows of an image's channel, of each phase."""
    return _scheme_of(g).points * tiles_of_images(g)


def tiles_of_images(g: ConvGeometry) -> int:
    """The number of tiles of an image's outputs."""
    return prod(-(-size // _TILE) for size in g.output_size[-2:]) * prod(g.output_size[:-2])


def elements_of_windows(g: ConvGeometry) -> int:
    """The elements of the windows and products of an image."""
    return _points_of_windows(g) * (g.channels * _scheme_of(g).stride ** 2 + g.outputs)


def _blocks(engine: Engine, g: ConvGeometry, least: int = 0) -> list[slice]:
    return engine.blocks(g.batch, elements_of_windows(g), least=least)


def _least(g: ConvGeometry) -> int:
    """Elements of windows for which it pays to read all kernels at their points; both fit into memory."""
    kernels = elements_of_kernels(g)
    return min(2 * kernels, max(0, _KEPT - kernels))


def _is_one_block(g: ConvGeometry) -> bool:
    """Whether all windows stay in a cache, so that the kernels come in parts instead."""
    return g.batch * elements_of_windows(g) <= _FEW_IMAGES


def elements_of_kernels(g: ConvGeometry) -> int:
    """All kernels at their points."""
    return points_of_kernels(g) * g.outputs * g.channels


def _bands(
    engine: Engine, g: ConvGeometry, images: slice, rows: int, side: int, least: int = 0
) -> list[slice]:
    """Rows of some images, in bands of whole tiles of a side."""
    return engine.bands(rows, (images.stop - images.start) * elements_of_windows(g) // rows, side, least)
