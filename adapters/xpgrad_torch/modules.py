"""Recurrent modules with the interface of PyTorch's, on xpgrad's kernels."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from xpgrad._operators.arguments import check_choice
from xpgrad._operators.words import Nonlinearity, Peephole, Saved
from xpgrad_torch._docs import described_cell, described_layers
from xpgrad_torch._kernel import check_flag
from xpgrad_torch._layers import Layers
from xpgrad_torch._recurrent import CellModule, Recurrent

__all__ = ["GRU", "GRUCell", "LSTM", "LSTMCell", "RNN", "RNNCell"]


class _LSTMOptions(Recurrent):
    """The own options of xpgrad's LSTM, over sequences and for a single step."""

    _GATE_ORDER = (0, 3, 1, 2)  # i f g o -> i o f c
    _STATES = ("h_0", "c_0")
    _OPTIONS = ("peephole", "peephole_gradient", "clip", "input_forget", *Recurrent._OPTIONS)

    peephole: bool = False
    peephole_gradient: Peephole = "full"
    input_forget: bool = False

    def _set_options(self, given: Mapping[str, Any]) -> None:
        super()._set_options(given)
        check_choice(self._NAME, "peephole_gradient", self.peephole_gradient, ("full", "truncated"))

    def _attributes(self) -> dict[str, Any]:
        return super()._attributes() | {"input_forget": self.input_forget}

    def _gradient_attributes(self) -> dict[str, Any]:
        return super()._gradient_attributes() | {"peephole": self.peephole_gradient}

    def _add_peepholes(self) -> None:
        # After the other parameters, which then draw the same numbers as in PyTorch's module.
        bound, like = self.hidden_size**-0.5, next(self.parameters())
        for suffix in self._suffixes():
            weight = nn.Parameter(like.new_empty(3 * self.hidden_size))
            self.register_parameter(f"weight_peephole{suffix}", weight)
            nn.init.uniform_(weight, -bound, bound)

    def _operand_parts(self) -> Mapping[str, tuple[str, ...]]:
        parts = super()._operand_parts()
        return {**parts, "P": ("weight_peephole",)} if self.peephole else parts


class _GRUOptions(Recurrent):
    """The own options of xpgrad's GRU, over sequences and for a single step."""

    _GATE_ORDER = (1, 0, 2)  # r z n -> z r h
    _STATES = ("hx",)
    _OPTIONS = ("reset_after", "clip", *Recurrent._OPTIONS)

    reset_after: bool = True

    def _set_options(self, given: Mapping[str, Any]) -> None:
        check_flag(self._NAME, "reset_after", given["reset_after"])
        super()._set_options(given)

    def _attributes(self) -> dict[str, Any]:
        return super()._attributes() | {"linear_before_reset": int(self.reset_after)}


class _RNNOptions(Recurrent):
    """The own options of xpgrad's RNN, over sequences and for a single step."""

    _GATE_ORDER = (0,)
    _STATES = ("hx",)
    _LOWERED = True
    _OPTIONS = ("clip", *Recurrent._OPTIONS)
    _MORE_OPTIONS = ("nonlinearity",)

    nonlinearity: str  # each module has its own, like PyTorch's modules, which `swap` replaces

    def _set_options(self, given: Mapping[str, Any]) -> None:
        if self.nonlinearity not in ("tanh", "relu"):
            raise ValueError(
                f"{self._NAME}: nonlinearity is {self.nonlinearity!r}, expected 'tanh' or 'relu'; "
                "activations takes all of ONNX's"
            )
        if self.nonlinearity != "tanh" and given["activations"] is not None:
            raise ValueError(
                f"{self._NAME}: nonlinearity is {self.nonlinearity!r} and activations is "
                f"{given['activations']!r}, expected one of the two"
            )
        super()._set_options(given)

    def _attributes(self) -> dict[str, Any]:
        attributes = super()._attributes()
        if self.nonlinearity == "relu":
            attributes["activations"] = ("Relu",) * (self._directions() or 1)
        return attributes


