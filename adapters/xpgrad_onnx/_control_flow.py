"""Gradients of operators with subgraphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper

from xpgrad_onnx._graph import Graph, attributes_of
from xpgrad_onnx._reverse import Parts, accumulate, path, total
from xpgrad_onnx._rules.table import Backward, Grads, refuse, rule
from xpgrad_onnx._scopes import RANDOM, all_nodes, reads, rename_inputs, subgraphs


@rule("If")
def _if(call: Backward) -> Grads:
    """Each branch of the gradient runs the forward's branch again, then its gradients."""
    graph, node = call.graph, call.node
    names = reads(node)
    wanted = [name for name, want in zip(names, call.wanted, strict=True) if want]
    branches = {
        attribute.name: _branch(graph, attribute.g, call.cotangents, wanted) for attribute in node.attribute
    }
    outputs = [graph.fresh("grad/If") for _ in wanted]
    graph.put(helper.make_node("If", [node.input[0]], outputs, **branches))
    grads = dict(zip(wanted, outputs, strict=True))
    return [grads.get(name) for name in names]


def _branch(
    graph: Graph, branch: onnx.GraphProto, cotangents: Sequence[str | None], wanted: Sequence[str]
) -> onnx.GraphProto:
    """A branch of the gradient: an output for each wanted tensor."""
    inner = graph.inner()
    names = run_again(inner, branch)
    ends = [names.get(value.name, value.name) for value in branch.output]
    parts: Parts = {}
    for end, cotangent in zip(ends, cotangents, strict=True):
        if cotangent:
            parts.setdefault(end, []).append(cotangent)
    accumulate(inner, path(inner, list(inner.nodes), parts, wanted), parts)
    return _returning(inner, branch.name, [(name, total(inner, parts, name)) for name in wanted])


def run_again(inner: Graph, body: onnx.GraphProto, inputs: Sequence[str] = ()) -> dict[str, str]:
    """Append a copy of a body's nodes, with these inputs; return the new names of their results."""
    nodes = []
    names = {value.name: name for value, name in zip(body.input, inputs, strict=True)}
    _check_nothing_is_drawn(inner, body)
    for node in body.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = ""
        nodes.append(copy)
        _rename(inner, copy, names)
    rename_inputs(nodes, names)
    inner.nodes.extend(nodes)
    return names


def _check_nothing_is_drawn(graph: Graph, body: onnx.GraphProto) -> None:
    """Raise ValueError for random numbers, which the gradient would draw anew."""
    for node in all_nodes(body.node):
        if node.op_type not in RANDOM or node.domain not in ("", "ai.onnx"):
            continue
        if node.op_type == "Dropout":
            mode = node.input[2] if len(node.input) > 2 else ""
            known = graph.value(mode) if mode else np.asarray(False)
            if known is not None and not known.any():
                continue
        raise refuse(node, "a place in a branch or body, which the gradient runs again", "a place outside")


def _rename(inner: Graph, node: onnx.NodeProto, names: dict[str, str]) -> None:
    """Give results new names, at every depth."""
    for graph in subgraphs(node):
        for value in graph.input:
            value.name = _renamed(inner, value.name, names)
        for deeper in graph.node:
            _rename(inner, deeper, names)
        del graph.value_info[:]
    node.output[:] = [_renamed(inner, name, names) for name in node.output]


def _renamed(inner: Graph, name: str, names: dict[str, str]) -> str:
    if not name:
        return ""
    new = names[name] = inner.fresh(f"grad/{name}")
    inner.learn(new, name)
    return new


def _returning(inner: Graph, name: str, results: Sequence[tuple[str, str | None]]) -> onnx.GraphProto:
    """The graph of a branch; each result is the gradient of a tensor, or zeros."""
    outputs = []
    for source, grad in results:
        kind = inner.types.get(source, onnx.TensorProto.FLOAT)
        result = inner.op("Identity", grad or _zeros_like(inner, source))
        outputs.append(helper.make_tensor_value_info(result, kind, inner.shapes.get(source)))
    return helper.make_graph(inner.nodes, f"{name}_grad", [], outputs)


# --- loops --------------------------------------------------------------------------------------------------


class _LoopBody(NamedTuple):
    """A Loop or a Scan: its body, and the places of its states and elements."""

    body: onnx.GraphProto
    states: int
    first: int
    """The place of the first state among the node's inputs, and among the body's."""
    extra: int
    """The number of the body's outputs before its states: the condition."""
    axes_in: Sequence[int]
    back_in: Sequence[int]
    axes_out: Sequence[int]
    back_out: Sequence[int]
    """Axes of the scanned sequences, and whether they run backwards."""


