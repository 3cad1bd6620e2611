"""Operators that are differentiated through a body: ONNX's own, or nodes with the same result.

We write a body if ONNX has none, or if ONNX's body computes in float32 for any input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, inliner

from xpgrad_onnx._graph import Graph, attributes_of
from xpgrad_onnx._rules.table import REASONS, refuse
from xpgrad_onnx._scopes import all_nodes, name_results, set_nodes, subgraphs
from xpgrad_onnx._terms import Term, wide

Body = Callable[[Graph, onnx.NodeProto], Sequence[Term | None]]

_DOMAIN = "xpgrad.body"

BODIES: dict[str, Body] = {}
"""Our bodies: each appends nodes, and returns the outputs."""


def has_body(op_type: str, opset: int) -> bool:
    """Whether an operator of ai.onnx has a body."""
    if op_type in BODIES:
        return True
    if op_type in REASONS:
        return False
    try:
        schema: Any = defs.get_schema(op_type, opset, "")
    except defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def expanded(model: onnx.ModelProto, operators: Iterable[str]) -> onnx.ModelProto:
    """The model with bodies in place of these operators. Names of results stay."""
    graph, names = Graph(model), set(operators)
    _expand(graph, graph.proto, names & set(BODIES))
    theirs = names - set(BODIES)
    for count, node in enumerate(all_nodes(model.graph.node)):
        if node.domain == "" and node.op_type in theirs:
            function = _function_of(node, graph)
            function.domain, function.name = _DOMAIN, f"{node.op_type}_{count}"
            node.domain, node.op_type = _DOMAIN, function.name
            model.functions.append(function)
    if model.functions:
        model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
        model = inliner.inline_local_functions(model)
    return model


def _function_of(node: onnx.NodeProto, graph: Graph) -> onnx.FunctionProto:
    """ONNX's body of a node."""
    schema: Any = defs.get_schema(node.op_type, graph.opset, "")
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.name:
            node.attribute.append(attribute.default_value)
    if schema.has_function:
        version = max(v for v in schema.function_opset_versions if v <= graph.opset)
        data = schema.get_function_with_opset_version(version)
    else:
        versions = schema.context_dependent_function_opset_versions
        version = max(v for v in versions if v <= graph.opset)
        types = [_type_of(graph, name).SerializeToString() for name in node.input]
        text = node.SerializeToString()
        data = schema.get_context_dependent_function_with_opset_version(version, text, types)
    function = onnx.FunctionProto()
    function.ParseFromString(data)
    for opset in function.opset_import:  # a schema has a newer body if an operator in the body changed
        opset.version = graph.opset if opset.domain == "" else opset.version
    return function


def _type_of(graph: Graph, name: str) -> onnx.TypeProto:
    kind = graph.types.get(name)
    return helper.make_tensor_type_proto(kind, graph.shapes.get(name)) if name and kind else onnx.TypeProto()


def _expand(graph: Graph, block: onnx.GraphProto, operators: set[str]) -> None:
    scope = graph.inner()
    for node in block.node:
        for inner in subgraphs(node):
            _expand(graph, inner, operators)
        if node.domain == "" and node.op_type in operators:
            kind = graph.types.get(node.input[0], onnx.TensorProto.FLOAT)
            scope.dtype = helper.tensor_dtype_to_np_dtype(kind)
            before = len(scope.nodes)
            results = zip(BODIES[node.op_type](scope, node), node.output, strict=False)
            pairs = [(result.name, name) for result, name in results if name and result is not None]
            scope.nodes += name_results(scope.nodes[before:], pairs)
        else:
            scope.nodes.append(node)
    set_nodes(block, scope.nodes)


def body(*operators: str) -> Callable[[Body], Body]:
    """Register a body."""

    def put(body: Body) -> Body:
        BODIES.update(dict.fromkeys(operators, body))
        return body

    return put


def _mean(X: Term, axes: Sequence[int]) -> Term:
    """The mean over axes, which stay with size 1."""
    return X.reduced("ReduceMean", axes)


def _normalized(X: Term, axes: Sequence[int], epsilon: float) -> tuple[Term, Term, Term]:
    """X with mean 0 and variance 1 over axes; the mean, and 1 over the deviation."""
    mean = _mean(X, axes)
    centred = X - mean
    inverse = 1.0 / (_mean(centred * centred, axes) + epsilon).of("Sqrt")
    return centred * inverse, mean, inverse


def _wide(X: Term) -> tuple[Term, Callable[[Term], Term]]:
    """As `wide`; numbers of the body are float32 too."""
    result = wide(X)
    if X.graph.dtype.itemsize <= 2:
        X.graph.dtype = np.dtype(np.float32)
    return result


@body("LayerNormalization", "RMSNormalization")
def _layer_normalization(graph: Graph, node: onnx.NodeProto) -> Sequence[Term | None]:
    attributes = attributes_of(node)
    X, scale, *bias = (Term(graph, name) for name in node.input if name)
    rank = graph.rank(X.name, node)
    axes = list(range(attributes.get("axis", -1) % rank, rank))
    wide, back = _wide(X)
    epsilon = attributes.get("epsilon", 1e-5)
    if node.op_type == "LayerNormalization":
        normal, *statistics = _normalized(wide, axes, epsilon)
    else:
        normal, statistics = wide / (_mean(wide * wide, axes) + epsilon).of("Sqrt"), []
    Y = back(normal) * scale
    return [Y + bias[0] if bias else Y, *statistics]


