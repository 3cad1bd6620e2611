"""Calls that differ only in T and N share a program, or its template.

Nearly every batch of text or speech has another T, and writing a program often takes longer than a step. So
a recurrent operator's program is written for the largest T of a class. Each call passes its own T, which
determines sizes, strides and distances (`instructions.Quantity`). Only T determines the class: the same call
gives the same bits, whatever was called before it. For another class or another N a `Template` has the
program's integers (`new_sizes`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from xpgrad._calls.new_sizes import Layouts, contiguous_strides
from xpgrad.engine.programs.recorder import Joined
from xpgrad.engine.programs.schedule import steps_of_call
from xpgrad.engine.symbols import rounded_up

__all__ = ["SharedSteps", "largest_steps", "shared_steps"]

_CLASSES = 4  # for each doubling of T
_STEPS, _BATCH, _ROWS, _RESETS = "T", "N", "T * N", "1 + T"  # sizes of axes that calls differ in


class SharedSteps:
    """A call of a program that serves several T. Its `sizes`, the largest T and N, vary within its `kind`.

    Parameters
    ----------
    steps, most, batch : int
        T, the largest T of the program, and N. With `most` 0 the program serves only this T.
    layouts : mapping
        The layouts of all arrays by name, in the order of the program's inputs. Of a `_SharedLayout` the
        sizes follow from T and N.
    """

    def __init__(self, steps: int, most: int, batch: int, layouts: Mapping[str, Any]) -> None:
        self.steps, self.most = steps, most
        self.sizes: tuple[int, ...] = most or steps, batch
        self._layouts = layouts
        self.kind = most > 0, *layouts.items()

    def layouts(self, sizes: Sequence[Any]) -> Layouts:
        """The layouts of calls with any T up to another one, and with another N."""
        T, batch = sizes
        steps = steps_of_call(T) if self.most else T
        known = {_STEPS: steps, _BATCH: batch, _ROWS: steps * batch, _RESETS: 1 + T}
        return {
            name: layout.of(known) if isinstance(layout, _SharedLayout) else layout
            for name, layout in self._layouts.items()
        }


class _SharedLayout(NamedTuple):
    """The axes of an array: sizes, or symbols; their `order` in memory, the last one first.

    An axis of size 1 is not in the order, since it may have any stride. Arrays that are not contiguous have
    `strides` instead.
    """

    axes: tuple[Any, ...]
    order: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    @classmethod
    def found(cls, axes: tuple[Any, ...], shape: Sequence[int], strides: Sequence[int]) -> _SharedLayout:
        """The layout of an array of this shape and these strides."""
        order = [axis for axis, size in enumerate(shape) if size != 1]
        order.sort(key=strides.__getitem__)
        contiguous = contiguous_strides(shape, order)
        if any(strides[axis] != contiguous[axis] for axis in order):
            return cls(axes, (), (*strides,))
        return cls(axes, (*order,))

    def of(self, known: Mapping[str, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The shape and strides, by the sizes of the symbols."""
        shape = tuple([known[axis] if isinstance(axis, str) else axis for axis in self.axes])
        return shape, contiguous_strides(shape, self.order) if self.strides is None else self.strides


def largest_steps(steps: int) -> int:
    """The largest T of T's class: at most a quarter larger, and T itself up to 8."""
    if steps <= 2 * _CLASSES:
        return steps
    unit = (1 << (steps - 1).bit_length() - 1) // _CLASSES
    return rounded_up(steps, unit)


def shared_steps(layouts: Layouts, options: Mapping[str, Any]) -> SharedSteps | None:
    """A recurrent call without its T and N; None if its program can serve no other calls.

    Parameters
    ----------
    layouts : mapping of str to (tuple of int, tuple of int) or Joined
        Shape and strides of each array.
    options : mapping of str to object
        The call's options.
    """
    layout, rows_of = options.get("layout", 0), options.get("rows_of", ())
    if type(layout) is not int or layout not in (0, 1) or isinstance(layouts.get("X"), Joined | None):
        return None
    shape = layouts["X"][0]
    if len(shape) != 3 or shape[layout] < 2:  # a single step has a program of its own
        return None
    steps, batch = shape[layout], shape[1 - layout]
    sizes = {_STEPS: steps, _BATCH: batch, _ROWS: steps * batch, _RESETS: 1 + steps}
    found: dict[str, Any] = {}
    for name, given in layouts.items():
        found[name] = given
        if not isinstance(given, Joined):  # joined arrays are parameters
            own, strides = given
            places = _places(name, own, layout, rows_of, (steps, batch))
            if any(own[axis] != sizes[symbol] for axis, symbol in places.items()):
                return None  # the operator raises an error
            if places:
                axes = tuple([places.get(axis, size) for axis, size in enumerate(own)])
                found[name] = _SharedLayout.found(axes, own, strides)
    # an adapter decides how many rows are packed; sums per sample are over all T; resets have an axis 1 + T
    has_resets = "sequence_lens" in layouts and len(layouts["sequence_lens"][0]) == 2
    own_steps = options.get("packed") or options.get("per_sample") or has_resets
    return SharedSteps(steps, 0 if own_steps else largest_steps(steps), batch, found)


def _places(
    name: str, shape: Sequence[int], layout: int, rows_of: Sequence[str], both: tuple[int, int]
) -> dict[int, str]:
    """The axes of an array that are T, N or both; none of a parameter."""
    if name in rows_of:
        return {1: _ROWS}
    if len(shape) == 4:
        return {layout: _STEPS, 0 if layout else 2: _BATCH}
    # states have an axis of one or two directions; beside one or two sequences W and R may have T rows
    is_beside = len(shape) == 3 and both == (shape[layout], shape[1 - layout]) and both[0] > 2
    if name == "X" or (is_beside and name not in ("W", "R")):
        return {layout: _STEPS, 1 - layout: _BATCH}
    if name in ("sample_weight", "sequence_lens"):
        return {0: _BATCH, 1: _RESETS} if len(shape) == 2 else {0: _BATCH}
    if len(shape) == 3 and (name.startswith(("initial_", "grad_")) or name == "recurrent_mask"):
        return {1 - layout: _BATCH}
    return {}
