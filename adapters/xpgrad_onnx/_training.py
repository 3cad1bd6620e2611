"""A step of training as a model, and trained values back in the original model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import onnx
from onnx import helper, numpy_helper

from xpgrad._operators.arguments import check_choice
from xpgrad._operators.optimizer_formulas import OPTIMIZERS
from xpgrad_onnx import _namespace as xp
from xpgrad_onnx._arguments import check_mapping, check_model, check_words, optimizer_number
from xpgrad_onnx._arrays import GraphArray, Scope, used
from xpgrad_onnx._folding import constant_of
from xpgrad_onnx._gradient import gradient_model
from xpgrad_onnx._opsets import opset_of
from xpgrad_onnx._scopes import fresh, name_results, nested_names, set_nodes

_RATE, _STEP, _NEW = "learning_rate", "step", "_new"


def training_model(
    model: onnx.ModelProto,
    loss: str,
    *,
    optimizer: Literal["sgd", "momentum", "adamw"] = "sgd",
    wrt: Iterable[str] | None = None,
    standard: bool = True,
    inputs: Mapping[str, Any] | None = None,
    **numbers: float,
) -> onnx.ModelProto:
    r"""One step of training as a model, for a loop of a few lines in any language.

    Parameters
    ----------
    model : onnx.ModelProto
        The model to train. It is not changed.
    loss : str
        As in `gradient_model`.
    optimizer : {"sgd", "momentum", "adamw"}
        PyTorch's optimizers of these names; momentum is its SGD with a momentum.
    wrt : iterable of str, optional
        The parameters to train; by default all, as in `gradient_model`.
    standard : bool
        Whether all operators are ONNX's own, so any runtime runs the model; `operators` has the other
        operators.
    inputs : mapping of str to array, optional
        As in `gradient_model`.
    **numbers : float
        Numbers of the optimizer: `weight_decay` (0; 0.01 for adamw), `momentum` (0.9), `beta1` (0.9), `beta2`
        (0.999), `epsilon` (1e-8).

    Returns
    -------
    onnx.ModelProto
        Its inputs are the model's, the loss' ``labels`` or ``target``, ``learning_rate`` in float32, the
        parameters by their names, and the optimizer's arrays: NAME_velocity, or NAME_mean and NAME_square,
        and ``step``. Its outputs are ``loss``, and NAME_new for each parameter and each of the optimizer's
        arrays: the input NAME of the next step. No input has a default, because some runtimes support none;
        `initial_values` returns the values of the first step.

    Raises
    ------
    ValueError
        As `gradient_model`; for an unknown optimizer, a number that it does not have or that is out of its
        range, and a parameter that is no initializer.
    TypeError
        If `model` is not a model, or an optimizer's number is no number.

    See Also
    --------
    initial_values : The values of the first step. It finds initializers and `Constant` nodes of the graph
        itself; name others, as in branches and functions, not in `wrt`.
    with_parameters : The model with trained values.

    Examples
    --------
    >>> import numpy as np
    >>> from onnx import parser
    >>> from onnx.reference import ReferenceEvaluator
    >>> from xpgrad_onnx import initial_values, training_model, with_parameters
    >>> model = parser.parse_model('''
    ...     <ir_version: 8, opset_import: ["": 17]>
    ...     line (float[n] x) => (float[n] y) <float[1] w = {0}> { y = Mul(w, x) }
    ... ''')
    >>> training = training_model(model, "mse")
    >>> step, values = ReferenceEvaluator(training), initial_values(model, training)
    >>> x = np.asarray([1.0, 2.0], dtype=np.float32)
    >>> feeds = {"x": x, "target": 3 * x, "learning_rate": np.asarray(0.2, dtype=np.float32)}
    >>> for _ in range(20):
    ...     loss, *new = step.run(None, feeds | values)
    ...     values = dict(zip(values, new))
    >>> round(float(values["w"][0]), 4)
    3.0
    >>> trained = with_parameters(model, {"w": values["w"]})
    """
    operator = "training_model"
    check_choice(operator, "optimizer", optimizer, list(OPTIMIZERS))
    kind = OPTIMIZERS[optimizer]
    for name in numbers:
        if name not in kind.numbers:
            known = ", ".join(kind.numbers)
            raise ValueError(f"{operator}: {name} is no number of {optimizer}, expected one of {known}")
    given = {name: optimizer_number(operator, name, value) for name, value in numbers.items()}
    check_model(operator, "model", model)
    check_words(operator, "loss", loss, optional=False)
    training = gradient_model(model, wrt, loss, inputs=inputs, standard=standard)
    step = _OptimizerStep(training, loss, [value.name for value in model.graph.output])
    step.append(optimizer, {**kind.numbers, **given})
    return training


class _OptimizerStep:
    """The optimizer's part of a training step.

    `training` is the graph of the gradients, which becomes the graph of the step; `outputs` are the original
    model's.
    """

    def __init__(self, training: onnx.ModelProto, loss: str, outputs: list[str]) -> None:
        self._model, self._graph = training, training.graph
        self._used = nested_names(self._graph)
        self._loss = loss if loss in outputs else "loss"
        gradients = [value.name for value in self._graph.output][len(outputs) + (loss not in outputs) :]
        self._parameters = [name.removesuffix("_grad") for name in gradients]
        tensors = {tensor.name for tensor in self._graph.initializer}
        for name in self._parameters:
            if name not in tensors:
                raise ValueError(
                    f"training_model: wrt has {name!r}, expected parameters: initializers or constants"
                )

    def append(self, optimizer: str, numbers: Mapping[str, float]) -> None:
        """Append the optimizer, and make all values that a step changes inputs and outputs."""
        kind, graph = OPTIMIZERS[optimizer], self._graph
        scope = Scope(
            opset_of(self._model) or 0, lambda hint: fresh(hint, self._used), graph.initializer.append
        )
        scope.nodes.extend(graph.node)
        tensors = {tensor.name: tensor for tensor in graph.initializer}
        kept = [tensor for name, tensor in tensors.items() if name not in self._parameters]
        kinds = {value.name: value.type.tensor_type.elem_type for value in graph.output}
        with scope.active():
            rate = self._input(scope, _RATE, np.float32, ())
            step = self._input(scope, _STEP, np.int64, ()) if kind.counts else None
            results: dict[str, GraphArray] = {}
            del graph.initializer[:]
            graph.initializer.extend(kept)
            for name in self._parameters:
                tensor = tensors[name]
                dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
                if kinds[f"{name}_grad"] != tensor.data_type:
                    raise TypeError(
                        f"training_model: {name}_grad has element type {kinds[f'{name}_grad']}, "
                        f"expected {tensor.data_type}, that of {name}"
                    )
                w, g = (scope.tensor(n, dtype, tensor.dims) for n in (name, f"{name}_grad"))
                own = [self._input(scope, f"{name}_{k}", dtype, tensor.dims) for k in kind.kept]
                number = None if step is None else xp.astype(step + 1, xp.float64)
                made = kind.step(xp, w, g, xp.astype(rate, dtype), number, *own, **numbers)
                results |= dict(zip([name, *(f"{name}_{k}" for k in kind.kept)], made, strict=True))
            if step is not None:
                results[_STEP] = step + 1
            loss = self._total(scope)
        self._finish(scope, loss, results)

    def _input(self, scope: Scope, name: str, dtype: Any, shape: Iterable[int]) -> GraphArray:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._graph.input.append(helper.make_tensor_value_info(self._free(name), kind, list(shape)))
        return scope.tensor(name, dtype, list(shape))

    def _free(self, name: str) -> str:
        if name in self._used:
            raise ValueError(
                f"training_model: the model has a tensor {name!r}, expected that name to be free"
            )
        self._used.add(name)
        return name

    def _total(self, scope: Scope) -> onnx.ValueInfoProto:
        """The loss as a number: the sum of an output's elements."""
        value = next(value for value in self._graph.output if value.name == self._loss)
        tensor = value.type.tensor_type
        if self._loss == "loss" and tensor.HasField("shape") and not tensor.shape.dim:
            return value
        name = "loss" if self._loss != "loss" else "loss_sum"
        scope.nodes.append(helper.make_node("ReduceSum", [self._loss], [self._free(name)], keepdims=0))
        return helper.make_tensor_value_info(name, tensor.elem_type, [])

    def _finish(self, scope: Scope, loss: onnx.ValueInfoProto, results: Mapping[str, GraphArray]) -> None:
        graph, outputs = self._graph, [loss]
        pairs = [(array.name, self._free(f"{name}{_NEW}")) for name, array in results.items()]
        scope.nodes += name_results(scope.nodes, pairs)
        for (_, new), array in zip(pairs, results.values(), strict=True):
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            outputs.append(
                helper.make_tensor_value_info(new, kind, [n for n in array.shape if isinstance(n, int)])
            )
        names = [value.name for value in outputs]
        set_nodes(graph, used(scope.nodes, names))
        del graph.output[:]
        graph.output.extend(outputs)


