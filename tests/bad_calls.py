"""Calls with one argument replaced by something that does not belong there, drawn at random.

As a script it draws as many as it is asked for, prints whose errors say too little, and which odd values were
accepted: ``python tests/bad_calls.py --calls 5000 --seed 1``.
"""

from __future__ import annotations

import argparse
import collections
import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

import xpgrad
from xpgrad._operators.types import array_arguments
from xpgrad._operators.units import UNITS, Unit

T, N, I, H = 3, 2, 2, 3


def _zeros(*shape: int) -> np.ndarray:
    return np.full(shape, 0.5)


def _calls_of(unit: Unit) -> dict[str, dict[str, Any]]:
    """Right calls of a recurrent operator, of its single step, and of their gradients."""
    sizes = {"T": T, "N": N, "I": I, "H": H, "E": H, "D": 1}

    def arrays(axes: dict[str, str], names: Iterable[str], prefix: str = "") -> dict[str, Any]:
        made = {}
        for name in names:
            own = axes[name].replace("?", f"{unit.saved[name]}H" if name in unit.saved else "1").split()
            made[f"{prefix}{name}"] = _zeros(*(int(a[:-1] or 1) * sizes.get(a[-1], 1) for a in own))
        return made

    axes = unit.axes
    sequence = arrays(axes, unit.graded) | {"sequence_lens": [3, 1]}
    more = arrays(axes, unit.saved) | arrays(axes, unit.cotangents, "grad_")
    calls = {unit.name: sequence, f"{unit.name}_grad": sequence | more}
    if unit.step is not None:
        axes = unit.step_axes
        step = arrays(axes, unit.step_arguments)
        cotangents = {name: _zeros(N, H) for name in unit.step_cotangents.values()}
        calls[unit.step_name] = step
        calls[f"{unit.step_name}_grad"] = step | arrays(axes, unit.step_saved) | cotangents
    return calls


