"""Names in nested graphs: the outer tensors that branches of `If` and bodies of loops read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

import onnx
from onnx import helper


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """A node's branches or body."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes, and the nodes of their subgraphs at every depth."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from all_nodes(graph.node)


def all_graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    """The graph, and the subgraphs of its nodes at every depth."""
    return [graph, *(inner for node in all_nodes(graph.node) for inner in subgraphs(node))]


def captured(node: onnx.NodeProto) -> list[str]:
    """Outer tensors that a node's subgraphs read, each once, in order."""
    return list(dict.fromkeys(name for graph in subgraphs(node) for name in _from_outside(graph)))


def _from_outside(graph: onnx.GraphProto) -> Iterator[str]:
    known = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        yield from (name for name in reads(node) if name and name not in known)
        known.update(node.output)
    yield from (value.name for value in graph.output if value.name not in known)


def reads(node: onnx.NodeProto) -> list[str]:
    """A node's inputs, then the outer tensors that its subgraphs read."""
    return [*node.input, *captured(node)]


def set_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Give a graph these nodes, which may be its own."""
    copies = onnx.GraphProto()
    copies.node.extend(nodes)
    del graph.node[:]
    graph.node.extend(copies.node)


def fresh(name: str, used: set[str]) -> str:
    """Reserve and return an unused name."""
    free, count = name, 1
    while free in used:
        count += 1
        free = f"{name}_{count}"
    used.add(free)
    return free


def names_of(graph: onnx.GraphProto) -> set[str]:
    """The names of a graph's own tensors and nodes."""
    names = {name for node in graph.node for name in (*node.input, *node.output, node.name)}
    return names | {value.name for value in (*graph.input, *graph.output, *graph.initializer)}


def nested_names(graph: onnx.GraphProto) -> set[str]:
    """The names of tensors and nodes of a graph and its subgraphs."""
    return set().union(*map(names_of, all_graphs(graph)))


def make_unique(model: onnx.ModelProto) -> None:
    """Rename tensors of subgraphs, so that each name stands for one tensor in the whole model."""
    used = names_of(model.graph)
    for node in model.graph.node:
        for graph in subgraphs(node):
            _rename(graph, {}, used)


def _rename(graph: onnx.GraphProto, outer: dict[str, str], used: set[str]) -> None:
    """`outer` maps old names of the outer scopes to new names."""
    names = dict(outer)

    def new(name: str) -> str:
        names[name] = fresh(name, used) if name else ""
        return names[name]

    own = {value.name for value in graph.input}
    for value in graph.input:
        value.name = new(value.name)
    for tensor in graph.initializer:
        tensor.name = names[tensor.name] if tensor.name in own else new(tensor.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        for inner in subgraphs(node):
            _rename(inner, names, used)
        node.output[:] = [new(name) for name in node.output]
        node.name = fresh(node.name, used) if node.name else ""
    for value in graph.output:
        value.name = names.get(value.name, value.name)
    for value in graph.value_info:
        value.name = names.get(value.name, value.name)


def name_results(nodes: Sequence[onnx.NodeProto], results: Iterable[tuple[str, str]]) -> list[onnx.NodeProto]:
    """Rename results of these nodes, by pairs of an old and a new name. Nothing else may read the results.

    Returns nodes that copy: other tensors, and results that already have a new name.
    """
    made = {name for node in nodes for name in node.output}
    names: dict[str, str] = {}
    copies = []
    for old, new in results:
        if old in made and old not in names:
            names[old] = new
        else:
            copies.append(helper.make_node("Identity", [names.get(old, old)], [new], name=f"{new}_node"))
    for node in nodes:
        node.output[:] = [names.get(name, name) for name in node.output]
    rename_inputs(nodes, names)
    return copies


RANDOM = frozenset((
    "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
))  # fmt: skip


def without_repeats(nodes: Iterable[onnx.NodeProto], kept: Set[str]) -> list[onnx.NodeProto]:
    """Remove nodes that compute the same as an earlier node; results in `kept` stay."""
    first: dict[Any, onnx.NodeProto] = {}
    names: dict[str, str] = {}
    left = []
    for node in nodes:
        rename_inputs([node], names)
        left.append(node)
        if node.op_type in RANDOM or any(subgraphs(node)):
            continue
        work = onnx.NodeProto()
        work.CopyFrom(node)
        work.name = ""
        work.output[:] = ["given" if name else "" for name in node.output]
        same = first.setdefault(work.SerializeToString(deterministic=True), node)
        if same is not node and kept.isdisjoint(node.output):
            left.pop()
            names.update((old, new) for old, new in zip(node.output, same.output, strict=True) if old)
    return left


def rename_inputs(nodes: Iterable[onnx.NodeProto], names: dict[str, str]) -> None:
    """Rename the tensors that nodes and their subgraphs read."""
    for node in nodes:
        node.input[:] = [names.get(name, name) for name in node.input]
        for graph in subgraphs(node):
            rename_inputs(graph.node, names)
            for value in graph.output:
                value.name = names.get(value.name, value.name)
