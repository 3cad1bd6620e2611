"""The axes of every kernel's operands and outputs, and the names of their gradients.

T time, N batch, I input, H hidden, J the projected size of an LSTM's state (H without projection), E the
width of a head, D directions, C and O channels; ``4H`` is four times H. The last entry may be ``"..."``, any
number of axes, the same in all arrays with this entry, or ``"?"``, axes whose sizes must be computed. Arrays
without N are parameters; the kernel has a ``per_sample`` form of their gradient. An operand without an entry
is broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xpgrad.cells import Cell

__all__ = ["AXES", "ELEMENTWISE", "axes_of_cell", "gradient_name", "in_layout", "shape_of"]


def gradient_name(operand: str) -> str:
    """The name of an operand's gradient among a kernel's results: dW of W, dH0 of initial_h."""
    state = operand.removeprefix("initial_")
    return f"d{operand}" if state == operand else f"d{state[:1].upper()}{state[1:]}0"


_IMAGES = {"X": "N ?", "B": "O", "Y": "N O ?"}

ELEMENTWISE: Mapping[str, str] = {"X": "...", "Y": "..."}
"""The axes of activations, and of functions along one axis: every axis could be a batch."""

AXES: dict[str, Mapping[str, str]] = {
    "conv": {**_IMAGES, "W": "O ?"},
    "conv_transpose": {**_IMAGES, "W": "C O ?"},  # O of each group
    "softmax_cross_entropy": {"X": "N C ...", "labels": "N ...", "weights": "C", "Y": "N ..."},
    "binary_cross_entropy_with_logits": {**ELEMENTWISE, "targets": "..."},
}
"""The axes by kernel; declarations of recurrent operators (`units.py`) add theirs."""


def axes_of_cell(cell: Cell) -> dict[str, str]:
    """The axes of the operands and outputs of a user's own cell."""
    counts = {kind: len(names) for kind, names in cell.blocks.items()}
    tails = {"W": " I", "R": " H" if cell.heads == 1 else " E", "v": ""}
    axes = {kind: f"D {count}H{tails[kind]}" for kind, count in counts.items()}
    axes |= {"X": "T N I", "sequence_lens": "N"}
    axes |= {name: f"T N {len(own)}H" if own else "T N ?" for name, own in cell.inputs.items()}
    axes |= {f"initial_{state}": "D N H" for state in cell.carried}
    axes |= {name: "T D N H" if name.endswith("_all") else "D N H" for name in cell.cotangents}
    kept = {name: width for name, width in cell.saved.items() if name not in cell.cotangents}
    return axes | {name: f"T D N {f'{width}H' if width > 0 else -width}" for name, width in kept.items()}


def shape_of(axes: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of an array with these axes, for the sizes of their letters; numbers stand for themselves."""

    def size(axis: str) -> int:
        if axis in sizes or axis.isdigit():
            return sizes[axis] if axis in sizes else int(axis)
        return int(axis[:-1]) * sizes[axis[-1]]

    return tuple(map(size, axes.split()))


def in_layout(axes: str, layout: object) -> str:
    """The axes in a layout: 1 has the batch in front."""
    own = axes.split()
    if layout and "N" in own:
        own.insert(0, own.pop(own.index("N")))
    return " ".join(own)
