"""What the recurrent modules share: options, layers and directions, packing, dropout, and the single step."""

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

import xpgrad
from xpgrad.engine.process.remembered import Remembered
from xpgrad_torch._autocast import autocasts, lowered
from xpgrad_torch._autograd import CallTemplate, is_followed
from xpgrad_torch._expanded import has_expanded, run_expanded
from xpgrad_torch._fx import Proxy, Unscripted, as_node
from xpgrad_torch._kernel import is_single, type_of
from xpgrad_torch._lengths import LENGTHS, in_time_major, lengths_tensor, name_lengths, with_resets
from xpgrad_torch._memory import check_save
from xpgrad_torch._opacus import Sampled, collecting, hold, holder
from xpgrad_torch._packed import are_rows_taken
from xpgrad_torch._packing import PackedRows
from xpgrad_torch._private import parameter_of, parameters_in
from xpgrad_torch._programs import key_of
from xpgrad_torch._stacked import flattened, grouped, joined_by_name, stacked
from xpgrad_torch._units import recurrent_call, run_packed, run_recurrent

States = tuple[Tensor, ...]

_UNBIASED = {"W": ("weight_ih",), "R": ("weight_hh",)}
_BIASED = {**_UNBIASED, "B": ("bias_ih", "bias_hh")}


_known_steps: Remembered[tuple[CallTemplate, Sequence[str | int | None]]] = Remembered()
"""Calls by all that they depend on beside tensors, and where the tensors behind X are found: the name of a
parameter, the number of a state or of lengths behind the states, None for an operand that is absent."""


