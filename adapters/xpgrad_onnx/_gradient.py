"""`gradient_model`: a model's training graph, by reverse accumulation over its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx
from onnx import helper, inliner

from xpgrad._operators.arguments import check_choice
from xpgrad_onnx import _control_flow as _control_flow  # registers its rules
from xpgrad_onnx import _sampling as _sampling  # and its bodies
from xpgrad_onnx._arguments import check_mapping, check_model, check_words, names_in
from xpgrad_onnx._bodies import expanded, has_body
from xpgrad_onnx._folding import Simplified, simplified
from xpgrad_onnx._graph import Graph
from xpgrad_onnx._opsets import converted
from xpgrad_onnx._parameters import UNREACHED, parameters
from xpgrad_onnx._refusals import check_all_fixed, check_rules, cut_off, hindrance
from xpgrad_onnx._reverse import Parts, accumulate, depending, nodes_on, path, smooth_sources, total
from xpgrad_onnx._rules.table import RULES
from xpgrad_onnx._scopes import all_nodes, name_results, without_repeats
from xpgrad_onnx._standard import standardize

_LOSSES = ("cross_entropy", "mse", "bce_with_logits")
_DEPTH = 6  # bodies within bodies


def gradient_model(
    model: onnx.ModelProto,
    wrt: Iterable[str] | None = None,
    loss: str | None = None,
    *,
    inputs: Mapping[str, Any] | None = None,
    standard: bool = False,
) -> onnx.ModelProto:
    r"""The training graph of a model: its outputs, a loss, and the gradients of its parameters.

    Every floating-point operator of ai.onnx has a gradient; functions are differentiated through their
    bodies, If in both branches, Loop and Scan from the last step to the first.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, of opset 7 or later. It is not changed. Below opset 16 onnx's converter is called.
    wrt : iterable of str, optional
        Tensors whose gradients to compute: initializers, inputs, or outputs of nodes. By default the
        parameters: floating-point initializers that the loss depends on, and `Constant` nodes that an
        operator takes as weights, also in branches. Constants are no parameters: bounds of Clip, exponents,
        ratios, statistics of BatchNormalization and the like, and the tensors that they are computed from;
        nor are numbers in formulas, without axes or from a node, unless PyTorch's exporter marks them as
        parameters.
    loss : str, optional
        ``"cross_entropy"``, ``"mse"`` or ``"bce_with_logits"`` of the model's first output: the mean over all
        samples or elements, with an additional input ``labels`` or ``target``. Or the name of an output,
        whose elements are summed. By default, the graph has no loss: each floating-point output NAME gets an
        additional input ``NAME_grad``, its cotangent.
    inputs : mapping of str to array, optional
        Values of fixed inputs, such as ``{"sr": 16000}``. The training graph does not have these inputs;
        results that follow from them are computed now, and branches that are not taken are removed.
    standard : bool
        Write the gradients with ONNX's own operators, for any runtime: a loop over time is a Scan, a
        convolution's gradient a Conv. Batch, time and sizes of images may be symbols.

    Returns
    -------
    onnx.ModelProto
        The outputs are the model's, then ``loss`` if it was asked for, then ``NAME_grad`` for every name in
        `wrt`. Initializers in `wrt` become inputs with their value as the default, so a training loop can
        feed new values. Operators are ONNX's and ONNX Runtime Training's (domain ``com.microsoft``), or of
        the domain ``xpgrad`` if both lack the gradient. `operators` has all of these. With ``standard=True``
        all operators are ONNX's.

    Raises
    ------
    ValueError
        For operators without a gradient (each is named once, with the number of its nodes), unknown names,
        tensors that the loss does not depend on, attributes without a gradient, values in `inputs` of another
        shape, and versions that onnx cannot convert.
    TypeError
        If `model` is not a model, `wrt` no names, `inputs` no mapping, or a value in it has another type.

    See Also
    --------
    operators : Implementations that run the graph.

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
    check_model("gradient_model", "model", model)
    check_words("gradient_model", "loss", loss, optional=True)
    check_choice("gradient_model", "standard", standard, (False, True))
    check_mapping("gradient_model", "inputs", {} if inputs is None else inputs)
    names = None if wrt is None else names_in("gradient_model", "wrt", wrt)
    found = prepared(model, inputs or {}, names or ())
    graph = Graph(found.model)
    seeds = {name: f"{name}_grad" for name in outputs_of(graph)} if loss is None else {_loss(graph, loss): ""}
    wanted = _default(graph, found, set(seeds)) if names is None else _wanted(graph, names, set(seeds))
    if loss is None and (both := [name for name in wanted if name in seeds]):
        raise ValueError(
            f"gradient_model: {both[0]} is an output, expected other names in wrt, or a loss: without a loss "
            f"{both[0]}_grad is its cotangent"
        )
    reached = depending(graph.nodes, wanted, graph)
    seeds = {name: seed for name, seed in seeds.items() if name in reached}
    graph = _with_rules(graph, seeds, wanted)
    kept = {name for node in graph.nodes for name in node.output}
    _differentiate(graph, seeds, wanted)
    if standard:
        standardize(graph)
    kept.update(value.name for value in graph.proto.output)
    graph.nodes = without_repeats(graph.nodes, kept)
    return graph.finished()


