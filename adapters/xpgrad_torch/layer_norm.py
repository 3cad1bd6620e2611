"""Recurrent layers with layer normalization."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from torch import nn

import xpgrad
from xpgrad._operators.words import Saved
from xpgrad_torch import functional
from xpgrad_torch._opacus import hold, holder
from xpgrad_torch._unit_layer import UnitLayer

__all__ = ["LayerNormGRU", "LayerNormLSTM"]


class _LayerNormLayer(UnitLayer):
    """The common part of both modules."""

    _OPTIONS: ClassVar[tuple[str, ...]] = ("clip", "activations", "activation_alpha", "activation_beta")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        batch_first: bool = False,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        epsilon: float = 1e-5,
        clip: float | None = None,
        activations: Sequence[str] | None = None,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
        save: Saved | int = "all",
    ) -> None:
        super().__init__(input_size, hidden_size, bias, batch_first, bidirectional, device, dtype, save=save)
        self.epsilon = epsilon
        options = (clip, activations, activation_alpha, activation_beta)
        hold(self, dict(zip(self._OPTIONS, options, strict=True)))
        self._check_options()

    def _check_options(self) -> None:
        """Raise the error now that the operator would raise at the first batch."""
        D, G = (2 if self.bidirectional else 1), self._UNIT.rows
        weights, pair, row = np.zeros((D, G, 1)), np.zeros((D, 2, G)), np.zeros((D, 1))
        vectors = [row if name.endswith("_c") else pair for name in self._UNIT.parameters]
        with xpgrad.use_engine("standard"):
            operator = getattr(xpgrad, self._UNIT.name)
            attributes = {"direction": self._direction, **self._attributes()}
            operator(np.zeros((1, 1, 1)), weights, weights, None, *vectors, **attributes)

    def _attributes(self) -> dict[str, Any]:
        options = {name: getattr(self, holder(name)) for name in self._OPTIONS}
        return {"epsilon": self.epsilon, **options}

    def reset_parameters(self) -> None:
        """Draw W, R and B as `torch.nn.LSTM` does; scales are 1, shifts 0."""
        bound = 1 / math.sqrt(self.hidden_size)
        for name, parameter in self.named_parameters():
            if name.startswith("gamma"):
                nn.init.ones_(parameter)
            elif name.startswith("beta"):
                nn.init.zeros_(parameter)
            else:
                nn.init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        """Return the constructor's arguments."""
        extras = [f"{name}={value!r}" for name, value in self._attributes().items() if value is not None]
        return ", ".join([super().extra_repr(), *extras])


class LayerNormLSTM(_LayerNormLayer, function=functional.layer_norm_lstm):
    """LSTM with layer normalization.

    epsilon : float
        A small number that is added to variances.
    clip, activations, activation_alpha, activation_beta
        The attributes of `xpgrad.layer_norm_lstm`.
    """


class LayerNormGRU(_LayerNormLayer, function=functional.layer_norm_gru):
    """GRU with layer normalization.

    epsilon : float
        A small number that is added to variances.
    clip, activations, activation_alpha, activation_beta
        The attributes of `xpgrad.layer_norm_gru`.
    """
