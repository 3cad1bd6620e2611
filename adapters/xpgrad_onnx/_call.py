"""Operators as plain functions, and their OpRun classes for onnx's reference evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

MICROSOFT = "com.microsoft"


class NodeCall(NamedTuple):
    """The argument of an operator's function for one run of a node."""

    operator: str
    inputs: Mapping[str, Any]
    """The given inputs, by the operator's names."""
    attributes: Mapping[str, Any]
    """Attributes with a value: the node's own, and the defaults of ONNX's schema."""
    wanted: frozenset[str]
    """The outputs that have a name."""
    opset: int
    """The version of the operator's domain that the model imports."""
    exact: bool
    """Whether to compute the true gradient if ONNX Runtime's differs."""

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
    """Returns a tuple of the outputs in order, with None for unwanted outputs.

    If it returns NotImplemented, onnx's own implementation computes the node.
    """


DEFINITIONS: list[Definition] = []

Compute = Callable[[NodeCall], Any]


def define(
    domain: str, name: str, inputs: str, outputs: str, attributes: str = ""
) -> Callable[[Compute], Compute]:
    """Register a function as an operator."""

    def put(compute: Compute) -> Compute:
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
        # onnx would use the latest version of the schema, or of an operator of this name in another domain
        schema = onnx.defs.get_schema(self.definition.name, self._opset, domain) if domain == "" else False
        super().__init__(onnx_node, run_params, schema)
        self._names = _names_of_inputs(self.definition, list(onnx_node.input))
        self._outputs = _checked_outputs(self.definition, list(onnx_node.output))
        self._wanted = frozenset(
            name for name, given in zip(self.definition.outputs, self._outputs, strict=False) if given
        )

    def run(self, *args: Any, **options: Any) -> tuple[Any, ...]:
        """The node's outputs.

        Outputs without a name are None: the evaluator stores them under "", where later nodes look up their
        missing inputs.
        """
        results = super().run(*args, **options)
        return tuple(result if name else None for name, result in zip(self._outputs, results, strict=True))

    def _run(self, *arrays: Any, **attributes: Any) -> tuple[Any, ...]:
        definition = self.definition
        call = NodeCall(
            definition.name,
            self._named_inputs(arrays),
            _plain_attributes(definition, attributes),
            self._wanted,
            self._opset,
            self.exact,
        )
        outputs = definition.compute(call)
        if outputs is NotImplemented:
            given = {name: a for name, a in zip(self.onnx_node.input, arrays, strict=True) if name}
            results = iter(by_onnx(self.onnx_node, given, self._opset))
            return tuple(next(results) if name else _ABSENT for name in self._outputs)
        given = outputs[: max(1, len(self._outputs))]
        return tuple(_ABSENT if array is None else np.asarray(array) for array in given)

    def _named_inputs(self, arrays: tuple[Any, ...]) -> dict[str, Any]:
        definition = self.definition
        if definition.inputs[-1].endswith("*"):
            return {definition.inputs[-1].removesuffix("*"): list(arrays)}
        pairs = zip(self._names, arrays, strict=True)
        given = {name: array for name, array in pairs if name and array is not None}
        for name in definition.inputs:
            if name not in given and not name.endswith("?"):
                raise ValueError(f"{definition.name}: {name} is missing, expected an array")
        return given


def by_onnx(node: onnx.NodeProto, feeds: Mapping[str, Any], opset: int) -> list[Any]:
    """The named results of a node of ai.onnx, computed by onnx's evaluator without our operators."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "node", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return list(ReferenceEvaluator(model).run(None, dict(feeds)))


_ABSENT = np.zeros(0, dtype=np.float32)


def _names_of_inputs(definition: Definition, given: list[str]) -> list[str]:
    """The operator's names of a node's inputs; "" for a missing input."""
    names = [name.removesuffix("?") for name in definition.inputs]
    if len(given) > len(names) and not names[-1].endswith("*"):
        raise ValueError(
            f"{definition.name}: the node has {len(given)} inputs, expected at most {len(names)}: "
            f"{', '.join(names)}"
        )
    return [name if label else "" for name, label in zip(names, given, strict=False)]


def _checked_outputs(definition: Definition, given: list[str]) -> list[str]:
    """Raise ValueError if a node has more outputs than the operator; else return them."""
    if len(given) > len(definition.outputs) and not definition.outputs[-1].endswith("*"):
        raise ValueError(
            f"{definition.name}: the node has {len(given)} outputs, expected at most "
            f"{len(definition.outputs)}: {', '.join(definition.outputs)}"
        )
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
