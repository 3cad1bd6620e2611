"""Gradients of LSTM, GRU and RNN."""

from __future__ import annotations

from typing import Any

import onnx

from xpgrad_onnx._call import MICROSOFT
from xpgrad_onnx._graph import Graph, attributes_of
from xpgrad_onnx._operators import DOMAIN
from xpgrad_onnx._rules.table import Backward, Grads, rule

_GATES = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def _recurrent_attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes without those that state a default."""
    attributes = attributes_of(node)
    both = _GATES[node.op_type] * (2 if attributes.get("direction") == "bidirectional" else 1)
    silent = {"activations": both, "direction": "forward", "layout": 0, "input_forget": 0}
    return {name: value for name, value in attributes.items() if silent.get(name) != value}


def _train(graph: Graph, node: onnx.NodeProto, attributes: dict[str, Any], outputs: int) -> str:
    """Make a recurrent node output what its gradient needs; returns the domain of both operators.

    ONNX Runtime's operators accept only the plain form; our own domain accepts all forms.
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


def _wants(call: Backward, *places: int) -> list[bool]:
    return [call.wants(k) for k in places]


@rule("LSTM")
def _lstm(call: Backward) -> Grads:
    graph, node = call.graph, call.node
    attributes = _recurrent_attributes(node)
    domain = _train(graph, node, attributes, 5)
    X, W, R, B, lengths, h0, c0, P = _operands(node, 8)
    H_all, _, _, C_all, iofc = node.output
    dY, dH, dC = (cotangent or "" for cotangent in [*call.cotangents, None, None][:3])
    extra = (P, B) if domain == DOMAIN else ()
    dX, dW, dR, dB, dh0, dc0, dP = graph.ops(
        "LSTMGrad", X, W, R, lengths, h0, c0, H_all, C_all, iofc, dY, dH, dC, *extra,
        wanted=_wants(call, 0, 1, 2, 3, 5, 6, 7), domain=domain, **attributes,
    )  # fmt: skip
    return [dX, dW, dR, dB, None, dh0, dc0, dP]


@rule("GRU")
def _gru(call: Backward) -> Grads:
    graph, node = call.graph, call.node
    attributes = _recurrent_attributes(node)
    domain = _train(graph, node, attributes, 2)
    operands = _operands(node, 6)
    zrh = graph.output(node, 2, "zrh")
    dY, dH = (cotangent or "" for cotangent in [*call.cotangents, None][:2])
    dX, dW, dR, dB, dh0 = graph.ops(
        "GRUGrad", *operands, node.output[0], zrh, dY, dH,
        wanted=_wants(call, 0, 1, 2, 3, 5), domain=domain, **attributes,
    )  # fmt: skip
    return [dX, dW, dR, dB, None, dh0]


@rule("RNN")
def _rnn(call: Backward) -> Grads:
    graph, node = call.graph, call.node
    H_all = graph.output(node, 0, "H_all")  # all operands of its gradient
    dY, dH = (cotangent or "" for cotangent in [*call.cotangents, None][:2])
    dX, dW, dR, dB, dh0 = graph.ops(
        "RNNGrad", *_operands(node, 6), H_all, dY, dH,
        wanted=_wants(call, 0, 1, 2, 3, 5), domain=DOMAIN, **_recurrent_attributes(node),
    )  # fmt: skip
    return [dX, dW, dR, dB, None, dh0]
