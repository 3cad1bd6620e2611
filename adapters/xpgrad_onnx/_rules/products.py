"""Gradients of matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from xpgrad_onnx._graph import Graph
from xpgrad_onnx._rules.table import Backward, Grads, refuse, rule


@rule("Gemm")
def _gemm(call: Backward) -> Grads:
    graph, node, wanted, attributes = call.graph, call.node, call.wanted, call.attributes
    alpha, beta = (float(attributes.get(name, 1.0)) for name in ("alpha", "beta"))
    ta, tb = (int(attributes.get(name, 0)) for name in ("transA", "transB"))
    A, B = node.input[:2]
    dY = call.dY
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


@rule("MatMul")
def _matmul(call: Backward) -> Grads:
    """Vectors are treated as matrices of one row or one column."""
    graph, node, wanted, dY = call.graph, call.node, call.wanted, call.dY
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


@rule("Einsum")
def _einsum(call: Backward) -> Grads:
    """The other operands and the cotangent, with ones for the letters that only this operand has."""
    graph, node = call.graph, call.node
    terms, output = _letters(call.attributes["equation"].replace(" ", ""))
    dY = call.dY
    grads: list[str | None] = []
    for k, want in enumerate(call.wanted):
        if not want:
            grads.append(None)
            continue
        if len(set(terms[k].replace("...", ""))) < len(terms[k].replace("...", "")):
            raise refuse(node, f"the operand {terms[k]!r}", "each letter once: a diagonal has no Einsum back")
        one = onnx.numpy_helper.from_array(np.ones(1, dtype=graph.dtype))
        ones = graph.op("ConstantOfShape", graph.op("Shape", node.input[k]), value=one)
        operands = [dY, *(name for j, name in enumerate(node.input) if j != k), ones]
        letters = [output, *(term for j, term in enumerate(terms) if j != k), terms[k]]
        grads.append(graph.op("Einsum", *operands, equation=f"{','.join(letters)}->{terms[k]}"))
    return grads


def _letters(equation: str) -> tuple[list[str], str]:
    """The operands' letters and the output's, which may be implicit."""
    left, arrow, output = equation.partition("->")
    if not arrow:
        once = sorted(c for c in set(left) if c.isalpha() and left.count(c) == 1)
        output = ("..." if "..." in left else "") + "".join(once)
    return left.split(","), output
