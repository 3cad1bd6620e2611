"""Gradients of operators as nodes: rules only rewrite graphs; the operators' kernels compute the numbers.

A rule gets a `Backward`: the graph, the node, the cotangents of its outputs and the wanted inputs. It appends
nodes to the graph and returns a name for each wanted gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import onnx

from xpgrad_onnx._graph import Graph, attributes_of, describe
from xpgrad_onnx._terms import Term

Grads = Sequence[str | None]


class Backward(NamedTuple):
    """A node to differentiate."""

    graph: Graph
    node: onnx.NodeProto
    cotangents: Sequence[str | None]
    """A cotangent for each output; None if nothing depends on the output."""
    wanted: Sequence[bool]
    """Whether a gradient is wanted, for each input, then for each outer tensor that a subgraph reads."""

    @property
    def dY(self) -> str:
        """The first output's cotangent; zeros if only another output has one."""
        if self.cotangents[0]:
            return self.cotangents[0]
        return self.graph.zeros(self.graph.op("Shape", self.graph.output(self.node, 0, "Y")))

    @property
    def attributes(self) -> dict[str, Any]:
        """The node's attributes."""
        return attributes_of(self.node)

    def input(self, index: int) -> str:
        """An input's name; "" for a missing input."""
        return self.node.input[index] if index < len(self.node.input) else ""

    def wants(self, index: int) -> bool:
        """Whether an input's gradient is wanted."""
        return index < len(self.wanted) and self.wanted[index]

    def term(self, name: str) -> Term:
        """A tensor, for a formula."""
        return Term(self.graph, name)

    def terms(self) -> tuple[Term, Term, Term]:
        """The first cotangent, input and output."""
        return self.term(self.dY), self.term(self.node.input[0]), self.term(self.node.output[0])

    def each(self, grad_of: Callable[[int], str | Term]) -> Grads:
        """Wanted gradients in the outputs' shape, summed to the inputs' shapes."""
        shape = self.graph.shapes.get(self.node.output[0])
        grads: list[str | None] = []
        for k, want in enumerate(self.wanted):
            grad = grad_of(k) if want else None
            name = grad.name if isinstance(grad, Term) else grad
            grads.append(self.graph.summed_to(name, shape, self.node.input[k]) if name else None)
        return grads


Rule = Callable[[Backward], Grads]

RULES: dict[tuple[str, str], Rule] = {}


def rule(*operators: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Register a rule for operators."""

    def put(rule: Rule) -> Rule:
        RULES.update({(domain, operator): rule for operator in operators})
        return rule

    return put


class Fixed(NamedTuple):
    """Inputs that are no weights: all from this place on, their description, and the possible gradients."""

    first: int
    what: str
    expected: str = "gradients of the other inputs only"


FIXED = {
    "BatchNormalization": Fixed(3, "a mean or a variance", "gradients of X, scale and B only"),
    "Clip": Fixed(1, "bounds", "the gradient of the input only"),
    "DequantizeLinear": Fixed(1, "a scale"),
    "Dropout": Fixed(1, "a ratio", "the gradient of the data only"),
    "MaxRoiPool": Fixed(1, "regions"),
    "MelWeightMatrix": Fixed(0, "frequencies"),
    "NegativeLogLikelihoodLoss": Fixed(1, "labels or weights"),
    "OneHot": Fixed(1, "a depth or values"),
    "Pad": Fixed(1, "pads or a value"),
    "Pow": Fixed(1, "an exponent", "the gradient of the base only"),
    "QuantizeLinear": Fixed(1, "a scale"),
    "Range": Fixed(0, "bounds"),
    "Resize": Fixed(1, "a region, scales or sizes"),
    "RoiAlign": Fixed(1, "regions"),
    "STFT": Fixed(1, "a window"),
    "SoftmaxCrossEntropyLoss": Fixed(1, "labels or weights", "the gradient of the scores only"),
    "Upsample": Fixed(1, "scales"),
}
"""ONNX's operators with such inputs, also without a rule; tensors for these inputs are no parameters."""

FLAT = frozenset((
    "Shape", "Size", "Sign", "Ceil", "Floor", "Round", "Hardmax", "EyeLike", "RandomNormalLike",
    "RandomUniformLike", "Bernoulli",
))  # fmt: skip
"""Operators whose results do not change, or only jump, when their inputs change a little."""

_SEQUENCE = "sequences and optionals are no tensors"
_INTEGERS = "it works on integers, whose gradient is zero"
REASONS = {
    "BitCast": "bits have no gradient",
    "DequantizeLinear": _INTEGERS,
    "DynamicQuantizeLSTM": _INTEGERS,
    "DynamicQuantizeLinear": _INTEGERS,
    "DynamicQuantizeMatMul": _INTEGERS,
    "OneHot": "its operands are places, and values that are no weights",
    "Optional": _SEQUENCE,
    "QuantizeLinear": _INTEGERS,
    "SequenceMap": _SEQUENCE,
    **dict.fromkeys(
        (
            "ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase",
            "SequenceInsert", "SplitToSequence",
        ),
        _SEQUENCE,
    ),
    **dict.fromkeys(
        (
            "LinearClassifier", "LinearRegressor", "SVMClassifier", "SVMRegressor", "TreeEnsemble",
            "TreeEnsembleClassifier", "TreeEnsembleRegressor",
        ),
        "its weights are attributes, not tensors",
    ),
    **dict.fromkeys(("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"), _INTEGERS),
}  # fmt: skip
"""Why operators have no rule."""


def smooth_inputs(node: onnx.NodeProto, names: Sequence[str]) -> Sequence[str]:
    """The tensors that a node reads and its results depend on smoothly."""
    if node.op_type in FLAT:
        return ()
    return names[:1] if node.op_type == "CastLike" else names


def check_fixed(node: onnx.NodeProto, wanted: Sequence[bool]) -> None:
    """Raise ValueError if the gradient of an input that is no weight is wanted."""
    fixed = fixed_inputs(node)
    if fixed is not None and any(wanted[fixed.first :]):
        raise refuse(node, f"{fixed.what} to differentiate", fixed.expected)


def fixed_inputs(node: onnx.NodeProto) -> Fixed | None:
    """The inputs of a node that are no weights."""
    return FIXED.get(node.op_type) if node.domain == "" else None


def refuse(node: onnx.NodeProto, what: str, expected: str) -> ValueError:
    """The error for a known operator in an unsupported use."""
    return ValueError(f"gradient_model: {describe(node)} has {what}, expected {expected}")
