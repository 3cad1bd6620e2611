"""`gradient_model`: a model's training graph, by reverse accumulation over its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import onnx
from onnx import helper

from xpgrad_onnx._graph import Graph, describe
from xpgrad_onnx._rules import RULES, SUMS, check_fixed, fixed_inputs

_OLDEST = 13  # the first version with the axes of ReduceSum, Squeeze and Unsqueeze as an input
_LOSSES = ("cross_entropy", "mse", "bce_with_logits")


def gradient_model(
    model: onnx.ModelProto, wrt: Iterable[str] | None = None, loss: str | None = None
) -> onnx.ModelProto:
    r"""The training graph of a model: its outputs, a loss, and the gradients of its parameters.

    Operators with a rule: LSTM, GRU and RNN with all of their attributes, Conv, ConvTranspose, MatMul, Gemm,
    arithmetic, every activation of ONNX, Softmax, LogSoftmax and SoftmaxCrossEntropyLoss, pooling,
    BatchNormalization with given statistics, reductions, and operators that reshape, join or select.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, of opset 13 or later (16 if it selects elements or has max pooling). It is not changed.
    wrt : iterable of str, optional
        Tensors whose gradients to compute: initializers, inputs, or outputs of nodes. By default the
        parameters: floating-point initializers that the loss depends on, but no constants. These are bounds
        of Clip, exponents, ratios, statistics of BatchNormalization and the like, and what they are computed
        from; and numbers without axes that are added or multiplied, unless PyTorch's exporter says that one
        is a parameter.
    loss : str, optional
        ``"cross_entropy"``, ``"mse"`` or ``"bce_with_logits"`` of the model's first output: the mean over all
        samples or elements, with an additional input ``labels`` or ``target``. Or the name of an output that
        is the loss; its elements are summed. By default there is no loss: each floating-point output NAME
        gets an additional input ``NAME_grad``, its cotangent.

    Returns
    -------
    onnx.ModelProto
        The outputs are the model's, then ``loss`` if one was asked for, then ``NAME_grad`` for every name in
        `wrt`. Initializers in `wrt` become inputs with their value as the default, so a training loop can
        feed new values. Operators are ONNX's and ONNX Runtime Training's (domain ``com.microsoft``); cases
        that the latter lacks use the domain ``xpgrad``. `operators` has them all.

    Raises
    ------
    ValueError
        For operators without a rule (all of them are named), unknown names, tensors that the loss does not
        depend on, and attributes without a gradient.
    TypeError
        If `model` is not a model.

    See Also
    --------
    operators : What runs the graph.

    Examples
    --------
    >>> import numpy as np
    >>> from onnx import parser
    >>> from onnx.reference import ReferenceEvaluator
    >>> from xpgrad_onnx import gradient_model, operators
    >>> model = parser.parse_model('''
    ...     <ir_version: 8, opset_import: ["": 17]>
    ...     square (float[2] x) => (float[2] y) <float[2] w = {3, 4}> { p = Mul(w, x)  y = Mul(p, p) }
    ... ''')
    >>> training = gradient_model(model, loss="y")
    >>> evaluator = ReferenceEvaluator(training, new_ops=operators())
    >>> evaluator.run(["w_grad"], {"x": np.asarray([1.0, -1.0], dtype=np.float32)})
    [array([6., 8.], dtype=float32)]
    """
    if not isinstance(model, onnx.ModelProto):
        raise TypeError(f"gradient_model: model is a {type(model).__name__}, expected an onnx.ModelProto")
    if isinstance(wrt, str):
        raise TypeError(f"gradient_model: wrt is the str {wrt!r}, expected an iterable of names")
    _check_opset(model)
    graph = Graph(model)
    seeds = {name: f"{name}_grad" for name in _outputs(graph)} if loss is None else {_loss(graph, loss): ""}
    wanted = _wanted(graph, wrt, seeds)
    kinds = {graph.types.get(name) for name in wanted}
    if len(kinds) > 1 or None in kinds:
        named = ", ".join(f"{name}: {graph.types.get(name)}" for name in wanted)
        raise ValueError(f"gradient_model: wrt has the types {named}, expected one type for all")
    graph.dtype = helper.tensor_dtype_to_np_dtype(next(kind for kind in kinds if kind))
    depending = _depending(graph.nodes, wanted, graph)
    seeds = {name: seed for name, seed in seeds.items() if name in depending}
    _differentiate(graph, seeds, wanted, depending)
    return graph.finished()


def _check_opset(model: onnx.ModelProto) -> None:
    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    if not versions or versions[0] < _OLDEST:
        found = versions[0] if versions else "none"
        raise ValueError(
            f"gradient_model: the model's opset is {found}, expected {_OLDEST} or later: "
            "onnx.version_converter makes it newer"
        )


def _outputs(graph: Graph) -> list[str]:
    """The outputs that can have a cotangent."""
    return [value.name for value in graph.proto.output if graph.is_float(value.name)]


# --- the loss -----------------------------------------------------------------------------------------------


def _loss(graph: Graph, loss: str) -> str:
    """The name of the loss; its nodes are appended to the graph unless it is an output."""
    outputs = [value.name for value in graph.proto.output]
    if loss in outputs:
        return loss
    if loss not in _LOSSES:
        raise ValueError(
            f"gradient_model: loss is {loss!r}, expected one of {', '.join(_LOSSES)}, or an output: "
            f"{', '.join(outputs)}"
        )
    scores = outputs[0]
    kind = graph.types.get(scores, onnx.TensorProto.FLOAT)
    shape = graph.shapes.get(scores)
    if loss == "cross_entropy":
        labels = None if shape is None else (shape[:1] + shape[2:])
        target = _input(graph, "labels", onnx.TensorProto.INT64, labels)
        node = helper.make_node("SoftmaxCrossEntropyLoss", [scores, target], [_name(graph, "loss")])
        node.attribute.append(helper.make_attribute("reduction", "mean"))
        graph.put(node)
    else:
        target = _input(graph, "target", kind, shape)
        if loss == "mse":
            error = _step(graph, "Sub", scores, target, like=scores)
            losses = _step(graph, "Mul", error, error, like=scores)
        else:  # log(1 + e^x) - t x, stable for all logits
            logs = _step(graph, "Softplus", scores, like=scores)
            losses = _step(graph, "Sub", logs, _step(graph, "Mul", target, scores, like=scores), like=scores)
        graph.put(helper.make_node("ReduceMean", [losses], [_name(graph, "loss")], keepdims=0))
    graph.types["loss"], graph.shapes["loss"] = kind, ()
    graph.proto.output.append(helper.make_tensor_value_info("loss", kind, ()))
    return "loss"


def _name(graph: Graph, name: str) -> str:
    """A name that the training graph adds; the model must not have it."""
    if name in graph.used:
        raise ValueError(f"gradient_model: the model has a tensor {name!r}, expected that name to be free")
    graph.used.add(name)
    return name


def _input(graph: Graph, name: str, kind: int, shape: Sequence | None) -> str:
    graph.proto.input.append(helper.make_tensor_value_info(_name(graph, name), kind, shape))
    graph.types[name] = kind
    if shape is not None:
        graph.shapes[name] = tuple(shape)
    return name


def _step(graph: Graph, op_type: str, *inputs: str, like: str) -> str:
    """A node of the loss; its result has the type and shape of another tensor."""
    name = graph.op(op_type, *inputs)
    if like in graph.types:
        graph.types[name] = graph.types[like]
    if like in graph.shapes:
        graph.shapes[name] = graph.shapes[like]
    return name


# --- what to differentiate ----------------------------------------------------------------------------------


def _wanted(graph: Graph, wrt: Iterable[str] | None, seeds: Iterable[str]) -> list[str]:
    """The names in `wrt`; the loss must depend on each."""
    reached = _leading_to(graph.nodes, seeds)
    if wrt is None:
        names = [t.name for t in graph.proto.initializer if graph.is_float(t.name)]
        names = [name for name in names if _depending(graph.nodes, [name], graph) & set(seeds)]
        constants = _constants(graph)
        parameters = [name for name in names if name not in constants]
        if not parameters:
            but = f" but {', '.join(names)}, which are no weights" if names else ""
            raise ValueError(
                f"gradient_model: wrt is None and the loss depends on no initializer{but}, expected names"
            )
        return parameters
    names = list(dict.fromkeys(wrt))
    if not names:
        raise ValueError("gradient_model: wrt is empty, expected names of tensors")
    for name in names:
        if name not in graph.used or name not in (graph.types.keys() | reached):
            known = ", ".join(t.name for t in graph.proto.initializer if graph.is_float(t.name))
            raise ValueError(
                f"gradient_model: wrt has {name!r}, expected tensors of the model, such as {known}"
            )
        if not graph.is_float(name) or not _depending(graph.nodes, [name], graph) & set(seeds):
            raise ValueError(
                f"gradient_model: wrt has {name!r}, expected floating-point tensors that the loss depends on"
            )
    return names


def _constants(graph: Graph) -> set[str]:
    """Initializers that are no parameters, although the loss may depend on them smoothly."""
    return _feeding_fixed(graph) | (_numbers(graph) - _declared(graph))


def _feeding_fixed(graph: Graph) -> set[str]:
    """What bounds, ratios, statistics and so on are, or are computed from, where that is constant.

    It may be an operand elsewhere, too: exporters keep equal numbers once.
    """
    known = {tensor.name for tensor in graph.proto.initializer}
    found: set[str] = set()
    for node in graph.nodes:
        if all(name in known for name in _inputs(node) if name):
            known.update(node.output)
        fixed = fixed_inputs(node)
        if fixed is not None:
            found.update(name for name in node.input[fixed.first :] if name in known and graph.is_float(name))
    for node in reversed(graph.nodes):
        if not found.isdisjoint(node.output):
            found.update(name for name in _inputs(node) if name and graph.is_float(name))
    return found


def _numbers(graph: Graph) -> set[str]:
    """Initializers without axes that are only added or multiplied: an epsilon, a scale."""
    others = {name for node in graph.nodes if node.op_type not in SUMS for name in _inputs(node)}
    return {tensor.name for tensor in graph.proto.initializer if not tensor.dims} - others


def _declared(graph: Graph) -> set[str]:
    """What PyTorch's exporter says to be parameters."""
    return {
        value.name
        for value in graph.proto.value_info
        if any(p.key.endswith("InputSpec.kind") and p.value == "PARAMETER" for p in value.metadata_props)
    }


