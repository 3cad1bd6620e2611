"""The operators: each one's kernel, and the kernel's names of operands and attributes.

Two domains hold gradients. ``com.microsoft`` has ONNX Runtime's operators, with the same results. ``xpgrad``
has the true gradients of complete ONNX operators, with operands that ONNX Runtime's gradients lack, and
gradients of operators that ONNX Runtime cannot differentiate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace
from onnx.reference.op_run import OpRun

import xpgrad
from xpgrad._operators.axes import gradient_name
from xpgrad._operators.declaration import DECLARED
from xpgrad._operators.words import Peephole
from xpgrad_onnx import _numpy_operators as _numpy_operators  # registers its operators
from xpgrad_onnx._call import DEFINITIONS, MICROSOFT, Compute, NodeCall, define, operator_class
from xpgrad_onnx._loop import Loop

DOMAIN = "xpgrad"
"""The domain of the operators that ONNX and ONNX Runtime do not have."""


def operators(exact: bool = False) -> list[type[OpRun]]:
    """Operators for onnx's reference evaluator, computed by xpgrad.

    Three domains: ONNX Runtime Training's gradient operators (``com.microsoft``); ONNX's own recurrent
    operators, convolutions, activations, softmax and cross-entropy, with all their attributes; and
    ``xpgrad``, with the gradients that `gradient_model` needs and the other domains lack.

    Parameters
    ----------
    exact : bool
        Give the true gradients instead of ONNX Runtime's: for LSTMGrad with peepholes (an additional input
        then), and for ConvGrad with ``auto_pad``.

    Returns
    -------
    list of type
        Subclasses of `onnx.reference.op_run.OpRun`.

    Raises
    ------
    TypeError
        If `exact` is no bool.

    Examples
    --------
    >>> import numpy as np
    >>> from onnx import helper
    >>> from onnx.reference import ReferenceEvaluator
    >>> from xpgrad_onnx import operators
    >>> node = helper.make_node("ReluGrad", ["dY", "X"], ["dX"], domain="com.microsoft")
    >>> evaluator = ReferenceEvaluator(node, new_ops=operators())
    >>> evaluator.run(None, {"dY": np.asarray([3.0, 4.0]), "X": np.asarray([-1.0, 2.0])})
    [array([0., 4.])]
    """
    if not isinstance(exact, bool):
        raise TypeError(f"operators: exact is a {type(exact).__name__}, expected a bool")
    return [*(operator_class(definition, exact) for definition in DEFINITIONS), Loop]


_BOTH = (MICROSOFT, DOMAIN)
_FLOATS = frozenset(map(np.dtype, ("float16", "float32", "float64")))


def _define(
    domain: str | tuple[str, ...], name: str, inputs: str, outputs: str, attributes: str = ""
) -> Callable[[Compute], Compute]:
    """Register a function that calls kernels; other dtypes are left to onnx's own operators."""

    def put(compute: Compute) -> Compute:
        def of_floats(call: NodeCall) -> Any:
            first = next(iter(call.inputs.values()))
            if domain == "" and isinstance(first, np.ndarray) and first.dtype not in _FLOATS:
                return NotImplemented
            return compute(call)

        for each in (domain,) if isinstance(domain, str) else domain:
            define(each, name, inputs, outputs, attributes)(of_floats)
        return compute

    return put


# --- recurrent operators ------------------------------------------------------------------------------------

_SEQUENCE = "direction activations activation_alpha activation_beta clip layout hidden_size"
_OPTIONS = tuple(_SEQUENCE.split()[:-1])  # hidden_size follows from R
_SEQUENCE_INPUTS = "X W R B? sequence_lens? initial_h?"


def _recurrent_options(call: NodeCall, *more: str) -> dict[str, Any]:
    hidden, columns = call.attributes.get("hidden_size"), call.inputs["R"].shape[-1]
    if hidden is not None and hidden != columns:
        raise ValueError(f"{call.operator}: hidden_size is {hidden}, expected R's last size, {columns}")
    return call.options(*_OPTIONS, *more)


_GRADED = ("X", "W", "R", "B", "initial_h", "initial_c", "P", "slope")


