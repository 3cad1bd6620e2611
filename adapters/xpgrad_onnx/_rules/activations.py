"""Gradients of activations, softmax and losses."""

from __future__ import annotations

from xpgrad_onnx._call import MICROSOFT
from xpgrad_onnx._operators import ACTIVATIONS, DOMAIN, RENAMED
from xpgrad_onnx._rules.table import Backward, Grads, rule


def _activation(
    operator: str, gradient: str, residual: str, domain: str, of: str = "", **defaults: float
) -> None:
    """`defaults` are the operator's, if its gradient has other defaults."""

    @rule(operator, domain=of)
    def activation(call: Backward) -> Grads:
        other = call.node.input[0] if residual == "X" else call.node.output[0]
        return [call.graph.op(gradient, call.dY, other, domain=domain, **{**defaults, **call.attributes})]


for _operator, _gradient, _residual in (
    ("Relu", "ReluGrad", "Y"),
    ("Sigmoid", "SigmoidGrad", "Y"),
    ("Tanh", "TanhGrad", "Y"),
):
    _activation(_operator, _gradient, _residual, MICROSOFT)
for _operator, _declared in ACTIVATIONS.items():
    if _declared.domain == DOMAIN and _operator not in RENAMED:
        _activation(_operator, f"{_operator}Grad", "X", DOMAIN)
_activation("Swish", "QuickGeluGrad", "X", MICROSOFT, alpha=1.0)
_activation("Gelu", "GeluGrad", "X", MICROSOFT, of=MICROSOFT)
_activation("QuickGelu", "QuickGeluGrad", "X", MICROSOFT, of=MICROSOFT)


@rule("Gelu")
def _gelu(call: Backward) -> Grads:
    gradient = "FastGeluGrad" if call.attributes.get("approximate") == "tanh" else "GeluGrad"
    return [call.graph.op(gradient, call.dY, call.node.input[0], domain=MICROSOFT)]


@rule("BiasGelu", "FastGelu", domain=MICROSOFT)
def _biased_gelu(call: Backward) -> Grads:
    node = call.node
    kind = "Gelu" if node.op_type == "BiasGelu" else "FastGelu"
    gradient = f"Bias{kind}Grad_dX" if len(node.input) > 1 else f"{kind}Grad"
    dX = call.graph.op(gradient, call.dY, *node.input, domain=MICROSOFT)
    return call.each(lambda k: dX)


@rule("LeakyRelu")
def _leaky_relu(call: Backward) -> Grads:
    graph, node, attributes = call.graph, call.node, call.attributes
    alpha = attributes.get("alpha", 0.01)
    if alpha >= 0:
        return [graph.op("LeakyReluGrad", call.dY, node.output[0], domain=MICROSOFT, **attributes)]
    # the output does not determine the slope then
    slope = graph.constant([alpha], graph.dtype)
    return [graph.op("PReluGrad", call.dY, node.input[0], slope, domain=DOMAIN)]


@rule("PRelu")
def _prelu(call: Backward) -> Grads:
    return call.graph.ops("PReluGrad", call.dY, *call.node.input, wanted=list(call.wanted), domain=DOMAIN)


@rule("Softmax", "LogSoftmax")
def _softmax(call: Backward) -> Grads:
    gradient, axis = f"{call.node.op_type}Grad_13", call.attributes.get("axis", -1)
    graph, dY, Y = call.graph, call.dY, call.node.output[0]
    if _is_chosen_from(call):
        unused = graph.op("And", graph.op("IsNaN", Y), graph.op("Equal", dY, graph.number(0)))
        Y = graph.op("Where", unused, graph.number(0), Y)
    return [graph.op(gradient, dY, Y, domain=MICROSOFT, axis=axis)]


def _is_chosen_from(call: Backward) -> bool:
    """Whether a Where takes the result, as Attention's, whose rows without an element are NaN until then."""
    names = {call.node.output[0]}
    for node in call.graph.nodes:
        if not names.isdisjoint(node.input):
            if node.op_type == "Where":
                return True
            if node.op_type == "Cast":
                names.add(node.output[0])
    return False


@rule("SoftmaxCrossEntropyLoss")
def _cross_entropy(call: Backward) -> Grads:
    graph, node = call.graph, call.node
    log_prob = graph.output(node, 1, "log_prob")
    dloss, dlog = [*call.cotangents, None][:2]
    parts = []
    if dloss:
        gradient = "SoftmaxCrossEntropyLossGrad"
        operands = (dloss, log_prob, *node.input[1:])
        parts.append(graph.op(gradient, *operands, domain=MICROSOFT, **call.attributes))
    if dlog:
        parts.append(graph.op("LogSoftmaxGrad_13", dlog, log_prob, domain=MICROSOFT, axis=1))
    return [graph.op("Sum", *parts) if len(parts) > 1 else parts[0]]