def _good() -> dict[str, dict[str, Any]]:
    """A right call of each public function that takes arrays."""
    calls: dict[str, dict[str, Any]] = {}
    x = _zeros(2, 3)
    for name in xpgrad.__all__:
        function = getattr(xpgrad, name)
        if inspect.isfunction(function) and function.__module__ == "xpgrad.activations":
            calls[name] = dict.fromkeys(array_arguments(function), x)
    for name in ("softmax", "log_softmax"):
        calls[name] = {"X": x}
        calls[f"{name}_grad"] = {"dY": x, "Y": x}
    classes = {"X": x, "labels": np.asarray([0, 2]), "weights": _zeros(3)}
    calls["softmax_cross_entropy"] = classes
    calls["softmax_cross_entropy_grad"] = {"dY": _zeros(), **classes}
    binary = {"X": x, "targets": x, "weight": x, "pos_weight": x}
    calls["binary_cross_entropy_with_logits"] = binary
    calls["binary_cross_entropy_with_logits_grad"] = {"dY": _zeros(), **binary}
    images, weights = _zeros(1, 2, 4, 4), _zeros(2, 2, 3, 3)
    calls["conv"] = {"X": images, "W": weights, "B": _zeros(2)}
    calls["conv_grad"] = {"dY": _zeros(1, 2, 2, 2), "X": images, "W": weights}
    calls["conv_transpose"] = {"X": images, "W": weights, "B": _zeros(2)}
    calls["conv_transpose_grad"] = {"dY": _zeros(1, 2, 6, 6), "X": images, "W": weights}
    calls["gate_inputs"] = {"X": _zeros(T, N, I), "W": _zeros(4, I), "B": _zeros(4)}
    calls["gate_inputs_grad"] = {
        "dZ": _zeros(T, N, 4), "X": _zeros(T, N, I), "W": _zeros(4, I), "H_all": _zeros(T, N, H),
        "initial_h": _zeros(N, H),
    }  # fmt: skip
    for name, gates in (("lstm", 4), ("gru", 3), ("rnn", 1)):
        weights = {"W": _zeros(1, gates * H, I), "R": _zeros(1, gates * H, H), "B": _zeros(1, 2 * gates * H)}
        sequence = {"X": _zeros(T, N, I), **weights, "sequence_lens": [3, 1], "initial_h": _zeros(1, N, H)}
        saved = {"H_all": _zeros(T, 1, N, H)}
        cotangents = {"grad_H_all": _zeros(T, 1, N, H), "grad_H_t": _zeros(1, N, H)}
        cell = {"X": _zeros(N, I), "H": _zeros(N, H)} | {k: v[0] for k, v in weights.items()}
        cell_saved, cell_cotangents = {}, {"grad_H": _zeros(N, H)}
        if name == "lstm":
            sequence |= {"initial_c": _zeros(1, N, H), "P": _zeros(1, 3 * H)}
            saved |= {"C_all": _zeros(T, 1, N, H), "iofc": _zeros(T, 1, N, 4 * H)}
            cotangents["grad_C_t"] = _zeros(1, N, H)
            cell |= {"C": _zeros(N, H), "P": _zeros(3 * H)}
            cell_saved |= {"C_next": _zeros(N, H), "iofc": _zeros(N, 4 * H)}
            cell_cotangents["grad_C"] = _zeros(N, H)
        elif name == "rnn":
            cell_saved["H_next"] = _zeros(N, H)
        else:
            saved["zrh"], cell_saved["zrh"] = _zeros(T, 1, N, 3 * H), _zeros(N, 3 * H)
        calls[name], calls[f"{name}_grad"] = sequence, sequence | saved | cotangents
        calls[f"{name}_cell"], calls[f"{name}_cell_grad"] = cell, cell | cell_saved | cell_cotangents
    for name, gates, states in (("lstm", 4, "hc"), ("gru", 3, "h")):
        G = gates * H
        sequence = {"X": _zeros(T, N, I), "W": _zeros(1, G, I), "R": _zeros(1, G, H), "B": _zeros(1, 2 * G)}
        sequence |= {"gamma": _zeros(1, 2, G), "beta": _zeros(1, 2, G), "sequence_lens": [3, 1]}
        sequence |= {f"initial_{state}": _zeros(1, N, H) for state in states}
        sequence |= {"gamma_c": _zeros(1, H), "beta_c": _zeros(1, H)} if name == "lstm" else {}
        saved = {f"{state.upper()}_all": _zeros(T, 1, N, H) for state in states}
        saved |= {"saved": _zeros(T, 1, N, 14 * H if name == "lstm" else 9 * H)}
        saved |= {"means": _zeros(T, 1, N, 3 if name == "lstm" else 2)}
        cotangents = {f"grad_{state.upper()}_all": _zeros(T, 1, N, H) for state in states}
        cotangents |= {f"grad_{state.upper()}_t": _zeros(1, N, H) for state in states}
        calls[f"layer_norm_{name}"] = sequence
        calls[f"layer_norm_{name}_grad"] = sequence | saved | cotangents
    for name, unit in UNITS.items():
        if name not in calls:
            calls |= _calls_of(unit)
    series = {name: _zeros(T, N, I) for name in ("X", "mask", "delta")}
    series |= {"W": _zeros(1, 3 * H, 2 * I), "R": _zeros(1, 3 * H, H), "decay_x": _zeros(1, 2, I)}
    series |= {"decay_h": _zeros(1, H, I + 1), "B": _zeros(1, 3 * H), "mean": _zeros(1, I)}
    series |= {"sequence_lens": [3, 1], "initial_h": _zeros(1, N, H)}
    calls["gru_d"] = series
    calls["gru_d_grad"] = series | {
        "H_all": _zeros(T, 1, N, H), "filled": _zeros(T, 1, N, I), "last": _zeros(T, 1, N, I),
        "saved_x": _zeros(T, 1, N, 1 * I), "saved": _zeros(T, 1, N, 4 * H),
        "grad_H_all": _zeros(T, 1, N, H), "grad_H_t": _zeros(1, N, H),
    }  # fmt: skip
    calls["convert"] = {
        "operator": "lstm", "parameters": {"W": _zeros(4 * H, I), "R": _zeros(4 * H, H)},
        "source": "onnx", "target": "torch",
    }  # fmt: skip
    return calls


GOOD = _good()


def _foreign() -> list[Any]:
    """Arrays and numbers of another framework, where one is installed."""
    try:
        import torch
    except ImportError:
        return []
    return [
        torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.float64), torch.tensor([1, 2]), torch.tensor(1.5),
        torch.tensor(2), torch.tensor(1.5, requires_grad=True), torch.zeros(3, device="meta"),
    ]  # fmt: skip