def _wrt(call: NodeCall) -> list[str]:
    """The kernel's names of the operands with a wanted gradient."""
    return [operand for operand in _GRADED if gradient_name(operand) in call.wanted]


_LSTM = "input_forget"


@_define("", "LSTM", f"{_SEQUENCE_INPUTS} initial_c? P?", "Y Y_h Y_c", f"{_SEQUENCE} {_LSTM}")
@_define(
    _BOTH, "LSTMTraining", f"{_SEQUENCE_INPUTS} initial_c? P?", "H_all H_t C_t C_all iofc",
    f"{_SEQUENCE} {_LSTM}",
)  # fmt: skip
def _lstm(call: NodeCall) -> tuple:
    return xpgrad.lstm(**call.inputs, **_recurrent_options(call, _LSTM))


_LSTM_GRADIENTS = "dX dW dR dB dH0 dC0 dP"
_LSTM_GRAD_INPUTS = (
    "X W R sequence_lens? initial_h? initial_c? H_all C_all iofc grad_H_all? grad_H_t? grad_C_t?"
)


@_define(MICROSOFT, "LSTMGrad", f"{_LSTM_GRAD_INPUTS} P? B?", _LSTM_GRADIENTS, f"{_SEQUENCE} {_LSTM}")
def _lstm_grad_as_onnx_runtime(call: NodeCall) -> tuple:
    """ONNX Runtime's LSTMGrad has no input for the peepholes, and passes no gradient through them."""
    if call.exact:
        return _lstm_gradients(call, "full")
    inputs = dict(call.inputs)
    if "dP" in call.wanted:  # dP is a sum over the saved arrays and does not depend on the values of P
        directions, _, hidden = inputs["R"].shape
        inputs.setdefault("P", np.zeros((directions, 3 * hidden), dtype=inputs["R"].dtype))
    return _lstm_gradients(call._replace(inputs=inputs), "truncated")


@_define(DOMAIN, "LSTMGrad", f"{_LSTM_GRAD_INPUTS} P? B?", _LSTM_GRADIENTS, f"{_SEQUENCE} {_LSTM}")
def _lstm_grad(call: NodeCall) -> tuple:
    return _lstm_gradients(call, "full")


def _lstm_gradients(call: NodeCall, peephole: Peephole) -> tuple:
    if "dP" in call.wanted and "P" not in call.inputs:
        raise ValueError(
            f"{call.operator}: P is missing, expected an array as input 12, because the true gradient dP is "
            "asked for, and ONNX Runtime's inputs do not have it"
        )
    return xpgrad.lstm_grad(
        **call.inputs, **_recurrent_options(call, _LSTM), peephole=peephole, wrt=_wrt(call)
    )


_GRU = "linear_before_reset"


@_define("", "GRU", _SEQUENCE_INPUTS, "Y Y_h", f"{_SEQUENCE} {_GRU}")
@_define(_BOTH, "GRUTraining", _SEQUENCE_INPUTS, "H_all H_t zrh", f"{_SEQUENCE} {_GRU}")
def _gru(call: NodeCall) -> tuple:
    return xpgrad.gru(**call.inputs, **_recurrent_options(call, _GRU))


_STATE_GRADIENTS = "dX dW dR dB dH0"
_GRU_GRAD_INPUTS = f"{_SEQUENCE_INPUTS} H_all zrh grad_H_all? grad_H_t?"


@_define(_BOTH, "GRUGrad", _GRU_GRAD_INPUTS, _STATE_GRADIENTS, f"{_SEQUENCE} {_GRU}")
def _gru_grad(call: NodeCall) -> tuple:
    return xpgrad.gru_grad(**call.inputs, **_recurrent_options(call, _GRU), wrt=_wrt(call))


@_define("", "RNN", _SEQUENCE_INPUTS, "Y Y_h", _SEQUENCE)
def _rnn(call: NodeCall) -> tuple:
    options = _recurrent_options(call)
    if "activations" in options:  # ONNX's default has names for both directions, even for one direction
        options["activations"] = list(options["activations"])[: call.inputs["W"].shape[0]]
    return xpgrad.rnn(**call.inputs, **options)


