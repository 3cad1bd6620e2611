"""Gradients of matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters
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
    if A not in graph.shapes or B not in graph.shapes:
        return _products_of_unknown_rank(call)
    shapes = [graph.shapes[A], graph.shapes[B]]
    ranks = len(shapes[0]), len(shapes[1])
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


def _products_of_unknown_rank(call: Backward) -> Grads:
    """No operand may be a vector; a runtime refuses a vector when the graph runs."""
    graph, dY, (A, B) = call.graph, call.dY, call.node.input
    grads: list[str | None] = [None, None]
    if call.wanted[0]:
        grads[0] = graph.summed_to(graph.op("MatMul", dY, _matrices_transposed(call, B)), None, A)
    if call.wanted[1]:
        grads[1] = graph.summed_to(graph.op("MatMul", _matrices_transposed(call, A), dY), None, B)
    return grads


def _matrices_transposed(call: Backward, name: str) -> str:
    """A stack of matrices of unknown rank with its last two axes swapped, as one row of matrices."""
    graph, sizes = call.graph, call.term(call.graph.op("Shape", name))
    cut, end = graph.constant([-2]), graph.constant([np.iinfo(np.int64).max])
    lead, matrix = sizes.of("Slice", graph.constant([0]), cut), sizes.of("Slice", cut, end)
    swapped = matrix.of("Gather", graph.constant([1, 0]))
    count = graph.op("ReduceProd", lead.name, keepdims=1)
    rows = graph.op("Reshape", name, graph.op("Concat", count, matrix.name, axis=0))
    turned = graph.op("Transpose", rows, perm=[0, 2, 1])
    return graph.op("Reshape", turned, graph.op("Concat", lead.name, swapped.name, axis=0))


def _broadcast(a: Sequence[Any], b: Sequence[Any]) -> tuple | None:
    """The broadcast shape of both operands; None if sizes are unknown."""
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
    """The other operands and the cotangent, and ones for the letters of only this operand."""
    graph, node = call.graph, call.node
    terms, output = _letters(call.attributes["equation"].replace(" ", ""))
    dY = call.dY
    grads: list[str | None] = []
    for k, want in enumerate(call.wanted):
        if not want:
            grads.append(None)
            continue
        X = node.input[k]
        operands = [dY, *(name for j, name in enumerate(node.input) if j != k)]
        letters = [output, *(term for j, term in enumerate(terms) if j != k)]
        term = terms[k]
        operands.append(graph.filled(graph.op("Shape", X), 1))
        letters.append(term)
        front = term.partition("...")[0] if "..." in term else ""
        for place, letter in enumerate(term):
            if letter.isalpha() and letter in term[:place]:  # a diagonal: zero elsewhere
                new = next(c for c in ascii_letters if c not in "".join([*letters, term]))
                term = term[:place] + new + term[place + 1 :]
                letters[-1] = term if letters[-1] == terms[k] else letters[-1]
                axis = place if place < len(front) else place - len(term)
                operands.append(_unit_matrix(graph, X, axis))
                letters.append(letter + new)
        letters[len(terms)] = term
        spread = "..." if "..." in "".join(letters) else ""  # axes along which an operand may be broadcast
        own = term.replace("...", "")
        grad = graph.op("Einsum", *operands, equation=f"{','.join(letters)}->{spread}{own}")
        if spread:
            grad = _of_shape(graph, node, grad, X, term)
        elif 1 in graph.shapes.get(X, ()):  # such an axis may be broadcast
            grad = graph.summed_to(grad, None, X)
        grads.append(grad)
    return grads


def _of_shape(graph: Graph, node: onnx.NodeProto, grad: str, X: str, term: str) -> str:
    """The gradient of an operand from one whose open axes are broadcast and come first."""
    front, dots, _ = term.partition("...")
    if not front or not dots:
        return graph.summed_to(grad, None, X)
    rank = graph.rank(X, node)
    end = rank - len(term) + len(front) + 3  # of the open axes
    order = [*range(len(front), end), *range(len(front)), *range(end, rank)]
    total = graph.summed_to(grad, None, graph.op("Transpose", X, perm=order))
    return graph.op("Transpose", total, perm=[order.index(axis) for axis in range(rank)])


def _unit_matrix(graph: Graph, X: str, axis: int) -> str:
    """For an axis counted from the end, if it is negative."""
    sizes, place = graph.op("Shape", X), graph.constant([axis])
    if axis < 0:
        place = graph.op("Add", graph.op("Shape", sizes), place)
    size = graph.op("Gather", sizes, place)
    return graph.op("EyeLike", graph.zeros(graph.op("Concat", size, size, axis=0)))


def _letters(equation: str) -> tuple[list[str], str]:
    """The operands' letters and the output's, which may be implicit."""
    left, arrow, output = equation.partition("->")
    if not arrow:
        once = sorted(c for c in set(left) if c.isalpha() and left.count(c) == 1)
        output = ("..." if "..." in left else "") + "".join(once)
    return left.split(","), output


@rule("Det")
def _determinant(call: Backward) -> Grads:
    """Each element's slope is the signed determinant without its row and column."""
    graph, X = call.graph, call.term(call.node.input[0])
    size = graph.shapes.get(X.name, (None,))[-1]
    if not isinstance(size, int):
        raise refuse(call.node, "a matrix of unknown size", "a known one")
    others = np.asarray([[k for k in range(size) if k != i] for i in range(size)]).reshape(size, size - 1)
    rank = len(graph.shapes[X.name])
    if size == 1:
        return [graph.like(call.dY, X.name)]
    rows = X.of("Gather", graph.constant(others), axis=rank - 2)  # (..., i, rows, columns)
    minors = rows.of("Gather", graph.constant(others), axis=rank)  # (..., i, rows, j, columns)
    order = [*range(rank - 2), rank - 2, rank, rank - 1, rank + 1]
    signs = (-1.0) ** np.add.outer(np.arange(size), np.arange(size))
    slopes = minors.of("Transpose", perm=order).of("Det").of("Mul", graph.constant(signs, graph.dtype))
    over = graph.constant([rank - 2, rank - 1])
    return [(slopes * call.term(call.dY).of("Unsqueeze", over)).name]


