"""Formulas of tensors: each operation appends a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx

from xpgrad_onnx._graph import Graph


class Term:
    """A tensor of a graph in a formula; plain numbers get the dtype of cotangents."""

    __slots__ = ("graph", "name")

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph, self.name = graph, name

    def of(self, op_type: str, *others: Term | float | str, **attributes: Any) -> Term:
        """An operator's result, with this as its first input."""
        names = [self._name(other) for other in others]
        return Term(self.graph, self.graph.op(op_type, self.name, *names, **attributes))

    def _name(self, other: Term | float | str) -> str:
        if isinstance(other, Term):
            return other.name
        return other if isinstance(other, str) else self.graph.number(other)

    def number(self, value: float) -> Term:
        """A scalar."""
        return Term(self.graph, self.graph.number(value))

    def __add__(self, other: Term | float) -> Term:
        return self.of("Add", other)

    __radd__ = __add__

    def __sub__(self, other: Term | float) -> Term:
        return self.of("Sub", other)

    def __rsub__(self, other: float) -> Term:
        return self.number(other).of("Sub", self)

    def __mul__(self, other: Term | float) -> Term:
        return self.of("Mul", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Term | float) -> Term:
        return self.of("Div", other)

    def __rtruediv__(self, other: float) -> Term:
        return self.number(other).of("Div", self)

    def __neg__(self) -> Term:
        return self.of("Neg")

    def where(self, condition: Term, otherwise: Term | float = 0.0) -> Term:
        """These elements where a condition holds, else the others'."""
        return condition.of("Where", self, otherwise)

    def reduced(self, op_type: str, axes: Sequence[int], keepdims: int = 1) -> Term:
        """A reduction over axes, which are an attribute before opset 18."""
        if self.graph.opset < 18:
            return self.of(op_type, axes=list(axes), keepdims=keepdims)
        return self.of(op_type, self.graph.constant(axes), keepdims=keepdims)

    def sum(self, axes: str, keepdims: int = 1) -> Term:
        """The sum over axes."""
        return self.of("ReduceSum", axes, keepdims=keepdims)


def wide(X: Term) -> tuple[Term, Callable[[Term], Term]]:
    """Half precision as float32, and back; other types stay."""
    kind = X.graph.kind
    if X.graph.dtype.itemsize > 2:
        return X, lambda result: result
    return X.of("Cast", to=onnx.TensorProto.FLOAT), lambda result: result.of("Cast", to=kind)
