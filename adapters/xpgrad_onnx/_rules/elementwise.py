"""Gradients of functions of single elements."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import numpy as np

from xpgrad_onnx._rules.table import Backward, Grads, refuse, rule
from xpgrad_onnx._terms import Term

_SLOPES: dict[str, Callable[[Term, Term], Term]] = {
    "Abs": lambda x, y: x.of("Sign"),
    "Acos": lambda x, y: -1.0 / (1.0 - x * x).of("Sqrt"),
    "Acosh": lambda x, y: 1.0 / (x * x - 1.0).of("Sqrt"),
    "Asin": lambda x, y: 1.0 / (1.0 - x * x).of("Sqrt"),
    "Asinh": lambda x, y: 1.0 / (x * x + 1.0).of("Sqrt"),
    "Atan": lambda x, y: 1.0 / (x * x + 1.0),
    "Atanh": lambda x, y: 1.0 / (1.0 - x * x),
    "Cos": lambda x, y: -x.of("Sin"),
    "Cosh": lambda x, y: x.of("Sinh"),
    "Erf": lambda x, y: 2 / sqrt(pi) * (-(x * x)).of("Exp"),
    "Exp": lambda x, y: y,
    "Log": lambda x, y: 1.0 / x,
    "Reciprocal": lambda x, y: -(y * y),
    "Sin": lambda x, y: x.of("Cos"),
    "Sinh": lambda x, y: x.of("Cosh"),
    "Sqrt": lambda x, y: 0.5 / y,
    "Tan": lambda x, y: y * y + 1.0,
}
"""Slopes of functions, from their input x and output y."""


@rule(*_SLOPES)
def _unary(call: Backward) -> Grads:
    dY, X, Y = call.terms()
    return [(dY * _SLOPES[call.node.op_type](X, Y)).name]


@rule("Neg")
def _neg(call: Backward) -> Grads:
    return [call.graph.op("Neg", call.dY)]


@rule("Add", "Sum")
def _add(call: Backward) -> Grads:
    dY = call.dY
    return call.each(lambda k: dY)


@rule("Mean")
def _mean(call: Backward) -> Grads:
    share = call.term(call.dY) / len(call.node.input)
    return call.each(lambda k: share)


@rule("Sub")
def _sub(call: Backward) -> Grads:
    dY = call.term(call.dY)
    return call.each(lambda k: -dY if k else dY)


@rule("Mul")
def _mul(call: Backward) -> Grads:
    dY = call.term(call.dY)
    return call.each(lambda k: dY.of("Mul", call.node.input[1 - k]))


@rule("Div")
def _div(call: Backward) -> Grads:
    dY, _, Y = call.terms()
    share = dY.of("Div", call.node.input[1])
    return call.each(lambda k: -(share * Y) if k else share)


@rule("Mod")
def _mod(call: Backward) -> Grads:
    """Y is A - n B with a whole number n."""
    dY, A, Y = call.terms()
    return call.each(lambda k: dY * (Y - A).of("Div", call.node.input[1]) if k else dY)


@rule("Pow")
def _pow(call: Backward) -> Grads:
    dY, X, _ = call.terms()
    power = call.term(call.node.input[1]).of("Cast", to=call.graph.kind)
    known, exponent = call.graph.value(call.node.input[1]), power
    if known is None or not known.all():  # of x to the 0 the slope is 0, also at 0
        exponent = power.number(1.0).where(power.of("Equal", 0.0), power)
    return call.each(lambda k: dY * (X.of("Pow", exponent - 1.0) * power))


@rule("Max", "Min")
def _extreme(call: Backward) -> Grads:
    """Equal operands share the cotangent."""
    dY, _, Y = call.terms()
    hits = [Y.of("Equal", name).of("Cast", to=call.graph.kind) for name in call.node.input]
    count = hits[0].of("Sum", *hits[1:])
    return call.each(lambda k: dY * hits[k] / count)


@rule("Where")
def _where(call: Backward) -> Grads:
    dY, condition, _ = call.terms()
    zero = call.graph.number(0)
    sides = ((), (dY, zero), (zero, dY))
    return call.each(lambda k: condition.of("Where", *sides[k]))


@rule("Clip")
def _clip(call: Backward) -> Grads:
    dY, X, Y = call.terms()
    return [dY.where(X.of("Equal", Y)).name]


@rule("Identity")
def _identity(call: Backward) -> Grads:
    return [call.dY]


@rule("Dropout")
def _dropout(call: Backward) -> Grads:
    """The forward's mask marks the dropped elements."""
    graph, node = call.graph, call.node
    training = graph.value(call.input(2)) if call.input(2) else np.asarray(False)
    if training is not None and not training:
        return [call.dY]
    mask = call.term(graph.output(node, 1, "mask"))
    given = call.input(1)
    ratio = call.term(given).of("Cast", to=graph.kind) if given else call.term(graph.number(0.5))
    kept = call.term(call.dY).where(mask) / (1.0 - ratio)
    if training is None:
        kept = kept.where(call.term(node.input[2]), call.term(call.dY))
    return [kept.name]


@rule("Cast", "CastLike")
def _cast(call: Backward) -> Grads:
    kind = call.graph.types.get(call.node.input[0])
    if kind is None:
        raise refuse(call.node, "an input of unknown type", "a known one: give the model's inputs types")
    return [call.graph.op("Cast", call.dY, to=kind)]
