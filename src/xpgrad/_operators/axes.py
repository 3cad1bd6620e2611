"""The axes of every kernel's operands and outputs, and the names of their gradients.

T time, N batch, I input, H hidden, J the projected size of an LSTM's state (H without projection), E the
width of a head, D directions, C and O channels; ``4H`` is four times H. The last entry may be ``"..."``, any
number of axes that are the same in all arrays that have it, or ``"?"``, axes whose sizes must be computed.
Arrays without N are parameters; the kernel has a ``per_sample`` form of their gradient. An operand without an
entry is broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xpgrad.cells import Cell

__all__ = ["AXES", "ELEMENTWISE", "axes_of_cell", "gradient_name"]


def gradient_name(operand: str) -> str:
    """The name of an operand's gradient among a kernel's results: dW of W, dH0 of initial_h."""
    state = operand.removeprefix("initial_")
    return f"d{operand}" if state == operand else f"d{state[:1].upper()}{state[1:]}0"


def _sequence(gates: int, more: Mapping[str, str], state: str = "H") -> dict[str, str]:
    rows, biases = f"{gates}H" if gates > 1 else "H", f"{2 * gates}H"
    return {
        "X": "T N I",
        "W": f"D {rows} I",
        "R": f"D {rows} {state}",
        "B": f"D {biases}",
        "sequence_lens": "N",
        "initial_h": f"D N {state}",
        "H_all": f"T D N {state}",
        "H_t": f"D N {state}",
        **more,
    }


def _cell(gates: int, more: Mapping[str, str]) -> dict[str, str]:
    rows, biases = f"{gates}H" if gates > 1 else "H", f"{2 * gates}H"
    step = {"X": "N I", "H": "N H", "W": f"{rows} I", "R": f"{rows} H", "B": biases, "H_next": "N H"}
    return step | dict(more)


_IMAGES = {"X": "N ?", "W": "?", "B": "O", "Y": "N O ?"}

ELEMENTWISE: Mapping[str, str] = {"X": "...", "Y": "..."}
"""Of activations, and of what works along one axis: every axis could be a batch."""

AXES: Mapping[str, Mapping[str, str]] = {
    "lstm": _sequence(
        4,
        {"P": "D 3H", "initial_c": "D N H", "C_t": "D N H", "C_all": "T D N H", "iofc": "T D N 4H"}
        | {"S": "D J H", "recurrent_mask": "D N J", "zoneout_h": "T D N J", "zoneout_c": "T D N H"},
        "J",
    ),
    "gru": _sequence(3, {"zrh": "T D N 3H", "recurrent_mask": "D N H", "zoneout_h": "T D N H"}),
    "rnn": _sequence(1, {}),
    "layer_norm_lstm": _sequence(
        4,
        {"initial_c": "D N H", "C_t": "D N H", "C_all": "T D N H", "gamma": "D 2 4H", "beta": "D 2 4H"}
        | {"gamma_c": "D H", "beta_c": "D H", "saved": "T D N 14H", "means": "T D N 3"},
    ),
    "layer_norm_gru": _sequence(
        3, {"gamma": "D 2 3H", "beta": "D 2 3H", "saved": "T D N 9H", "means": "T D N 2"}
    ),
    "slstm": _sequence(
        4,
        {"R": "D 4H E", "B": "D 4H", **{f"initial_{state}": "D N H" for state in "cnm"}}
        | {f"{state}_t": "D N H" for state in "CNM"}
        | {f"{state}_all": "T D N H" for state in "CNM"}
        | {"saved": "T D N 7H"},
    ),
    "augru": _sequence(3, {"attention": "T N ?", "saved": "T D N ?"}),
    "lstm_cell": _cell(4, {"P": "3H", "C": "N H", "C_next": "N H", "iofc": "N 4H"}),
    "gru_cell": _cell(3, {"zrh": "N 3H"}),
    "rnn_cell": _cell(1, {}),
    "conv": _IMAGES,
    "conv_transpose": _IMAGES,
    "softmax_cross_entropy": {"X": "N C ...", "labels": "N ...", "weights": "C", "Y": "N ..."},
    "binary_cross_entropy_with_logits": {**ELEMENTWISE, "targets": "..."},
}


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
