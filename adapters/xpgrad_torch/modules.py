"""Modules that take the place of PyTorch's own, with xpgrad's kernels inside."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import xpgrad
from xpgrad_torch import functional

__all__ = ["LSTM"]

States = tuple[Tensor, Tensor]


class LSTM(nn.LSTM):
    """Long short-term memory: `torch.nn.LSTM`, with more options and without the price of packed sequences.

    For each layer, direction and step, with σ the logistic function and ⊙ the elementwise product::

        i = σ(W_ii x + b_ii + W_hi h' + b_hi [+ p_i ⊙ c'])
        f = σ(W_if x + b_if + W_hf h' + b_hf [+ p_f ⊙ c'])
        g = tanh(W_ig x + b_ig + W_hg h' + b_hg)
        c = f ⊙ c' + i ⊙ g
        o = σ(W_io x + b_io + W_ho h' + b_ho [+ p_o ⊙ c])
        h = o ⊙ tanh(c)

    Constructor, parameters, their names and random initialisation, inputs and outputs are those of
    `torch.nn.LSTM`: state_dicts load both ways. What is more are the keyword-only arguments from
    `peephole` on, and `lengths` in the call.

    Parameters
    ----------
    input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype
        As in `torch.nn.LSTM`. With `proj_size` the projection is multiplied into the recurrence weights:
        the same function, but the product in the time loop has the full hidden size.
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
        default Sigmoid, Tanh, Tanh. The alphas and betas are those of the activations that take them.

    Raises
    ------
    TypeError, ValueError
        From the constructor as in `torch.nn.LSTM`, and where an attribute breaks ONNX's rules. From a call
        ValueError or RuntimeError, as in PyTorch, for inputs of a wrong size or dtype.

    Notes
    -----
    Source: Hochreiter and Schmidhuber, Long Short-Term Memory (1997); Gers and Schmidhuber, Recurrent Nets
    that Time and Count (2000) for the peepholes; the operator LSTM of the ONNX specification.

    Examples
    --------
    >>> import torch
    >>> import xpgrad_torch
    >>> rnn = xpgrad_torch.LSTM(10, 20, 2, batch_first=True, peephole=True)
    >>> output, (h_n, c_n) = rnn(torch.randn(3, 5, 10), lengths=[5, 2, 4])
    >>> output.shape, h_n.shape
    (torch.Size([3, 5, 20]), torch.Size([2, 3, 20]))
    """

    # What `torch.nn.LSTM` does not have, with the value that makes this module equal to it.
    peephole: bool = False
    peephole_gradient: str = "full"
    clip: float | None = None
    input_forget: bool = False
    activations: list[str] | None = None
    activation_alpha: list[float] | None = None
    activation_beta: list[float] | None = None

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
        peephole_gradient: str = "full",
        clip: float | None = None,
        input_forget: bool = False,
        activations: Sequence[str] | None = None,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
    ) -> None:
        factory = {"device": device, "dtype": dtype}
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
            **factory,
        )
        self.peephole = peephole
        self.peephole_gradient = peephole_gradient
        self.clip = clip
        self.input_forget = input_forget
        self.activations = None if activations is None else list(activations)
        self.activation_alpha = None if activation_alpha is None else list(activation_alpha)
        self.activation_beta = None if activation_beta is None else list(activation_beta)
        self._check_attributes()
        if peephole:
            # After the other parameters, so that these draw the numbers that `torch.nn.LSTM` gives them.
            bound = hidden_size**-0.5
            for suffix in self._suffixes():
                weight = nn.Parameter(torch.empty(3 * hidden_size, **factory))
                self.register_parameter(f"weight_peephole_{suffix}", weight)
                nn.init.uniform_(weight, -bound, bound)

    def forward(  # type: ignore[override]
        self,
        input: Tensor | PackedSequence,  # noqa: A002, the name that torch.nn.LSTM gives it
        hx: States | None = None,
        *,
        lengths: Any = None,
    ) -> tuple[Tensor | PackedSequence, States]:
        """Run the layers over a batch of sequences.

        Parameters
        ----------
        input : Tensor or PackedSequence
            (T, N, I), (N, T, I) where `batch_first`, (T, I) for a single sequence, or a packed sequence.
        hx : tuple of two tensors, optional
            Initial states h_0 and c_0, (num_layers·D, N, H), without N for a single sequence; default zeros.
        lengths : Tensor or sequence of int, optional
            Length of each sequence in a padded `input`, (N,), from 0 to T. What stands behind the end has no
            influence, the output is zero there, and h_n and c_n are the states at the end.

        Returns
        -------
        output, (h_n, c_n)
            As `torch.nn.LSTM` returns them; a packed `output` where `input` is packed.
        """
        if isinstance(input, PackedSequence):
            if lengths is not None:
                raise ValueError("LSTM: lengths is given, but input is a PackedSequence, which has its own")
            return self._forward_packed(input, hx)
        if not isinstance(input, Tensor):
            raise TypeError(f"LSTM: input is {type(input).__name__}, expected torch.Tensor or PackedSequence")
        if input.dim() not in (2, 3):
            raise ValueError(
                f"LSTM: input has {input.dim()} dimensions, expected 2 (one sequence) or 3 (a batch of them)"
            )
        single = input.dim() == 2
        X = input.unsqueeze(1) if single else input.transpose(0, 1) if self.batch_first else input
        self._check_input(X)
        hx = self._checked_states(hx, X.dtype, () if single else (X.shape[1],))
        if single and hx is not None:
            hx = (hx[0].unsqueeze(1), hx[1].unsqueeze(1))
        output, (h_n, c_n) = self._run_layers(X, _lengths_tensor(lengths, X), hx)
        if single:
            return output.squeeze(1), (h_n.squeeze(1), c_n.squeeze(1))
        return output.transpose(0, 1) if self.batch_first else output, (h_n, c_n)

    def flatten_parameters(self) -> None:
        """Do nothing: only cuDNN needs its weights in one block of memory, xpgrad's kernels do not."""

    def extra_repr(self) -> str:
        """Return the constructor's arguments that are not the defaults."""
        parts = [super().extra_repr()]
        parts += [
            f"{name}={getattr(self, name)!r}" for name in _EXTRAS if getattr(self, name) != _EXTRAS[name]
        ]
        return ", ".join(parts)

    def _attributes(self) -> dict[str, Any]:
        return {
            "direction": "bidirectional" if self.bidirectional else "forward",
            "activations": self.activations,
            "activation_alpha": self.activation_alpha,
            "activation_beta": self.activation_beta,
            "clip": self.clip,
            "input_forget": self.input_forget,
        }

    def _check_attributes(self) -> None:
        """Raise what the kernel raises for these attributes, now and not at the first batch."""
        if self.peephole_gradient not in ("full", "truncated"):
            raise ValueError(
                f"LSTM: peephole_gradient is {self.peephole_gradient!r}, expected 'full' or 'truncated'"
            )
        attributes = self._attributes()
        if all(attributes[name] == _EXTRAS[name] for name in attributes.keys() & _EXTRAS.keys()):
            return
        directions = 2 if self.bidirectional else 1
        with xpgrad.use_engine("standard"):
            weights = np.zeros((directions, 4, 1))
            xpgrad.lstm(np.zeros((1, 1, 1)), weights, weights, **attributes)

    def _check_input(self, X: Tensor) -> None:
        if X.shape[-1] != self.input_size:
            raise RuntimeError(
                f"LSTM: input.size(-1) is {X.shape[-1]}, expected input_size = {self.input_size}"
            )
        weight = self.weight_ih_l0
        if X.dtype != weight.dtype and not _autocasts(X):
            raise ValueError(
                f"LSTM: input has dtype {X.dtype}, expected that of the weights, {weight.dtype}; "
                f"convert one: input.to({weight.dtype}) or model.to({X.dtype})"
            )

    def _checked_states(self, hx: Any, dtype: torch.dtype, batch: tuple[int, ...]) -> States | None:
        """Return hx where its shapes and dtypes fit."""
        if hx is None:
            return None
        if not isinstance(hx, tuple | list) or len(hx) != 2 or not all(isinstance(x, Tensor) for x in hx):
            raise TypeError("LSTM: hx is not a pair of tensors, expected (h_0, c_0)")
        layers = self.num_layers * (2 if self.bidirectional else 1)
        for name, state, size in zip(
            ("h_0", "c_0"), hx, (self._output_size(), self.hidden_size), strict=True
        ):
            expected = (layers, *batch, size)
            if state.shape != expected:
                raise RuntimeError(f"LSTM: {name} has shape {tuple(state.shape)}, expected {expected}")
            if state.dtype != dtype and not _autocasts(state):
                raise RuntimeError(f"LSTM: {name} has dtype {state.dtype}, expected that of input, {dtype}")
        return hx[0], hx[1]

    def _forward_packed(self, packed: PackedSequence, hx: States | None) -> tuple[PackedSequence, States]:
        """Run the layers over the padded form of a packed sequence, its sequences from long to short."""
        data, batch_sizes, sorted_indices, unsorted_indices = packed
        if data.dim() != 2:
            raise RuntimeError(f"LSTM: input.data has {data.dim()} dimensions, expected 2")
        self._check_input(data)
        hx = self._checked_states(hx, data.dtype, (int(batch_sizes[0]),))
        if hx is not None and sorted_indices is not None:
            hx = (hx[0].index_select(1, sorted_indices), hx[1].index_select(1, sorted_indices))
        X, lengths = pad_packed_sequence(PackedSequence(data, batch_sizes))
        output, (h_n, c_n) = self._run_layers(X, lengths.to(X.device), hx, lengths)
        if unsorted_indices is not None:
            h_n, c_n = h_n.index_select(1, unsorted_indices), c_n.index_select(1, unsorted_indices)
        data = pack_padded_sequence(output, lengths).data
        return PackedSequence(data, batch_sizes, sorted_indices, unsorted_indices), (h_n, c_n)

    def _run_layers(
        self, X: Tensor, lengths: Tensor | None, hx: States | None, packed_lengths: Tensor | None = None
    ) -> tuple[Tensor, States]:
        """Run the layers one after the other on a (T, N, I) input; `packed_lengths` as given to a packing."""
        directions = 2 if self.bidirectional else 1
        finals = []
        for layer in range(self.num_layers):
            if layer and self.dropout and self.training:
                X = _dropout(X, self.dropout, packed_lengths)
            rows = slice(layer * directions, (layer + 1) * directions)
            h_0, c_0 = (None, None) if hx is None else (hx[0][rows], hx[1][rows])
            X, final = self._run_layer(layer, X, lengths, h_0, c_0)
            finals.append(final)
        if len(finals) == 1:
            return X, finals[0]
        h_n, c_n = zip(*finals, strict=True)
        return X, (torch.cat(h_n), torch.cat(c_n))

    def _run_layer(
        self, layer: int, X: Tensor, lengths: Tensor | None, h_0: Tensor | None, c_0: Tensor | None
    ) -> tuple[Tensor, States]:
        """Run both directions of one layer."""
        W, R, B, P, S = self._onnx_weights(layer)
        if _autocasts(X):
            X, W, R, B, P, S, h_0, c_0 = _autocast(X, W, R, B, P, S, h_0, c_0)
        if S is None:
            initial_h, recurrence = h_0, R
        else:
            initial_h, recurrence = None, R @ S
            if h_0 is not None:
                X, W = _with_first_state(X, W, R, h_0, lengths)
        H_all, H_t, C_t = functional.lstm(
            X,
            W,
            recurrence,
            B,
            lengths,
            initial_h,
            c_0,
            P,
            peephole=self.peephole_gradient,
            **self._attributes(),
        )
        if S is not None:
            H_all, H_t = H_all @ S.mT, H_t @ S.mT
            if h_0 is not None and lengths is not None:
                H_t = torch.where((lengths == 0)[:, None], h_0, H_t)
        output = H_all.transpose(1, 2).flatten(2) if self.bidirectional else H_all.squeeze(1)
        return output, (H_t, C_t)

    def _onnx_weights(self, layer: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """Return W, R, B and P of a layer as ONNX lays them out, and the projection (D, proj_size, H)."""
        suffixes = [f"l{layer}", f"l{layer}_reverse"][: 2 if self.bidirectional else 1]
        W = _iofc([getattr(self, f"weight_ih_{s}") for s in suffixes], len(suffixes))
        R = _iofc([getattr(self, f"weight_hh_{s}") for s in suffixes], len(suffixes))
        B = P = S = None
        if self.bias:
            both = [getattr(self, f"bias_{part}_{s}") for s in suffixes for part in ("ih", "hh")]
            B = _iofc(both, len(suffixes))
        if self.peephole:
            P = torch.stack([getattr(self, f"weight_peephole_{s}") for s in suffixes])
        if self.proj_size:
            S = torch.stack([getattr(self, f"weight_hr_{s}") for s in suffixes])
        return W, R, B, P, S

    def _suffixes(self) -> list[str]:
        ends = ("", "_reverse") if self.bidirectional else ("",)
        return [f"l{layer}{end}" for layer in range(self.num_layers) for end in ends]

    def _output_size(self) -> int:
        return self.proj_size or self.hidden_size


_EXTRAS = {
    name: getattr(LSTM, name)
    for name in (
        "peephole",
        "peephole_gradient",
        "clip",
        "input_forget",
        "activations",
        "activation_alpha",
        "activation_beta",
    )
}


def _iofc(parameters: list[Tensor], directions: int) -> Tensor:
    """Put rows in PyTorch's order i f g o into ONNX's i o f c, with the directions in front."""
    blocks = []
    for parameter in parameters:
        i, f, g, o = parameter.chunk(4)
        blocks += [i, o, f, g]
    # One cat, because each further operator costs a copy here and another in the backward.
    return torch.cat(blocks).unflatten(0, (directions, -1))


def _lengths_tensor(lengths: Any, X: Tensor) -> Tensor | None:
    """Return lengths as a tensor beside X, (T, N, I); what is wrong in it, the kernel says."""
    if lengths is None:
        return None
    lengths = torch.as_tensor(lengths, device=X.device)
    if lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise TypeError(f"LSTM: lengths has dtype {lengths.dtype}, expected an integer dtype")
    if lengths.shape != X.shape[1:2]:
        raise ValueError(f"LSTM: lengths has shape {tuple(lengths.shape)}, expected (N,) = ({X.shape[1]},)")
    return lengths


def _dropout(X: Tensor, p: float, packed_lengths: Tensor | None) -> Tensor:
    """Drop outputs of a layer, with the random numbers that `torch.nn.LSTM` would draw for the same input."""
    if packed_lengths is None:
        return nn.functional.dropout(X, p)
    data, batch_sizes, _, _ = pack_padded_sequence(X, packed_lengths)
    return pad_packed_sequence(PackedSequence(nn.functional.dropout(data, p), batch_sizes))[0]


def _autocasts(x: Tensor) -> bool:
    """Tell whether autocast is on where x is."""
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def _autocast(*tensors: Tensor | None) -> list[Any]:
    """Convert as PyTorch does for `torch.nn.LSTM` under autocast: all but float64."""
    return [
        None
        if x is None
        else x
        if x.dtype == torch.float64
        else x.to(torch.get_autocast_dtype(x.device.type))
        for x in tensors
    ]


def _with_first_state(
    X: Tensor, W: Tensor, R: Tensor, h_0: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Make a projected h_0, which no hidden state need project to, an input of each direction's first step.

    X (T, N, I) gets one group of columns per direction, h_0 at that direction's first step and zero
    elsewhere, and W the matching columns from R: W x + R h_0 is one product then.
    """
    steps = torch.arange(X.shape[0], device=X.device)[:, None]
    last = X.shape[0] - 1 if lengths is None else lengths - 1
    columns = [X]
    rows = []
    for d, h in enumerate(h_0):
        first = steps == (last if d else 0)
        columns.append(torch.where(first[..., None], h, torch.zeros_like(h)))
        rows.append(torch.cat([R[d] if e == d else torch.zeros_like(R[d]) for e in range(len(R))], dim=-1))
    return torch.cat(columns, dim=-1), torch.cat((W, torch.stack(rows)), dim=-1)
