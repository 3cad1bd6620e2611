"""A single step of a recurrent operator: a sequence of length 1, with its own names and shapes."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from xpgrad._calls.operation import Operation
from xpgrad._calls.plans import Asked
from xpgrad._operators.arguments import check_arrays, check_given, check_rank, check_shape
from xpgrad._operators.units import Unit
from xpgrad._recurrent.call import PARAMETERS, units


class OneStep(NamedTuple):
    """The differences between a step and a sequence of its operator.

    Parameters
    ----------
    operator : str
        The step's name.
    forward, backward : Operation
        The operator and its gradient over sequences.
    gates : int
        How many gates.
    arguments : tuple of str
        The step's arguments, which all have gradients, in the order of the results.
    results : mapping of str to str
        The step's results, and the names that the sequence has for them.
    kinds : (type, type)
        The named tuples of the step's results and of its gradients.
    parameters : mapping of str to str
        Vectors among the arguments, with lengths such as "8H".
    states, cotangents : mapping of str to str
        Initial states and cotangents of final ones: the sequence's names, and the step's.
    saved : mapping of str to (str, int)
        Results of the forward that the gradient takes: the sequence's name, the step's, the width in units of
        H.
    unread : mapping of str to str
        Arrays that only a sequence's gradient reads, and the step's array that stands in for each.
    """

    operator: str
    forward: Operation
    backward: Operation
    gates: int
    arguments: tuple[str, ...]
    results: Mapping[str, str]
    kinds: tuple[type, type]
    parameters: Mapping[str, str]
    states: Mapping[str, str]
    cotangents: Mapping[str, str]
    saved: Mapping[str, tuple[str, int]]
    unread: Mapping[str, str] = {}

    @property
    def names(self) -> dict[str, str]:
        """The step's names of the sequence's arrays that have another name there."""
        saved = {name: own for name, (own, _) in self.saved.items()}
        return {**self.states, **self.cotangents, **saved, **self.unread}

    def operations(self) -> tuple[Operation, Operation]:
        """The step and its gradient."""
        saved = (own for own, _ in self.saved.values())
        operands = (*self.arguments, *saved, *self.cotangents.values(), "sample_weight")
        optional = tuple(name for name in self.arguments if name in self.backward.optional)
        gradient = Operation(f"{self.operator}_grad", self._gradients, operands, self.arguments, optional)
        return Operation(self.operator, self._compute, self.arguments), gradient

    def _compute(self, asked: Asked, **options: Any) -> Any:
        """Check and compute, or record: the step's results."""
        self._check(asked, {}, ())
        sequence = self._sequence(asked, self.forward.arrays)
        out = self.forward.compute(
            sequence, direction="forward", layout=0, cell_names=self.names, **options
        )  # fmt: skip
        found = (getattr(out, name) for name in self.results.values())
        return self.kinds[0](*(x[0, ...] if x.ndim == 3 else x[0, 0, ...] for x in found))

    def _gradients(
        self, asked: Asked, *, wanted: frozenset[str], per_sample: bool | str, **options: Any
    ) -> Any:
        """Check and compute, or record: a gradient for each argument, None if it is not wanted."""
        self._check(asked, dict(self.saved.values()), tuple(self.cotangents.values()))
        of_sequence = {own: name for name, own in self.states.items()}
        grads = self.backward.compute(
            self._sequence(asked, self.backward.arrays), direction="forward", layout=0,
            wanted=frozenset(of_sequence.get(name, name) for name in wanted), per_sample=per_sample,
            cell_names=self.names, **options,
        )  # fmt: skip
        by_name = dict(zip(self.backward.graded, grads, strict=True))
        return self.kinds[1](
            *(_of_one_step(name, by_name[of_sequence.get(name, name)], per_sample) for name in self.arguments)
        )

    def _check(self, asked: Asked, saved: Mapping[str, int], cotangents: Sequence[str]) -> None:
        """Check what is special to the arrays of a step: they have no axes of time and direction."""
        operator, arrays = asked.operator, asked.arrays
        X, W, R = arrays["X"], arrays["W"], arrays["R"]
        widths = dict.fromkeys(self.states.values(), 1) | dict(saved)
        check_given(operator, {"X": X, "W": W, "R": R} | {name: arrays[name] for name in widths})
        rows = widths | dict.fromkeys(cotangents, 1)
        check_arrays(operator, {name: arrays[name] for name in ("X", "W", "R", *rows, *self.parameters)})
        check_rank(operator, "X", X, "N, I")
        check_rank(operator, "W", W, f"{units(self.gates)}, I")
        check_rank(operator, "R", R, f"{units(self.gates)}, H")
        (N, I), H = X.shape, R.shape[1]
        check_shape(operator, "W", W, f"{units(self.gates)}, I", (self.gates * H, I))
        check_shape(operator, "R", R, f"{units(self.gates)}, H", (self.gates * H, H))
        for name, length in self.parameters.items():
            check_shape(operator, name, arrays[name], f"{length},", (int(length[:-1]) * H,))
        for name, width in rows.items():
            check_shape(operator, name, arrays[name], f"N, {units(width)}", (N, width * H))

    def _sequence(self, asked: Asked, names: Sequence[str]) -> Asked:
        """The step's call as that of a sequence of length 1, by its names; None for omitted arrays.

        Arrays over time get axes of time and of direction.
        """
        own = self.names
        sequence: dict[str, Any] = {}
        for name in names:
            array: Any = asked.arrays.get(own.get(name, name))
            over_time = name in self.saved or name in self.unread
            more = 2 if over_time else 0 if name == "sample_weight" else 1
            for _ in range(0 if array is None else more):
                array = array[None, ...]
            sequence[name] = array
        return asked._replace(arrays=sequence)


def one_step(
    unit: Unit, forward: Operation, backward: Operation, result: type, gradients: type
) -> tuple[Operation, Operation]:
    """The single step of a declared operator, and its gradient; the types are the named tuples of results."""
    states = {name: name.upper() for name in unit.states}
    saved = {name: (own, unit.saved[name]) for own, name in unit.step_saved.items()}
    return OneStep(
        unit.step_name, forward, backward, unit.rows, unit.step_arguments,
        results={f"{own}_next": f"{own}_t" for own in states.values()} | {name: name for name in unit.kept},
        kinds=(result, gradients), parameters=unit.vectors,
        states={f"initial_{name}": own for name, own in states.items()},
        cotangents={f"grad_{own}_t": f"grad_{own}" for own in states.values()}, saved=saved,
        # any array of its shape: one step reads no output
        unread={f"{own}_all": own for own in states.values() if f"{own}_all" not in saved},
    ).operations()  # fmt: skip


def _of_one_step(name: str, grad: Any, per_sample: bool | str) -> Any:
    """A gradient without its leading axis of length 1; None for None."""
    if grad is None:
        return None
    return grad[:, 0, ...] if per_sample and name in PARAMETERS else grad[0, ...]