@body("InstanceNormalization", "GroupNormalization")
def _group_normalization(graph: Graph, node: onnx.NodeProto) -> Sequence[Term | None]:
    """Normalize groups of channels: each channel, or `num_groups` groups."""
    attributes = attributes_of(node)
    X, scale, B = (Term(graph, name) for name in node.input)
    rank = graph.rank(X.name, node)
    groups = attributes.get("num_groups")
    wide, back = _wide(X)
    if groups is None:
        normal = _normalized(wide, range(2, rank), attributes.get("epsilon", 1e-5))[0]
    else:
        rows = wide.of("Reshape", graph.constant([0, groups, -1]))
        normal = _normalized(rows, [2], attributes.get("epsilon", 1e-5))[0]
        normal = normal.of("Reshape", X.of("Shape"))
    if groups is not None and graph.opset < 21:  # a scale for each group
        scale, B = (_repeated(X, term, groups) for term in (scale, B))
    over = graph.constant(range(1, rank - 1))
    return [back(normal) * scale.of("Unsqueeze", over) + B.of("Unsqueeze", over)]


def _repeated(X: Term, of_groups: Term, groups: int) -> Term:
    """Numbers of groups, for each of their channels."""
    channels = X.of("Shape").of("Gather", X.graph.constant([1]))
    size = channels.of("Div", X.graph.constant([groups]))
    shape = X.graph.op("Concat", X.graph.constant([groups]), size.name, axis=0)
    rows = of_groups.of("Unsqueeze", X.graph.constant([1])).of("Expand", shape)
    return rows.of("Reshape", X.graph.constant([-1]))


@body("MeanVarianceNormalization")
def _mean_variance(graph: Graph, node: onnx.NodeProto) -> Sequence[Term | None]:
    """A body of ours, because ONNX's has numbers in float32."""
    X = Term(graph, node.input[0])
    axes = attributes_of(node).get("axes", [0, 2, 3])
    centred = X - _mean(X, axes)
    return [centred / (_mean(centred * centred, axes).of("Sqrt") + 1e-9)]


@body("BatchNormalization")
def _batch_normalization(graph: Graph, node: onnx.NodeProto) -> Sequence[Term | None]:
    """With the batch's statistics in training, else with given ones."""
    attributes = attributes_of(node)
    X, scale, B, old_mean, old_variance = (Term(graph, name) for name in node.input)
    rank = graph.rank(X.name, node)
    over = graph.constant(range(1, rank - 1))

    def along(term: Term) -> Term:
        return term.of("Unsqueeze", over) if rank > 2 else term

    if not attributes.get("training_mode", 0):
        slope = scale / (old_variance + attributes.get("epsilon", 1e-5)).of("Sqrt")
        return [(X - along(old_mean)) * along(slope) + along(B)]
    axes = [0, *range(2, rank)]
    normal, mean, _ = _normalized(X, axes, attributes.get("epsilon", 1e-5))
    centred = X - mean
    flat = graph.constant([-1])
    share = attributes.get("momentum", 0.9)
    new = (term.of("Reshape", flat) for term in (mean, _mean(centred * centred, axes)))
    running = [
        old * share + now * (1 - share) for old, now in zip((old_mean, old_variance), new, strict=True)
    ]
    return [normal * along(scale) + along(B), *running]


@body("LRN")
def _local_response(graph: Graph, node: onnx.NodeProto) -> Sequence[Term | None]:
    """The mean of squares over channels is a pooling along a row of channels."""
    attributes = attributes_of(node)
    X, size = Term(graph, node.input[0]), attributes["size"]
    squares = (X * X).of("Unsqueeze", graph.constant([1]))
    rows = squares.of("Reshape", graph.constant([0, 1, 0, -1]))
    pads = [(size - 1) // 2, 0, size // 2, 0]
    means = rows.of("AveragePool", kernel_shape=[size, 1], pads=pads, count_include_pad=1)
    base = means.of("Reshape", X.of("Shape")) * attributes.get("alpha", 1e-4) + attributes.get("bias", 1.0)
    return [X / base.of("Pow", attributes.get("beta", 0.75))]


@body("LpNormalization")
def _lp_normalization(graph: Graph, node: onnx.NodeProto) -> Sequence[Term | None]:
    attributes, X = attributes_of(node), Term(graph, node.input[0])
    norm = X.reduced(f"ReduceL{attributes.get('p', 2)}", [attributes.get("axis", -1)])
    return [X / norm.number(1.0).where(norm.of("Equal", 0.0), norm)]  # zeros stay zeros


@body("LpPool", "GlobalLpPool")
def _lp_pool(graph: Graph, node: onnx.NodeProto) -> Sequence[Term | None]:
    """The root of the sum of powers: the window's mean times its number of places."""
    attributes = attributes_of(node)
    p = attributes.pop("p", 2)
    if attributes.get("ceil_mode", 0):
        raise refuse(node, "ceil_mode 1", "0")
    X = Term(graph, node.input[0])
    powers = X.of("Abs").of("Pow", float(p))
    if node.op_type == "GlobalLpPool":
        axes = graph.constant(range(2, graph.rank(X.name, node)))
        return [_root(powers.of("ReduceSum", axes), p)]
    means = powers.of("AveragePool", count_include_pad=1, **attributes)
    return [_root(means * float(np.prod(attributes["kernel_shape"])), p)]


def _root(total: Term, p: int) -> Term:
    """The p-th root, with the slope 0 at 0."""
    is_zero = total.of("Equal", 0.0)
    return total.number(0.0).where(is_zero, total.number(1.0).where(is_zero, total).of("Pow", 1 / p))
