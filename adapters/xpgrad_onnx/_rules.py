"""Gradients of operators as nodes: only graph rewriting; the operators' kernels compute the numbers.

A rule gets the graph, the node, the cotangents of its outputs (None if nothing depends on one) and the wanted
inputs. It appends nodes to the graph and returns a name for each wanted gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx

from xpgrad_onnx._call import MICROSOFT
from xpgrad_onnx._graph import Graph, attributes_of, describe
from xpgrad_onnx._operators import DOMAIN

Cotangents = Sequence[str | None]
Rule = Callable[[Graph, onnx.NodeProto, Cotangents, Sequence[bool]], Sequence[str | None]]

RULES: dict[tuple[str, str], Rule] = {}


def _rule(*operators: str, domain: str = "") -> Callable[[Rule], Rule]:
    def put(rule: Rule) -> Rule:
        RULES.update({(domain, operator): rule for operator in operators})
        return rule

    return put


class Fixed(NamedTuple):
    """Inputs that are no weights: all from that place on; what they are, and whose gradients there are."""

    first: int
    what: str
    expected: str = "gradients of the other inputs alone"


FIXED = {
    "BatchNormalization": Fixed(3, "a mean or a variance", "gradients of X, scale and B alone"),
    "CastLike": Fixed(1, "a tensor whose type is taken"),
    "Clip": Fixed(1, "bounds", "the gradient of the input alone"),
    "DequantizeLinear": Fixed(1, "a scale"),
    "Dropout": Fixed(1, "a ratio", "the gradient of the data alone"),
    "MelWeightMatrix": Fixed(0, "frequencies"),
    "NegativeLogLikelihoodLoss": Fixed(1, "labels or weights"),
    "OneHot": Fixed(1, "a depth or values"),
    "Pad": Fixed(1, "pads or a value"),
    "Pow": Fixed(1, "an exponent", "the gradient of the base alone"),
    "QuantizeLinear": Fixed(1, "a scale"),
    "Range": Fixed(0, "bounds"),
    "Resize": Fixed(1, "a region, scales or sizes"),
    "STFT": Fixed(1, "a window"),
    "SoftmaxCrossEntropyLoss": Fixed(1, "labels or weights", "the gradient of the scores alone"),
    "Upsample": Fixed(1, "scales"),
}
"""Operators of ONNX with such inputs, also those without a rule: what feeds these inputs is no parameter."""

SUMS = ("Add", "Div", "Mul", "Sub", "Sum")
"""Operators whose operands may be numbers of a formula."""


def check_fixed(node: onnx.NodeProto, wanted: Sequence[bool]) -> None:
    """Raise ValueError if an input that is no weight is to be differentiated."""
    fixed = fixed_inputs(node)
    if fixed is not None and any(wanted[fixed.first :]):
        raise refuse(node, f"{fixed.what} to differentiate", fixed.expected)


def fixed_inputs(node: onnx.NodeProto) -> Fixed | None:
    """Which inputs of a node are no weights."""
    return FIXED.get(node.op_type) if node.domain in ("", "ai.onnx") else None


def refuse(node: onnx.NodeProto, what: str, expected: str) -> ValueError:
    """The error for a known operator in an unsupported use."""
    return ValueError(f"gradient_model: {describe(node)} has {what}, expected {expected}")


def _first(cotangents: Cotangents) -> str:
    """The cotangent of the first output; a rule is only called if some output has one."""
    return str(cotangents[0])


# --- recurrent operators ------------------------------------------------------------------------------------

_GATES = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def _recurrent_attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes without those that state a default."""
    attributes = attributes_of(node)
    both = _GATES[node.op_type] * (2 if attributes.get("direction") == "bidirectional" else 1)
    silent = {"activations": both, "direction": "forward", "layout": 0, "input_forget": 0}
    return {name: value for name, value in attributes.items() if silent.get(name) != value}


def _train(graph: Graph, node: onnx.NodeProto, attributes: dict[str, Any], outputs: int) -> str:
    """Make a recurrent node output what its gradient needs; returns the domain of both operators.

    ONNX Runtime's operators accept the plain form; our own domain accepts all.
    """
    plain = {"hidden_size", "linear_before_reset"}
    lengths, peepholes = (len(node.input) > k and bool(node.input[k]) for k in (4, 7))
    domain = MICROSOFT if set(attributes) <= plain and not lengths and not peepholes else DOMAIN
    for index in range(outputs):
        graph.output(node, index, ("H_all", "H_t", "C_t", "C_all", "iofc")[index])
    node.op_type, node.domain = f"{node.op_type}Training", domain
    del node.attribute[:]
    node.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in attributes.items())
    return domain


