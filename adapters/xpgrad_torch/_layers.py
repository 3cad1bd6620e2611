"""Layers over sequences: lengths and resets, packed sequences, both directions, and random masks."""

import copy
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from xpgrad_torch._autocast import autocasts
from xpgrad_torch._expanded import has_expanded
from xpgrad_torch._fx import Proxy, as_node
from xpgrad_torch._kernel import check_flag, is_single, type_of
from xpgrad_torch._lengths import LENGTHS, in_time_major, lengths_tensor, with_resets
from xpgrad_torch._memory import check_save
from xpgrad_torch._opacus import collecting
from xpgrad_torch._overrides import are_replaceable, handed_over
from xpgrad_torch._packing import PackedRows, are_rows_taken
from xpgrad_torch._private import parameters_in
from xpgrad_torch._recurrent import Recurrent, States, over_time, run_packed, turned

_State = TypeVar("_State")
_OF_PYTORCH = (
    "input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional", "proj_size",
    "device", "dtype",
)  # fmt: skip


def _is_unsavable(X: Tensor) -> bool:
    """Tell whether autograd refuses to save a tensor because it was made in inference mode."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling() and X.is_inference()


def is_sharded(module: nn.Module) -> bool:
    """Tell whether `fully_shard` has wrapped the module."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, getattr(fsdp, "FSDPModule", ()))


class OneLayer(Recurrent, nn.RNNBase):
    """A module over `torch.nn.RNNBase` that can run each of its layers, in one or two directions."""

    _STATE_OPERANDS = ("initial_h", "initial_c")
    _MORE_OPTIONS = ("bidirectional",)
    save: str | int = "all"
    zoneout: Any = 0.0  # a tuple if there are two states
    recurrent_dropout: float = 0.0
    return_cell_states: bool = False
    weight_ih_l0: Tensor

    def _begin(self, mode: str, given: Mapping[str, Any]) -> None:
        """Build PyTorch's module from a constructor's arguments, and keep the options."""
        # Not by `super`, so that a class can have both this class and torch.nn.LSTM as bases.
        nn.RNNBase.__init__(self, mode, **{name: given[name] for name in _OF_PYTORCH if name in given})
        self._set_options(given)

    def _set_options(self, given: Mapping[str, Any]) -> None:
        check_save(self._NAME, given["save"])
        dropped = given.get("recurrent_dropout", 0.0)
        if not _is_share(dropped) or dropped == 1:
            raise ValueError(
                f"{self._NAME}: recurrent_dropout is {dropped!r}, expected a number of at least 0 and below 1"
            )
        zoneout, count = given.get("zoneout", self.zoneout), len(self._STATES)
        if count > 1 and (not isinstance(zoneout, tuple | list) or len(zoneout) != count):
            raise TypeError(f"{self._NAME}: zoneout is {zoneout!r}, expected two numbers (p_c, p_h)")
        shares = tuple(zoneout) if count > 1 else (zoneout,)
        if not all(map(_is_share, shares)):
            raise ValueError(
                f"{self._NAME}: zoneout is {zoneout!r}, expected a number from 0 to 1 for each state"
            )
        check_flag(self._NAME, "return_cell_states", given.get("return_cell_states", False))
        super()._set_options({**given, "zoneout": shares if count > 1 else zoneout})

    def _gradient_attributes(self) -> dict[str, Any]:
        return super()._gradient_attributes() | {"save": self.save}

    def _attributes(self) -> dict[str, Any]:
        direction = "bidirectional" if self.bidirectional else "forward"
        return super()._attributes() | {"direction": direction}

    def flatten_parameters(self) -> None:
        """Do nothing: only cuDNN needs its weights in one block of memory."""

    def _smallest_operands(self) -> list[np.ndarray]:
        weights = np.zeros((self._directions(), len(self._GATE_ORDER), 1))
        return [np.zeros((1, 1, 1)), weights, weights]

    def _state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size,) * len(self._STATES)

    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _suffixes(self) -> list[str]:
        ends = ("", "_reverse") if self.bidirectional else ("",)
        return [f"_l{layer}{end}" for layer in range(self.num_layers) for end in ends]

    def _is_plain(self) -> bool:
        """Tell whether layers draw nothing, return PyTorch's results, and need no gradients of samples."""
        draws = self.training and self.recurrent_dropout
        kept = isinstance(self.save, str) and self._sequences() == 1
        return kept and not (draws or any(self._shares()) or collecting.get() is not None)

    def _shares(self) -> tuple[float, ...]:
        """Return zoneout's probabilities: of the cell state, if there is one, and of the hidden state."""
        return self.zoneout if isinstance(self.zoneout, tuple) else (self.zoneout,)

    def _sequences(self) -> int:
        """Return how many sequences the module returns: its output, and the cell states if wanted."""
        return 1 + (self.return_cell_states and len(self._STATES) > 1)

    def _run_layer(
        self, suffixes: Sequence[str], X: Tensor, lengths: Tensor | None, states: Sequence[Tensor]
    ) -> tuple[States, States]:
        """Run all directions of a layer; return its sequences and its final states."""
        head = self._head(bool(states), lengths is not None)
        read = self._read(suffixes, head)
        results = self._known(head, read, X, states, lengths)
        count, sequences = len(self._STATES), self._sequences()
        if results is None:
            if suffixes[0] == "_l0":
                self._check_input(X, read)
            initial = dict(zip(self._STATE_OPERANDS, states, strict=False))
            operands = {
                "X": X,
                **self._weights(suffixes, read),
                LENGTHS: lengths,
                **initial,
                **self._masks(X),
            }
            results = self._run_kernel(operands, count + sequences, head)
        finals = results[1 : 1 + count]
        over_steps = [results[0], *results[1 + count : count + sequences]]
        return tuple([over_time(x) for x in over_steps]), tuple(finals)

    def _run_rows(
        self, suffixes: Sequence[str], X: Tensor, packing: PackedRows, states: Sequence[Tensor]
    ) -> tuple[States, States]:
        """Run all directions of a layer on rows of a packed sequence."""
        initial = dict(zip(self._STATE_OPERANDS, states, strict=False))
        own = {**self._weights(suffixes, self._read(suffixes)), **self._options()}
        given = {"X": X, **initial, LENGTHS: packing.lengths, **own}
        H_all, *finals = run_packed(self._KERNEL, given, packing, 1 + len(self._STATES))
        return (H_all,), tuple(finals)

    def _masks(self, X: Tensor) -> dict[str, Tensor]:
        """Return a layer's masks by the names of the kernel's operands, for X (T, N, I).

        In training PyTorch's generator draws them. In evaluation zoneout's masks are their expectation, and
        nothing is dropped.
        """
        T, N, D = X.shape[0], X.shape[1], self._directions()
        hidden, *cell = self._state_sizes()
        masks = {}
        if self.training and self.recurrent_dropout:
            kept = 1 - self.recurrent_dropout
            masks["recurrent_mask"] = _drawn(X, kept, (D, N, hidden)) / kept
        for name, p, size in zip(
            ("zoneout_h", "zoneout_c"), reversed(self._shares()), (hidden, *cell), strict=False
        ):
            if p:
                shape = (T, D, N, size)
                masks[name] = _drawn(X, p, shape) if self.training else X.new_full(shape, p)
        return masks


