"""The options of LSTM, GRU and RNN, over sequences and as single steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._testing.gru import gru_grad_reference, gru_reference
from .._testing.lstm import lstm_grad_reference, lstm_reference
from .._testing.rnn import rnn_grad_reference, rnn_reference
from .sequences import of_unit, sequence_kernel, step_kernel

__all__ = ["CELLS", "SEQUENCES"]

_PEEPHOLES = {"more": ("P",)}
_STATES = ("initial_h", "initial_c")
_ANY_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"without": ("B",)},
    "no initial state": {"without": _STATES},
    "no initial state, bidirectional": {"without": _STATES, "direction": "bidirectional"},
    "no initial state, lengths, NaN padding": {"without": _STATES, "lengths": True},
    "reverse": {"direction": "reverse"},
    "bidirectional": {"direction": "bidirectional"},
    "lengths, NaN padding": {"lengths": True},
    "lengths, bidirectional": {"lengths": True, "direction": "bidirectional"},
    "layout 1": {"layout": 1},
}
_EVERYTHING: dict[str, Any] = {
    "lengths": True,
    "direction": "bidirectional",
    "clip": 1.3007,
    "layout": 1,
    "gradient": {"per_sample": True},
}
_RESETS: dict[str, dict[str, Any]] = {  # after the others: an option's place is the seed of its numbers
    "resets, layout 1": {"resets": True, "layout": 1},
    "resets, lengths, bidirectional": {"resets": True, "lengths": True, "direction": "bidirectional"},
}
_SAMPLES: dict[str, dict[str, Any]] = {
    "per_sample": {"gradient": {"per_sample": True}},
    "per_sample, norm": {"lengths": True, "gradient": {"per_sample": "norm"}},
    "sample_weight": {"lengths": True, "weights": True},
}
_LSTM_OPTIONS: dict[str, dict[str, Any]] = {
    **_ANY_OPTIONS,
    "peepholes, full": {**_PEEPHOLES, "gradient": {"peephole": "full"}},
    "peepholes, truncated": {**_PEEPHOLES, "gradient": {"peephole": "truncated"}},
    "clip": {**_PEEPHOLES, "clip": 0.7013},
    "projection": {"more": ("S",), "lengths": True},
    "projection, masks": {
        "more": ("P", "S", "recurrent_mask", "zoneout_h", "zoneout_c"),
        "lengths": True,
        "direction": "bidirectional",
        "gradient": {"per_sample": True},
    },
    "input_forget": {**_PEEPHOLES, "input_forget": True},
    "activations": {
        "direction": "bidirectional",
        "activations": ["HardSigmoid", "Relu", "LeakyRelu", "Softplus", "Softsign", "ScaledTanh"],
        "activation_alpha": [0.3, 0.1, 0.8],
        "activation_beta": [0.45, 0.6],
    },
    "activations, alpha < 0": {
        "activations": ["Sigmoid", "Elu", "LeakyRelu"],
        "activation_alpha": [-0.5, -0.2],
    },
    "per_sample": {**_PEEPHOLES, "gradient": {"per_sample": True}},
    "per_sample, norm": {**_PEEPHOLES, "lengths": True, "gradient": {"per_sample": "norm"}},
    "sample_weight": {**_PEEPHOLES, "lengths": True, "weights": True},
    "everything": {
        **_PEEPHOLES,
        **_EVERYTHING,
        "input_forget": True,
        "activations": ["Sigmoid", "Elu", "Affine", "HardSigmoid", "ThresholdedRelu", "Tanh"],
        "activation_alpha": [0.7, 0.9, 0.25, 0.1],
        "activation_beta": [-0.1, 0.55],
    },
    "cell states": {"more": ("P", "C_all"), "lengths": True, "direction": "bidirectional"},
    **_RESETS,
}
_GRU_CHOICES: dict[str, dict[str, Any]] = {
    "clip": {"clip": 0.8013},
    "masks": {"more": ("recurrent_mask", "zoneout_h"), "lengths": True},
    "activations": {
        "direction": "bidirectional",
        "activations": ["HardSigmoid", "LeakyRelu", "Softsign", "ScaledTanh"],
        "activation_alpha": [0.3, 0.1, 0.8],
        "activation_beta": [0.45, 0.6],
    },
    "activations, alpha < 0": {
        "activations": ["Sigmoid", "LeakyRelu"],
        "activation_alpha": [-0.2],
    },
    **_SAMPLES,
    "everything": {
        **_EVERYTHING,
        "activations": ["Sigmoid", "Elu", "HardSigmoid", "Affine"],
        "activation_alpha": [0.7, 0.25, 0.8],
        "activation_beta": [0.55, -0.1],
    },
}


def _both_resets(options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    resets = {"reset before": {"linear_before_reset": 0}, "reset after": {"linear_before_reset": 1}}
    return {
        f"{name}, {r}": {**option, **reset} for name, option in options.items() for r, reset in resets.items()
    }


_GRU_OPTIONS = _both_resets({**_ANY_OPTIONS, **_GRU_CHOICES, **_RESETS})
_RNN_OPTIONS: dict[str, dict[str, Any]] = {
    **_ANY_OPTIONS,
    "relu": {"activations": ["Relu"]},
    "clip": {"clip": 0.8013},
    "activations": {
        "direction": "bidirectional",
        "activations": ["LeakyRelu", "ScaledTanh"],
        "activation_alpha": [0.3, 0.8],
        "activation_beta": [0.6],
    },
    "activations, alpha < 0": {"activations": ["LeakyRelu"], "activation_alpha": [-0.2]},
    **_SAMPLES,
    "everything": {
        **_EVERYTHING,
        "activations": ["Elu", "Affine"],
        "activation_alpha": [0.7, 0.8],
        "activation_beta": [-0.1],
    },
    **_RESETS,
}
_LSTM = of_unit(
    "lstm", lstm_reference, _LSTM_OPTIONS, ["C_all"], gradient_reference=lstm_grad_reference, native={}
)
_GRU = of_unit(
    "gru", gru_reference, _GRU_OPTIONS, gradient_reference=gru_grad_reference,
    native={"linear_before_reset": 1},
)  # fmt: skip
_RNN = of_unit("rnn", rnn_reference, _RNN_OPTIONS, gradient_reference=rnn_grad_reference, native={})

SEQUENCES = tuple(map(sequence_kernel, (_LSTM, _GRU, _RNN)))


def _chosen(options: Mapping[str, Any], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The named options without a direction, for a single step."""
    return {name: {k: v for k, v in options[name].items() if k != "direction"} for name in names}


_OF_STEPS = ("plain", "no bias", "clip", "activations, alpha < 0", "per_sample")
CELLS = (
    step_kernel(
        _LSTM,
        _chosen(
            _LSTM_OPTIONS,
            (
                "plain", "no bias", "peepholes, full", "peepholes, truncated", "clip", "input_forget",
                "activations, alpha < 0", "per_sample",
            ),
        ),
    ),
    step_kernel(_GRU, _both_resets(_chosen({**_ANY_OPTIONS, **_GRU_CHOICES}, _OF_STEPS))),
    step_kernel(
        _RNN,
        _chosen(
            _RNN_OPTIONS, ("plain", "no bias", "relu", "clip", "activations, alpha < 0", "per_sample")
        ),
    ),
)  # fmt: skip
