"""Reverse accumulation: dependencies between tensors, and the nodes' rules in reverse order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper

from xpgrad_onnx._graph import Graph
from xpgrad_onnx._rules.table import RULES, Backward, check_fixed, smooth_inputs
from xpgrad_onnx._scopes import reads, subgraphs

Parts = dict[str, list[str]]
"""The cotangents of each tensor, to be summed."""


class Path(NamedTuple):
    """The nodes and tensors between wanted tensors and ends."""

    nodes: list[onnx.NodeProto]
    tensors: set[str]


def depending(nodes: Iterable[onnx.NodeProto], names: Iterable[str], graph: Graph) -> set[str]:
    """The tensors that depend smoothly on these; paths through integers or step functions do not count."""
    found = set(names)
    for node in nodes:
        if not found.isdisjoint(smooth_inputs(node, reads(node))):
            found.update(name for name in node.output if name and graph.is_float(name))
    return found


def smooth_sources(nodes: Sequence[onnx.NodeProto], names: Iterable[str], graph: Graph) -> set[str]:
    """The tensors on which these depend smoothly, including themselves."""
    found = set(names)
    for node in reversed(nodes):
        if not found.isdisjoint(node.output):
            found.update(n for n in smooth_inputs(node, reads(node)) if n and graph.is_float(n))
    return found


def path(graph: Graph, nodes: Sequence[onnx.NodeProto], ends: Iterable[str], wanted: Iterable[str]) -> Path:
    """The path between wanted tensors and ends."""
    tensors = depending(nodes, wanted, graph) & smooth_sources(nodes, ends, graph)
    on_it = [
        node
        for node in nodes
        if not tensors.isdisjoint(node.output) and not tensors.isdisjoint(smooth_inputs(node, reads(node)))
    ]
    return Path(on_it, tensors)


def nodes_on(graph: Graph, way: Path) -> Iterator[onnx.NodeProto]:
    """A path's nodes, including nodes in branches and bodies."""
    for node in way.nodes:
        yield node
        for inner in subgraphs(node):
            starts = {value.name for value in inner.input if graph.is_float(value.name)} | way.tensors
            ends = {value.name for value in inner.output}
            yield from nodes_on(graph, path(graph, list(inner.node), ends, starts))


def accumulate(graph: Graph, way: Path, parts: Parts) -> None:
    """Append the gradients of a path's nodes, and add them to `parts`."""
    for node in reversed(way.nodes):
        cotangents = [total(graph, parts, name) for name in node.output]
        if not any(cotangents):
            continue
        names = reads(node)
        smooth = set(smooth_inputs(node, names))
        flags = [name in way.tensors and name in smooth and graph.is_float(name) for name in names]
        if not any(flags):
            continue
        check_fixed(node, flags)
        graph.dtype = _dtype(graph, node, cotangents)
        grads = RULES[node.domain, node.op_type](Backward(graph, node, cotangents, flags))
        for name, flag, grad in zip(names, flags, grads, strict=False):
            if flag and grad:
                parts.setdefault(name, []).append(grad)


def _dtype(graph: Graph, node: onnx.NodeProto, cotangents: Sequence[str | None]) -> np.dtype:
    """The dtype of a node's cotangents; a model of mixed precision has several."""
    for name, cotangent in zip(node.output, cotangents, strict=True):
        if cotangent and name in graph.types:
            return helper.tensor_dtype_to_np_dtype(graph.types[name])
    return graph.dtype


def total(graph: Graph, parts: Parts, name: str) -> str | None:
    """The sum of all cotangents of a tensor; its node is made once."""
    found = parts.get(name)
    if not found:
        return None
    if len(found) > 1:
        parts[name] = [graph.op("Sum", *found)]
    graph.cotangents.setdefault(parts[name][0], name)
    return parts[name][0]