def initial_values(model: onnx.ModelProto, training: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Values of the parameters and the optimizer's arrays for the first step of a training model.

    Parameters
    ----------
    model : onnx.ModelProto
        The model to train.
    training : onnx.ModelProto
        The result of `training_model` for this model.

    Returns
    -------
    dict of str to numpy.ndarray
        Each input of `training` that has an output NAME_new, in the order of these outputs: a parameter with
        its value in the model, zeros for the rest.

    Raises
    ------
    ValueError
        If the model lacks a parameter, or `training` is no result of `training_model`.
    TypeError
        If an argument is not a model.

    See Also
    --------
    constant_model : The values in a file for other languages.
    """
    check_model("initial_values", "model", model)
    check_model("initial_values", "training", training)
    made = [output.name for output in training.graph.output[1:]]
    if not made or not all(name.endswith(_NEW) for name in made):
        raise ValueError(
            f"initial_values: training has the outputs {', '.join(made) or 'none'} after the first, expected "
            f"names that end with {_NEW}, as from training_model"
        )
    known, parameters = _tensors(model), _parameters_of(made)
    inputs = {value.name: value.type.tensor_type for value in training.graph.input}
    values = {}
    for name in (output.removesuffix(_NEW) for output in made):
        if name in parameters and name in known:
            values[name] = numpy_helper.to_array(known[name])
        elif name in parameters:
            raise ValueError(
                f"initial_values: model has no parameter {name!r}, expected every parameter of training"
            )
        else:
            tensor = inputs[name]
            shape = [d.dim_value for d in tensor.shape.dim]
            values[name] = np.zeros(shape, helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return values


def _parameters_of(made: Sequence[str]) -> list[str]:
    """The parameters among a step's results: each stands before what the optimizer keeps for it."""
    names = [name.removesuffix(_NEW) for name in made]
    for optimizer in sorted(OPTIMIZERS.values(), key=lambda optimizer: -len(optimizer.kept)):
        parameters = names[: -1 if optimizer.counts else None : 1 + len(optimizer.kept)]
        expected = [name for p in parameters for name in (p, *(f"{p}_{k}" for k in optimizer.kept))]
        if names == expected + [_STEP] * optimizer.counts:
            return parameters
    raise ValueError(
        f"initial_values: training has the outputs {', '.join(made)}, expected an optimizer's, as "
        "from training_model"
    )


def constant_model(values: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """A model without inputs whose outputs are these arrays, to load them in any runtime.

    Parameters
    ----------
    values : mapping of str to numpy.ndarray
        For example `initial_values`.

    Returns
    -------
    onnx.ModelProto
        Its outputs have the names of the values.

    Raises
    ------
    TypeError
        If `values` is not a mapping.

    Examples
    --------
    >>> import numpy as np
    >>> from onnx.reference import ReferenceEvaluator
    >>> from xpgrad_onnx import constant_model
    >>> ReferenceEvaluator(constant_model({"w": np.ones(2)})).run(["w"], {})
    [array([1., 1.])]
    """
    check_mapping("constant_model", "values", values)
    nodes, infos, tensors = [], [], []
    for name, value in values.items():
        array = np.asarray(value)
        tensors.append(numpy_helper.from_array(array, f"{name}/value"))
        nodes.append(helper.make_node("Identity", [f"{name}/value"], [name]))
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        infos.append(helper.make_tensor_value_info(name, kind, array.shape))
    graph = helper.make_graph(nodes, "values", [], infos, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def with_parameters(model: onnx.ModelProto, values: Mapping[str, Any]) -> onnx.ModelProto:
    """The model with other values of some parameters, for example trained ones.

    Parameters
    ----------
    model : onnx.ModelProto
        The model. It is not changed.
    values : mapping of str to array
        New values of initializers, or of `Constant` nodes, by name.

    Returns
    -------
    onnx.ModelProto
        A copy of the model that differs only in these values.

    Raises
    ------
    ValueError
        For a name of no parameter, and for a value of another shape or dtype.
    TypeError
        If `model` is not a model, or `values` not a mapping.
    """
    check_model("with_parameters", "model", model)
    check_mapping("with_parameters", "values", values)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        if values.keys() & {*node.output} and (tensor := constant_of(node)) is not None:
            # a list of numbers has no place for a tensor
            node.attribute[0].CopyFrom(helper.make_attribute("value", tensor))
    tensors = _tensors(copy)
    for name, value in values.items():
        if name not in tensors:
            known = ", ".join([*tensors][:5])
            raise ValueError(f"with_parameters: values has {name!r}, expected names of tensors, as {known}")
        old, array = tensors[name], np.asarray(value)
        dtype = helper.tensor_dtype_to_np_dtype(old.data_type)
        if array.shape != tuple(old.dims) or array.dtype != dtype:
            raise ValueError(
                f"with_parameters: {name} is {array.dtype} of shape {array.shape}, expected {dtype} of shape "
                f"{tuple(old.dims)}, as in the model"
            )
        doc = old.doc_string
        old.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), old.name))
        old.doc_string = doc
    return copy


def _tensors(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """The initializers, and the values of `Constant` nodes by their outputs' names."""
    found = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if (tensor := constant_of(node)) is not None:
            attribute = node.attribute[0]
            found[node.output[0]] = attribute.t if attribute.name == "value" else tensor
    return found
