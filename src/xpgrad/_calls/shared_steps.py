"""Calls that differ only in T share a program: the T that it is made for, and its arrays' layouts for any T.

Nearly every batch of text or speech has another T, and writing a program often takes longer than a step. So
a recurrent operator's program is written for the largest T of a class. Each call passes its own T, which
determines sizes, strides and distances (`instructions.Quantity`). Only T determines the class: the same call
gives the same bits, whatever was called before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from xpgrad.engine.programs.recorded import Sizes
from xpgrad.engine.programs.schedule import steps_of_call

__all__ = ["SharedSteps", "largest_steps", "shared_steps"]

_CLASSES = 4  # for each doubling of T


class SharedSteps(NamedTuple):
    """A call of a program that serves several T.

    Parameters
    ----------
    steps, most : int
        The call's T, and the largest of the program.
    layouts : dict of str to (tuple, tuple)
        Sizes and strides of the arrays over time, by name.
    """

    steps: int
    most: int
    layouts: Mapping[str, tuple[Sizes, Sizes]]


def largest_steps(steps: int) -> int:
    """The largest T of T's class: at most a quarter larger, and T itself up to 8."""
    if steps <= 2 * _CLASSES:
        return steps
    unit = (1 << (steps - 1).bit_length() - 1) // _CLASSES
    return -(-steps // unit) * unit


def shared_steps(
    layouts: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]], options: Mapping[str, Any]
) -> SharedSteps | None:
    """The layouts of a recurrent call's arrays for any T; None if the program can serve only one T.

    Parameters
    ----------
    layouts : mapping of str to (tuple of int, tuple of int)
        Shape and strides of each array that is not joined from parts.
    options : mapping of str to object
        The call's options.
    """
    layout, rows_of = options.get("layout", 0), options.get("rows_of", ())
    if type(layout) is not int or layout not in (0, 1) or "X" not in layouts:
        return None
    if options.get("packed") or options.get("per_sample"):  # only rows count; sums are over all T at once
        return None
    shape = layouts["X"][0]
    if len(shape) != 3 or shape[layout] < 2:  # a single step has a program of its own
        return None
    steps, batch = shape[layout], shape[1 - layout]
    most = largest_steps(steps)
    T = steps_of_call(most)
    found = {}
    for name, (own, strides) in layouts.items():
        if name in rows_of:
            axis, times = 1, batch
        elif name == "X" or len(own) == 4 or (not layout and _is_input(own, steps, batch)):
            axis, times = layout, 1
        else:
            continue
        if own[axis] != steps * times:  # the operator raises an error
            return None
        sizes: Sizes = (*own[:axis], T * times, *own[axis + 1 :])
        found[name] = sizes, _strides(own, strides, sizes)
    return SharedSteps(steps, most, found)


def _is_input(shape: tuple[int, ...], steps: int, batch: int) -> bool:
    """Whether it is an array (T, N, width); the first of other arrays' three axes is for directions."""
    return len(shape) == 3 and shape[:2] == (steps, batch) and steps > 2


def _strides(shape: Sequence[int], strides: Sequence[int], sizes: Sizes) -> Sizes:
    """The strides for any T: they depend on T if the array is contiguous, with its axes in any order."""
    step: Any
    found: list[Any] = [0] * len(shape)  # an axis of size 1 may have any
    own, step = 1, 1
    for axis in sorted((k for k, size in enumerate(shape) if size != 1), key=strides.__getitem__):
        if strides[axis] != own:
            return tuple(strides)
        found[axis] = step
        own, step = own * shape[axis], step * sizes[axis]
    return tuple(found)
