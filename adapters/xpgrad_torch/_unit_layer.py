"""One layer over sequences that runs a declared operator: its parameters follow from the declaration."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from torch import Tensor

from xpgrad._operators.units import UNITS, Unit
from xpgrad_torch._docs import layer_docstring
from xpgrad_torch._sequence_layer import SequenceLayer


class UnitLayer(SequenceLayer):
    """A layer on one of the functions for recurrent operators.

    A subclass is declared with its `function`. Its docstring says what it is and describes the attributes of
    its own; the rest follows from the declaration.

    Parameters
    ----------
    input_size, hidden_size, bias, batch_first, bidirectional, device, dtype, save
        As a subclass describes them.
    heads : int
        Into how many parts the columns of R are cut.
    """

    _UNIT: ClassVar[Unit]
    _FUNCTION: ClassVar[Callable[..., tuple[Tensor, ...]]]

    R: Tensor
    B: Tensor | None

    def __init_subclass__(cls, function: Callable[..., tuple[Tensor, ...]] | None = None) -> None:
        super().__init_subclass__()
        if function is None:
            return
        cls._FUNCTION, cls._UNIT = staticmethod(function), UNITS[function.__name__]
        if cls.__doc__ is not None:  # as in Python without docstrings
            cls.__doc__ = layer_docstring(cls.__name__, cls._UNIT, cls.__doc__)

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
        save: str | int = "all",
        heads: int = 1,
    ) -> None:
        self._check_sizes(input_size=input_size, hidden_size=hidden_size)
        sizes = {"I": input_size, "J": hidden_size, "E": hidden_size // heads}
        axes = {name: self._UNIT.axes[name] for name in ("W", "R", "B", *self._UNIT.parameters)}
        shapes = {name: _shape(own, sizes, hidden_size) for name, own in axes.items() if bias or name != "B"}
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
        self.bias = bias
        if not bias:
            self.register_parameter("B", None)

    def extra_repr(self) -> str:
        """Return the constructor's arguments."""
        return super().extra_repr() + ("" if self.bias else ", bias=False")

    def _attributes(self) -> dict[str, Any]:
        """Return the function's own attributes."""
        return {}

    def _input_names(self) -> tuple[str, ...]:
        return tuple(self._UNIT.inputs)

    def _run(
        self, X: Tensor, initial: Sequence[Tensor | None] | None, lengths: Any, **inputs: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        unit = self._UNIT
        states = [None] * len(unit.states) if initial is None else list(initial)
        if len(states) != len(unit.states):
            names = ", ".join(f"{state}_0" for state in unit.states)
            raise ValueError(
                f"{type(self).__name__}: hx has {len(states)} tensors, expected {len(unit.states)}: {names}"
            )
        parameters = {name: getattr(self, name) for name in ("W", "R", "B", *unit.parameters)}
        outputs = type(self)._FUNCTION(
            X=X, **inputs, **parameters, sequence_lens=lengths,
            **dict(zip(unit.initial, states, strict=True)), save=self.save,
            direction="bidirectional" if self.bidirectional else "forward", **self._attributes(),
        )  # fmt: skip
        return outputs[0], tuple(outputs[1 : 1 + len(states)])


def _shape(axes: str, sizes: dict[str, int], hidden_size: int) -> tuple[int, ...]:
    """Return an operand's shape without the axis of directions."""
    _, *own = axes.split()
    return tuple(
        sizes[axis] if axis in sizes else int(axis) if axis.isdigit() else int(axis[:-1] or 1) * hidden_size
        for axis in own
    )