def _steps(node: onnx.NodeProto) -> _LoopBody:
    attributes = attributes_of(node)
    body = next(subgraphs(node))
    if node.op_type == "Loop":
        states = len(node.input) - 2
        none = [0] * (len(body.output) - 1 - states)
        return _LoopBody(body, states, 2, 1, (), (), none, none)
    count = attributes["num_scan_inputs"]
    states = len(node.input) - count
    outputs = len(body.output) - states
    rows = (
        attributes.get(name, [0] * size)
        for name, size in (
            ("scan_input_axes", count), ("scan_input_directions", count),
            ("scan_output_axes", outputs), ("scan_output_directions", outputs),
        )
    )  # fmt: skip
    return _LoopBody(body, states, 0, 0, *rows)


@rule("Loop", "Scan")
def _loop(call: Backward) -> Grads:
    """A Loop from the last step to the first; each step runs again from its kept state."""
    graph, node = call.graph, call.node
    steps = _steps(node)
    names, inputs = reads(node), list(node.input)
    # what the body reads by outer names, also an input of the node
    read = zip(names[len(inputs) :], call.wanted[len(inputs) :], strict=True)
    outside = list(dict.fromkeys(name for name, want in read if want))
    finals = [graph.output(node, k, f"state_{k}") for k in range(steps.states)]
    kept = _keep_states(graph, node, steps)
    length = _length(call, steps, kept)
    states = [k for k in range(steps.states) if graph.is_float(steps.body.input[steps.first + k].name)]
    seeds = [call.cotangents[k] or _zeros_like(graph, finals[k]) for k in states]
    sums = [_zeros_like(graph, name) for name in outside]
    back = _Back(call, steps, kept, length, states, outside)
    body, scanned = back.body()
    true = graph.constant(True, np.bool_)
    results = [graph.fresh(f"grad/{node.op_type}") for _ in range(len(body.output) - 1)]
    graph.put(helper.make_node("Loop", [length, true, *seeds, *sums], results, body=body))
    grads: dict[str, list[str]] = {}
    sources = [*(inputs[steps.first + k] for k in states), *outside]
    for name, grad in zip(sources, results, strict=False):
        grads.setdefault(name, []).append(grad)
    for k, grad in zip(scanned, results[len(sources) :], strict=True):
        name = inputs[steps.first + steps.states + k]
        grads.setdefault(name, []).append(_in_order(graph, name, grad, steps.axes_in[k], steps.back_in[k]))
    # an operand that is read twice gets the sum of its gradients at the first place
    totals = {name: parts[0] if len(parts) == 1 else graph.op("Sum", *parts) for name, parts in grads.items()}
    return [totals.pop(name, None) for name in names]


def _keep_states(graph: Graph, node: onnx.NodeProto, steps: _LoopBody) -> list[str]:
    """Let the node return the states before each step."""
    for k in range(len(steps.body.output) - steps.extra):
        graph.output(node, k, f"result_{k}")
    kept = []
    for value in steps.body.input[steps.first : steps.first + steps.states]:
        copy = graph.fresh(f"{value.name}/kept")
        steps.body.node.append(helper.make_node("Identity", [value.name], [copy]))
        result = steps.body.output.add()
        result.CopyFrom(value)
        result.name = copy
        kept.append(graph.fresh(f"{value.name}/states"))
        node.output.append(kept[-1])
    for attribute in node.attribute:
        if attribute.name in ("scan_output_axes", "scan_output_directions"):
            attribute.ints.extend([0] * steps.states)
    return kept


def _length(call: Backward, steps: _LoopBody, kept: list[str]) -> str:
    """The number of steps, a scalar."""
    sequence, axis = (kept[0], 0) if kept else (call.node.output[0], steps.axes_out[0])
    sizes = call.graph.op("Shape", sequence)
    return call.graph.op("Gather", sizes, call.graph.constant(axis))


def _zeros_like(graph: Graph, name: str) -> str:
    return graph.filled(graph.op("Shape", name), 0, graph.types.get(name, onnx.TensorProto.FLOAT))


def _in_order(graph: Graph, name: str, grad: str, axis: int, backwards: int) -> str:
    """Gradients of a sequence's elements, from the last step to the first, as the sequence."""
    if not backwards:
        last, before = graph.constant([-1]), graph.constant([np.iinfo(np.int64).min])
        grad = graph.op("Slice", grad, last, before, graph.constant([0]), last)
    if axis == 0:
        return grad
    rank = len(graph.shapes[name])
    order = [*range(1, rank)]
    order.insert(axis % rank, 0)
    return graph.op("Transpose", grad, perm=order)


