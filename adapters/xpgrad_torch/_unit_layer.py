"""A layer over sequences that runs a declared operator; its parameters follow from the declaration."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from torch import Tensor

from xpgrad._operators.units import UNITS, Unit
from xpgrad_torch._docs import layer_docstring
from xpgrad_torch._sequence_layer import SequenceLayer, check_sizes


class UnitLayer(SequenceLayer):
    """A layer that runs one of the functions for recurrent operators.

    A subclass is declared with its `function`. Its docstring has a first line and describes its own
    parameters; the rest follows from the declaration. `heads` is the number of blocks of R.
    """

    _SAVES_STEPS = True

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
        check_sizes(type(self).__name__, input_size, hidden_size, heads)
        sizes = {"I": input_size, "J": hidden_size, "E": hidden_size // heads}
        axes = {name: self._UNIT.axes[name] for name in ("W", "R", "B", *self._UNIT.parameters)}
        shapes = {
            name: _shape(own, sizes, hidden_size) if bias or name != "B" else None
            for name, own in axes.items()
        }
        super().__init__(
            input_size, hidden_size, shapes, bidirectional=bidirectional, batch_first=batch_first, save=save,
            device=device, dtype=dtype,
        )  # fmt: skip

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
            direction=self._direction, **self._attributes(),
        )  # fmt: skip
        return outputs[0], tuple(outputs[1 : 1 + len(states)])


def _shape(axes: str, sizes: dict[str, int], hidden_size: int) -> tuple[int, ...]:
    """Return an operand's shape without the axis of directions."""
    _, *own = axes.split()
    return tuple(
        sizes[axis] if axis in sizes else int(axis) if axis.isdigit() else int(axis[:-1] or 1) * hidden_size
        for axis in own
    )
