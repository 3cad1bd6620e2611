"""The options of the recurrent operators with layer normalization."""

from __future__ import annotations

from typing import Any

from .._testing.layer_norm import layer_norm_gru_reference, layer_norm_lstm_reference
from .sequences import of_unit, sequence_kernel

__all__ = ["LAYER_NORM"]


def _options(activations: list[str]) -> dict[str, dict[str, Any]]:
    """The options of an operator with these activations."""
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "no bias": {"without": ("B",), "B": None},
        "reverse": {"direction": "reverse"},
        "lengths, NaN padding": {"lengths": True, "direction": "bidirectional"},
        "layout 1": {"layout": 1},
        "clip": {"clip": 0.7013},
        "activations": {
            "activations": activations,
            "activation_alpha": [0.3],
            "activation_beta": [0.45],
        },
        "per_sample": {"lengths": True, "gradient": {"per_sample": True}},
        "per_sample, norm": {"gradient": {"per_sample": "norm"}},
        "sample_weight": {"lengths": True, "weights": True},
        "resets, lengths, bidirectional": {"resets": True, "lengths": True, "direction": "bidirectional"},
    }
    # with the default epsilon a row of nearly equal numbers loses digits
    return {name: {"epsilon": 0.5, **option} for name, option in options.items()}


LAYER_NORM = (
    sequence_kernel(
        of_unit("layer_norm_lstm", layer_norm_lstm_reference, _options(["HardSigmoid", "Elu", "Softsign"]))
    ),
    sequence_kernel(of_unit("layer_norm_gru", layer_norm_gru_reference, _options(["HardSigmoid", "Elu"]))),
)
