"""The arguments and results of a cell: names of blocks, states, inputs and saved arrays, and signatures."""

from __future__ import annotations

import inspect
from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

from xpgrad._calls.adapter_calls import PLAIN
from xpgrad._calls.plans import Operation, planned_call
from xpgrad._cells.call import PARAMETERS
from xpgrad._operators.arguments import check_integer, is_list
from xpgrad._operators.axes import gradient_name
from xpgrad._operators.types import Array
from xpgrad._recurrent.plan import ForwardPlan, capital

_OPTIONS = ("direction", "layout", "reset", "per_sample", "sample_weight", "wrt")


class CellArrays:
    """The names of a cell's arrays, which follow from its blocks, states and inputs, and its results' types.

    `saved` has the outputs that the gradient takes, with their widths: k for k * H columns, -k for k.
    `cotangents` has the gradient's name for the cotangent of each output, `ends` the names for final states.
    `arguments` are the operands with a gradient, in the order of the gradient's results.
    """

    def __init__(
        self, name: str, states: Sequence[str], blocks: Mapping[str, Sequence[str]],
        inputs: Mapping[str, Sequence[str]], plan: ForwardPlan,
    ) -> None:  # fmt: skip
        parameters = tuple(kind for kind in PARAMETERS if blocks[kind])
        self.carried = tuple(states[k] for k in plan.read)
        self.initial = tuple(f"initial_{state}" for state in self.carried)
        over_time, ends = (tuple(f"{capital(state)}_{kind}" for state in states) for kind in ("all", "t"))
        kept = {
            own: -len(buffers) if buffers[0].of_row else buffers[0].blocks
            for own, buffers in plan.kept.items()
        }
        self.saved = dict.fromkeys(over_time, 1) | kept
        self.cotangents = {own: f"grad_{own}" for own in (*over_time, *ends)}
        self.ends = tuple(f"grad_{end}" for end in ends)
        self.operands = ("X", *parameters, "sequence_lens", *self.initial, *inputs)
        self.arguments = ("X", *parameters, *inputs, *self.initial)
        self.gradient_operands = (*self.operands, *self.saved, *self.cotangents.values(), "sample_weight")
        known = ("X", *PARAMETERS, "sequence_lens", *self.initial, *self.saved, *_OPTIONS)
        of_states = [gradient_name(state) for state in self.initial]
        for own in inputs:
            if own in (*known, *self.cotangents.values()) or gradient_name(own) in of_states:
                raise ValueError(f"{name}: inputs has {own!r}, expected a name of no other argument")
        title = capital(name)
        self.result: Any = namedtuple(f"{title}Forward", (*over_time, *ends, *kept))  # type: ignore[misc]
        grads = map(gradient_name, self.arguments)
        self.gradients: Any = namedtuple(f"{title}Grads", grads)  # type: ignore[misc]
        given = ("X", *parameters)
        self.signature = _signature(given, ("sequence_lens", *self.initial), tuple(inputs))
        keywords = (*self.cotangents.values(), "sequence_lens", *self.initial)
        self.gradient_signature = _signature(given, (), (*inputs, *self.saved), keywords, gradient=True)


class CellGradient:
    """A cell's gradient; `Cell` has its arguments and results."""

    takes_foreign = True

    def __init__(self, operation: Operation, signature: inspect.Signature) -> None:
        self._operation, self.__name__, self.__signature__ = operation, operation.operator, signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return planned_call(self._operation, bound(self.__name__, self.__signature__, args, kwargs))

    def __repr__(self) -> str:
        return f"{self.__name__}{_without_types(self.__signature__)}"


def block_names(operator: str, kind: str, names: Any) -> tuple[str, ...]:
    if isinstance(names, str):
        names = names.split()
    if not is_list(names):
        raise TypeError(f"{operator}: {kind} is a {type(names).__name__}, expected names of its blocks")
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            raise ValueError(f"{operator}: {kind} has {name!r}, expected a Python name without _ in front")
    if len(set(names)) < len(names):
        raise ValueError(f"{operator}: {kind} has {', '.join(names)}, expected names apart")
    return tuple(names)


def input_blocks(operator: str, inputs: Any) -> dict[str, tuple[str, ...]]:
    """The names of the blocks of each input besides x; none if the input is a single value."""
    if not isinstance(inputs, Mapping):
        return dict.fromkeys(block_names(operator, "inputs", inputs), ())
    block_names(operator, "inputs", list(inputs))
    return {name: block_names(operator, name, own or ()) for name, own in inputs.items()}


def checked_heads(operator: str, heads: Any) -> int:
    number = check_integer(operator, "heads", heads)
    if number < 1:
        raise ValueError(f"{operator}: heads is {number}, expected a number from 1 on")
    return number


def _signature(
    positional: Sequence[str], optional: Sequence[str], needed: Sequence[str],
    keywords: Sequence[str] = (), gradient: bool = False,
) -> inspect.Signature:  # fmt: skip
    """The signature of a cell or of its gradient, annotated as the package's operators are."""
    kinds = inspect.Parameter
    anywhere, by_name = kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY
    found = [kinds(name, anywhere, annotation=Array) for name in positional]
    found += [kinds(name, anywhere, default=None, annotation=Array) for name in optional]
    found += [kinds(name, by_name, annotation=Array) for name in needed]
    options: list[tuple[str, Any, Any]] = [(name, None, Array) for name in keywords]
    options += [("direction", "forward", "str"), ("layout", 0, "int"), ("reset", None, Array)]
    if gradient:
        options += [("per_sample", False, "bool | str"), ("sample_weight", None, Array)]
        options += [("wrt", None, "Iterable[str] | None")]
    found += [kinds(name, by_name, default=default, annotation=kind) for name, default, kind in options]
    return inspect.Signature(found)


def _without_types(signature: inspect.Signature) -> inspect.Signature:
    """The signature for messages, with names and defaults."""
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return signature.replace(parameters=parameters)


def bound(operator: str, signature: inspect.Signature, args: Any, kwargs: Any) -> dict[str, Any]:
    foreign = kwargs.pop("_foreign", PLAIN)
    try:
        given = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{operator}: {error}, expected {_without_types(signature)}") from None
    given.apply_defaults()
    return {**given.arguments, "_foreign": foreign}
