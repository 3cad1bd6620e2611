"""Recurrent layers with layer normalization."""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

import xpgrad
from xpgrad._operators.words import Saved
from xpgrad_torch import functional
from xpgrad_torch._opacus import hold, holder
from xpgrad_torch._sequence_layer import SequenceLayer

__all__ = ["LayerNormGRU", "LayerNormLSTM"]


class _LayerNormLayer(SequenceLayer):
    """What both modules share."""

    _FUNCTION: ClassVar[Callable[..., tuple[Tensor, ...]]]
    _GATES: ClassVar[int]
    _STATES: ClassVar[tuple[str, ...]]
    _VECTORS: ClassVar[tuple[str, ...]]
    _OPTIONS: ClassVar[tuple[str, ...]] = ("clip", "activations", "activation_alpha", "activation_beta")

    B: Tensor | None

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
        self._check_sizes(input_size=input_size, hidden_size=hidden_size)
        H, G = hidden_size, self._GATES * hidden_size
        shapes: dict[str, tuple[int, ...]] = {"W": (G, input_size), "R": (G, H)}
        shapes |= {"B": (2 * G,)} if bias else {}
        shapes |= {name: (H,) if name.endswith("_c") else (2, G) for name in self._VECTORS}
        super().__init__(
            input_size,
            hidden_size,
            shapes,
            bidirectional=bidirectional,
            batch_first=batch_first,
            save=save,
            device=device,
            dtype=dtype,
        )
        self.bias, self.epsilon = bias, epsilon
        options = (clip, activations, activation_alpha, activation_beta)
        hold(self, dict(zip(self._OPTIONS, options, strict=True)))
        if not bias:
            self.register_parameter("B", None)
        self._check_options()

    def _check_options(self) -> None:
        """Raise now what the operator would raise at the first batch."""
        D, G = (2 if self.bidirectional else 1), self._GATES
        weights, pair, row = np.zeros((D, G, 1)), np.zeros((D, 2, G)), np.zeros((D, 1))
        vectors = [row if name.endswith("_c") else pair for name in self._VECTORS]
        with xpgrad.use_engine("standard"):
            operator = getattr(xpgrad, self._FUNCTION.__name__)
            operator(np.zeros((1, 1, 1)), weights, weights, None, *vectors, **self._attributes())

    def _attributes(self) -> dict[str, Any]:
        options = {name: getattr(self, holder(name)) for name in self._OPTIONS}
        direction = "bidirectional" if self.bidirectional else "forward"
        return {"epsilon": self.epsilon, "direction": direction, **options}

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
        options = {name: getattr(self, holder(name)) for name in self._OPTIONS}
        extras = [f"{name}={value!r}" for name, value in options.items() if value is not None]
        return ", ".join([super().extra_repr(), f"epsilon={self.epsilon}", *extras])

    def _run(
        self, X: Tensor, initial: Sequence[Tensor | None] | None, lengths: Any, **inputs: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        count = len(self._STATES)
        states = [None] * count if initial is None else list(initial)
        if len(states) != count:
            raise ValueError(
                f"{type(self).__name__}: hx has {len(states)} tensors, expected {count}: "
                f"{', '.join(self._STATES)}"
            )
        vectors = [getattr(self, name) for name in self._VECTORS]
        operands = (X, self.W, self.R, self.B, *vectors, lengths, *states)
        outputs = type(self)._FUNCTION(*operands, save=self.save, **self._attributes())
        return outputs[0], tuple(outputs[1 : 1 + count])


class LayerNormLSTM(_LayerNormLayer):
    """LSTM with layer normalization; `xpgrad.layer_norm_lstm` has the equations.

    Parameters
    ----------
    input_size, hidden_size : int
        I and H.
    bias : bool
        Whether there are biases B besides the normalizations' shifts.
    batch_first : bool
        Whether input and output are (N, T, ...).
    bidirectional : bool
        Whether a second set of parameters runs from the sequences' ends.
    device, dtype
        Of the parameters.
    epsilon : float
        A small number that is added to variances.
    clip, activations, activation_alpha, activation_beta
        The attributes of `xpgrad.layer_norm_lstm`.
    save : "all", "states" or int
        What is kept for the gradient; see `xpgrad_torch.functional.lstm`.

    Attributes
    ----------
    W, R, B, gamma, beta, gamma_c, beta_c : Parameter
        As `xpgrad.layer_norm_lstm` has them, gates in the order i o f c.

    Raises
    ------
    ValueError, TypeError
        From the constructor and from a call, if a size or an attribute breaks the operator's rules.

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch import LayerNormLSTM
    >>> output, (h_n, c_n) = LayerNormLSTM(3, 5)(torch.randn(7, 2, 3), lengths=[7, 4])
    >>> output.shape, c_n.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))
    """

    _FUNCTION = staticmethod(functional.layer_norm_lstm)
    _GATES = 4
    _STATES = ("h_0", "c_0")
    _VECTORS = ("gamma", "beta", "gamma_c", "beta_c")


class LayerNormGRU(_LayerNormLayer):
    """GRU with layer normalization; `xpgrad.layer_norm_gru` has the equations.

    Parameters
    ----------
    input_size, hidden_size, bias, batch_first, bidirectional, device, dtype, epsilon, save
        As of `LayerNormLSTM`.
    clip, activations, activation_alpha, activation_beta
        The attributes of `xpgrad.layer_norm_gru`.

    Attributes
    ----------
    W, R, B, gamma, beta : Parameter
        As `xpgrad.layer_norm_gru` has them, gates in the order z r h.

    Raises
    ------
    ValueError, TypeError
        From the constructor and from a call, if a size or an attribute breaks the operator's rules.

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch import LayerNormGRU
    >>> output, h_n = LayerNormGRU(3, 5)(torch.randn(7, 2, 3), lengths=[7, 4])
    >>> output.shape, h_n.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))
    """

    _FUNCTION = staticmethod(functional.layer_norm_gru)
    _GATES = 3
    _STATES = ("h_0",)
    _VECTORS = ("gamma", "beta")