def _depending(nodes: Sequence[onnx.NodeProto], names: Iterable[str], graph: Graph) -> set[str]:
    """The tensors that depend smoothly on these: a path through integers does not count."""
    found = set(names)
    for node in nodes:
        if node.op_type not in ("Shape", "Size") and not found.isdisjoint(_inputs(node)):
            found.update(name for name in node.output if name and graph.is_float(name))
    return found


def _leading_to(nodes: Sequence[onnx.NodeProto], names: Iterable[str]) -> set[str]:
    """The tensors that these depend on, including themselves."""
    found = set(names)
    for node in reversed(nodes):
        if not found.isdisjoint(node.output):
            found.update(name for name in _inputs(node) if name)
    return found


def _inputs(node: onnx.NodeProto) -> Iterator[str]:
    """A node's inputs, including outer tensors that its subgraphs use."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _inputs(inner)


# --- reverse accumulation -----------------------------------------------------------------------------------


def _differentiate(graph: Graph, seeds: dict[str, str], wanted: Sequence[str], depending: set[str]) -> None:
    """Append the gradients to the graph, and declare them."""
    useful = _leading_to(graph.nodes, seeds) & depending
    forward = [
        node
        for node in graph.nodes
        if not useful.isdisjoint(node.output) and not depending.isdisjoint(_inputs(node))
    ]
    _check_rules(forward)
    parts: dict[str, list[str]] = {}
    for name, seed in seeds.items():
        parts.setdefault(name, []).append(_seed(graph, name, seed))
    for node in reversed(forward):
        cotangents = [_total(graph, parts, name) for name in node.output]
        if not any(cotangents):
            continue
        flags = [name in depending and name in useful and graph.is_float(name) for name in node.input]
        if not any(flags):
            continue
        check_fixed(node, flags)
        inputs = list(node.input)
        grads = RULES[node.domain, node.op_type](graph, node, cotangents, flags)
        for name, flag, grad in zip(inputs, flags, grads, strict=False):
            if flag and grad:
                parts.setdefault(name, []).append(grad)
    for name in wanted:
        total = _total(graph, parts, name)
        kind, shape = graph.types[name], graph.shapes.get(name)
        gradient = _name(graph, f"{name}_grad")
        graph.put(helper.make_node("Identity", [str(total)], [gradient]))
        graph.proto.output.append(helper.make_tensor_value_info(gradient, kind, shape))
    _declare(graph, wanted)


def _check_rules(nodes: Sequence[onnx.NodeProto]) -> None:
    unknown = [describe(node) for node in nodes if (node.domain, node.op_type) not in RULES]
    if unknown:
        known = ", ".join(sorted(operator for _, operator in RULES))
        raise ValueError(
            f"gradient_model: the model has {', '.join(dict.fromkeys(unknown))}, expected operators with a "
            f"gradient here: {known}"
        )


def _seed(graph: Graph, name: str, seed: str) -> str:
    """The cotangent of an output: an input of that name, or 1 for a loss."""
    if seed:
        return _input(graph, seed, graph.types[name], graph.shapes.get(name))
    value = onnx.numpy_helper.from_array(np.ones(1, dtype=graph.dtype))
    return graph.op("ConstantOfShape", graph.op("Shape", name), value=value)


def _total(graph: Graph, parts: dict[str, list[str]], name: str) -> str | None:
    """The sum of all cotangents of a tensor; its node is made once."""
    found = parts.get(name)
    if not found:
        return None
    if len(found) > 1:
        parts[name] = [graph.op("Sum", *found)]
    return parts[name][0]


def _declare(graph: Graph, wanted: Sequence[str]) -> None:
    """Make initializers inputs of the same name, with their value as the default."""
    inputs = {value.name for value in graph.proto.input}
    for tensor in graph.proto.initializer:
        if tensor.name in wanted and tensor.name not in inputs:
            info = helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            graph.proto.input.append(info)