def prepared(model: onnx.ModelProto, inputs: Mapping[str, Any], keep: Iterable[str]) -> Simplified:
    """A folded copy of the model in a version that the rules know, without functions."""
    copy = inliner.inline_local_functions(model) if model.functions else onnx.ModelProto()
    if not model.functions:
        copy.CopyFrom(model)
    for named in (*all_nodes(copy.graph.node), *copy.opset_import):
        if named.domain == "ai.onnx":
            named.domain = ""
    return simplified(converted(copy), inputs, keep)


def outputs_of(graph: Graph) -> list[str]:
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
    if not graph.is_float(scores):
        raise ValueError(
            f"gradient_model: loss {loss!r} takes the first output, and {scores!r} has the type "
            f"{helper.tensor_dtype_to_np_dtype(kind)}, expected floating-point numbers: put such an output "
            "first"
        )
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
    graph.learn(name, like)
    return name


# --- what to differentiate ----------------------------------------------------------------------------------


def _default(graph: Graph, found: Simplified, ends: set[str]) -> list[str]:
    """The parameters that the loss depends on."""
    names, others = parameters(graph, found, ends)
    if not names:
        no_weights = [name for name, why in others.items() if why != UNREACHED]
        but = f" but {_some(no_weights)}, which are no weights" if no_weights else ""
        raise ValueError(
            f"gradient_model: wrt is None and the loss depends on no initializer{but}, expected names"
            f"{hindrance(graph.nodes)}"
        )
    cut = cut_off(graph, (name for name, why in others.items() if why == UNREACHED), ends)
    if cut:
        raise ValueError(
            f"gradient_model: wrt is None and no gradient passes to {_some(cut)}{hindrance(graph.nodes)}, "
            f"expected floating-point weights, or names in wrt, such as {_some(names)}"
        )
    return names


def _some(names: Sequence[str]) -> str:
    """A few of many names."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _wanted(graph: Graph, names: list[str], ends: set[str]) -> list[str]:
    """The names in `wrt`; the loss must depend on each."""
    if not names:
        raise ValueError("gradient_model: wrt is empty, expected names of tensors")
    reached = smooth_sources(graph.nodes, ends, graph)
    for name in names:
        if name not in graph.used or name not in (graph.types.keys() | reached):
            known = _some([t.name for t in graph.proto.initializer if graph.is_float(t.name)])
            raise ValueError(
                f"gradient_model: wrt has {name!r}, expected tensors of the model, such as {known}"
            )
        if not graph.is_float(name) or name not in reached:
            raise ValueError(
                f"gradient_model: wrt has {name!r}, expected floating-point tensors that the loss depends on"
            )
        if name not in graph.types:
            raise ValueError(
                f"gradient_model: wrt has {name!r}, whose type is unknown, expected a known one: give the "
                "model's inputs types"
            )
    return names


# --- reverse accumulation -----------------------------------------------------------------------------------


def _with_rules(graph: Graph, seeds: Iterable[str], wanted: Sequence[str]) -> Graph:
    """The graph with bodies in place of operators without a rule."""
    for _ in range(_DEPTH):
        way = path(graph, graph.nodes, seeds, wanted)
        check_all_fixed(graph, way)
        operators = {
            node.op_type
            for node in nodes_on(graph, way)
            if node.domain == "" and ("", node.op_type) not in RULES and has_body(node.op_type, graph.opset)
        }
        if not operators:
            break
        model, named_sizes = expanded(graph.finished(), sorted(operators)), graph.named_sizes
        graph = Graph(simplified(model, {}, [*seeds, *wanted]).model)
        graph.named_sizes = named_sizes
    check_rules(graph, path(graph, graph.nodes, seeds, wanted))
    return graph


def _differentiate(graph: Graph, seeds: dict[str, str], wanted: Sequence[str]) -> None:
    """Append the gradients to the graph, and declare them."""
    way = path(graph, graph.nodes, seeds, wanted)
    before = len(graph.nodes)
    parts: Parts = {}
    for name, seed in seeds.items():
        parts.setdefault(name, []).append(_seed(graph, name, seed))
    accumulate(graph, way, parts)
    results = []
    for name in wanted:
        kind, shape = graph.types[name], graph.shapes.get(name)
        gradient = _name(graph, f"{name}_grad")
        grad = total(graph, parts, name)
        if grad is None:  # a body showed that the result only jumps when the tensor changes
            grad = graph.filled(graph.op("Shape", name), 0, kind)
        results.append((grad, gradient))
        graph.cotangents[gradient] = name
        graph.proto.output.append(helper.make_tensor_value_info(gradient, kind, shape))
    graph.nodes += name_results(graph.nodes[before:], results)
    _declare(graph, wanted)


def _seed(graph: Graph, name: str, seed: str) -> str:
    """The cotangent of an output: an input of that name, or 1 for a loss."""
    if seed:
        return _input(graph, seed, graph.types[name], graph.shapes.get(name))
    return graph.filled(graph.op("Shape", name), 1, graph.types.get(name, onnx.TensorProto.FLOAT))


def _declare(graph: Graph, wanted: Sequence[str]) -> None:
    """Make initializers inputs of the same name, with their value as the default."""
    inputs = {value.name for value in graph.proto.input}
    for tensor in graph.proto.initializer:
        if tensor.name in wanted and tensor.name not in inputs:
            info = helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            graph.proto.input.append(info)