@_define(
    DOMAIN, "RNNGrad", f"{_SEQUENCE_INPUTS} H_all grad_H_all? grad_H_t?", _STATE_GRADIENTS, _SEQUENCE
)  # fmt: skip
def _rnn_grad(call: NodeCall) -> tuple:
    return xpgrad.rnn_grad(**call.inputs, **_recurrent_options(call), wrt=_wrt(call))


# --- convolutions -------------------------------------------------------------------------------------------

_CONV = "strides pads dilations group auto_pad kernel_shape"
_TRANSPOSED = f"{_CONV} output_padding output_shape"


def _conv_options(call: NodeCall) -> dict[str, Any]:
    kernel, spatial = call.attributes.get("kernel_shape"), call.inputs["W"].shape[2:]
    if kernel is not None and tuple(kernel) != tuple(spatial):
        raise ValueError(
            f"{call.operator}: kernel_shape is {tuple(kernel)}, expected W's spatial sizes, {tuple(spatial)}"
        )
    options = {name: value for name, value in call.attributes.items() if name != "kernel_shape"}
    if "output_shape" in options:
        options.pop("pads", None)  # ONNX ignores them then
    return options


@_define("", "Conv", "X W B?", "Y", _CONV)
def _conv(call: NodeCall) -> tuple:
    return (xpgrad.conv(**call.inputs, **_conv_options(call)),)


@_define("", "ConvTranspose", "X W B?", "Y", _TRANSPOSED)
def _conv_transpose(call: NodeCall) -> tuple:
    return (xpgrad.conv_transpose(**call.inputs, **_conv_options(call)),)


@_define(MICROSOFT, "ConvGrad", "dY X W", "dX dW dB", _CONV)
def _conv_grad_as_onnx_runtime(call: NodeCall) -> tuple:
    """ONNX Runtime's ConvGrad ignores `auto_pad`, and then misreads dY as an array of another shape."""
    auto_pad = call.attributes.get("auto_pad", "NOTSET")
    if not call.exact and auto_pad.startswith("SAME"):
        raise ValueError(
            f"{call.operator}: auto_pad is {auto_pad!r}, which ONNX Runtime ignores, expected 'NOTSET' "
            "and pads, or operators(exact=True)"
        )
    return _conv_grad(call)


@_define(DOMAIN, "ConvGrad", "dY X W", "dX dW dB", _CONV)
def _conv_grad(call: NodeCall) -> tuple:
    return xpgrad.conv_grad(**call.inputs, **_conv_options(call), wrt=_wrt(call))


@_define(_BOTH, "ConvTransposeGrad", "dY X W", "dX dW dB", _TRANSPOSED)
def _conv_transpose_grad(call: NodeCall) -> tuple:
    return xpgrad.conv_transpose_grad(**call.inputs, **_conv_options(call), wrt=_wrt(call))


# --- activations --------------------------------------------------------------------------------------------


class OnnxActivation(NamedTuple):
    """An operator's kernel, the gradient's saved array, the attributes of both, and the gradient's domain."""

    kernel: str
    residual: str
    attributes: str
    domain: str


def _activations() -> Iterator[tuple[str, OnnxActivation]]:
    """The declared operators, by their names."""
    for kernel, declaration in DECLARED.items():
        operator, _, attributes = declaration.onnx.partition(" ")
        if operator:
            domain = MICROSOFT if operator in ("Relu", "LeakyRelu", "Sigmoid", "Tanh") else DOMAIN
            yield operator, OnnxActivation(kernel, declaration.residual, attributes, domain)


ACTIVATIONS = dict(_activations())
RENAMED = ("Gelu", "Swish")
"""Operators whose gradients have other names in ONNX Runtime."""


def _pointwise(domain: str, name: str, kernel: str, attributes: str = "") -> None:
    """An activation: one input, one output."""

    @_define(domain, name, "X", "Y", attributes)
    def compute(call: NodeCall) -> tuple:
        return (getattr(xpgrad, kernel)(call.inputs["X"], **call.attributes),)


def _pointwise_grad(domain: str, name: str, kernel: str, residual: str, attributes: str = "") -> None:
    """The gradient of an activation, from its input X or its output Y."""

    @_define(domain, name, f"dY {residual}", "dX", attributes)
    def compute(call: NodeCall) -> tuple:
        gradient = getattr(xpgrad, f"{kernel}_grad")
        return (gradient(call.inputs["dY"], call.inputs[residual], **call.attributes),)


