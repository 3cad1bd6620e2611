"""A layer over sequences with an operator's own parameters: of a user's cell or of layer normalization."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from xpgrad._operators.words import TimeDirection
from xpgrad_torch._autocast import autocasts
from xpgrad_torch._fx import Proxy, Unscripted, as_node
from xpgrad_torch._kernel import is_single, type_of
from xpgrad_torch._lengths import in_time_major, lengths_tensor, name_lengths, with_resets
from xpgrad_torch._memory import check_save
from xpgrad_torch._opacus import Sampled
from xpgrad_torch._recurrent import over_time, turned


def check_sizes(operator: str, input_size: Any, hidden_size: Any, heads: Any = 1) -> None:
    """Raise ValueError for a size that is no integer from 1 on, or for heads that do not divide H."""
    for name, size in {"input_size": input_size, "hidden_size": hidden_size, "heads": heads}.items():
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{operator}: {name} is {size!r}, expected an integer from 1 on")
    if hidden_size % heads:
        raise ValueError(f"{operator}: hidden_size is {hidden_size}, expected a multiple of heads = {heads}")


class SequenceLayer(Unscripted, Sampled, nn.Module):
    """A layer in one or two directions whose parameters have the operator's names and shapes.

    `shapes` are the parameters' shapes without the axis of directions, in the order in which they are drawn;
    None for a parameter that this layer lacks. For the other arguments see `CellLayer`.
    """

    _SAVES_STEPS: ClassVar[bool] = False  # whether `save` may be a number of steps
    W: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        shapes: Mapping[str, tuple[int, ...] | None],
        *,
        bidirectional: bool,
        batch_first: bool,
        save: str | int,
        device: Any,
        dtype: Any,
    ) -> None:
        super().__init__()
        check_save(type(self).__name__, save, self._SAVES_STEPS)
        self.input_size, self.hidden_size = input_size, hidden_size
        self.bidirectional, self.batch_first, self.save = bidirectional, batch_first, save
        if "B" in shapes:
            self.bias = shapes["B"] is not None
        D, self._own = (2 if bidirectional else 1), tuple(shapes)
        for name, shape in shapes.items():
            empty = None if shape is None else torch.empty((D, *shape), device=device, dtype=dtype)
            self.register_parameter(name, None if empty is None else nn.Parameter(empty))
        self.reset_parameters()

    @property
    def _direction(self) -> TimeDirection:
        """The operator's attribute `direction`."""
        return "bidirectional" if self.bidirectional else "forward"

    def _kernel_parameters(self) -> list[nn.Parameter]:
        return [getattr(self, name) for name in self._own if getattr(self, name) is not None]

    def reset_parameters(self) -> None:
        """Draw the parameters as `torch.nn.LSTM` does, uniform between -1/sqrt(H) and 1/sqrt(H)."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        """Return the constructor's arguments."""
        extra = ", bidirectional=True" if self.bidirectional else ""
        extra += ", batch_first=True" if self.batch_first else ""
        extra += "" if getattr(self, "bias", True) else ", bias=False"
        return f"{self.input_size}, {self.hidden_size}{extra}"

    def forward(
        self,
        input: Tensor,  # noqa: A002, PyTorch's name for it
        hx: Tensor | Sequence[Tensor | None] | None = None,
        lengths: Any = None,
        reset: Tensor | None = None,
        **inputs: Tensor,
    ) -> tuple[Tensor, Any]:
        """Run the layer over a batch of sequences.

        Parameters
        ----------
        input : Tensor
            (T, N, I), (N, T, I) where `batch_first`, or (T, I) for a single sequence.
        hx : Tensor or sequence of Tensor, optional
            Initial values (D, N, H) of the states that the step reads, several in a sequence; without N
            for a single sequence; default zeros.
        lengths : Tensor or sequence of int, optional
            Length of each sequence, (N,).
        reset : Tensor, optional
            Booleans (T, N), (N, T) where `batch_first`, or (T,): the states start at zero before these steps.
        **inputs : Tensor
            Further inputs of the step by name, laid out as `input`.

        Returns
        -------
        output : Tensor
            The first state over time, (T, N, D·H), (N, T, D·H) or (T, D·H).
        finals : Tensor or tuple of Tensor
            The states at the sequences' ends, (D, N, H) or (D, H); a single state without a tuple.
        """
        if isinstance(input, Proxy):
            return as_node(self, input, hx, lengths, reset, **inputs)
        self._check_inputs(inputs)
        name = type(self).__name__
        single = is_single(name, input, 2)
        X = input.unsqueeze(1) if single else input.transpose(0, 1) if self.batch_first else input
        given = [hx] if isinstance(hx, Tensor) else hx
        initial = None if given is None else [s if s is None or not single else s.unsqueeze(1) for s in given]
        if autocasts(X):
            dtype = next(self.parameters()).dtype
            X, inputs = X.to(dtype), {name: x.to(dtype) for name, x in inputs.items()}
            initial = None if initial is None else [s if s is None else s.to(dtype) for s in initial]
        layout = single, self.batch_first
        try:
            lengths = lengths_tensor(name, "lengths", lengths)
            lengths = with_resets(name, X, lengths, in_time_major(reset, 1, *layout), 0)
            others = {key: in_time_major(x, 2, *layout) for key, x in inputs.items()}
            sequence, finals = self._run(X, initial, lengths, **others)
        except (TypeError, ValueError) as error:
            name_lengths(error, name)
            raise
        output = over_time(sequence)
        if single:
            output, finals = turned(output, "squeeze", 1), tuple(turned(x, "squeeze", 1) for x in finals)
        elif self.batch_first:
            output = turned(output, "transpose", 0, 1)
        return output, finals if len(finals) > 1 else finals[0]

    def _input_names(self) -> tuple[str, ...]:
        """Return the names of the step's further inputs."""
        return ()

    def _check_inputs(self, inputs: Mapping[str, Any]) -> None:
        name, own = type(self).__name__, self._input_names()
        if set(inputs) != set(own):
            expected = f"those of {', '.join(own)}" if own else "none"
            raise TypeError(
                f"{name}: inputs are {', '.join(inputs) or 'none'}, expected {expected} beside input"
            )
        for key, x in inputs.items():
            if not isinstance(x, Tensor):
                raise TypeError(f"{name}: {key} is {type_of(x)}, expected torch.Tensor")

    @abstractmethod
    def _run(
        self, X: Tensor, initial: Sequence[Tensor | None] | None, lengths: Any, **inputs: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the first state over time (T, D, N, H), and all states at the ends."""
