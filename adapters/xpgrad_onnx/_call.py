"""Operators as plain functions, and their OpRun classes for onnx's reference evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx.reference.op_run import OpRun
from onnx.reference.ops import load_op

MICROSOFT = "com.microsoft"


class NodeCall(NamedTuple):
    """The argument of an operator's function for one run of a node."""

    operator: str
    inputs: Mapping[str, Any]
    """Those that are given, by the operator's names for them."""
    attributes: Mapping[str, Any]
    """Those that have a value: the node's own, and the defaults of ONNX's schema."""
    wanted: frozenset[str]
    """The outputs that somebody named."""
    opset: int
    """The version of the operator's domain that the model imports."""
    exact: bool
    """Whether the true gradient is wanted where ONNX Runtime has another."""

    def options(self, *names: str) -> dict[str, Any]:
        """The attributes of these names that have a value."""
        return {name: self.attributes[name] for name in names if name in self.attributes}

    def renamed(self, **names: str) -> dict[str, Any]:
        """The given inputs, by a function's names for them: ``function's=operator's``."""
        return {ours: self.inputs[theirs] for ours, theirs in names.items() if theirs in self.inputs}


class Definition(NamedTuple):
    """An operator: its operands in order, and its function.

    An optional operand ends in a question mark. The last one ends in an asterisk if it may occur any number
    of times.
    """

    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[str, ...]
    compute: Callable[[NodeCall], Any]
    """Returns a tuple of the outputs in order, with None for one that nobody wanted.

    Or it returns NotImplemented: onnx's own implementation computes the node then.
    """


DEFINITIONS: list[Definition] = []

_Compute = Callable[[NodeCall], Any]


def define(
    domain: str, name: str, inputs: str, outputs: str, attributes: str = ""
) -> Callable[[_Compute], _Compute]:
    """Register a function as an operator."""

    def put(compute: _Compute) -> _Compute:
        operands = tuple(inputs.split()), tuple(outputs.split()), tuple(attributes.split())
        DEFINITIONS.append(Definition(domain, name, *operands, compute))
        return compute

    return put


def operator_class(definition: Definition, exact: bool) -> type[OpRun]:
    """The class of an operator for ``new_ops``."""
    body = {
        "__doc__": f"{definition.domain or 'ai.onnx'}'s {definition.name}, computed by xpgrad.",
        "__module__": "xpgrad_onnx",
        "op_domain": definition.domain,
        "definition": definition,
        "exact": exact,
    }
    return type(definition.name, (_Node,), body)


class _Node(OpRun):
    """A node of the operator that a subclass's `definition` describes."""

    definition: Definition
    exact: bool

    def __init__(self, onnx_node: onnx.NodeProto, run_params: dict[str, Any]) -> None:
        domain = self.definition.domain
        self._opset = int(run_params["opsets"][domain])
        # onnx would use the schema's latest version, or that of another domain's operator of this name
        schema = onnx.defs.get_schema(self.definition.name, self._opset, domain) if domain == "" else False
        super().__init__(onnx_node, run_params, schema)

    def run(self, *args: Any, **options: Any) -> tuple[Any, ...]:
        """The node's outputs.

        Those without a name are None: the evaluator stores them under the name "", and later nodes look up
        their missing inputs by that name.
        """
        results = super().run(*args, **options)
        return tuple(
            result if name else None for name, result in zip(self.onnx_node.output, results, strict=True)
        )

    def _run(self, *arrays: Any, **attributes: Any) -> tuple[Any, ...]:
        definition = self.definition
        node = self.onnx_node
        if len(node.output) > len(definition.outputs) and not definition.outputs[-1].endswith("*"):
            raise ValueError(
                f"{definition.name}: the node has {len(node.output)} outputs, expected at most "
                f"{len(definition.outputs)}: {', '.join(definition.outputs)}"
            )
        call = NodeCall(
            definition.name,
            _named_inputs(definition, node, arrays),
            _plain_attributes(definition, attributes),
            frozenset(name for name, given in zip(definition.outputs, node.output, strict=False) if given),
            self._opset,
            self.exact,
        )
        outputs = definition.compute(call)
        if outputs is NotImplemented:
            own = load_op(definition.domain, definition.name, self._opset)
            return tuple(own(node, self.run_params).run(*arrays))
        absent = np.zeros(0, dtype=np.float32)
        return tuple(
            absent if array is None else np.asarray(array) for array in outputs[: max(1, len(node.output))]
        )


def _named_inputs(definition: Definition, node: onnx.NodeProto, arrays: tuple[Any, ...]) -> dict[str, Any]:
    names = [name.removesuffix("?") for name in definition.inputs]
    if names[-1].endswith("*"):
        return {names[-1].removesuffix("*"): list(arrays)}
    if len(arrays) > len(names):
        raise ValueError(
            f"{definition.name}: the node has {len(arrays)} inputs, expected at most {len(names)}: "
            f"{', '.join(names)}"
        )
    given = {
        name: array
        for name, array, label in zip(names, arrays, node.input, strict=False)
        if label and array is not None
    }
    for name in definition.inputs:
        if not name.endswith("?") and name not in given:
            raise ValueError(f"{definition.name}: {name} is missing, expected an array")
    return given


def _plain_attributes(definition: Definition, attributes: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: _plain(value) for name, value in attributes.items() if value is not None}
    for name in given:
        if name not in definition.attributes:
            known = ", ".join(definition.attributes) or "none"
            raise ValueError(f"{definition.name}: attribute {name!r} is unknown, expected one of {known}")
    return given


def _plain(value: Any) -> Any:
    """NumPy's scalars, as onnx passes attributes, converted to Python's numbers."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value
