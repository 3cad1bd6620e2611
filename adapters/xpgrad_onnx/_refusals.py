"""Find the operators without a gradient, and why, before a gradient is written."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from xpgrad_onnx._graph import Graph, operator_of
from xpgrad_onnx._reverse import Path, nodes_on
from xpgrad_onnx._rules.table import REASONS, RULES, check_fixed
from xpgrad_onnx._scopes import all_nodes, reads


def check_all_fixed(graph: Graph, way: Path) -> None:
    """Raise ValueError if the gradient of an input that is no weight is wanted."""
    for node in way.nodes:
        check_fixed(node, [name in way.tensors for name in node.input])


def missing(graph: Graph, way: Path) -> dict[str, list[onnx.NodeProto]]:
    """The operators without a rule on the path, and their nodes."""
    found: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes_on(graph, way):
        if (node.domain, node.op_type) not in RULES:
            found.setdefault(operator_of(node), []).append(node)
    return found


def check_rules(graph: Graph, way: Path) -> None:
    """Raise ValueError for operators without a rule: each once, with the number of its nodes."""
    found = missing(graph, way)
    if found:
        named = "; ".join(counted(operator, nodes) for operator, nodes in found.items())
        raise ValueError(f"gradient_model: the model has {named}; expected operators with a gradient here")


def counted(operator: str, nodes: list[onnx.NodeProto]) -> str:
    """An operator, its nodes, and why it has no rule."""
    name = next((node.name for node in nodes if node.name), "")
    count = f"{len(nodes)} node" + ("s" if len(nodes) > 1 else "")
    first = f", {'first ' if len(nodes) > 1 else ''}{name!r}" if name else ""
    reason = REASONS.get(operator.rpartition(".")[2])
    why = f": {reason}" if reason else ""
    return f"{operator} ({count}{first}){why}"


def cut_off(graph: Graph, names: Iterable[str], ends: Iterable[str]) -> list[str]:
    """The weights on which the ends depend only through nodes that work on integers."""
    integers = {name for name, reason in REASONS.items() if "integers" in reason}
    leading = set(ends)
    found: set[str] = set()  # tensors that lead to a node that works on integers
    for node in reversed(graph.nodes):
        if not leading.isdisjoint(node.output):
            leading.update(reads(node))
            if node.op_type in integers or not found.isdisjoint(node.output):
                found.update(reads(node))
    return [name for name in names if name in found and any(n != 1 for n in graph.shapes.get(name, ()))]


def hindrance(nodes: Iterable[onnx.NodeProto]) -> str:
    """A sentence about the first node whose weights are no tensors of floats; "" if there is none."""
    names = {name for name, reason in REASONS.items() if "integers" in reason or "attributes" in reason}
    node = next((node for node in all_nodes(nodes) if node.op_type in names), None)
    return f"; it has {counted(operator_of(node), [node])}" if node is not None else ""