class Recurrent(Unscripted, Sampled, nn.Module):
    """A recurrent module on one of xpgrad's kernels, with the kernel's attributes as options.

    `_OPTIONS` names the options. The class attributes that hold them have the values that make the module
    equal to PyTorch's; what `swap` builds has no others.
    """

    _KERNEL: ClassVar[str]  # name in xpgrad and in functional
    _NAME: ClassVar[str]  # for messages
    _GATE_ORDER: ClassVar[tuple[int, ...]]  # where ONNX's gates are among PyTorch's, in ONNX's order
    _STATES: ClassVar[tuple[str, ...]]  # names of the states: one alone is a tensor, more are a tuple
    _STATE_OPERANDS: ClassVar[tuple[str, ...]]  # the kernel's names for them, of an LSTM
    _LOWERED: ClassVar[bool] = False  # whether the results of PyTorch's module have autocast's dtype
    _OPTIONS: ClassVar[tuple[str, ...]] = ("activations", "activation_alpha", "activation_beta")

    bias: bool
    hidden_size: int
    input_size: int
    clip: float | None = None
    # Private, because other libraries keep a layer's inputs in an attribute `activations` of the module.
    _activations: list[str] | None = None
    _activation_alpha: list[float] | None = None
    _activation_beta: list[float] | None = None

    def extra_repr(self) -> str:
        """Return the constructor's arguments that are not the defaults."""
        extras = [f"{name}={value!r}" for name, value in self._own_options().items()]
        return ", ".join([super().extra_repr(), *extras])

    def _own_options(self) -> dict[str, Any]:
        """Return the options that differ from the defaults, which are PyTorch's module."""
        options = {}
        for name in self._OPTIONS:
            value = getattr(self, holder(name))
            if value != getattr(type(self), holder(name)):
                options[name] = value
        return options

    def _set_options(self, given: Mapping[str, Any]) -> None:
        """Keep a constructor's options, and raise now what the kernel would raise at the first batch."""
        hold(self, {name: given[name] for name in self._OPTIONS})
        if self._own_options():
            with xpgrad.use_engine("standard"):
                getattr(xpgrad, self._KERNEL)(*self._smallest_operands(), **self._attributes())

    @abstractmethod
    def _directions(self) -> int:
        """Return the length of the operands' axis of directions; 0 where they have none, in a single step."""

    @abstractmethod
    def _suffixes(self) -> list[str]:
        """Return what the names of the parameters end with, one for each layer and direction."""

    def _operand_parts(self) -> Mapping[str, tuple[str, ...]]:
        """Return the names of the parameters of each ONNX operand, without a suffix."""
        return _BIASED if self.bias else _UNBIASED

    def _weights(self, suffixes: Sequence[str]) -> dict[str, Any]:
        """Return the parameters with these suffixes by ONNX's names, and stacked as ONNX stacks them."""
        directions = self._directions()
        return {
            operand: stacked([parameter_of(self, p + end) for end in suffixes for p in parts], directions)
            for operand, parts in self._operand_parts().items()
        }

    def _kernel_parameters(self) -> list[nn.Parameter]:
        return flattened(self._weights(self._suffixes()).values())[1]  # type: ignore[return-value]

    @abstractmethod
    def _smallest_operands(self) -> list[np.ndarray]:
        """Return operands of size 1 that the kernel takes."""

    def _attributes(self) -> dict[str, Any]:
        """Return the kernel's attributes."""
        return {
            "activations": self._activations,
            "activation_alpha": self._activation_alpha,
            "activation_beta": self._activation_beta,
            "clip": self.clip,
        }

    def _gradient_attributes(self) -> dict[str, Any]:
        """Return the attributes that the gradient has and the kernel has not."""
        return {}

    def _run_kernel(self, operands: Mapping[str, Any], wanted_outputs: int | None = None) -> States:
        try:
            return run_recurrent(self._KERNEL, self._arguments(operands), wanted_outputs)
        except (TypeError, ValueError) as error:
            name_lengths(error, self._NAME)
            raise

    def _arguments(self, operands: Mapping[str, Any]) -> dict[str, Any]:
        """Return the kernel's operands and options by name."""
        options = {**self._attributes(), **self._gradient_attributes(), "gate_order": self._GATE_ORDER}
        return {**operands, **options}

    def _form(self, suffixes: Sequence[str], has_lengths: bool) -> tuple | None:
        """Return all that a call depends on beside its tensors; None where that may change unnoticed."""
        attributes = {**self._attributes(), **self._gradient_attributes()}
        fixed = key_of(tuple(attributes.values()))
        if fixed is None:
            return None
        sizes = self.input_size, self.hidden_size
        return type(self), *sizes, tuple(self._operand_parts()), tuple(suffixes), has_lengths, fixed

    def _remember(self, operands: Mapping[str, Any], suffixes: Sequence[str]) -> None:
        """Let later calls of this form run again without checks."""
        form = self._form(suffixes, operands.get(LENGTHS) is not None)
        if form is None or form in _known_steps:
            return
        wanted_outputs = 1 + len(self._STATES)
        call, names = recurrent_call(self._KERNEL, self._arguments(operands), wanted_outputs)
        parts, given = self._operand_parts(), (*self._STATE_OPERANDS[: len(self._STATES)], LENGTHS)
        where: list[str | int | None] = []
        for operand in names[1:]:
            if operand in parts:
                where += [name + end for end in suffixes for name in parts[operand]]
            elif operand in given:
                where.append(given.index(operand))
            else:
                where.append(None)
        _known_steps[form] = call, where

    def _run_again(
        self,
        suffixes: Sequence[str],
        X: Tensor,
        states: Sequence[Tensor | None],
        lengths: Tensor | None = None,
    ) -> States | None:
        """Return the kernel's results for a call that is like an earlier one; None if it is not."""
        known = _known_steps.get(self._form(suffixes, lengths is not None))
        if known is None:
            return None
        call, where = known
        tensors: list[Tensor | None] = [X]
        # a copy, because the caller may change lengths before the backward
        given = (*states, None if lengths is None else lengths.clone())
        for place in where:
            if isinstance(place, str):
                tensors.append(parameter_of(self, place))
            else:
                tensors.append(None if place is None else given[place])
        return call.repeated(tensors)

    def _states_of(self, hx: Any) -> Sequence[Tensor | None] | None:
        """Return hx as a sequence of states, all of them None for None; None where it is no such sequence."""
        count = len(self._STATES)
        if hx is None:
            return (None,) * count
        states = hx if count > 1 else (hx,)
        return states if isinstance(states, tuple | list) and len(states) == count else None

    def _autocast(self, operands: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """Convert under autocast to the dtype of PyTorch's results: the states', or autocast's.

        No float64 becomes autocast's.
        """
        if self._LOWERED:
            device = operands["X"].device.type
            return {name: lowered(operand, device) for name, operand in operands.items()}
        return {name: operand.to(dtype) for name, operand in operands.items()}

    def _check_input(self, X: Tensor, weight: Tensor) -> None:
        if X.shape[-1] != self.input_size:
            raise RuntimeError(
                f"{self._NAME}: input.size(-1) is {X.shape[-1]}, expected input_size = {self.input_size}"
            )
        if X.dtype != weight.dtype and not autocasts(X):
            other = f" or model.to({X.dtype})" if X.is_floating_point() else ""
            raise ValueError(
                f"{self._NAME}: input has dtype {X.dtype}, expected that of the weights, {weight.dtype}; "
                f"convert {'one: ' if other else ''}input.to({weight.dtype}){other}"
            )

    def _split(self, hx: Any, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> States | None:
        """Return hx as a tuple of states, where they have the shapes and the dtype; None for None."""
        if hx is None:
            return None
        states = (hx,) if len(self._STATES) == 1 else hx
        if not isinstance(states, tuple | list) or len(states) != len(self._STATES):
            raise TypeError(f"{self._NAME}: hx is {type_of(hx)}, expected ({', '.join(self._STATES)})")
        for name, state, expected in zip(self._STATES, states, shapes, strict=True):
            if not isinstance(state, Tensor):
                raise TypeError(f"{self._NAME}: {name} is {type_of(state)}, expected torch.Tensor")
            if state.shape != expected:
                raise RuntimeError(
                    f"{self._NAME}: {name} has shape {tuple(state.shape)}, expected {tuple(expected)}"
                )
            if state.dtype != dtype and not autocasts(state):
                raise RuntimeError(
                    f"{self._NAME}: {name} has dtype {state.dtype}, expected that of input, {dtype}"
                )
        return tuple(states)

    def _join(self, states: States) -> Any:
        """Return states as PyTorch's module does: one alone as it is."""
        return states if len(self._STATES) > 1 else states[0]


_OF_PYTORCH = (
    "input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional", "proj_size",
    "device", "dtype",
)  # fmt: skip


class Layers(Recurrent, nn.RNNBase):
    """Layers of one or two directions over sequences, in the place of a module over `torch.nn.RNNBase`.

    No subclasses of `torch.nn.LSTM` and `torch.nn.GRU`: `torch.compile` leaves these out of its graphs.
    """

    _STATE_OPERANDS = ("initial_h", "initial_c")
    save: str | int = "all"
    recurrent_dropout: float = 0.0
    weight_ih_l0: Tensor

    def _begin(self, mode: str, given: Mapping[str, Any]) -> None:
        """Build PyTorch's module from a constructor's arguments, and keep the options."""
        # by its name, so that a class of both this and torch.nn.LSTM can be made
        nn.RNNBase.__init__(self, mode, **{name: given[name] for name in _OF_PYTORCH if name in given})
        self._set_options(given)

    def _set_options(self, given: Mapping[str, Any]) -> None:
        check_save(self._NAME, given["save"])
        dropped = given.get("recurrent_dropout", 0.0)
        if not _is_share(dropped) or dropped == 1:
            raise ValueError(
                f"{self._NAME}: recurrent_dropout is {dropped!r}, expected a number of at least 0 and below 1"
            )
        super()._set_options(given)

    def _gradient_attributes(self) -> dict[str, Any]:
        return super()._gradient_attributes() | {"save": self.save}

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
            Initial state, of an LSTM the pair (h_0, c_0); (num_layers·D, N, H), without N for a single
            sequence; default zeros.
        lengths : Tensor or sequence of int, optional
            Length of each sequence in a padded `input`, (N,), from 0 to T. The padding after the end has
            no effect, the output is zero there, and the final states are those at the end.
        reset : Tensor or PackedSequence, optional
            Booleans (T, N), (N, T) where `batch_first`, (T,) for a single sequence: before these steps the
            state starts at zero, in both directions, as at the first step of an episode. For a packed
            `input` they are packed in the same way.

        Returns
        -------
        output, h_n or (h_n, c_n)
            As PyTorch's module returns them; a packed `output` where `input` is packed.
        cells
            With ``return_cell_states=True``: the cell states of the last layer, laid out as `output`.
        """
        if isinstance(input, Proxy):
            return as_node(self, input, hx, lengths, reset)
        if isinstance(input, PackedSequence):
            if lengths is not None:
                raise ValueError(
                    f"{self._NAME}: lengths is given, but input is a PackedSequence, which has its own"
                )
            return self._forward_packed(input, hx, reset)
        results = self._repeated(input, hx, lengths, reset)
        return self._checked(input, hx, lengths, reset) if results is None else results

    def _repeated(
        self,
        input: Tensor,  # noqa: A002
        hx: Any,
        lengths: Any,
        reset: Any,
    ) -> tuple[Any, ...] | None:
        """Return the results of a call that is like an earlier one, and so needs no checks; else None."""
        if self.num_layers > 1 or is_followed():
            return None
        if not isinstance(input, Tensor) or input.is_nested or input.dim() != 3:
            return None
        states = self._states_of(hx)
        if states is None:
            return None
        X = input.transpose(0, 1) if self.batch_first else input
        lengths = self._lengths_tensor(lengths, X, in_time_major(reset, False, self.batch_first))
        results = self._repeated_layer(self._suffixes(), X, states, lengths)
        if results is None:
            return None
        (output,), finals = results
        return output.transpose(0, 1) if self.batch_first else output, self._join(finals)

    def _repeated_layer(
        self, suffixes: Sequence[str], X: Tensor, states: Sequence[Tensor | None], lengths: Tensor | None
    ) -> tuple[States, States] | None:
        """Return the sequences and final states of a layer whose call is like an earlier one; else None."""
        if not self._is_plain():
            return None
        results = self._run_again(suffixes, X, states, lengths)
        if results is None:
            return None
        end = 1 + len(self._STATES)
        return self._over_time(results[:1]), results[1:end]

    def _is_plain(self) -> bool:
        """Tell whether layers draw nothing, return what PyTorch's do, and are not asked for samples."""
        draws = self.training and self.recurrent_dropout
        return not (draws or self._sequences() > 1 or any(self._shares()) or collecting.get() is not None)

    def _checked(self, input: Tensor, hx: Any, lengths: Any, reset: Any) -> tuple[Any, ...]:  # noqa: A002
        """Run the layers with all checks."""
        single = is_single(self._NAME, input, 2, "torch.Tensor or PackedSequence")
        X = input.unsqueeze(1) if single else input.transpose(0, 1) if self.batch_first else input
        self._check_input(X, parameter_of(self, "weight_ih_l0"))
        states = self._split(hx, self._state_shapes(*(() if single else (X.shape[1],))), X.dtype)
        if single and states is not None:
            states = tuple(state.unsqueeze(1) for state in states)
        lengths = self._lengths_tensor(lengths, X, in_time_major(reset, single, self.batch_first))
        sequences, finals = self._run_layers(X, lengths, states)
        if single:
            sequences, finals = (tuple(x.squeeze(1) for x in part) for part in (sequences, finals))
        elif self.batch_first:
            sequences = tuple(x.transpose(0, 1) for x in sequences)
        output, *more = sequences
        return output, self._join(finals), *more

    def flatten_parameters(self) -> None:
        """Do nothing: only cuDNN needs its weights in one block of memory, xpgrad's kernels do not."""

    def _attributes(self) -> dict[str, Any]:
        direction = "bidirectional" if self.bidirectional else "forward"
        return super()._attributes() | {"direction": direction}

    def _smallest_operands(self) -> list[np.ndarray]:
        weights = np.zeros((self._directions(), len(self._GATE_ORDER), 1))
        return [np.zeros((1, 1, 1)), weights, weights]

    def _state_shapes(self, *batch: int) -> list[tuple[int, ...]]:
        return [(self.num_layers * self._directions(), *batch, size) for size in self._state_sizes()]

    def _state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size,) * len(self._STATES)

    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _suffixes(self) -> list[str]:
        ends = ["", "_reverse"][: self._directions()]
        return [f"_l{layer}{end}" for layer in range(self.num_layers) for end in ends]

    def _lengths_tensor(self, lengths: Any, X: Tensor, reset: Any = None) -> Tensor | None:
        """Return lengths, with resets, as a tensor beside X (T, N, I); the kernel says what is wrong."""
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
        """Run the layers over the padded form of a packed sequence, its sequences from long to short."""
        data, batch_sizes, sorted_indices, unsorted_indices = packed
        if data.dim() != 2:
            raise RuntimeError(f"{self._NAME}: input.data has {data.dim()} dimensions, expected 2")
        self._check_input(data, parameter_of(self, "weight_ih_l0"))
        states = self._split(hx, self._state_shapes(int(batch_sizes[0])), data.dtype)
        if states is not None and sorted_indices is not None:
            states = tuple(state.index_select(1, sorted_indices) for state in states)
        if (samples := collecting.get()) is not None:
            samples.order = unsorted_indices
        packing = PackedRows(packed)
        lengths = packing.lengths if reset is None else self._packed_resets(packed, packing, reset)
        in_rows = reset is None and self._takes_rows(packing, data, states or ())
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
        """Return the lengths of a packed input with the resets that are packed in the same way."""
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
        """Tell whether the layers run on the rows of a packed sequence as they are."""
        draws = self.recurrent_dropout and self.training
        if draws or any(self._shares()) or self._sequences() > 1 or self.save != "all":
            return False
        parameters = [x for x in parameters_in(self) if x is not None]
        if autocasts(data) or collecting.get() is not None or has_expanded(parameters):
            return False
        return are_rows_taken(packing, [data, *states, *parameters])

    def _run_layers(
        self,
        X: Tensor,
        lengths: Tensor | None,
        states: States | None,
        packing: PackedRows | None = None,
        each: list[States] | None = None,
    ) -> tuple[States, States]:
        """Run the layers one after the other on a (T, N, I) input, which may come from a packing.

        Return the last layer's sequences, its output first, and the final states of all. An input of two
        axes holds the rows of the packing, and so does the output. `each` gets the sequences of each layer.
        """
        finals = []
        sequences: States = (X,)
        suffixes, D = self._suffixes(), self._directions()
        for layer in range(self.num_layers):
            X = sequences[0]
            if layer and self.dropout and self.training:
                X = _dropout(X, self.dropout, packing)
            rows = slice(layer * D, (layer + 1) * D)
            initial = [state[rows] for state in states or ()]
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
        """Run layers of one direction, and return their states at all steps beside the output.

        X is (N, T, I) and reset (N, T), whatever `batch_first` says, and so is the output. Of each state
        there is a tensor (T, N, H) for each layer.
        """
        X = X.transpose(0, 1)
        layers = copy.copy(self)  # with the same parameters
        layers._keep_states()
        lengths = self._lengths_tensor(None, X, reset.T)
        each: list[States] = []
        layers._run_layers(X, lengths, hx, each=each)
        return each[-1][0].transpose(0, 1), list(zip(*each, strict=True))

    def _keep_states(self) -> None:
        """Return all states of a layer as sequences: a first one is the output."""

    def _run_rows(
        self, suffixes: Sequence[str], X: Tensor, packing: PackedRows, states: Sequence[Tensor]
    ) -> tuple[States, States]:
        """Run all directions of one layer on rows of a packed sequence."""
        initial = dict(zip(self._STATE_OPERANDS, states, strict=False))
        operands = {"X": X, **self._weights(suffixes), **initial, "sequence_lens": packing.lengths}
        wanted_outputs = 1 + len(self._STATES)
        H_all, *finals = run_packed(self._KERNEL, self._arguments(operands), packing, wanted_outputs)
        return (H_all,), tuple(finals)

    def _run_layer(
        self, suffixes: Sequence[str], X: Tensor, lengths: Tensor | None, states: Sequence[Tensor]
    ) -> tuple[States, States]:
        """Run all directions of one layer: its sequences and its final states."""
        if self.num_layers > 1 and not is_followed():
            repeated = self._repeated_layer(suffixes, X, states or (None,) * len(self._STATES), lengths)
            if repeated is not None:
                return repeated
        weights, masks = self._weights(suffixes), self._masks(X)
        if not has_expanded(parameters_in(self)):
            if self.save == "all" and not is_followed() and self._is_plain():
                self._remember({"X": X, **weights, LENGTHS: lengths}, suffixes)
            return self._run_layer_on(weights, X, lengths, states, masks)
        layout, parameters = flattened(weights.values())
        count = len(states)
        own = count + len(masks)
        arrays = [X, lengths, *states, *masks.values(), *parameters]

        def run(X: Tensor, lengths: Tensor | None, *rest: Tensor) -> States:
            drawn = dict(zip(masks, rest[count:own], strict=True))
            given = dict(zip(weights, grouped(layout, rest[own:]), strict=True))
            sequences, finals = self._run_layer_on(given, X, lengths, rest[:count], drawn)
            return *sequences, *finals

        axes: list[int | None] = [1, 0, *(1 for _ in states), *(x.dim() - 2 for x in masks.values())]
        axes += [None] * len(parameters)
        kept = self._sequences()
        results = run_expanded(self._NAME, run, arrays, axes, (1,) * (kept + len(self._STATES)))
        return results[:kept], results[kept:]

    def _run_layer_on(
        self,
        weights: Mapping[str, Any],
        X: Tensor,
        lengths: Tensor | None,
        states: Sequence[Tensor],
        masks: Mapping[str, Tensor],
    ) -> tuple[States, States]:
        """Run all directions of one layer with weights and masks by ONNX's names."""
        initial = dict(zip(self._STATE_OPERANDS, states, strict=False))
        operands = {"X": X, **weights, **initial, **masks}
        if autocasts(X):
            operands = self._autocast(joined_by_name(operands), states[0].dtype if states else X.dtype)
        count = len(self._STATES)
        H_all, *rest = self._run_kernel({**operands, "sequence_lens": lengths}, count + self._sequences())
        return self._over_time((H_all, *rest[count:])[: self._sequences()]), tuple(rest[:count])

    def _over_time(self, sequences: States) -> States:
        """Return the kernel's sequences (T, D, N, width) as PyTorch's (T, N, D·width)."""
        if self.bidirectional:
            return tuple(x.transpose(1, 2).flatten(2) for x in sequences)
        return tuple(x.squeeze(1) for x in sequences)

    def _sequences(self) -> int:
        """Return how many sequences the module returns: its output, and more where asked for."""
        return 1

    def _masks(self, X: Tensor) -> dict[str, Tensor]:
        """Return the masks of a layer by the names of the kernel's operands, for X (T, N, I).

        In training they are drawn, from PyTorch's generator; else a share to keep is its expectation, and
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

    def _shares(self) -> tuple[float, ...]:
        """Return zoneout's probabilities: of the cell state where there is one, and of the hidden state."""
        return (0.0,)


class CellModule(Recurrent, nn.RNNCellBase):
    """One step, in the place of a module over `torch.nn.RNNCellBase`."""

    _STATE_OPERANDS = ("H", "C")

    def forward(self, input: Tensor, hx: Any = None) -> Any:  # noqa: A002, PyTorch's name for it
        """Run one step.

        Parameters
        ----------
        input : Tensor
            (N, I), or (I,) for a single sequence.
        hx : Tensor or tuple of two tensors, optional
            State before the step, of an LSTM the pair (h_0, c_0); (N, H), without N for a single sequence;
            default zeros.

        Returns
        -------
        Tensor or tuple of two tensors
            State after the step, as `hx`.
        """
        if isinstance(input, Proxy):
            return as_node(self, input, hx)
        states = self._repeated(input, hx)
        return self._checked(input, hx) if states is None else self._join(states)

    def _repeated(self, input: Tensor, hx: Any) -> States | None:  # noqa: A002
        """Return the states after a step that is like an earlier one, and so needs no checks; else None."""
        if not isinstance(input, Tensor) or is_followed():
            return None
        states = self._states_of(hx)
        if hx is None and not input.is_nested and input.dim() == 2:
            states = self._zero_states(input)
        return None if states is None else self._run_again(self._suffixes(), input, states)

    def _checked(self, input: Tensor, hx: Any) -> Any:  # noqa: A002
        """Run a step with all checks."""
        single = is_single(self._NAME, input, 1)
        weights = self._weights(self._suffixes())
        self._check_input(input, weights["W"])
        shape = (*input.shape[:-1], self.hidden_size)
        states = self._split(hx, [shape] * len(self._STATES), input.dtype)
        if states is None:
            states = self._zero_states(input)
        rows = [x.unsqueeze(0) if single else x for x in (input, *states)]
        run = self._run_expanded if has_expanded(parameters_in(self)) else self._run_on
        results = run(rows, weights)
        return self._join(tuple(x.squeeze(0) for x in results) if single else results)

    def _zero_states(self, input: Tensor) -> States:  # noqa: A002
        return tuple([input.new_zeros((*input.shape[:-1], self.hidden_size)) for _ in self._STATES])

    def _run_on(self, rows: Sequence[Tensor], weights: Mapping[str, Any]) -> States:
        """Run the step on input and states, with weights by ONNX's names."""
        operands = {**dict(zip(("X", *self._STATE_OPERANDS), rows, strict=False)), **weights}
        if autocasts(rows[0]):
            operands = self._autocast(joined_by_name(operands), rows[-1].dtype)
            return self._run_kernel(operands)
        states = self._run_kernel(operands)
        if not is_followed():
            self._remember(operands, self._suffixes())
        return states

    def _run_expanded(self, rows: Sequence[Tensor], weights: Mapping[str, Any]) -> States:
        """Do the same so that the backward gives each sample's own gradient of the weights."""
        layout, parameters = flattened(weights.values())

        def run(*arrays: Tensor) -> States:
            given = dict(zip(weights, grouped(layout, arrays[len(rows) :]), strict=True))
            return self._run_on(arrays[: len(rows)], given)

        axes = [*(0 for _ in rows), *(None for _ in parameters)]
        output_axes = (0,) * len(self._STATES)
        return run_expanded(self._NAME, run, [*rows, *parameters], axes, output_axes)

    def _directions(self) -> int:
        return 0

    def _suffixes(self) -> list[str]:
        return [""]

    def _smallest_operands(self) -> list[np.ndarray]:
        weights = np.zeros((len(self._GATE_ORDER), 1))
        return [np.zeros((1, 1))] * (1 + len(self._STATES)) + [weights, weights]


def _numbers(x: Tensor | None) -> list[int] | None:
    """Return integers as a list, to compare and to print."""
    return None if x is None else x.tolist()


def _is_share(p: Any) -> bool:
    """Tell whether p is a probability."""
    return isinstance(p, int | float) and not isinstance(p, bool) and 0 <= p <= 1


def check_zoneout(operator: str, zoneout: Any, p: Any) -> None:
    """Raise ValueError for an option `zoneout` with a part p that is no probability."""
    if not _is_share(p):
        raise ValueError(f"{operator}: zoneout is {zoneout!r}, expected a number from 0 to 1 for each state")


def _drawn(X: Tensor, p: float, shape: tuple[int, ...]) -> Tensor:
    """Draw ones with the probability p, else zeros, in the dtype of X."""
    return (torch.rand(shape, device=X.device) < p).to(X.dtype)


def _dropout(X: Tensor, p: float, packing: PackedRows | None) -> Tensor:
    """Drop outputs of a layer, with the random numbers that PyTorch would draw for the same input."""
    if packing is None or X.dim() == 2:
        return nn.functional.dropout(X, p)
    return packing.padded(nn.functional.dropout(packing.rows(X), p))