@described_layers("peephole=True")
class LSTM(_LSTMOptions, Layers[tuple[Tensor, Tensor]]):
    """Long short-term memory: `torch.nn.LSTM`, with more options and faster packed sequences.

    For each layer, direction and step, with σ the logistic function and ⊙ the elementwise product::

        i = σ(W_ii x + b_ii + W_hi h' + b_hi [+ p_i ⊙ c'])
        f = σ(W_if x + b_if + W_hf h' + b_hf [+ p_f ⊙ c'])
        g = tanh(W_ig x + b_ig + W_hg h' + b_hg)
        c = f ⊙ c' + i ⊙ g
        o = σ(W_io x + b_io + W_ho h' + b_ho [+ p_o ⊙ c])
        h = o ⊙ tanh(c)

    Parameters
    ----------
    peephole : bool
        Add peepholes: parameters ``weight_peephole_l{k}{_reverse}``, (3H,), for the gates i o f.
    peephole_gradient : {"full", "truncated"}
        ``"full"`` is the true gradient; ``"truncated"`` leaves out the path from the peepholes into the cell
        state, as ONNX Runtime does.
    clip : float, optional
        Bound the gates' pre-activations to [-clip, clip].
    input_forget : bool
        Couple the gates: f = 1 - i. The forget gate's weights get a zero gradient.
    activations, activation_alpha, activation_beta : sequence, optional
        ONNX's attributes: three names per direction, for the gates, the cell's input and the cell's output;
        default Sigmoid, Tanh, Tanh. Alphas and betas are for the activations that take them, in order.
    save : "all", "states" or int
        What is kept for the gradient: all gates, only the inputs, or the states of every k-th step.
        See `xpgrad_torch.functional.lstm`.
    zoneout : tuple of float
        Probabilities (p_c, p_h) with which an element of the cell and of the hidden state keeps its old value
        at a step: c = z ⊙ c' + (1 - z) ⊙ c_new, and the same for h; h_new is computed from c_new. In
        training, PyTorch's generator draws z; in evaluation z is the probability.
    recurrent_dropout : float
        Probability with which an element of h' is replaced by zero before the recurrence weights, the same
        elements at every step; the others are divided by 1 - p. Only in training.
    return_cell_states : bool
        Return a third result: the cell states of the last layer at all steps, laid out as the output, with
        hidden_size columns for each direction.

    Notes
    -----
    Source: Hochreiter and Schmidhuber, Long Short-Term Memory (1997); Gers and Schmidhuber, Recurrent Nets
    that Time and Count (2000) for the peepholes; Krueger et al., Zoneout (2017); Gal and Ghahramani, A
    Theoretically Grounded Application of Dropout in Recurrent Neural Networks (2016), for recurrent dropout;
    the operator LSTM of the ONNX specification.
    """

    _KERNEL = "lstm"
    _NAME = "LSTM"
    _LOWERED = True

    _OPTIONS = (*_LSTMOptions._OPTIONS, "save", "zoneout", "recurrent_dropout", "return_cell_states")

    zoneout: tuple[float, float] = (0.0, 0.0)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        peephole: bool = False,
        peephole_gradient: Peephole = "full",
        clip: float | None = None,
        input_forget: bool = False,
        activations: Sequence[str] | None = None,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
        save: Saved | int = "all",
        zoneout: tuple[float, float] = (0.0, 0.0),
        recurrent_dropout: float = 0.0,
        return_cell_states: bool = False,
    ) -> None:
        self._begin("LSTM", locals())
        if peephole:
            self._add_peepholes()

    def _state_sizes(self) -> tuple[int, ...]:
        return self.proj_size or self.hidden_size, self.hidden_size

    def _operand_parts(self) -> Mapping[str, tuple[str, ...]]:
        parts = super()._operand_parts()
        return {**parts, "S": ("weight_hr",)} if self.proj_size else parts


class _OneState(Layers[Tensor]):
    """Layers with one state, which have no projection."""

    def _begin(self, mode: str, given: Mapping[str, Any]) -> None:
        if given["proj_size"] is not None:
            raise ValueError(
                f"{self._NAME}: proj_size is {given['proj_size']!r}, expected none: only an LSTM has a "
                "projection"
            )
        super()._begin(mode, {name: value for name, value in given.items() if name != "proj_size"})