@rule("DFT")
def _fourier(call: Backward) -> Grads:
    """The transformed unit vectors are the matrix of the transform."""
    graph, node, attributes = call.graph, call.node, call.attributes
    X, rank = call.term(node.input[0]), graph.rank(call.node.input[0], node)
    axis = attributes.pop("axis", 1 if graph.opset < 20 else -2)
    if call.input(2):
        known = graph.value(call.input(2))
        if known is None:
            raise refuse(node, "an axis that is computed", "a constant")
        axis = int(known.reshape(()))
    order = [*(k for k in range(rank - 1) if k != axis % rank), axis % rank, rank - 1]
    moved = X.of("Transpose", perm=order)
    pair = moved.of("Shape").of("Slice", graph.constant([rank - 2]), graph.constant([rank]))
    count = pair.of("ReduceProd", keepdims=1)
    unit = call.term(graph.op("EyeLike", graph.zeros(graph.op("Concat", count.name, count.name, axis=0))))
    units = unit.of("Reshape", graph.op("Concat", count.name, pair.name, axis=0))
    where = {"axis": 1} if graph.opset < 20 else {}
    operands = [call.input(1)] if where else [call.input(1), graph.constant(1)]
    matrix = units.of("DFT", *operands, **attributes, **where)
    rows = matrix.of("Reshape", graph.op("Concat", count.name, graph.constant([-1]), axis=0))
    width = rows.of("Shape").of("Gather", graph.constant([1]))
    shape = graph.op("Concat", graph.constant([-1]), width.name, axis=0)
    grad = call.term(call.dY).of("Transpose", perm=order).of("Reshape", shape)
    back = grad.of("MatMul", rows.of("Transpose", perm=[1, 0])).of("Reshape", moved.of("Shape"))
    return [back.of("Transpose", perm=[int(k) for k in np.argsort(order)]).name]