def _operands(node: onnx.NodeProto, count: int) -> list[str]:
    return [*node.input, *[""] * (count - len(node.input))]


@_rule("LSTM")
def _lstm(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    attributes = _recurrent_attributes(node)
    domain = _train(graph, node, attributes, 5)
    X, W, R, B, lengths, h0, c0, P = _operands(node, 8)
    H_all, _, _, C_all, iofc = node.output
    dY, dH, dC = (cotangent or "" for cotangent in [*cotangents, None, None][:3])
    extra = (P, B) if domain == DOMAIN else ()
    want = [*wanted, *[False] * (8 - len(wanted))]
    dX, dW, dR, dB, dh0, dc0, dP = graph.ops(
        "LSTMGrad", X, W, R, lengths, h0, c0, H_all, C_all, iofc, dY, dH, dC, *extra,
        wanted=[want[k] for k in (0, 1, 2, 3, 5, 6, 7)], domain=domain, **attributes,
    )  # fmt: skip
    return [dX, dW, dR, dB, None, dh0, dc0, dP]


@_rule("GRU")
def _gru(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    attributes = _recurrent_attributes(node)
    domain = _train(graph, node, attributes, 2)
    operands = _operands(node, 6)
    zrh = graph.output(node, 2, "zrh")
    dY, dH = (cotangent or "" for cotangent in [*cotangents, None][:2])
    want = [*wanted, *[False] * (6 - len(wanted))]
    dX, dW, dR, dB, dh0 = graph.ops(
        "GRUGrad", *operands, node.output[0], zrh, dY, dH,
        wanted=[want[k] for k in (0, 1, 2, 3, 5)], domain=domain, **attributes,
    )  # fmt: skip
    return [dX, dW, dR, dB, None, dh0]


@_rule("RNN")
def _rnn(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    H_all = graph.output(node, 0, "H_all")  # all that its gradient needs
    dY, dH = (cotangent or "" for cotangent in [*cotangents, None][:2])
    want = [*wanted, *[False] * (6 - len(wanted))]
    dX, dW, dR, dB, dh0 = graph.ops(
        "RNNGrad", *_operands(node, 6), H_all, dY, dH,
        wanted=[want[k] for k in (0, 1, 2, 3, 5)], domain=DOMAIN, **_recurrent_attributes(node),
    )  # fmt: skip
    return [dX, dW, dR, dB, None, dh0]


# --- convolutions and pooling -------------------------------------------------------------------------------


@_rule("Conv", "ConvTranspose")
def _convolution(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    attributes = attributes_of(node)
    same = str(attributes.get("auto_pad", "NOTSET")).startswith("SAME")  # ONNX Runtime ignores it
    return graph.ops(
        f"{node.op_type}Grad", _first(cotangents), *node.input[:2],
        wanted=list(wanted), domain=DOMAIN if same or "output_shape" in attributes else MICROSOFT,
        **attributes,
    )  # fmt: skip


@_rule("AveragePool")
def _average_pool(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    """A depthwise convolution with equal weights; each channel of a sample is treated as a sample."""
    attributes = attributes_of(node)
    if attributes.pop("ceil_mode", 0):
        raise refuse(node, "ceil_mode 1", "0: its last windows reach past the padding")
    with_padding = attributes.pop("count_include_pad", 0)
    kernel = attributes["kernel_shape"]
    ones = np.ones((1, 1, *kernel), dtype=graph.dtype)
    weights = graph.constant(ones, graph.dtype)
    X, dY = _single_channels(graph, node.input[0]), _single_channels(graph, _first(cotangents))
    if with_padding:
        counts = graph.number(float(ones.size))
    else:
        value = onnx.numpy_helper.from_array(np.ones(1, dtype=graph.dtype))
        all_ones = graph.op("ConstantOfShape", graph.op("Shape", X), value=value)
        counts = graph.op("Conv", all_ones, weights, **attributes)
    share = graph.op("Div", dY, counts)
    same = str(attributes.get("auto_pad", "NOTSET")).startswith("SAME")
    dX = graph.op("ConvGrad", share, X, weights, domain=DOMAIN if same else MICROSOFT, **attributes)
    return [graph.like(dX, node.input[0])]


def _single_channels(graph: Graph, name: str) -> str:
    """(N, C, ...) as (N C, 1, ...)."""
    sizes = graph.op("Shape", name)
    spatial = graph.op("Slice", sizes, graph.constant([2]), graph.constant([np.iinfo(np.int64).max]))
    return graph.op("Reshape", name, graph.op("Concat", graph.constant([-1, 1]), spatial, axis=0))


@_rule("MaxPool")
def _max_pool(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    if attributes_of(node).get("storage_order", 0):
        raise refuse(node, "storage_order 1", "0: only then its indices are places in memory")
    return [_scattered(graph, node, node.input[0], graph.output(node, 1, "indices"), _first(cotangents))]


@_rule("GlobalAveragePool")
def _global_average_pool(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    return [_spread_mean(graph, node, _first(cotangents))]


@_rule("GlobalMaxPool")
def _global_max_pool(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    """The whole cotangent goes to the first of equal maxima, as with MaxPool."""
    X = node.input[0]
    rows = graph.op("Reshape", X, graph.constant([0, 0, -1]))
    first = graph.op("ArgMax", rows, axis=2, keepdims=1)
    length = graph.op("Gather", graph.op("Shape", rows), graph.constant(2))
    places = graph.op("Range", graph.constant(0), length, graph.constant(1))
    share = graph.op("Reshape", _first(cotangents), graph.constant([0, 0, 1]))
    dX = graph.op("Where", graph.op("Equal", places, first), share, graph.number(0))
    return [graph.like(dX, X)]


# --- products -----------------------------------------------------------------------------------------------


@_rule("Gemm")
def _gemm(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    attributes = attributes_of(node)
    alpha, beta = (float(attributes.get(name, 1.0)) for name in ("alpha", "beta"))
    ta, tb = (int(attributes.get(name, 0)) for name in ("transA", "transB"))
    A, B = node.input[:2]
    dY = _first(cotangents)
    grads: list[str | None] = [None] * len(wanted)
    if wanted[0]:
        factors, flags = ((B, dY), (tb, 1)) if ta else ((dY, B), (0, 1 - tb))
        grads[0] = graph.op("Gemm", *factors, alpha=alpha, transA=flags[0], transB=flags[1])
    if wanted[1]:
        factors, flags = ((dY, A), (1, ta)) if tb else ((A, dY), (1 - ta, 0))
        grads[1] = graph.op("Gemm", *factors, alpha=alpha, transA=flags[0], transB=flags[1])
    if len(wanted) > 2 and wanted[2]:
        dC = graph.summed_to(dY, graph.shapes.get(node.output[0]), node.input[2])
        grads[2] = dC if beta == 1 else graph.op("Mul", dC, graph.number(beta))
    return grads


@_rule("MatMul")
def _matmul(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    """Vectors are treated as matrices of one row or one column."""
    dY = _first(cotangents)
    A, B = node.input
    ranks = graph.rank(A, node), graph.rank(B, node)
    shapes = [graph.shapes[A], graph.shapes[B]]
    if ranks[0] == 1:
        A, shapes[0] = graph.op("Unsqueeze", A, graph.constant([0])), (1, *shapes[0])
        dY = graph.op("Unsqueeze", dY, graph.constant([-1 if ranks[1] == 1 else -2]))
    if ranks[1] == 1:
        B, shapes[1] = graph.op("Unsqueeze", B, graph.constant([1])), (*shapes[1], 1)
        dY = graph.op("Unsqueeze", dY, graph.constant([-1]))
    (*a, m, k), (*b, _, n) = shapes
    batch = _broadcast(a, b)
    grads: list[str | None] = [None, None]
    if wanted[0]:
        dA = graph.op("MatMul", dY, _transposed(graph, B, len(shapes[1])))
        grads[0] = _reduced(graph, dA, batch, (m, k), A, node.input[0], shapes[0])
    if wanted[1]:
        if len(shapes[1]) == 2 and len(shapes[0]) > 2 and isinstance(k, int) and isinstance(n, int):
            # one product for the whole batch
            rows = graph.op("Reshape", A, graph.constant([-1, k]))
            dB = graph.op("Gemm", rows, graph.op("Reshape", dY, graph.constant([-1, n])), transA=1)
            grads[1] = dB if node.input[1] == B else graph.like(dB, node.input[1])
        else:
            dB = graph.op("MatMul", _transposed(graph, A, len(shapes[0])), dY)
            grads[1] = _reduced(graph, dB, batch, (k, n), B, node.input[1], shapes[1])
    return grads


def _broadcast(a: Sequence[Any], b: Sequence[Any]) -> tuple | None:
    """The broadcast shape of both; None if sizes are unknown."""
    rank = max(len(a), len(b))
    a, b = ([1] * (rank - len(shape)) + list(shape) for shape in (a, b))
    both = []
    for m, n in zip(a, b, strict=True):
        if m == 1 or n == 1:
            both.append(n if m == 1 else m)
        elif isinstance(m, int) or isinstance(n, int) or (m == n and m is not None):
            both.append(m if isinstance(m, int) else n)
        else:
            return None
    return tuple(both)


def _reduced(
    graph: Graph, grad: str, batch: tuple | None, matrix: tuple, operand: str, original: str, shape: tuple
) -> str:
    graph.shapes[operand] = shape
    grad = graph.summed_to(grad, None if batch is None else (*batch, *matrix), operand)
    return grad if operand == original else graph.like(grad, original)


def _transposed(graph: Graph, name: str, rank: int) -> str:
    return graph.op("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])


# --- arithmetic ---------------------------------------------------------------------------------------------


def _each_summed(
    graph: Graph, node: onnx.NodeProto, wanted: Sequence[bool], grad_of: Callable[[int], str]
) -> list[str | None]:
    shape = graph.shapes.get(node.output[0])
    return [
        graph.summed_to(grad_of(k), shape, node.input[k]) if want else None for k, want in enumerate(wanted)
    ]


@_rule("Add", "Sum")
def _add(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    return _each_summed(graph, node, wanted, lambda k: _first(cotangents))


@_rule("Sub")
def _sub(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    dY = _first(cotangents)
    return _each_summed(graph, node, wanted, lambda k: graph.op("Neg", dY) if k else dY)


@_rule("Mul")
def _mul(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    dY = _first(cotangents)
    return _each_summed(graph, node, wanted, lambda k: graph.op("Mul", dY, node.input[1 - k]))


@_rule("Div")
def _div(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    def grad_of(k: int) -> str:
        share = graph.op("Div", _first(cotangents), node.input[1])
        return graph.op("Neg", graph.op("Mul", share, node.output[0])) if k else share

    return _each_summed(graph, node, wanted, grad_of)


@_rule("Neg")
def _neg(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    return [graph.op("Neg", _first(cotangents))]


@_rule("Exp")
def _exp(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    return [graph.op("Mul", _first(cotangents), node.output[0])]


@_rule("Log")
def _log(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    return [graph.op("Div", _first(cotangents), node.input[0])]


@_rule("Sqrt")
def _sqrt(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    half = graph.op("Mul", _first(cotangents), graph.number(0.5))
    return [graph.op("Div", half, node.output[0])]


@_rule("Abs")
def _abs(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    return [graph.op("Mul", _first(cotangents), graph.op("Sign", node.input[0]))]


@_rule("Pow")
def _pow(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    X, exponent = node.input
    kind = onnx.helper.np_dtype_to_tensor_dtype(graph.dtype)
    power = graph.op("Cast", exponent, to=kind)
    slope = graph.op("Mul", graph.op("Pow", X, graph.op("Sub", power, graph.number(1))), power)
    return _each_summed(graph, node, wanted, lambda k: graph.op("Mul", _first(cotangents), slope))


@_rule("Clip")
def _clip(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    inside = graph.op("Equal", node.input[0], node.output[0])
    return [graph.op("Where", inside, _first(cotangents), graph.number(0))]


@_rule("Identity", "Dropout")
def _identity(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]:
        raise refuse(node, "training_mode", "none: what it drops is not known to a gradient")
    return [_first(cotangents)]


@_rule("Cast")
def _cast(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    kind = graph.types.get(node.input[0])
    if kind is None:
        raise refuse(node, "an input of unknown type", "a known one: give the model's inputs types")
    return [graph.op("Cast", _first(cotangents), to=kind)]


@_rule("ReduceSum", "ReduceMean")
def _reduce(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    attributes = attributes_of(node)
    dY = _first(cotangents)
    axes = node.input[1] if len(node.input) > 1 else ""
    if "axes" in attributes:
        axes = graph.constant(attributes["axes"])
    if not axes and attributes.get("noop_with_empty_axes", 0):
        return [dY]
    if axes and not attributes.get("keepdims", 1):
        dY = graph.op("Unsqueeze", dY, axes)
    if node.op_type == "ReduceMean":
        return [_spread_mean(graph, node, dY)]
    return [graph.op("Expand", dY, graph.op("Shape", node.input[0]))]


def _spread_mean(graph: Graph, node: onnx.NodeProto, dY: str) -> str:
    """The cotangent of a mean, for each of its elements."""
    X, Y = node.input[0], node.output[0]
    count = graph.op("Div", graph.op("Size", X), graph.op("Size", Y))
    kind = onnx.helper.np_dtype_to_tensor_dtype(graph.dtype)
    share = graph.op("Div", dY, graph.op("Cast", count, to=kind))
    return graph.op("Expand", share, graph.op("Shape", X))


@_rule("BatchNormalization")
def _batch_normalization(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    """With given mean and variance it is a scaling of the channels."""
    attributes = attributes_of(node)
    if attributes.get("training_mode", 0):
        raise refuse(node, "training_mode 1", "0: means and variances that are given")
    X, scale, _, mean, variance = node.input
    dY = _first(cotangents)
    rank = graph.rank(X, node)
    axes, over = graph.constant(range(1, rank - 1)), graph.constant([0, *range(2, rank)])

    def over_channels(name: str) -> str:
        return graph.op("Unsqueeze", name, axes) if rank > 2 else name

    deviation = graph.op("Sqrt", graph.op("Add", variance, graph.number(attributes.get("epsilon", 1e-5))))
    grads: list[str | None] = [None] * len(wanted)
    if wanted[0]:
        grads[0] = graph.op("Mul", dY, over_channels(graph.op("Div", scale, deviation)))
    if wanted[1]:
        centred = graph.op("Sub", X, over_channels(mean))
        total = graph.op("ReduceSum", graph.op("Mul", dY, centred), over, keepdims=0)
        grads[1] = graph.op("Div", total, deviation)
    if wanted[2]:
        grads[2] = graph.op("ReduceSum", dY, over, keepdims=0)
    return grads


# --- activations, softmax and losses ------------------------------------------------------------------------


def _activation(
    operator: str, gradient: str, residual: str, domain: str, of: str = "", **defaults: float
) -> None:
    """`defaults` are the operator's, if its gradient has other ones."""

    @_rule(operator, domain=of)
    def rule(
        graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
    ) -> Sequence[str | None]:
        other = node.input[0] if residual == "X" else node.output[0]
        attributes = {**defaults, **attributes_of(node)}
        return [graph.op(gradient, _first(cotangents), other, domain=domain, **attributes)]


for _operator, _gradient, _residual in (
    ("Relu", "ReluGrad", "Y"),
    ("Sigmoid", "SigmoidGrad", "Y"),
    ("Tanh", "TanhGrad", "Y"),
):
    _activation(_operator, _gradient, _residual, MICROSOFT)
for _operator in (
    "ThresholdedRelu", "Elu", "Selu", "Celu", "Softplus", "Softsign", "HardSigmoid", "HardSwish", "Mish",
):  # fmt: skip
    _activation(_operator, f"{_operator}Grad", "X", DOMAIN)
_activation("Swish", "QuickGeluGrad", "X", MICROSOFT, alpha=1.0)
_activation("Gelu", "GeluGrad", "X", MICROSOFT, of=MICROSOFT)
_activation("QuickGelu", "QuickGeluGrad", "X", MICROSOFT, of=MICROSOFT)


@_rule("Gelu")
def _gelu(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    gradient = "FastGeluGrad" if attributes_of(node).get("approximate") == "tanh" else "GeluGrad"
    return [graph.op(gradient, _first(cotangents), node.input[0], domain=MICROSOFT)]


@_rule("BiasGelu", "FastGelu", domain=MICROSOFT)
def _biased_gelu(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    biased = len(node.input) > 1
    kind = "Gelu" if node.op_type == "BiasGelu" else "FastGelu"
    gradient = f"Bias{kind}Grad_dX" if biased else f"{kind}Grad"
    dX = graph.op(gradient, _first(cotangents), *node.input, domain=MICROSOFT)
    return _each_summed(graph, node, wanted, lambda k: dX)


@_rule("LeakyRelu")
def _leaky_relu(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    attributes = attributes_of(node)
    alpha = attributes.get("alpha", 0.01)
    if alpha >= 0:
        gradient = "LeakyReluGrad"
        return [graph.op(gradient, _first(cotangents), node.output[0], domain=MICROSOFT, **attributes)]
    # then the output does not determine the slope
    slope = graph.constant([alpha], graph.dtype)
    return [graph.op("PReluGrad", _first(cotangents), node.input[0], slope, domain=DOMAIN)]


@_rule("PRelu")
def _prelu(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    return graph.ops("PReluGrad", _first(cotangents), *node.input, wanted=list(wanted), domain=DOMAIN)


@_rule("Softmax", "LogSoftmax")
def _softmax(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    axis = attributes_of(node).get("axis", -1)
    gradient = f"{node.op_type}Grad_13"
    return [graph.op(gradient, _first(cotangents), node.output[0], domain=MICROSOFT, axis=axis)]


@_rule("SoftmaxCrossEntropyLoss")
def _cross_entropy(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    log_prob = graph.output(node, 1, "log_prob")
    dloss, dlog = [*cotangents, None][:2]
    parts = []
    if dloss:
        gradient = "SoftmaxCrossEntropyLossGrad"
        operands = (dloss, log_prob, *node.input[1:])
        parts.append(graph.op(gradient, *operands, domain=MICROSOFT, **attributes_of(node)))
    if dlog:
        parts.append(graph.op("LogSoftmaxGrad_13", dlog, log_prob, domain=MICROSOFT, axis=1))
    return [graph.op("Sum", *parts) if len(parts) > 1 else parts[0]]


# --- shapes -------------------------------------------------------------------------------------------------


@_rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    return [graph.like(_first(cotangents), node.input[0])]


@_rule("Transpose")
def _transpose(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    perm = attributes_of(node).get("perm")
    back: dict[str, Any] = {} if perm is None else {"perm": [int(k) for k in np.argsort(perm)]}
    return [graph.op("Transpose", _first(cotangents), **back)]


@_rule("Concat")
def _concat(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    axis = attributes_of(node)["axis"]
    place = graph.constant([axis])

    def size(name: str) -> str:
        shape = graph.op("Shape", name)
        index = place if axis >= 0 else graph.op("Add", place, graph.op("Shape", shape))
        return graph.op("Gather", shape, index)

    sizes = graph.op("Concat", *map(size, node.input), axis=0)
    # an unwanted part needs a name, so that there are as many parts as sizes
    parts = graph.ops("Split", _first(cotangents), sizes, wanted=[True] * len(node.input), axis=axis)
    return [part if want else None for part, want in zip(parts, wanted, strict=True)]


@_rule("Split")
def _split(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    parts = [
        cotangent or graph.zeros(graph.op("Shape", graph.output(node, k, f"part_{k}")))
        for k, cotangent in enumerate(cotangents)
    ]
    return [graph.op("Concat", *parts, axis=attributes_of(node).get("axis", 0))]


@_rule("Expand")
def _expand(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    return [graph.summed_to(_first(cotangents), graph.shapes.get(node.output[0]), node.input[0])]


@_rule("Slice", "Gather", "GatherElements", "GatherND", "Tile")
def _selection(
    graph: Graph, node: onnx.NodeProto, cotangents: Cotangents, wanted: Sequence[bool]
) -> Sequence[str | None]:
    """Operators that only pick elements: applied to the elements' indices, they show the origin of each."""
    X = node.input[0]
    zero, one = (graph.constant(number) for number in (0, 1))
    numbers = graph.op("Range", zero, graph.op("Size", X), one)
    picked = onnx.NodeProto()
    picked.CopyFrom(node)
    picked.input[0] = graph.like(numbers, X)
    picked.output[0] = graph.fresh("grad/places")
    picked.name = ""
    graph.put(picked)
    return [_scattered(graph, node, X, picked.output[0], _first(cotangents))]


def _scattered(graph: Graph, node: onnx.NodeProto, X: str, places: str, dY: str) -> str:
    """Add the cotangent's elements at their places in X."""
    if graph.opset < 16:
        raise refuse(
            node, f"a gradient that adds at places, and the model opset {graph.opset}", "16 at least"
        )
    rows = graph.constant([-1])
    zeros = graph.zeros(graph.op("Reshape", graph.op("Size", X), rows))
    flat = (graph.op("Reshape", name, rows) for name in (places, dY))
    return graph.like(graph.op("ScatterElements", zeros, *flat, axis=0, reduction="add"), X)
