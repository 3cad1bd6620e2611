"""Vectors in the layout of ONNX's backend tests: a model of one node, its inputs and outputs as files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from xpgrad_onnx._call import MICROSOFT, Definition
from xpgrad_onnx._operators import ACTIVATIONS, DEFINITIONS, DOMAIN

_OPSET = 24


class _OperatorPair(NamedTuple):
    """The ONNX operators of a forward and its gradient."""

    forward: tuple[str, str]
    gradient: tuple[str, str]


def _pair(operator: str, gradient: str = "", of: str = "", domain: str = MICROSOFT) -> _OperatorPair:
    return _OperatorPair((of, operator), (domain, gradient or f"{operator}Grad"))


_OPERATORS: dict[str, _OperatorPair] = {
    "lstm": _pair("LSTM"),
    "gru": _pair("GRU"),
    "rnn": _pair("RNN", domain=DOMAIN),
    "conv": _pair("Conv"),
    "conv_transpose": _pair("ConvTranspose"),
    **{own.kernel: _pair(operator, domain=own.domain) for operator, own in ACTIVATIONS.items()},
    "prelu": _pair("PRelu", "PReluGrad", domain=DOMAIN),
    "gelu": _pair("Gelu"),
    "quick_gelu": _pair("QuickGelu", of=MICROSOFT),
    "softmax": _pair("Softmax", "SoftmaxGrad_13"),
    "log_softmax": _pair("LogSoftmax", "LogSoftmaxGrad_13"),
    "softmax_cross_entropy": _pair("SoftmaxCrossEntropyLoss"),
}
_RENAMED = {"loss": "Y"}  # names of nodes' outputs in vectors
_PLAIN = {"linear_before_reset"}  # attributes that ONNX Runtime's recurrent gradients have


def write(vector: Any, folder: Path, name: str) -> None:
    """Write a case as two backend tests: ``test_NAME``, the forward, and ``test_NAME_grad``.

    Parameters
    ----------
    vector : xpgrad vector
        A case of `xpgrad.testing.vectors`.
    folder : pathlib.Path
        The parent of their folders.
    name : str
        The case's name.

    Raises
    ------
    NotImplementedError
        For an operator, an operand or an attribute that ONNX does not have; nothing is written then.
    """
    pair = _OPERATORS.get(vector.operator)
    if pair is None:
        raise NotImplementedError(f"ONNX has no {vector.operator}")
    if vector.operator == "celu" and vector.inputs["X"].dtype != np.float32:
        raise NotImplementedError("ONNX's Celu has no other dtype than float32")
    attributes = dict(vector.attributes)
    gradient = pair.gradient
    if vector.operator == "gelu" and attributes.get("approximate") == "tanh":
        gradient = (MICROSOFT, "FastGeluGrad")
    if vector.operator in ("lstm", "gru") and not (
        set(attributes) <= _PLAIN and {"sequence_lens", "P"}.isdisjoint(vector.inputs)
    ):
        gradient = (DOMAIN, gradient[1])
    if vector.operator in ("conv", "conv_transpose"):
        attributes = _by_dimension(attributes, vector.inputs["W"].ndim - 2)
        if str(attributes.get("auto_pad", "")).startswith("SAME") or "output_shape" in attributes:
            gradient = (DOMAIN, gradient[1])
    _check_operands(vector, pair.forward, gradient)
    tests = [
        _test(vector, pair.forward, attributes, name),
        _test(vector, gradient, attributes, f"{name}_grad"),
    ]
    for test, (model, inputs, outputs) in zip((name, f"{name}_grad"), tests, strict=True):
        _save(folder / f"test_{test}", model, inputs, outputs)


def _check_operands(vector: Any, forward: tuple[str, str], gradient: tuple[str, str]) -> None:
    """Raise if ONNX's operator lacks one of the arrays, without which the node would be another function."""
    for operator, arrays in ((forward, vector.inputs), (gradient, vector.cotangents)):
        definition = _definition(operator)
        for name in arrays:
            if name not in {operand.removesuffix("?") for operand in definition.inputs}:
                raise NotImplementedError(f"ONNX's {definition.name} has no {name}")


