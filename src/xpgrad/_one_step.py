"""A single step of a recurrent operator: a sequence of length 1, with its own names and shapes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from xpgrad._arguments import check_arrays, check_given, check_rank, check_shape
from xpgrad._recurrent import PARAMETERS, units
from xpgrad.engine import Recorder


class OneStep(NamedTuple):
    """The differences between a step and a sequence of its operator.

    Parameters
    ----------
    forward, backward : callable
        Compute the operator and its gradient over sequences, ``(operator, arrays, recorder, **options)``.
    gates : int
        How many gates.
    arguments, sequence_arguments : tuple of str
        The arguments that have gradients, in the order of the results: the step's names, and the sequence's.
    operands, gradient_operands : tuple of str
        The arrays of ``forward`` and of ``backward``, by the sequence's names.
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

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    gates: int
    arguments: tuple[str, ...]
    sequence_arguments: tuple[str, ...]
    operands: tuple[str, ...]
    gradient_operands: tuple[str, ...]
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

    def compute(
        self, operator: str, arrays: Mapping[str, Any], recorder: Recorder | None, **options: Any
    ) -> Any:
        """Check and compute, or with a recorder record: what ``forward`` returns."""
        self._check(operator, arrays, {}, ())
        return self.forward(
            operator, self._sequence(arrays, self.operands), recorder, direction="forward", layout=0,
            cell_names=self.names, **options,
        )  # fmt: skip

    def gradients(
        self, operator: str, arrays: Mapping[str, Any], recorder: Recorder | None, *,
        wanted: frozenset[str], per_sample: bool | str, **options: Any,
    ) -> list[Any]:  # fmt: skip
        """Check and compute, or record: a gradient for each argument, None if it is not wanted."""
        self._check(operator, arrays, dict(self.saved.values()), tuple(self.cotangents.values()))
        of_sequence = {own: name for name, own in self.states.items()}
        grads = self.backward(
            operator, self._sequence(arrays, self.gradient_operands), recorder, direction="forward", layout=0,
            wanted=frozenset(of_sequence.get(name, name) for name in wanted), per_sample=per_sample,
            cell_names=self.names, **options,
        )  # fmt: skip
        by_name = dict(zip(self.sequence_arguments, grads, strict=True))
        return [
            _of_one_step(name, by_name[of_sequence.get(name, name)], per_sample) for name in self.arguments
        ]

    def _check(
        self, operator: str, arrays: Mapping[str, Any], saved: Mapping[str, int], cotangents: Sequence[str]
    ) -> None:
        """Check what is special to the arrays of a step: they have no axes of time and direction."""
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

    def _sequence(self, arrays: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """The step's arrays as those of a sequence of length 1, by its names; None for omitted ones.

        Arrays over time get axes of time and of direction.
        """
        own = self.names
        sequence: dict[str, Any] = {}
        for name in names:
            array: Any = arrays.get(own.get(name, name))
            over_time = name in self.saved or name in self.unread
            more = 2 if over_time else 0 if name == "sample_weight" else 1
            for _ in range(0 if array is None else more):
                array = array[None, ...]
            sequence[name] = array
        return sequence


def _of_one_step(name: str, grad: Any, per_sample: bool | str) -> Any:
    """A gradient without its leading axis of length 1; None for None."""
    if grad is None:
        return None
    return grad[:, 0, ...] if per_sample and name in PARAMETERS else grad[0, ...]
