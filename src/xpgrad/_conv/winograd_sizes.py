"""What Winograd's filtering makes of a geometry: its transforms, and the numbers of its points."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from xpgrad._conv.geometry import ConvGeometry
from xpgrad._conv.winograd_formulas import DENSE, PIECES, ROW, STRIDED, TILE, Scheme


def takes_rows(g: ConvGeometry) -> bool:
    """Whether kernels are one row of taps, of sequences or of images."""
    return g.rank == 1 or (g.rank == 2 and g.kernel[0] == 1)


def scheme_of(g: ConvGeometry) -> Scheme:
    """The transforms for these kernels."""
    if takes_rows(g):
        return ROW if g.kernel[-1] == 3 else PIECES
    return DENSE if g.strides[-1] == 1 else STRIDED


def taps_apart(g: ConvGeometry) -> int:
    """The taps of a first axis of three, or the pieces of a row of taps: products that are added up."""
    return -(-g.kernel[-1] // scheme_of(g).side) if takes_rows(g) else prod(g.kernel[:-2])


def of_images(g: ConvGeometry) -> ConvGeometry:
    """The geometry of the images that a sequence becomes, with a row for each phase of its dilation.

    Elements that are a dilation apart are neighbours in a row. Some of the zeros in front of the sequence are
    part of the rows, so that the others are as many for each row.
    """
    if g.rank > 1:
        return g
    (step,), (begin,), (size,), (made,) = g.dilations, g.begin, g.size, g.output_size
    return replace(
        g, size=(step, -(-(size + begin % step) // step)), kernel=(1, *g.kernel),
        output_size=(step, -(-made // step)), strides=(1, 1), dilations=(1, 1), begin=(0, begin // step),
    )  # fmt: skip


def windows_behind(g: ConvGeometry) -> int:
    """The windows of a row behind those of its results, which only later pieces of its taps meet."""
    return taps_apart(g) - 1 if takes_rows(g) else 0


def points_of_kernels(g: ConvGeometry) -> int:
    """The number of points of a kernel, all phases and all taps of a first axis of three together."""
    scheme = scheme_of(g)
    return scheme.points * scheme.stride**2 * taps_apart(g)


def points_of_products(g: ConvGeometry) -> int:
    """The number of products of all windows of an image, for each pair of channels."""
    return points_of_windows(g) * scheme_of(g).stride ** 2 * taps_apart(g)


def points_of_windows(g: ConvGeometry) -> int:
    """The number of points of all windows of an image's channel, of each phase."""
    return scheme_of(g).points * tiles_of_images(g)


def tiles_of_images(g: ConvGeometry) -> int:
    """The number of tiles of an image's outputs."""
    across = -(-g.output_size[-1] // TILE)
    if takes_rows(g):
        return prod(g.output_size[:-1]) * (across + windows_behind(g))
    return across * -(-g.output_size[-2] // TILE) * prod(g.output_size[:-2])


def elements_of_windows(g: ConvGeometry) -> int:
    """The elements of the windows and products of an image."""
    return points_of_windows(g) * (g.channels * scheme_of(g).stride ** 2 + g.outputs)


def elements_added(g: ConvGeometry) -> int:
    """The elements of an image's products, in both directions, that later pieces of a row are added to."""
    return windows_behind(g) * points_of_windows(g) * (g.channels + g.outputs)


def elements_of_kernels(g: ConvGeometry) -> int:
    """All kernels at their points."""
    return points_of_kernels(g) * g.outputs * g.channels