def _by_dimension(attributes: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """One number for all dimensions as a list, as in ONNX."""
    rows = {}
    for name, value in attributes.items():
        if name in ("strides", "dilations", "output_padding") and isinstance(value, int):
            value = [value] * rank
        if name == "pads":
            value = [value] * rank if isinstance(value, int) else list(value)
            value = value * 2 if len(value) == rank else value
        rows[name] = value
    return rows


def _definition(operator: tuple[str, str]) -> Definition:
    return next(d for d in DEFINITIONS if (d.domain, d.name) == operator)


def _test(
    vector: Any, operator: tuple[str, str], attributes: Mapping[str, Any], name: str
) -> tuple[onnx.ModelProto, list[np.ndarray], list[np.ndarray]]:
    definition = _definition(operator)
    results = {**vector.outputs, **vector.gradients}
    results |= {f"Y{end}": vector.outputs[f"{state}"] for state, end in _states(vector)}
    known = {**vector.inputs, **vector.outputs, **vector.cotangents}
    if "sequence_lens" in known:  # ONNX's operators take no other integers
        known["sequence_lens"] = known["sequence_lens"].astype(np.int32)
    if definition.name == "SoftmaxCrossEntropyLossGrad":
        known["log_prob"] = _log_probabilities(vector)
    inputs = list(_given(definition.inputs, known))
    outputs = [o for o in definition.outputs if _RENAMED.get(o, o) in results]
    node = helper.make_node(
        definition.name,
        [name if name in inputs else "" for name in _trimmed(definition.inputs, inputs)],
        [name if name in outputs else "" for name in _trimmed(definition.outputs, outputs)],
        domain=definition.domain,
        **_attributes(definition, attributes, vector),
    )
    arrays = [known[name] for name in inputs]
    expected = [np.asarray(results[_RENAMED.get(name, name)]) for name in outputs]
    graph = helper.make_graph([node], name, _infos(inputs, arrays), _infos(outputs, expected))
    domains = {"": _OPSET, definition.domain: _OPSET if definition.domain == "" else 1}
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(*item) for item in domains.items()],
        producer_name="xpgrad",
    )
    return model, arrays, expected


def _infos(names: list[str], arrays: list[np.ndarray]) -> list[onnx.ValueInfoProto]:
    return [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, arrays, strict=True)
    ]


def _states(vector: Any) -> Iterator[tuple[str, str]]:
    """The recurrent operators' outputs, by ONNX's names."""
    for name, end in (("H_all", ""), ("H_t", "_h"), ("C_t", "_c")):
        if name in vector.outputs:
            yield name, end


def _log_probabilities(vector: Any) -> np.ndarray:
    import xpgrad

    return np.asarray(xpgrad.log_softmax(vector.inputs["X"], axis=1))


def _given(names: tuple[str, ...], known: Mapping[str, Any]) -> Iterator[str]:
    return (name.removesuffix("?") for name in names if name.removesuffix("?") in known)


def _trimmed(names: tuple[str, ...], given: list[str]) -> list[str]:
    row = [name.removesuffix("?") for name in names]
    while row[-1] not in given:
        row.pop()
    return row


def _attributes(definition: Definition, attributes: Mapping[str, Any], vector: Any) -> dict[str, Any]:
    """The attributes in the node's form."""
    if definition.name in ("SoftmaxGrad_13", "LogSoftmaxGrad_13"):
        attributes = {"axis": -1, **attributes}
    if definition.name == "FastGeluGrad":
        attributes = {}
    if definition.name == "GeluGrad":
        attributes = {name: value for name, value in attributes.items() if name != "approximate"}
    if vector.operator in ("lstm", "gru"):
        attributes = {**attributes, "hidden_size": vector.inputs["R"].shape[-1]}
    for name, value in attributes.items():
        if name not in definition.attributes:
            raise NotImplementedError(f"ONNX's {definition.name} has no {name} (here {value!r})")
    if definition.name.startswith("SoftmaxCrossEntropyLoss") and vector.inputs["labels"].dtype.kind == "f":
        raise NotImplementedError("ONNX's SoftmaxCrossEntropyLoss takes no probabilities")
    return {name: int(value) if isinstance(value, bool) else value for name, value in attributes.items()}


def _save(folder: Path, model: onnx.ModelProto, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
    data = folder / "test_data_set_0"
    data.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(folder / "model.onnx"))
    named = (("input", inputs, model.graph.input), ("output", outputs, model.graph.output))
    for kind, arrays, values in named:
        for index, (array, value) in enumerate(zip(arrays, values, strict=True)):
            tensor = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), value.name)
            (data / f"{kind}_{index}.pb").write_bytes(tensor.SerializeToString())