class Layers(OneLayer, Generic[_State]):
    """Layers over sequences, with the interface of `torch.nn.RNNBase`.

    They are no subclasses of `torch.nn.LSTM` or `torch.nn.GRU`: `torch.compile` excludes these from graphs.
    """

    if TYPE_CHECKING:  # torch.nn.Module says that a call returns Any

        @overload  # type: ignore[no-overload-impl]
        def __call__(
            self, input: Tensor, hx: Any = None, lengths: Any = None, reset: Any = None
        ) -> tuple[Tensor, _State]: ...
        @overload
        def __call__(
            self, input: PackedSequence, hx: Any = None, *, reset: PackedSequence | None = None
        ) -> tuple[PackedSequence, _State]: ...

    def forward(
        self,
        input: Tensor | PackedSequence,  # noqa: A002, PyTorch's name for it
        hx: Any = None,
        lengths: Any = None,
        reset: Tensor | PackedSequence | None = None,
    ) -> tuple[Any, ...]:
        """Run the layers over a batch of sequences.

        Parameters
        ----------
        input : Tensor or PackedSequence
            (T, N, I), (N, T, I) where `batch_first`, (T, I) for a single sequence, or a packed sequence.
        hx : Tensor or tuple of two tensors, optional
            Initial state, for an LSTM the pair (h_0, c_0); (num_layers·D, N, H), without N for a single
            sequence; default zeros.
        lengths : Tensor or sequence of int, optional
            Length of each sequence in a padded `input`, (N,), from 0 to T. The padding has no effect, the
            output is zero there, and the final states are the states at the sequences' ends.
        reset : Tensor or PackedSequence, optional
            Booleans (T, N), (N, T) where `batch_first`, (T,) for a single sequence: before these steps the
            state starts at zero, in both directions, as at the first step of an episode. For a packed
            `input` they are packed in the same way.

        Returns
        -------
        output, h_n or (h_n, c_n)
            As PyTorch's module returns them; `output` is packed if `input` is.
        cells
            With ``return_cell_states=True``: the cell states of the last layer, laid out as `output`.
        """
        if isinstance(input, Proxy):
            return as_node(self, input, hx, lengths, reset)
        if are_replaceable((input,)):
            return handed_over(self._KERNEL, lambda X: self.forward(X, hx, lengths, reset), (input,))
        if isinstance(input, PackedSequence):
            if lengths is not None:
                raise ValueError(
                    f"{self._NAME}: lengths is given, but input is a PackedSequence, which has its own"
                )
            return self._forward_packed(input, hx, reset)
        single = is_single(self._NAME, input, 2, "torch.Tensor or PackedSequence")
        X = input.unsqueeze(1) if single else input.transpose(0, 1) if self.batch_first else input
        if self.batch_first and _is_unsavable(X):
            X = X.clone()  # as PyTorch, which copies such an input
        states: States = ()
        if hx is not None:
            self._check_input(X)
            states = self._split(hx, self._state_shapes(*(() if single else (X.shape[1],))), X.dtype)
            states = tuple(state.unsqueeze(1) for state in states) if single else states
        if lengths is not None or reset is not None:
            lengths = self._lengths_tensor(lengths, X, in_time_major(reset, 1, single, self.batch_first))
        if self.num_layers == 1:
            sequences, finals = self._run_layer(self._suffixes(), X, lengths, states)
        else:
            sequences, finals = self._run_layers(X, lengths, states)
        if single:
            sequences = tuple(turned(x, "squeeze", 1) for x in sequences)
            finals = tuple(turned(x, "squeeze", 1) for x in finals)
        elif self.batch_first:
            sequences = tuple(turned(x, "transpose", 0, 1) for x in sequences)
        output, *more = sequences
        return output, self._join(finals), *more

    def _state_shapes(self, *batch: int) -> list[tuple[int, ...]]:
        return [(self.num_layers * self._directions(), *batch, size) for size in self._state_sizes()]

    def _lengths_tensor(self, lengths: Any, X: Tensor, reset: Any = None) -> Tensor | None:
        """Return lengths with resets as a tensor for X (T, N, I); the kernel checks their values."""
        lengths = lengths_tensor(self._NAME, "lengths", lengths)
        if lengths is None:
            return with_resets(self._NAME, X, None, reset, 0)
        lengths = lengths.to(X.device)
        if lengths.is_floating_point() or lengths.dtype == torch.bool:
            raise TypeError(f"{self._NAME}: lengths has dtype {lengths.dtype}, expected an integer dtype")
        if lengths.shape != X.shape[1:2]:
            raise ValueError(
                f"{self._NAME}: lengths has shape {tuple(lengths.shape)}, expected (N,) = ({X.shape[1]},)"
            )
        return with_resets(self._NAME, X, lengths, reset, 0)

    def _forward_packed(self, packed: PackedSequence, hx: Any, reset: Any) -> tuple[Any, ...]:
        """Run the layers over a packed sequence, whose sequences go from long to short."""
        data, batch_sizes, sorted_indices, unsorted_indices = packed
        if data.dim() != 2:
            raise RuntimeError(f"{self._NAME}: input.data has {data.dim()} dimensions, expected 2")
        self._check_input(data)
        shapes = self._state_shapes(int(batch_sizes[0]))
        states = () if hx is None else self._split(hx, shapes, data.dtype)
        if sorted_indices is not None:
            states = tuple(state.index_select(1, sorted_indices) for state in states)
        if (samples := collecting.get()) is not None:
            samples.order = unsorted_indices
        packing = PackedRows(packed)
        lengths = packing.lengths if reset is None else self._packed_resets(packed, packing, reset)
        in_rows = reset is None and self._takes_rows(packing, data, states)
        X = data if in_rows else packing.padded(data)
        sequences, finals = self._run_layers(X, lengths, states, packing)
        if unsorted_indices is not None:
            finals = tuple(state.index_select(1, unsorted_indices) for state in finals)
        output, *more = (
            PackedSequence(x if in_rows else packing.rows(x), batch_sizes, sorted_indices, unsorted_indices)
            for x in sequences
        )
        return output, self._join(finals), *more

    def _packed_resets(self, packed: PackedSequence, packing: PackedRows, reset: Any) -> Tensor | None:
        """Return the lengths of a packed input, with resets that are packed in the same way."""
        if not isinstance(reset, PackedSequence):
            raise TypeError(
                f"{self._NAME}: reset is {type_of(reset)}, expected a PackedSequence as input is one: "
                "pack_padded_sequence(reset, lengths)"
            )
        pairs = {
            "batch_sizes": (reset.batch_sizes, packed.batch_sizes),
            "sorted_indices": (reset.sorted_indices, packed.sorted_indices),
        }
        for name, (found, expected) in pairs.items():
            if _numbers(found) != _numbers(expected):
                raise ValueError(
                    f"{self._NAME}: reset has {name} {_numbers(found)}, expected those of input, "
                    f"{_numbers(expected)}"
                )
        if reset.data.dim() != 1:
            raise ValueError(
                f"{self._NAME}: reset.data has shape {tuple(reset.data.shape)}, expected a boolean for each "
                f"step, ({len(packed.data)},)"
            )
        marks = packing.padded(reset.data[:, None])
        return with_resets(self._NAME, marks, packing.lengths, marks[..., 0], 0)

    def _takes_rows(self, packing: PackedRows, data: Tensor, states: Sequence[Tensor]) -> bool:
        """Tell whether the layers run on the rows of a packed sequence, without padding."""
        parameters = [x for x in parameters_in(self) if x is not None]
        if not self._is_plain() or self.save != "all" or autocasts(data) or has_expanded(parameters):
            return False
        return are_rows_taken(packing, [data, *states, *parameters])

    def _run_layers(
        self,
        X: Tensor,
        lengths: Tensor | None,
        states: States,
        packing: PackedRows | None = None,
        each: list[States] | None = None,
    ) -> tuple[States, States]:
        """Run all layers on X (T, N, I), or on the rows of a packing.

        Return the last layer's sequences, its output first, and all layers' final states. X with two axes
        holds the rows of the packing, and so does the output. `each` gets the sequences of each layer.
        """
        suffixes, D = self._suffixes(), self._directions()
        finals = []
        sequences: States = (X,)
        for layer in range(self.num_layers):
            X = sequences[0]
            if layer and self.dropout and self.training:
                X = _dropout(X, self.dropout, packing)
            rows = slice(layer * D, (layer + 1) * D)
            initial = [x[rows] for x in states]
            if packing is not None and X.dim() == 2:
                sequences, final = self._run_rows(suffixes[rows], X, packing, initial)
            else:
                sequences, final = self._run_layer(suffixes[rows], X, lengths, initial)
            finals.append(final)
            if each is not None:
                each.append(sequences)
        if len(finals) == 1:
            return sequences, finals[0]
        return sequences, tuple(torch.cat(parts) for parts in zip(*finals, strict=True))

    def _run_with_states(self, X: Tensor, hx: States | None, reset: Tensor) -> tuple[Tensor, list[States]]:
        """Run layers of one direction; return the output and, for each state, each layer's (T, N, H).

        X is (N, T, I), reset (N, T) and the output (N, T, H), whatever `batch_first` says.
        """
        X = X.transpose(0, 1)
        layers = copy.copy(self)  # with the same parameters
        layers.return_cell_states = True
        lengths = self._lengths_tensor(None, X, reset.T)
        each: list[States] = []
        layers._run_layers(X, lengths, hx or (), each=each)
        return each[-1][0].transpose(0, 1), list(zip(*each, strict=True))


def _numbers(x: Tensor | None) -> list[int] | None:
    """Return integers as a list, for comparisons and messages."""
    return None if x is None else x.tolist()


def _is_share(p: Any) -> bool:
    """Tell whether p is a probability."""
    return isinstance(p, int | float) and not isinstance(p, bool) and 0 <= p <= 1


def _drawn(X: Tensor, p: float, shape: tuple[int, ...]) -> Tensor:
    """Draw ones with probability p, and zeros, in the dtype of X."""
    return (torch.rand(shape, device=X.device) < p).to(X.dtype)


def _dropout(X: Tensor, p: float, packing: PackedRows | None) -> Tensor:
    """Drop outputs of a layer, with PyTorch's random numbers for the same input."""
    if packing is None or X.dim() == 2:
        return nn.functional.dropout(X, p)
    return packing.padded(nn.functional.dropout(packing.rows(X), p))
