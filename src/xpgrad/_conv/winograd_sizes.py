"""What Winograd's filtering makes of a geometry: its transforms, and the numbers of its points."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from operator import add
from typing import NamedTuple

from xpgrad._conv.geometry import ConvGeometry
from xpgrad._conv.winograd_formulas import DENSE, PIECES, ROW, STRIDED, TILE, Scheme
from xpgrad.engine.images.windows import Transform, Windows


def takes_rows(g: ConvGeometry) -> bool:
    """Whether kernels are one row of taps, of sequences or of images."""
    return g.rank == 1 or (g.rank == 2 and g.kernel[0] == 1)


def _squares(g: ConvGeometry) -> dict[int, Scheme]:
    """The transforms for the kernels' stride, by the side of a square; the smallest one is first."""
    return DENSE if g.strides[-1] == 1 else STRIDED


def _side_needed(g: ConvGeometry) -> int:
    return max(map(add, g.kernel[-2:], zeros_before(g)[-2:]))


def fits_a_square(g: ConvGeometry) -> bool:
    """Whether kernels fit into a square with transforms."""
    return _side_needed(g) <= max(_squares(g))


def zeros_before(g: ConvGeometry) -> tuple[int, ...]:
    """Zeros before a kernel's taps, in each dimension: with a stride of 2 padding becomes odd."""
    if g.strides[-1] == 1:
        return (0,) * g.rank
    return tuple([int(s == 2 and b % 2 == 0) for s, b in zip(g.strides, g.begin, strict=True)])


def scheme_of(g: ConvGeometry) -> Scheme:
    """The transforms for these kernels, of a row or of the smallest square that they fit into."""
    if takes_rows(g):
        return ROW if g.kernel[-1] == 3 else PIECES
    needed = _side_needed(g)
    return next(scheme for side, scheme in _squares(g).items() if side >= needed)


def taps_apart(g: ConvGeometry) -> int:
    """The taps of a first axis of three, or the pieces of a row of taps: products that are added up."""
    return -(-g.kernel[-1] // scheme_of(g).side) if takes_rows(g) else prod(g.kernel[:-2])


def of_images(g: ConvGeometry) -> ConvGeometry:
    """The geometry that the transforms see: phases of a dilation apart, kernels filled up with zeros."""
    if g.rank == 1 or max(g.dilations) > 1:
        g = _phases_apart(g)
    if takes_rows(g):
        return replace(g, kernel=(1, taps_apart(g) * scheme_of(g).side))
    side, zeros = scheme_of(g).side, zeros_before(g)
    begin = [b + zero for b, zero in zip(g.begin, zeros, strict=True)]
    return replace(g, kernel=(*g.kernel[:-2], side, side), begin=(*g.begin[:-2], *begin[-2:]))


def _phases_apart(g: ConvGeometry) -> ConvGeometry:
    """A sequence becomes an image with a row for each phase of its dilation, an image a volume of slices.

    Elements that are a dilation apart are neighbours. Some of the zeros in front are part of the phases, so
    that the others are as many for each phase.
    """
    each = [*zip(g.size, g.output_size, g.begin, g.dilations, strict=True)]
    phases, ones = prod(g.dilations), (1,) * (g.rank + 1)
    return replace(
        g, size=(phases, *(-(-(size + begin % step) // step) for size, _, begin, step in each)),
        output_size=(phases, *(-(-made // step) for _, made, _, step in each)),
        kernel=(1, *g.kernel), strides=ones, dilations=ones,
        begin=(0, *(begin // step for _, _, begin, step in each)),
    )  # fmt: skip


def windows_behind(g: ConvGeometry) -> int:
    """The windows of a row behind those of its results, which only later pieces of its taps meet."""
    return taps_apart(g) - 1 if takes_rows(g) else 0


def points_of_kernels(g: ConvGeometry) -> int:
    """The number of points of a kernel, all phases and all taps of a first axis of three together."""
    scheme = scheme_of(g)
    return scheme.points * scheme.stride**2 * taps_apart(g)


def elements_of_kernels(g: ConvGeometry) -> int:
    """All kernels at their points."""
    return points_of_kernels(g) * g.outputs * g.channels


class WindowSums(NamedTuple):
    """Which windows of images become which results: transforms, where the first window begins, their step.

    The sizes and channels are those of the images and of the results. A row has `more` windows than tiles of
    results.
    """

    window: Transform
    tile: Transform
    begin: tuple[int, ...]
    step: int
    size: tuple[int, ...]
    made: tuple[int, ...]
    more: int
    channels: int
    outputs: int

    @classmethod
    def of_forward(cls, g: ConvGeometry) -> WindowSums:
        """Of images that `of_images` has made; a weight gradient has the same windows."""
        scheme = scheme_of(g)
        sizes, channels = (g.size, g.output_size), (g.channels, g.outputs)
        return cls(
            scheme.window, scheme.tile, g.begin, TILE * scheme.stride, *sizes, windows_behind(g), *channels
        )

    @classmethod
    def of_input_gradient(cls, g: ConvGeometry) -> WindowSums:
        """The same for an input gradient."""
        scheme, begin = scheme_of(g), [k - 1 - b for k, b in zip(g.kernel, g.begin, strict=True)]
        if scheme.stride == 2:  # half of the taps are of each phase
            begin[-2:] = [b // 2 for b in begin[-2:]]
        sizes, channels = (g.output_size, g.size), (g.outputs, g.channels)
        return cls(
            scheme.back_window, scheme.back_tile, tuple(begin), TILE, *sizes, windows_behind(g), *channels
        )

    @property
    def tiles(self) -> int:
        """The number of tiles of an image's results, and of the windows behind rows."""
        *outer, across = self.made
        columns = -(-across // self.tile.made) + self.more
        if not self.tile.flat:
            outer[-1] = -(-outer[-1] // self.tile.made)
        return prod(outer) * columns

    @property
    def elements(self) -> int:
        """The elements of an image's windows and products at the points."""
        windows = self.window.shape(self.channels, self.tiles)
        return prod(windows) + self.elements_made

    @property
    def elements_made(self) -> int:
        """The elements of its products."""
        return prod(self.tile.shape(self.outputs, self.tiles))

    @property
    def axis(self) -> int:
        """The axis of bands: rows, or the columns of flat windows."""
        return -1 if self.tile.flat else -2

    def windows(self, band: slice) -> Windows:
        """Those of a band of the results."""
        side, (top, left) = self.tile.made, self.begin[-2:]
        tiles = -(-(band.stop - band.start) // side)
        if self.tile.flat:
            return Windows(self.step, (top, left - band.start), self.made[-2], tiles + self.more)
        first = band.start * self.step // side
        return Windows(self.step, (top - first, left), tiles, -(-self.made[-1] // side))

    def depth(self, columns: int) -> tuple[int, int, int]:
        """Along the axis whose taps are products of their own: sizes of images and results, the first begin.

        It is the first of three axes. For the pieces of a row it is this row: a window meets the next piece
        one window on. Windows behind a row's end meet the next row, but their results are beyond the row.
        """
        if self.tile.flat:
            return columns, columns, 0
        return (self.size[0], self.made[0], self.begin[0]) if len(self.size) == 3 else (1, 1, 0)
