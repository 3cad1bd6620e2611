"""Windows of images, transformed along one or both axes by a formula; overlapping in, disjoint out.

The two functions are pure array API, and the oracle of their compiled forms in `compiled_windows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from xpgrad.engine.formulas.formula import Formula
from xpgrad.engine.images.padding import padded


class Transform(NamedTuple):
    """A formula for both axes of a square window: from `taken` to `made` elements.

    A `flat` window has one row, and the formula is for this row.

    Of the side with more of them, that of the transformed windows, the elements belong to so many `phases`,
    one behind the other. A window's phases are matrices, lines or columns one behind the other, whatever axis
    of (points, C, windows) they extend.
    """

    formula: Formula
    taken: int
    made: int
    phases: int = 1
    axis: int = 1
    flat: bool = False

    def shape(self, channels: int, windows: int) -> tuple[int, int, int]:
        """Of the matrices of all transformed elements."""
        points = (max(self.taken, self.made) // self.phases) ** (1 if self.flat else 2)
        sizes = [points, channels, windows]
        sizes[self.axis] *= self.phases**2
        return sizes[0], sizes[1], sizes[2]


class Windows(NamedTuple):
    """Where the windows of an image (height, width) are.

    Parameters
    ----------
    step : int
        Distance from one window to the next, in both directions; flat windows are in all rows.
    begin : tuple of int
        Zeros before the image's first row and first column; the first window begins with them.
    rows, columns : int
        The number of windows. Elements beyond the image are zero.
    slices : int
        Of volumes, how many images each of them is along its first axis, else 0. The first slices of all
        volumes stand before the second ones.
    """

    step: int
    begin: tuple[int, int]
    rows: int
    columns: int
    slices: int = 0


def memory_order(shape: Sequence[int], windows: Windows) -> tuple[int, ...]:
    """The shape of memory for images: of windows on their own a column's rows follow one another."""
    alone = len(shape) == 5 and not windows.slices
    return (*shape[:2], *shape[2:4][::-1], *shape[4:]) if alone else tuple(shape)


def from_windows(xp: Any, X: Any, windows: Windows, transform: Transform) -> Any:
    """Transform the windows of images, first along columns, then along rows.

    Parameters
    ----------
    xp : namespace
        Of the arrays.
    X : array, shape (n, C, height, width), (n, C, slices, height, width) or (n, C, height, columns, side)
        Images, volumes, or images with every window of a row on its own.
    windows : Windows
        Where the windows are.
    transform : Transform
        From the elements of a window's side to m transformed ones.

    Returns
    -------
    array, of the shape of the transform of C channels and (slices) * n * rows * columns windows
        The matrices of all transformed elements.
    """
    step, begin, rows, columns, slices = windows
    formula, side = transform.formula, transform.taken
    down, high = (1, 1) if transform.flat else (step, side)
    if slices:
        X = xp.permute_dims(X, (2, 0, 1, 3, 4))
        X = xp.reshape(X, (slices * X.shape[1], *X.shape[2:]))
    elif X.ndim == 5:
        X = xp.reshape(X, (*X.shape[:3], X.shape[3] * X.shape[4]))
    reach = ((rows - 1) * down + high, (columns - 1) * step + side)
    behind = [r - b - s for r, b, s in zip(reach, begin, X.shape[2:], strict=True)]
    X = padded(xp, X, begin, behind)
    along_rows = [X[:, :, k : k + (rows - 1) * down + 1 : down, :] for k in range(high)]
    elements: list[Any] = []
    for part in along_rows if transform.flat else formula(xp, *along_rows):
        cells = [part[..., k : k + (columns - 1) * step + 1 : step] for k in range(side)]
        elements += formula(xp, *cells)
    n, channels = X.shape[:2]
    M = xp.stack(
        [xp.reshape(xp.permute_dims(e, (1, 0, 2, 3)), (channels, n * rows * columns)) for e in elements]
    )
    if transform.phases == 1:
        return M
    s, m = transform.phases, transform.made // transform.phases
    M = xp.reshape(M, (s, m, s, m, *M.shape[1:]))
    M = xp.permute_dims(M, (1, 3, 4, 0, 2, 5) if transform.axis == 2 else (1, 3, 0, 2, 4, 5))
    return xp.reshape(M, transform.shape(channels, n * rows * columns))


def to_windows(xp: Any, M: Any, windows: Windows, transform: Transform, B: Any, shape: Sequence[int]) -> Any:
    """Images from disjoint transformed windows, which begin at the images' first element.

    Parameters
    ----------
    xp : namespace
        Of the arrays.
    M : array, of the shape of the transform of O channels and (slices) * n * rows * columns windows
        The matrices of all transformed elements.
    windows : Windows
        Where the results are; their step is the side of a result.
    transform : Transform
        From m elements to those of a result's side.
    B : array, shape (O,), or None
        Added to each channel.
    shape : sequence of int
        Of the images, (n, O, height, width), of volumes, (n, O, slices, height, width), or (n, O, height,
        columns, side), with every window of a row on its own; results beyond them are dropped.

    Returns
    -------
    array, of that shape
        The images.
    """
    if windows.slices:
        n, channels, slices, *size = shape
        Y = to_windows(xp, M, windows._replace(slices=0), transform, B, (slices * n, channels, *size))
        return xp.permute_dims(xp.reshape(Y, (slices, n, channels, *size)), (1, 2, 0, 3, 4))
    formula, m, step, s, axis, flat = transform
    n, channels, height, width = (*shape[:3], prod(shape[3:]))
    if s > 1:
        own = (m // s, m // s, *((channels, s, s) if axis == 2 else (s, s, channels)), -1)
        M = xp.permute_dims(xp.reshape(M, own), (3, 0, 4, 1, 2, 5) if axis == 2 else (2, 0, 3, 1, 4, 5))
    cells = xp.reshape(M, (1 if flat else m, m, channels, n, windows.rows, windows.columns))
    # each (m, O, n, rows, columns)
    lines = (cells[0, ...],) if flat else formula(xp, *(cells[k, ...] for k in range(m)))
    results = [xp.stack(formula(xp, *(line[k, ...] for k in range(m))), axis=-1) for line in lines]
    Y = xp.stack(results, axis=3)  # (O, n, rows, step, columns, step)
    Y = xp.permute_dims(Y, (1, 0, 2, 3, 4, 5))
    Y = xp.reshape(Y, (n, channels, windows.rows * len(lines), windows.columns * step))
    Y = Y[:, :, :height, :width]
    Y = Y if B is None else Y + xp.reshape(B, (channels, 1, 1))
    return xp.reshape(Y, tuple(shape))