@described_layers("reset_after=False")
class GRU(_GRUOptions, _OneState):
    """Gated recurrent unit: `torch.nn.GRU`, with both reset conventions and more options.

    For each layer, direction and step, with σ the logistic function and ⊙ the elementwise product::

        r = σ(W_ir x + b_ir + W_hr h' + b_hr)
        z = σ(W_iz x + b_iz + W_hz h' + b_hz)
        n = tanh(W_in x + b_in + r ⊙ (W_hn h' + b_hn))        reset_after=True, PyTorch's and cuDNN's
        n = tanh(W_in x + b_in + W_hn (r ⊙ h') + b_hn)        reset_after=False
        h = (1 - z) ⊙ n + z ⊙ h'

    Parameters
    ----------
    reset_after : bool
        True: the reset gate multiplies the candidate's recurrent product, as in PyTorch. False: it
        multiplies the state before that product, as in ONNX's default and in the paper.
    activations, activation_alpha, activation_beta : sequence, optional
        As in `LSTM`, two names per direction: for the gates and the candidate; default Sigmoid, Tanh.
    clip, save, recurrent_dropout
        As in `LSTM`.
    zoneout : float
        Probability with which an element of the state keeps its old value at a step: z ⊙ h' + (1 - z) ⊙ h. In
        training, PyTorch's generator draws z; in evaluation z is the probability.
    proj_size : None
        A GRU has no projection: any number is an error, as in `torch.nn.GRU`.

    Notes
    -----
    Source: Cho et al., Learning Phrase Representations using RNN Encoder-Decoder for Statistical Machine
    Translation (2014); the operator GRU of the ONNX specification.
    """

    _KERNEL = "gru"
    _NAME = "GRU"

    _OPTIONS = (*_GRUOptions._OPTIONS, "save", "zoneout", "recurrent_dropout")

    zoneout: float = 0.0

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        reset_after: bool = True,
        clip: float | None = None,
        activations: Sequence[str] | None = None,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
        save: Saved | int = "all",
        zoneout: float = 0.0,
        recurrent_dropout: float = 0.0,
        proj_size: int | None = None,
    ) -> None:
        self._begin("GRU", locals())


@described_layers('nonlinearity="relu"')
class RNN(_RNNOptions, _OneState):
    """Plain recurrent network: `torch.nn.RNN`, with more options.

    For each layer, direction and step, with f the hyperbolic tangent or max(0, x)::

        h = f(W_ih x + b_ih + W_hh h' + b_hh)

    Parameters
    ----------
    activations, activation_alpha, activation_beta : sequence, optional
        As in `LSTM`, one name per direction, instead of `nonlinearity`; default Tanh.
    clip, save
        As in `LSTM`.
    proj_size : None
        An RNN has no projection: any number is an error, as in `torch.nn.RNN`.

    Notes
    -----
    Source: Elman, Finding Structure in Time (1990); the operator RNN of the ONNX specification.
    """

    _KERNEL = "rnn"
    _NAME = "RNN"

    _OPTIONS = (*_RNNOptions._OPTIONS, "save")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Nonlinearity = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        clip: float | None = None,
        activations: Sequence[str] | None = None,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
        save: Saved | int = "all",
        proj_size: int | None = None,
    ) -> None:
        self.nonlinearity = nonlinearity
        self._begin("RNN_RELU" if nonlinearity == "relu" else "RNN_TANH", locals())


@described_cell
class LSTMCell(_LSTMOptions, CellModule[tuple[Tensor, Tensor]], nn.LSTMCell):
    """One step of an LSTM: `torch.nn.LSTMCell`, with the options of `LSTM`."""

    _KERNEL = "lstm_cell"
    _NAME = "LSTMCell"

    weight_peephole: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        peephole: bool = False,
        peephole_gradient: Peephole = "full",
        clip: float | None = None,
        input_forget: bool = False,
        activations: Sequence[str] | None = None,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device=device, dtype=dtype)
        self._set_options(locals())
        if peephole:
            self._add_peepholes()


@described_cell
class GRUCell(_GRUOptions, CellModule[Tensor], nn.GRUCell):
    """One step of a GRU: `torch.nn.GRUCell`, with the options of `GRU`."""

    _KERNEL = "gru_cell"
    _NAME = "GRUCell"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        reset_after: bool = True,
        clip: float | None = None,
        activations: Sequence[str] | None = None,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device=device, dtype=dtype)
        self._set_options(locals())


@described_cell
class RNNCell(_RNNOptions, CellModule[Tensor], nn.RNNCell):
    """One step of a plain recurrent network: `torch.nn.RNNCell`, with the options of `RNN`."""

    _KERNEL = "rnn_cell"
    _NAME = "RNNCell"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: Nonlinearity = "tanh",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        clip: float | None = None,
        activations: Sequence[str] | None = None,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, nonlinearity, device=device, dtype=dtype)
        self._set_options(locals())