for _operator, _activation in ACTIVATIONS.items():
    _pointwise("", _operator, _activation.kernel, _activation.attributes)
    if _operator not in RENAMED:
        _pointwise_grad(_activation.domain, f"{_operator}Grad", *_activation[:3])
_pointwise(MICROSOFT, "Gelu", "gelu")
_pointwise(MICROSOFT, "QuickGelu", "quick_gelu", "alpha")
_pointwise_grad(MICROSOFT, "GeluGrad", "gelu", "X")
_pointwise_grad(MICROSOFT, "QuickGeluGrad", "quick_gelu", "X", "alpha")


@_define("", "PRelu", "X slope", "Y")
def _prelu(call: NodeCall) -> tuple:
    return (xpgrad.prelu(**call.inputs),)


@_define(DOMAIN, "PReluGrad", "dY X slope", "dX dslope")
def _prelu_grad(call: NodeCall) -> tuple:
    return xpgrad.prelu_grad(**call.inputs, wrt=_wrt(call))


def _biased(call: NodeCall, bias: str) -> np.ndarray:
    """X plus the bias of ONNX Runtime's fused operators."""
    X = call.inputs["X"]
    return X + call.inputs[bias] if bias in call.inputs else X


@_define(MICROSOFT, "BiasGelu", "X bias", "Y")
def _bias_gelu(call: NodeCall) -> tuple:
    return (xpgrad.gelu(_biased(call, "bias")),)


@_define(MICROSOFT, "FastGelu", "X bias?", "Y")
def _fast_gelu(call: NodeCall) -> tuple:
    return (xpgrad.gelu(_biased(call, "bias"), approximate="tanh"),)


@_define(MICROSOFT, "BiasGeluGrad_dX", "dY X bias", "dX")
def _bias_gelu_grad(call: NodeCall) -> tuple:
    return (xpgrad.gelu_grad(call.inputs["dY"], _biased(call, "bias")),)


@_define(MICROSOFT, "BiasFastGeluGrad_dX", "dY X bias", "dX")
@_define(MICROSOFT, "FastGeluGrad", "dY X bias?", "dX")
def _fast_gelu_grad(call: NodeCall) -> tuple:
    return (xpgrad.gelu_grad(call.inputs["dY"], _biased(call, "bias"), approximate="tanh"),)


# --- softmax and losses -------------------------------------------------------------------------------------

_PER_AXIS = 13  # from this version of ONNX on softmax takes one axis; before, it flattens to rows


def _softmax_pair(name: str, kernel: str) -> None:
    @_define("", name, "X", "Y", "axis")
    def forward(call: NodeCall) -> tuple:
        flatten = call.opset < _PER_AXIS
        return (getattr(xpgrad, kernel)(call.inputs["X"], **call.options("axis"), flatten=flatten),)

    def gradient(call: NodeCall, axis: int, flatten: bool) -> tuple:
        options = {"axis": axis, **call.options("axis"), "flatten": flatten}
        return (getattr(xpgrad, f"{kernel}_grad")(call.inputs["dY"], call.inputs["Y"], **options),)

    @_define(MICROSOFT, f"{name}Grad", "dY Y", "dX", "axis")
    def of_rows(call: NodeCall) -> tuple:
        return gradient(call, 1, True)

    @_define(MICROSOFT, f"{name}Grad_13", "dY Y", "dX", "axis")
    def along_axis(call: NodeCall) -> tuple:
        return gradient(call, -1, False)


_softmax_pair("Softmax", "softmax")
_softmax_pair("LogSoftmax", "log_softmax")


def _ignored(call: NodeCall) -> dict[str, Any]:
    """The label to ignore, an attribute or, in ONNX Runtime's inner operators, an input."""
    options = call.options("reduction", "ignore_index")
    if "ignore_index" in call.inputs:
        options["ignore_index"] = int(call.inputs["ignore_index"])
    return options