_OF_ANY_KIND = [
    None, True, False, 0, 1, -1, 3, 10**30, -(10**30), 2**40, 1.5, float("nan"), float("inf"), 1j, "", "text",
    b"ab", bytearray(b"ab"), [], (), [1], [1, 2], [1.5, 2.5], ["a", "b"], [None], [[1], [2]], {}, {"X": 1},
    {1, 2}, range(2), iter([1, 2]), object(), len, int, slice(2), Ellipsis, np.float64(2), np.int64(2),
    np.bool_(True), np.array([1, 2, 3]), np.array(3), np.array(["a"]), np.array([None, 1], dtype=object),
    np.zeros(0), np.zeros((2, 0)), np.zeros(1, dtype="M8[s]"), np.zeros(2, dtype=complex),
    np.zeros(2, dtype=bool), np.ma.masked_invalid([1.0, np.nan]), np.zeros((1, 2)).view(np.matrix),
    np.zeros(2, dtype=[("a", float)]), np.longdouble(2), *_foreign(),
]  # fmt: skip


class BadCall(NamedTuple):
    """A public function, its arguments, and the name of that which was replaced."""

    operator: str
    arguments: dict[str, Any]
    replaced: str

    def __str__(self) -> str:
        value = self.arguments[self.replaced]
        return f"{self.operator}({self.replaced}={' '.join(repr(value).split())[:60]})"

    def complaint(self) -> str | None:
        """What is wrong with what the call does: with its error, or "accepted"; None for a good error."""
        function: Callable[..., Any] = getattr(xpgrad, self.operator)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                function(**self.arguments)
        except (ValueError, TypeError) as error:
            text = str(error)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        else:
            return "accepted"
        if not text.startswith(f"{self.operator}: "):
            return f"{text!r} does not begin with the operator"
        words = set(re.findall(r"\w+", text[len(self.operator) :]))
        if self.replaced not in words and words.isdisjoint(self.arguments):
            return f"{text!r} names no argument"
        if "expected" not in words:
            return f"{text!r} has no rule"
        return None


def _spoilt(array: np.ndarray, rng: np.random.Generator) -> Any:
    """The array with another shape, rank, dtype or kind."""
    ways: list[Callable[[], Any]] = [
        lambda: array[None],
        lambda: array.reshape(-1)[:1].reshape(()),
        lambda: np.zeros((*array.shape, 2)),
        lambda: np.zeros(tuple(size + 1 for size in array.shape)),
        lambda: np.zeros(tuple(max(size - 1, 0) for size in array.shape)),
        lambda: array.T if array.ndim > 1 else np.zeros(7),
        lambda: array.astype("float32"),
        lambda: array.astype("int64"),
        lambda: array.astype("bool"),
        lambda: array.astype("complex64"),
        lambda: array.astype("longdouble"),
        lambda: array.astype("object"),
        lambda: array.tolist(),
        lambda: np.ma.asarray(array),
        lambda: memoryview(np.ascontiguousarray(array)),
        lambda: array.astype(array.dtype.newbyteorder()),
    ]
    return ways[rng.integers(len(ways))]()


def draw(count: int, seed: int) -> Iterator[BadCall]:
    """So many calls."""
    rng = np.random.default_rng(seed)
    names = sorted(GOOD)
    for _ in range(count):
        operator = names[rng.integers(len(names))]
        arguments = dict(GOOD[operator])
        parameters = [*inspect.signature(getattr(xpgrad, operator)).parameters]
        replaced = parameters[rng.integers(len(parameters))]
        value = arguments.get(replaced)
        if isinstance(value, np.ndarray) and rng.random() < 0.5:
            arguments[replaced] = _spoilt(value, rng)
        else:
            arguments[replaced] = _OF_ANY_KIND[rng.integers(len(_OF_ANY_KIND))]
        yield BadCall(operator, arguments, replaced)


def main() -> int:
    """Draw and report; 1 where an error says too little."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    accepted: collections.Counter[str] = collections.Counter()
    wrong = 0
    for call in draw(arguments.calls, arguments.seed):
        complaint = call.complaint()
        if complaint == "accepted":
            value = call.arguments[call.replaced]
            accepted[f"{call.replaced} {type(value).__name__} {' '.join(repr(value).split())[:40]}"] += 1
        elif complaint is not None:
            wrong += 1
            print(f"{call}: {complaint}")
    print(f"{wrong} of {arguments.calls} errors say too little; accepted:")
    for text, times in sorted(accepted.items()):
        print(f"  {times:5} {text}")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
