"""Gradients of reductions and running sums."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from xpgrad_onnx._graph import Graph
from xpgrad_onnx._rules.table import Backward, Grads, rule
from xpgrad_onnx._terms import Term, wide

_SLOPES: dict[str, Callable[[Term, Term], Term]] = {
    "ReduceL1": lambda x, y: x.of("Sign"),
    "ReduceL2": lambda x, y: (x / y).where(y.of("Cast", to=onnx.TensorProto.BOOL)),
    "ReduceLogSum": lambda x, y: (-y).of("Exp").of("Expand", x.of("Shape")),
    "ReduceLogSumExp": lambda x, y: (x - y).of("Exp"),
    "ReduceSumSquare": lambda x, y: 2.0 * x,
}
"""The slope of a reduction for each element x; y is the result, with the axes kept."""


def _axes(call: Backward) -> str:
    """The tensor of a reduction's axes; "" for all axes."""
    attributes = call.attributes
    axes = call.graph.constant(attributes["axes"]) if "axes" in attributes else call.input(1)
    value = call.graph.value(axes) if axes else None
    return "" if value is not None and not value.size else axes


def _kept(call: Backward, name: str, axes: str) -> Term:
    """A result with its reduced axes, of size 1."""
    if call.attributes.get("keepdims", 1):
        return call.term(name)
    if axes:
        return call.term(name).of("Unsqueeze", axes)
    return call.term(name)  # one number, which is broadcast


@rule("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", *_SLOPES)
def _reduce(call: Backward) -> Grads:
    graph, node = call.graph, call.node
    axes = _axes(call)
    if not axes and call.attributes.get("noop_with_empty_axes", 0):
        return [_of_no_axes(call)]
    dY, X, Y = _kept(call, call.dY, axes), call.term(node.input[0]), _kept(call, node.output[0], axes)
    if node.op_type == "ReduceSum":
        return [dY.of("Expand", X.of("Shape")).name]
    if node.op_type == "ReduceMean":
        return [spread_mean(call, dY)]
    if node.op_type in _SLOPES:
        return [(dY * _SLOPES[node.op_type](X, Y)).name]
    if node.op_type == "ReduceProd":
        return [(dY * _other_factors(X, axes)).name]
    hits = X.of("Equal", Y).of("Cast", to=_of_counts(graph))  # equal extremes share the cotangent
    dY, narrow = wide(dY)
    return [narrow(dY * hits / hits.sum(axes)).name]


def _of_counts(graph: Graph) -> int:
    """The type of counts: float16 ends at 65504."""
    return onnx.TensorProto.DOUBLE if graph.kind == onnx.TensorProto.DOUBLE else onnx.TensorProto.FLOAT


def _of_no_axes(call: Backward) -> str:
    """Reductions over no axes: functions of single elements."""
    dY, X, Y = call.terms()
    slope = _SLOPES.get(call.node.op_type)
    return call.dY if slope is None else (dY * slope(X, Y)).name


def spread_mean(call: Backward, dY: Term) -> str:
    """The cotangent of a mean, for each of its elements."""
    X, Y = call.term(call.node.input[0]), call.term(call.node.output[0])
    graph = call.graph
    one, kind = graph.constant(1), _of_counts(graph)
    count = X.of("Size").of("Div", Y.of("Size").of("Max", one))  # an empty batch has no means
    dY, narrow = wide(dY)
    return narrow(dY / count.of("Cast", to=kind)).of("Expand", X.of("Shape")).name


def _other_factors(X: Term, axes: str) -> Term:
    """For each element the product of the others, also if some are zero."""
    is_zero = X.of("Equal", 0.0)
    zeros = is_zero.of("Cast", to=X.graph.kind)
    safe = X.number(1.0).where(is_zero, X)
    product = _product(safe, axes)
    others = zeros.sum(axes) - zeros
    return (product / safe).where(others.of("Equal", 0.0))


def _product(X: Term, axes: str) -> Term:
    if X.graph.opset >= 18:
        return X.of("ReduceProd", axes)
    if not axes:
        return X.of("ReduceProd")
    known = X.graph.value(axes)
    if known is None:
        raise ValueError(
            f"gradient_model: ReduceProd has axes that are not known and the model opset {X.graph.opset}, "
            "expected constants, or opset 18"
        )
    return X.of("ReduceProd", axes=[int(k) for k in known])


@rule("CumSum")
def _cumulative_sum(call: Backward) -> Grads:
    attributes = {**call.attributes, "reverse": 1 - call.attributes.get("reverse", 0)}
    return [call.graph.op("CumSum", call.dY, call.node.input[1], **attributes)]


@rule("CumProd")
def _cumulative_product(call: Backward) -> Grads:
    """As in the sum, divided by each factor: no factor may be zero."""
    dY, X, Y = call.terms()
    attributes = {**call.attributes, "reverse": 1 - call.attributes.get("reverse", 0)}
    return [((dY * Y).of("CumSum", call.node.input[1], **attributes) / X).name]