@_define("", "SoftmaxCrossEntropyLoss", "X labels weights?", "loss log_prob", "reduction ignore_index")
@_define(
    MICROSOFT, "SoftmaxCrossEntropyLossInternal", "X labels weights? ignore_index?", "loss log_prob",
    "reduction output_type",
)  # fmt: skip
def _cross_entropy(call: NodeCall) -> tuple:
    inputs = {name: array for name, array in call.inputs.items() if name != "ignore_index"}
    loss = xpgrad.softmax_cross_entropy(**inputs, **_ignored(call))
    return loss, xpgrad.log_softmax(inputs["X"], axis=1) if "log_prob" in call.wanted else None


@_define(
    MICROSOFT, "SoftmaxCrossEntropyLossGrad", "dY log_prob labels weights? bias?", "dX",
    "reduction ignore_index output_type",
)  # fmt: skip
@_define(
    MICROSOFT, "SoftmaxCrossEntropyLossInternalGrad", "dY log_prob labels weights? ignore_index? bias?", "dX",
    "reduction output_type",
)  # fmt: skip
def _cross_entropy_grad(call: NodeCall) -> tuple:
    """The logarithms of the probabilities are valid logits: they have the same softmax."""
    options = _ignored(call)
    dY, labels = call.inputs["dY"], call.inputs["labels"]
    shape = labels.shape if options.get("reduction") == "none" else ()
    reshape = array_namespace(dY).reshape
    dX = xpgrad.softmax_cross_entropy_grad(
        reshape(dY, shape), **call.renamed(X="log_prob", labels="labels", weights="weights"), **options
    )
    return (dX + reshape(call.inputs["bias"], dX.shape) if "bias" in call.inputs else dX,)


# --- other operators of training graphs ---------------------------------------------------------------------


@_define(MICROSOFT, "Scale", "X scale", "Y", "scale_down")
def _scale(call: NodeCall) -> tuple:
    X, scale = call.inputs["X"], np.asarray(call.inputs["scale"])
    factor = np.reshape(scale, ()).astype(X.dtype)
    return (X / factor if call.attributes.get("scale_down") else X * factor,)


@_define(MICROSOFT, "InPlaceAccumulatorV2", "buffer value overwrite?", "updated accumulated")
def _accumulate_or_overwrite(call: NodeCall) -> tuple:
    """The sum of both, or only the value.

    ONNX Runtime writes the sum into the buffer. Here the buffer stays unchanged, and the second output is the
    sum.
    """
    overwrite = bool(np.any(call.inputs.get("overwrite", False)))
    return np.asarray([True]), (call.inputs["value"] if overwrite else _sum(call))


@_define(MICROSOFT, "InPlaceAccumulator", "buffer value update?", "accumulated")
def _accumulate(call: NodeCall) -> tuple:
    return (_sum(call) if np.all(call.inputs.get("update", True)) else call.inputs["buffer"],)


def _sum(call: NodeCall) -> np.ndarray:
    return call.inputs["buffer"] + call.inputs["value"]


@_define(MICROSOFT, "ConcatTraining", "arrays*", "Y lengths", "axis")
def _concat(call: NodeCall) -> tuple:
    arrays, axis = call.inputs["arrays"], call.attributes["axis"]
    lengths = np.asarray([array.shape[axis] for array in arrays], dtype=np.int64)
    return np.concatenate(arrays, axis=axis), lengths


@_define(MICROSOFT, "SplitTraining", "X lengths", "parts*", "axis")
def _split(call: NodeCall) -> tuple:
    ends = np.cumsum(call.inputs["lengths"])[:-1]
    return tuple(np.split(call.inputs["X"], ends, axis=call.attributes.get("axis", 0)))


@_define(MICROSOFT, "BroadcastGradientArgs", "a_shape b_shape", "a_axes b_axes")
def _broadcast_axes(call: NodeCall) -> tuple:
    """The axes of the broadcast result over which each gradient must be summed."""
    a, b = (tuple(map(int, call.inputs[name])) for name in ("a_shape", "b_shape"))
    rank = max(len(a), len(b))
    a, b = ((1,) * (rank - len(shape)) + shape for shape in (a, b))
    both = list(enumerate(zip(a, b, strict=True)))
    a_axes = [k for k, (m, n) in both if m == 1 and n != 1]
    b_axes = [k for k, (m, n) in both if n == 1 and m != 1]
    return np.asarray(a_axes[::-1], dtype=np.int64), np.asarray(b_axes[::-1], dtype=np.int64)