class _Back(NamedTuple):
    """The body of the loop backwards."""

    call: Backward
    steps: _LoopBody
    kept: list[str]
    length: str
    states: list[int]
    outside: list[str]

    def body(self) -> tuple[onnx.GraphProto, list[int]]:
        """The graph, and the sequences whose gradients it returns."""
        graph, steps = self.call.graph, self.steps
        inner = graph.inner()
        index, going = inner.fresh("grad/step"), inner.fresh("grad/condition")
        sizes = [self.kept[k] for k in self.states]
        carried = [inner.fresh("grad/carried") for _ in (*sizes, *self.outside)]
        last = inner.op("Sub", self.length, inner.constant(1))
        step = inner.op("Sub", last, index)
        values = [inner.op("Gather", name, step) for name in self.kept]
        elements = self._elements(inner, step, index)
        given = [*([step, inner.constant(True, np.bool_)] if steps.first else []), *values, *elements]
        for name, value in zip(given, steps.body.input, strict=True):
            inner.learn(name, value.name)
        ahead = len(inner.nodes)  # these nodes read elements, whose gradients are added after the loop
        names = run_again(inner, self._body_before_kept(), given)
        parts = self._seeds(inner, names, carried, step, index)
        scanned = [k for k, name in enumerate(elements) if self.call.wants(steps.first + steps.states + k)]
        wanted = [*(values[k] for k in self.states), *(elements[k] for k in scanned), *self.outside]
        accumulate(inner, path(inner, list(inner.nodes[ahead:]), parts, wanted), parts)
        results = [inner.op("Identity", going)]
        results += [total(inner, parts, values[k]) or _zeros_like(inner, values[k]) for k in self.states]
        for before, name in zip(carried[len(self.states) :], self.outside, strict=True):
            more = total(inner, parts, name)
            results.append(inner.op("Add", before, more) if more else before)
        results += [total(inner, parts, elements[k]) or _zeros_like(inner, elements[k]) for k in scanned]
        kinds = [inner.types.get(name, onnx.TensorProto.FLOAT) for name in wanted]
        kinds = [*kinds[: len(self.states)], *kinds[len(self.states) + len(scanned) :],
                 *kinds[len(self.states) : len(self.states) + len(scanned)]]  # fmt: skip
        inputs = [
            helper.make_tensor_value_info(index, onnx.TensorProto.INT64, ()),
            helper.make_tensor_value_info(going, onnx.TensorProto.BOOL, ()),
            *(helper.make_tensor_value_info(n, k, None) for n, k in zip(carried, kinds, strict=False)),
        ]
        ends = [inner.op("Identity", name) for name in results]
        outputs = [
            helper.make_tensor_value_info(name, kind, None)
            for name, kind in zip(ends, [onnx.TensorProto.BOOL, *kinds], strict=True)
        ]
        return helper.make_graph(inner.nodes, f"{steps.body.name}_grad", inputs, outputs), scanned

    def _body_before_kept(self) -> onnx.GraphProto:
        """The body without the copies of states that the forward keeps."""
        body = onnx.GraphProto()
        body.CopyFrom(self.steps.body)
        if self.kept:
            del body.node[-len(self.kept) :]
        return body

    def _elements(self, inner: Graph, step: str, index: str) -> list[str]:
        """The step's elements of the scanned sequences."""
        steps, first = self.steps, self.steps.first + self.steps.states
        return [
            inner.op("Gather", self.call.node.input[first + k], index if backwards else step, axis=axis)
            for k, (axis, backwards) in enumerate(zip(steps.axes_in, steps.back_in, strict=True))
        ]

    def _seeds(self, inner: Graph, names: dict[str, str], carried: list[str], step: str, index: str) -> Parts:
        """The cotangents of the step's results."""
        steps = self.steps
        parts: Parts = {}
        results = [names.get(value.name, value.name) for value in steps.body.output][steps.extra :]
        for k, name in zip(self.states, carried, strict=False):
            parts.setdefault(results[k], []).append(name)
        sequences = self.call.cotangents[steps.states :]
        for k, (axis, backwards) in enumerate(zip(steps.axes_out, steps.back_out, strict=True)):
            if sequences[k]:
                part = inner.op("Gather", str(sequences[k]), index if backwards else step, axis=axis)
                parts.setdefault(results[steps.states + k], []).append(part)
        return parts
