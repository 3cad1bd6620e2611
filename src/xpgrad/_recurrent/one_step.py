"""A single step of a recurrent operator: a sequence of length 1, with its own names and shapes."""

from collections.abc import Mapping, Sequence
from typing import Any

from xpgrad._calls.plans import Asked, Operation
from xpgrad._operators.arguments import check_arrays, check_given, check_rank, check_shape
from xpgrad._operators.axes import shape_of
from xpgrad._operators.units import Unit
from xpgrad._recurrent.checked_call import PARAMETERS


class OneStep:
    """The single step of a declared operator, and its gradient, with the named tuples of their results."""

    def __init__(
        self, unit: Unit, forward: Operation, backward: Operation, result: type, gradients: type
    ) -> None:
        self._unit, self._forward, self._backward = unit, forward, backward
        self._result, self._gradients = result, gradients
        upper = [name.upper() for name in unit.states]
        # From the sequence's names to the step's: initial states, cotangents of final states, arrays that the
        # gradient takes, and arrays that only a sequence's gradient reads: any array of their shape will do.
        self._states = {f"initial_{name}": name.upper() for name in unit.states}
        self._cotangents = {f"grad_{own}_t": f"grad_{own}" for own in upper}
        self._saved = {name: own for own, name in unit.step_saved.items()}
        self._unread = {f"{own}_all": own for own in upper if f"{own}_all" not in self._saved}
        self._results = [*(f"{own}_t" for own in upper), *unit.kept]
        self._names = {**self._states, **self._cotangents, **self._saved, **self._unread}

    def operations(self) -> tuple[Operation, Operation]:
        """The step and its gradient."""
        name, arguments = self._unit.step_name, self._unit.step_arguments
        optional = tuple(name for name in arguments if name in self._backward.optional)
        sized = ("X", *self._states.values())
        more = (*self._saved.values(), *self._cotangents.values(), "sample_weight")
        gradient = Operation(
            f"{name}_grad", self._compute_gradients, (*arguments, *more), arguments, optional, (*sized, *more)
        )
        return Operation(name, self._compute, arguments, sized=sized), gradient

    def _compute(self, asked: Asked, **options: Any) -> Any:
        """Check and compute, or record: the step's results."""
        self._check(asked, (), {})
        sequence = self._sequence(asked, self._forward.arrays)
        out = self._forward.compute(
            sequence, direction="forward", layout=0, cell_names=self._names, **options
        )
        found = (getattr(out, name) for name in self._results)
        return self._result(*(x[0, ...] if x.ndim == 3 else x[0, 0, ...] for x in found))

    def _compute_gradients(
        self, asked: Asked, *, wanted: frozenset[str], per_sample: bool | str, **options: Any
    ) -> Any:
        """Check and compute, or record: a gradient for each argument, None if it is not wanted."""
        self._check(asked, tuple(self._saved.values()), self._unit.step_cotangents)
        of_sequence = {own: name for name, own in self._states.items()}
        grads = self._backward.compute(
            self._sequence(asked, self._backward.arrays), direction="forward", layout=0,
            wanted=frozenset(of_sequence.get(name, name) for name in wanted), per_sample=per_sample,
            cell_names=self._names, **options,
        )  # fmt: skip
        by_name = dict(zip(self._backward.graded, grads, strict=True))
        arguments = self._unit.step_arguments
        return self._gradients(
            *(_of_one_step(name, by_name[of_sequence.get(name, name)], per_sample) for name in arguments)
        )

    def _check(self, asked: Asked, saved: Sequence[str], cotangents: Mapping[str, str]) -> None:
        """Check the arrays of a step, which have no axes of time and direction."""
        operator, arrays, axes = asked.operator, asked.arrays, self._unit.step_axes
        needed = ("X", "W", "R", *self._states.values(), *saved)
        check_given(operator, {name: arrays[name] for name in needed})
        own = {name: axes[name] for name in (*needed, *self._unit.vectors)}
        own |= {name: axes[output] for output, name in cotangents.items()}
        check_arrays(operator, {name: arrays[name] for name in own})
        for name in ("X", "W", "R"):
            check_rank(operator, name, arrays[name], own[name].replace(" ", ", "))
        sizes = {**dict(zip("NI", arrays["X"].shape, strict=True)), "H": arrays["R"].shape[1]}
        for name, symbols in own.items():
            shown = symbols.replace(" ", ", ") if " " in symbols else f"{symbols},"
            check_shape(operator, name, arrays[name], shown, shape_of(symbols, sizes))

    def _sequence(self, asked: Asked, names: Sequence[str]) -> Asked:
        """The step's call as a call for a sequence of length 1, with the sequence's names and axes."""
        own = self._names
        sequence: dict[str, Any] = {}
        for name in names:
            array: Any = asked.arrays.get(own.get(name, name))
            over_time = name in self._saved or name in self._unread
            more = 2 if over_time else 0 if name == "sample_weight" else 1
            for _ in range(0 if array is None else more):
                array = array[None, ...]
            sequence[name] = array
        return asked._replace(arrays=sequence)


def _of_one_step(name: str, grad: Any, per_sample: bool | str) -> Any:
    """A gradient without its leading axis of length 1; None for None."""
    if grad is None:
        return None
    return grad[:, 0, ...] if per_sample and name in PARAMETERS else grad[0, ...]
