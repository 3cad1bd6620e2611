"""Square windows of images, transformed along both axes by a formula; overlapping in, disjoint out.

The two functions are pure array API, and the oracle of their compiled forms in `compiled_windows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from xpgrad.engine.formulas.formula import Formula
from xpgrad.engine.images.padding import padded


class Transform(NamedTuple):
    """A formula for both axes of a window: from `taken` to `made` elements."""

    formula: Formula
    taken: int
    made: int


class Windows(NamedTuple):
    """Where the windows of an image (height, width) are.

    Parameters
    ----------
    step : int
        Distance from one window to the next, in both directions.
    begin : tuple of int
        Zeros before the image's first row and first column; the first window begins with them.
    rows, columns : int
        The number of windows. Elements beyond the image are zero.
    """

    step: int
    begin: tuple[int, int]
    rows: int
    columns: int


def from_windows(xp: Any, X: Any, windows: Windows, transform: Transform) -> Any:
    """Transform the windows of images, first along columns, then along rows.

    Parameters
    ----------
    xp : namespace
        Of the arrays.
    X : array, shape (n, C, height, width)
        Images.
    windows : Windows
        Where the windows are.
    transform : Transform
        From the elements of a window's side to m transformed ones.

    Returns
    -------
    array, shape (m * m, C, n * rows * columns)
        The matrices of all transformed elements.
    """
    step, begin, rows, columns = windows
    formula, side, _ = transform
    reach = ((rows - 1) * step + side, (columns - 1) * step + side)
    behind = [r - b - s for r, b, s in zip(reach, begin, X.shape[2:], strict=True)]
    X = padded(xp, X, begin, behind)
    along_rows = [X[:, :, k : k + (rows - 1) * step + 1 : step, :] for k in range(side)]
    elements: list[Any] = []
    for part in formula(xp, *along_rows):
        cells = [part[..., k : k + (columns - 1) * step + 1 : step] for k in range(side)]
        elements += formula(xp, *cells)
    n, channels = X.shape[:2]
    return xp.stack(
        [xp.reshape(xp.permute_dims(e, (1, 0, 2, 3)), (channels, n * rows * columns)) for e in elements]
    )


def to_windows(xp: Any, M: Any, windows: Windows, transform: Transform, B: Any, shape: Sequence[int]) -> Any:
    """Images from disjoint transformed windows, which begin at the images' first element.

    Parameters
    ----------
    xp : namespace
        Of the arrays.
    M : array, shape (m * m, O, n * rows * columns)
        The matrices of all transformed elements.
    windows : Windows
        Where the results are; their step is the side of a result.
    transform : Transform
        From m elements to those of a result's side.
    B : array, shape (O,), or None
        Added to each channel.
    shape : sequence of int
        Of the images, (n, O, height, width); results beyond them are dropped.

    Returns
    -------
    array, shape (n, O, height, width)
        The images.
    """
    formula, m, step = transform
    n, channels, height, width = shape
    cells = xp.reshape(M, (m, m, channels, n, windows.rows, windows.columns))
    lines = formula(xp, *(cells[k, ...] for k in range(m)))  # each (m, O, n, rows, columns)
    results = [xp.stack(formula(xp, *(line[k, ...] for k in range(m))), axis=-1) for line in lines]
    Y = xp.stack(results, axis=3)  # (O, n, rows, step, columns, step)
    Y = xp.permute_dims(Y, (1, 0, 2, 3, 4, 5))
    Y = xp.reshape(Y, (n, channels, windows.rows * step, windows.columns * step))[:, :, :height, :width]
    return Y if B is None else Y + xp.reshape(B, (channels, 1, 1))
