"""Computes cases with one peer: ``python runner.py PEER JOBS.npz RESULTS.npz``.

This file needs that peer and NumPy, nothing of xpgrad, so that it runs in an interpreter of the peer's own.
Each peer is called as its documentation says. A case that a peer has no operator or option for is absent; one
that it turns down is a refusal, with its message.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")


class Absent(Exception):  # noqa: N818 - not an error of anything
    """The peer has no such operator or option."""


class Job:
    """A case: float32 arrays by name, whole numbers, attributes, cotangents."""

    def __init__(self, about: dict, archive: Any) -> None:
        self.kernel: str = about["kernel"]
        self.attributes: dict = about["attributes"]
        self.pads: list = about["pads"]

        def arrays(kind: str) -> dict:
            found = {name: archive[f"{about['id']}/{kind}/{name}"] for name in about[kind]}
            return {k: v.astype(np.float32) if v.dtype.kind == "f" else v for k, v in found.items()}

        self.arguments, self.integers, self.cotangents = map(arrays, ("arguments", "integers", "cotangents"))

    def only(self, *attributes: str, arguments: str = "X W R B initial_h initial_c") -> dict:
        """The attributes, none of which and of the arguments is another than these."""
        beyond = (set(self.attributes) - set(attributes)) | (set(self.arguments) - set(arguments.split()))
        if beyond:
            raise Absent(", ".join(sorted(beyond)))
        return dict(self.attributes)

    def one_input(self, table: dict) -> Any:
        """The table's entry for the kernel."""
        if self.kernel not in table:
            raise Absent(self.kernel)
        return table[self.kernel]


def gradients(names: Any, found: Any) -> dict:
    """Arrays by the argument whose gradient they are."""
    return {f"gradient of {name}": np.asarray(array) for name, array in zip(names, found)}  # noqa: B905


def gates(rows: np.ndarray, order: list) -> np.ndarray:
    """Blocks of rows in another order."""
    return rows.reshape(len(order), -1, *rows.shape[1:])[order].reshape(rows.shape)


def per_dimension(value: Any, rank: int) -> list:
    """One number for all dimensions, or one each."""
    return [value] * rank if isinstance(value, int) else list(value)


# --- PyTorch ------------------------------------------------------------------------------------------------


def pytorch(job: Job) -> dict:
    """torch.nn's modules and functions; sequences with lengths are packed."""
    import torch

    if job.kernel in ("lstm", "gru"):
        return _torch_recurrent(torch, job)
    F = torch.nn.functional
    leaves = {k: torch.tensor(v, requires_grad=True) for k, v in job.arguments.items()}
    if job.kernel in ("conv", "conv_transpose"):
        Y = _torch_convolution(torch, job, leaves)
    else:
        Y = _torch_function(F, job, leaves, torch)
    found = torch.autograd.grad(Y, list(leaves.values()), torch.tensor(job.cotangents["Y"]))
    return {"Y": Y.detach().numpy(), **gradients(leaves, found)}


def pytorch_native(job: Job) -> dict:
    """The same without oneDNN."""
    import torch

    with torch.backends.mkldnn.flags(enabled=False):
        return pytorch(job)


def _torch_recurrent(torch: Any, job: Job) -> dict:
    lstm = job.kernel == "lstm"
    options = job.only("direction", "layout", *([] if lstm else ["linear_before_reset"]))
    if options.get("direction") == "reverse" or (not lstm and not options.get("linear_before_reset")):
        raise Absent("direction or reset")
    arguments = job.arguments
    W, R = arguments["W"], arguments["R"]
    D, H, bias, first = len(W), R.shape[2], "B" in arguments, options.get("layout", 0) == 1
    order = [0, 2, 3, 1] if lstm else [1, 0, 2]
    back = list(np.argsort(order))
    module = getattr(torch.nn, job.kernel.upper())(
        W.shape[2], H, bias=bias, bidirectional=D == 2, batch_first=first
    )
    named: dict = {}
    for d in range(D):
        end = "_l0" + "_reverse" * d
        named |= {f"weight_ih{end}": W[d], f"weight_hh{end}": R[d]}
        if bias:
            half = arguments["B"].shape[1] // 2
            named |= {f"bias_ih{end}": arguments["B"][d, :half], f"bias_hh{end}": arguments["B"][d, half:]}
    with torch.no_grad():
        for name, rows in named.items():
            getattr(module, name).copy_(torch.tensor(gates(rows, order)))
    x = torch.tensor(arguments["X"], requires_grad=True)
    names = [k for k in ("initial_h", "initial_c") if k in arguments]
    states = [torch.tensor(arguments[k], requires_grad=True) for k in names]
    given = [s.swapaxes(0, 1).contiguous() if first else s for s in states]
    state = None if not given else tuple(given) if lstm else given[0]
    lengths = job.integers.get("sequence_lens")
    feed = x
    if lengths is not None:
        counts = torch.tensor(lengths)
        feed = torch.nn.utils.rnn.pack_padded_sequence(x, counts, batch_first=first, enforce_sorted=False)
    y, ends = module(feed, state)
    if lengths is not None:
        steps = x.shape[1 if first else 0]
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first=first, total_length=steps)
    y = y.unflatten(-1, (D, H))
    outputs = {"H_all": y if first else y.swapaxes(1, 2)}
    for name, end in zip(("H_t", "C_t"), ends if lstm else [ends]):  # noqa: B905
        outputs[name] = end.swapaxes(0, 1) if first else end
    cotangents = [torch.tensor(np.nan_to_num(job.cotangents[k])) for k in outputs]
    torch.autograd.backward(list(outputs.values()), cotangents)

    def stacked(kind: str) -> np.ndarray:
        ends = ["_l0" + "_reverse" * d for d in range(D)]
        return np.stack([gates(getattr(module, kind + e).grad.numpy(), back) for e in ends])

    grads = {"X": x.grad.numpy(), "W": stacked("weight_ih"), "R": stacked("weight_hh")}
    if bias:
        grads["B"] = np.concatenate([stacked("bias_ih"), stacked("bias_hh")], axis=1)
    grads |= {k: s.grad.numpy() for k, s in zip(names, states)}  # noqa: B905
    return {k: v.detach().numpy() for k, v in outputs.items()} | gradients(grads, grads.values())


def _torch_convolution(torch: Any, job: Job, leaves: dict) -> Any:
    attributes, X, W = job.attributes, leaves["X"], leaves["W"]
    rank = X.ndim - 2
    options = {k: attributes.get(k, 1) for k in ("strides", "dilations", "group")}
    stride, dilation = (tuple(per_dimension(options[k], rank)) for k in ("strides", "dilations"))
    begins, ends = job.pads
    transposed = job.kernel == "conv_transpose"
    function = getattr(torch.nn.functional, f"conv{'_transpose' * transposed}{rank}d")
    if transposed:
        if begins != ends or "output_shape" in attributes:
            raise Absent("pads of each end")
        added = tuple(per_dimension(attributes.get("output_padding", 0), rank))
        return function(
            X, W, leaves.get("B"), stride=stride, padding=tuple(begins), output_padding=added,
            groups=options["group"], dilation=dilation,
        )  # fmt: skip
    if attributes.get("auto_pad", "").startswith("SAME"):
        raise Absent("auto_pad with strides")
    if begins != ends:
        around = [n for pair in zip(reversed(begins), reversed(ends)) for n in pair]  # noqa: B905
        X, begins = torch.nn.functional.pad(X, around), [0] * rank
    return function(
        X, W, leaves.get("B"), stride=stride, padding=tuple(begins), dilation=dilation,
        groups=options["group"],
    )  # fmt: skip


def _torch_function(F: Any, job: Job, leaves: dict, torch: Any) -> Any:
    a, x = job.attributes, leaves["X"]
    table = {
        "relu": lambda: F.relu(x),
        "leaky_relu": lambda: F.leaky_relu(x, a.get("alpha", 0.01)),
        "prelu": lambda: F.prelu(x, leaves["slope"].flatten()),
        "thresholded_relu": lambda: F.threshold(x, a.get("alpha", 1.0), 0.0),
        "elu": lambda: F.elu(x, a.get("alpha", 1.0)),
        "selu": lambda: F.selu(x),
        "celu": lambda: F.celu(x, a.get("alpha", 1.0)),
        "softplus": lambda: F.softplus(x, a.get("beta", 1.0), a.get("threshold", 1e9)),
        "gelu": lambda: F.gelu(x, approximate=a.get("approximate", "none")),
        "silu": lambda: F.silu(x),
        "mish": lambda: F.mish(x),
        "sigmoid": lambda: x.sigmoid(),
        "log_sigmoid": lambda: F.logsigmoid(x),
        "hard_swish": lambda: F.hardswish(x),
        "tanh": lambda: x.tanh(),
        "softsign": lambda: F.softsign(x),
        "softmax": lambda: F.softmax(x, a.get("axis", -1)),
        "log_softmax": lambda: F.log_softmax(x, a.get("axis", -1)),
    }
    if (job.kernel == "prelu" and leaves["slope"].numel() > 1) or a.get("flatten"):
        raise Absent("an option")
    if job.kernel == "selu" and a and abs(a["alpha"] - 1.6732632423543772) > 1e-9:
        raise Absent("alpha")
    return job.one_input(table)()


# --- ONNX Runtime Training ----------------------------------------------------------------------------------

_OPERANDS = {
    "LSTMTraining": ("X W R B sequence_lens initial_h initial_c P", "H_all H_t C_t C_all iofc"),
    "LSTMGrad": (
        "X W R sequence_lens initial_h initial_c H_all C_all iofc grad_H_all grad_H_t grad_C_t",
        "dX dW dR dB dinitial_h dinitial_c dP",
    ),
    "GRUTraining": ("X W R B sequence_lens initial_h", "H_all H_t zrh"),
    "GRUGrad": ("X W R B sequence_lens initial_h H_all zrh grad_H_all grad_H_t", "dX dW dR dB dinitial_h"),
    "Conv": ("X W B", "Y"),
    "ConvTranspose": ("X W B", "Y"),
    "ConvGrad": ("dY X W", "dX dW dB"),
    "ConvTransposeGrad": ("dY X W", "dX dW dB"),
}


def _model(op_type: str, inputs: dict, wanted: list, domain: str, names: tuple, **attributes: Any) -> Any:
    import onnx
    from onnx import helper

    rows: list = []
    for text, given in zip(names, (inputs, wanted)):  # noqa: B905
        row = [name if name in given else "" for name in text.split()]
        while row and not row[-1]:
            row.pop()
        rows.append(row)
    node = helper.make_node(op_type, rows[0], rows[1], domain=domain, **attributes)
    kinds = {name: onnx.helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in inputs.items()}
    graph_inputs, graph_outputs = (
        [helper.make_tensor_value_info(n, kinds.get(n, onnx.TensorProto.FLOAT), None) for n in row if n]
        for row in rows
    )
    graph = helper.make_graph([node], "g", graph_inputs, graph_outputs)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _ort(op_type: str, inputs: dict, wanted: list, domain: str = "com.microsoft", **attributes: Any) -> dict:
    import onnxruntime

    names = _OPERANDS.get(op_type, (" ".join(inputs), " ".join(wanted)))
    model = _model(op_type, inputs, wanted, domain, names, **attributes)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    outputs = [o.name for o in session.get_outputs()]
    used = {i.name for i in session.get_inputs()}
    results = session.run(outputs, {name: array for name, array in inputs.items() if name in used})
    return dict(zip(outputs, results))  # noqa: B905


def onnx_runtime(job: Job) -> dict:
    """ONNX Runtime Training's kernels, as models of one node."""
    arguments, a = job.arguments, _onnx_attributes(job)
    integers = {k: v.astype(np.int32) for k, v in job.integers.items() if k == "sequence_lens"}
    cotangents = {f"grad_{k}": v for k, v in job.cotangents.items()}
    if job.kernel in ("lstm", "gru"):
        name = job.kernel.upper()
        if a.pop("layout", 0):
            raise Absent("layout")
        a["hidden_size"] = arguments["R"].shape[2]
        inputs = arguments | integers
        outputs = _ort(f"{name}Training", inputs, _OPERANDS[f"{name}Training"][1].split(), **a)
        wanted = [f"d{k}" for k in arguments]
        zeros = np.zeros_like(outputs["H_t"])
        inputs = {"initial_h": zeros, "initial_c": zeros} | inputs | outputs | cotangents
        known = set(_OPERANDS[f"{name}Grad"][0].split())
        grads = _ort(f"{name}Grad", {k: v for k, v in inputs.items() if k in known}, wanted, **a)
        kept = {k: v for k, v in outputs.items() if k in ("H_all", "H_t", "C_t")}
        return kept | {f"gradient of {k}": grads[f"d{k}"] for k in arguments}
    dY = {"dY": job.cotangents["Y"]}
    if job.kernel in ("conv", "conv_transpose"):
        name = "Conv" if job.kernel == "conv" else "ConvTranspose"
        outputs = _ort(name, arguments, ["Y"], "", **a)
        a["kernel_shape"] = arguments["W"].shape[2:]
        inputs = dY | {k: arguments[k] for k in "XW"}
        grads = _ort(f"{name}Grad", inputs, [f"d{k}" for k in arguments], **a)
        return outputs | {f"gradient of {k}": grads[f"d{k}"] for k in arguments}
    by_output = {"sigmoid": "Sigmoid", "tanh": "Tanh", "leaky_relu": "LeakyRelu", "relu": "Relu"}
    along = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}
    X = {"X": arguments["X"]}
    if job.kernel in by_output:
        name = by_output[job.kernel]
        Y = _ort(name, X, ["Y"], "", **a)
        return Y | {"gradient of X": _ort(f"{name}Grad", dY | Y, ["dX"], **a)["dX"]}
    if job.kernel in along:
        name, flatten = along[job.kernel], a.pop("flatten", False)
        if flatten:
            raise Absent("the forward of opset 12")
        a.setdefault("axis", -1)
        Y = _ort(name, X, ["Y"], "", **a)
        return Y | {"gradient of X": _ort(f"{name}Grad_13", dY | Y, ["dX"], **a)["dX"]}
    if job.kernel in ("gelu", "quick_gelu"):
        fast = a.pop("approximate", "none") == "tanh"
        name = "QuickGelu" if job.kernel == "quick_gelu" else "FastGelu" if fast else "Gelu"
        Y = _ort(name, X, ["Y"], **a)
        return Y | {"gradient of X": _ort(f"{name}Grad", dY | X, ["dX"], **a)["dX"]}
    raise Absent(job.kernel)


def _onnx_attributes(job: Job) -> dict:
    a = dict(job.attributes)
    if "input_forget" in a:
        a["input_forget"] = int(a["input_forget"])
    if job.kernel in ("conv", "conv_transpose"):
        rank = job.arguments["X"].ndim - 2
        for name in ("strides", "dilations", "output_padding"):
            if name in a:
                a[name] = per_dimension(a[name], rank)
        if "pads" in a:
            a["pads"] = [n for end in job.pads for n in end]
    return a


# --- onnx's reference ---------------------------------------------------------------------------------------


def onnx_reference(job: Job) -> dict:
    """onnx.reference: forwards alone."""
    from onnx.reference import ReferenceEvaluator

    names = {
        "lstm": "LSTM", "gru": "GRU", "conv": "Conv", "conv_transpose": "ConvTranspose", "relu": "Relu",
        "leaky_relu": "LeakyRelu", "prelu": "PRelu", "thresholded_relu": "ThresholdedRelu", "elu": "Elu",
        "selu": "Selu", "celu": "Celu", "softplus": "Softplus", "gelu": "Gelu", "mish": "Mish",
        "sigmoid": "Sigmoid", "hard_sigmoid": "HardSigmoid", "hard_swish": "HardSwish", "tanh": "Tanh",
        "softsign": "Softsign", "softmax": "Softmax", "log_softmax": "LogSoftmax",
    }  # fmt: skip
    if job.kernel not in names:
        raise Absent(job.kernel)
    a = _onnx_attributes(job)
    if job.kernel == "softplus" and a:
        raise Absent("beta")
    if a.pop("flatten", False):
        raise Absent("the forward of opset 12")
    inputs = job.arguments | {k: v.astype(np.int32) for k, v in job.integers.items()}
    texts = {"lstm": "X W R B sequence_lens initial_h initial_c P", "gru": "X W R B sequence_lens initial_h"}
    outputs = {"lstm": ["H_all", "H_t", "C_t"], "gru": ["H_all", "H_t"]}.get(job.kernel, ["Y"])
    if job.kernel in texts:
        a["hidden_size"] = inputs["R"].shape[2]
    text = texts.get(job.kernel, " ".join(inputs))
    model = _model(names[job.kernel], inputs, outputs, "", (text, " ".join(outputs)), **a)
    return dict(zip(outputs, ReferenceEvaluator(model).run(None, inputs)))  # noqa: B905


# --- JAX ----------------------------------------------------------------------------------------------------


def jax(job: Job) -> dict:
    """jax.lax's convolution and jax.nn's functions, differentiated by jax.vjp."""
    import jax

    a, nn = job.attributes, jax.nn
    table = {
        "relu": nn.relu,
        "leaky_relu": lambda x: nn.leaky_relu(x, a.get("alpha", 0.01)),
        "elu": lambda x: nn.elu(x, a.get("alpha", 1.0)),
        "celu": lambda x: nn.celu(x, a.get("alpha", 1.0)),
        "gelu": lambda x: nn.gelu(x, approximate=a.get("approximate", "none") == "tanh"),
        "silu": nn.silu,
        "mish": nn.mish,
        "sigmoid": nn.sigmoid,
        "log_sigmoid": nn.log_sigmoid,
        "hard_swish": nn.hard_swish,
        "tanh": jax.numpy.tanh,
        "softsign": nn.soft_sign,
        "softmax": lambda x: nn.softmax(x, a.get("axis", -1)),
        "log_softmax": lambda x: nn.log_softmax(x, a.get("axis", -1)),
    }
    if job.kernel == "softplus" and not a:
        table["softplus"] = nn.softplus
    if job.kernel == "selu" and a and abs(a["alpha"] - 1.6732632423543772) < 1e-9:
        table["selu"] = nn.selu
    if a.get("flatten"):
        raise Absent("flatten")
    function = _jax_conv(jax, job) if job.kernel == "conv" else job.one_input(table)
    Y, pullback = jax.vjp(function, *job.arguments.values())
    return {"Y": np.asarray(Y), **gradients(job.arguments, pullback(job.cotangents["Y"]))}


def _jax_conv(jax: Any, job: Job) -> Callable:
    rank = job.arguments["X"].ndim - 2
    stride, dilation = (per_dimension(job.attributes.get(k, 1), rank) for k in ("strides", "dilations"))
    pads = list(zip(*job.pads))  # noqa: B905

    def forward(X: Any, W: Any, B: Any = None) -> Any:
        Y = jax.lax.conv_general_dilated(
            X, W, stride, pads, rhs_dilation=dilation, feature_group_count=job.attributes.get("group", 1)
        )
        return Y if B is None else Y + B.reshape(-1, *[1] * rank)

    return forward


# --- Keras --------------------------------------------------------------------------------------------------


def keras(job: Job) -> dict:
    """keras.layers and keras.activations on TensorFlow, differentiated by a GradientTape."""
    import keras
    import tensorflow as tf

    if job.kernel in ("lstm", "gru"):
        return _keras_recurrent(keras, tf, job)
    a, act = job.attributes, keras.activations
    table = {
        "relu": act.relu,
        "leaky_relu": lambda x: act.leaky_relu(x, negative_slope=a.get("alpha", 0.01)),
        "elu": lambda x: act.elu(x, a.get("alpha", 1.0)),
        "celu": lambda x: act.celu(x, a.get("alpha", 1.0)),
        "gelu": lambda x: act.gelu(x, approximate=a.get("approximate", "none") == "tanh"),
        "silu": act.silu,
        "mish": act.mish,
        "sigmoid": act.sigmoid,
        "log_sigmoid": act.log_sigmoid,
        "hard_swish": act.hard_swish,
        "tanh": act.tanh,
        "softsign": act.softsign,
        "softmax": lambda x: act.softmax(x, axis=a.get("axis", -1)),
        "log_softmax": lambda x: act.log_softmax(x, axis=a.get("axis", -1)),
    }
    if job.kernel == "softplus" and not a:
        table["softplus"] = act.softplus
    if job.kernel == "selu" and a and abs(a["alpha"] - 1.6732632423543772) < 1e-9:
        table["selu"] = act.selu
    if a.get("flatten"):
        raise Absent("flatten")
    function = job.one_input(table)
    X = tf.constant(job.arguments["X"])
    with tf.GradientTape() as tape:
        tape.watch(X)
        Y = function(X)
    dX = tape.gradient(Y, X, output_gradients=tf.constant(job.cotangents["Y"]))
    return {"Y": np.asarray(Y), "gradient of X": np.asarray(dX)}


def _keras_recurrent(keras: Any, tf: Any, job: Job) -> dict:
    """One bias, where the operator has two: their sum, so that both have its gradient."""
    lstm = job.kernel == "lstm"
    options = job.only("direction", "layout", *([] if lstm else ["linear_before_reset"]))
    if options.get("direction") == "bidirectional":
        raise Absent("two directions in one layer")
    arguments = job.arguments
    W, R = arguments["W"][0], arguments["R"][0]
    order = [0, 2, 3, 1] if lstm else [0, 1, 2]
    back = list(np.argsort(order))
    bias, after = "B" in arguments, bool(options.get("linear_before_reset", 0))
    more = {} if lstm else {"reset_after": after}
    layer = getattr(keras.layers, job.kernel.upper())(
        R.shape[1], return_sequences=True, return_state=True, use_bias=bias, zero_output_for_mask=True,
        go_backwards=options.get("direction") == "reverse", **more,
    )  # fmt: skip
    first = options.get("layout", 0) == 1
    x = arguments["X"] if first else arguments["X"].swapaxes(0, 1)
    layer.build(x.shape)
    weights = [gates(W, order).T, gates(R, order).T]
    if bias:
        both = [gates(half, order) for half in np.split(arguments["B"][0], 2)]
        weights.append(np.stack(both) if after and not lstm else both[0] + both[1])
    layer.set_weights(weights)
    names = [k for k in ("initial_h", "initial_c") if k in arguments]
    states = [tf.constant(arguments[k].reshape(len(x), -1)) for k in names]
    lengths = job.integers.get("sequence_lens")
    mask = None if lengths is None else tf.constant(np.arange(x.shape[1]) < np.asarray(lengths)[:, None])
    given = tf.constant(x)
    with tf.GradientTape(persistent=True) as tape:
        for tensor in (given, *states):
            tape.watch(tensor)
        y, *ends = layer(given, initial_state=states or None, mask=mask)
        if options.get("direction") == "reverse":
            y = tf.reverse(y, [1])
        ours = {"H_all": y[:, :, None] if first else tf.transpose(y, [1, 0, 2])[:, None]}
        for name, end in zip(("H_t", "C_t"), ends):  # noqa: B905
            ours[name] = end[:, None] if first else end[None]
        total = sum(
            tf.reduce_sum(array * tf.constant(np.nan_to_num(job.cotangents[k]))) for k, array in ours.items()
        )
    found = tape.gradient(total, [given, *layer.trainable_weights, *states])
    dx, dW, dR, *rest = (np.asarray(array) for array in found)
    grads = {"X": dx if first else dx.swapaxes(0, 1)}
    grads |= {"W": gates(dW.T, back)[None], "R": gates(dR.T, back)[None]}
    if bias:
        dB, *rest = rest
        halves = list(dB) if dB.ndim == 2 else [dB, dB]
        grads["B"] = np.concatenate([gates(half, back) for half in halves])[None]
    grads |= {k: s.reshape(arguments[k].shape) for k, s in zip(names, rest)}  # noqa: B905
    return {k: np.asarray(v) for k, v in ours.items()} | gradients(grads, grads.values())


# --- thinc --------------------------------------------------------------------------------------------------


def thinc(job: Job) -> dict:
    """Thinc's NumpyOps: its LSTM layer, and the functions that come with a backprop."""
    from thinc.api import NumpyOps

    ops = NumpyOps()
    if job.kernel == "lstm":
        return _thinc_lstm(ops, job)
    if job.attributes or set(job.arguments) != {"X"}:
        raise Absent("attributes or operands")
    x, dY = job.arguments["X"].reshape(-1, 5), job.cotangents["Y"].reshape(-1, 5)
    table = {
        "relu": (ops.relu, lambda y: ops.backprop_relu(dY, y)),
        "gelu": (ops.gelu, lambda y: ops.backprop_gelu(dY, x)),
        "silu": (ops.swish, lambda y: ops.backprop_swish(dY, x, y)),
        "mish": (ops.mish, lambda y: ops.backprop_mish(dY, x)),
        "hard_swish": (ops.hard_swish, lambda y: ops.backprop_hard_swish(dY, x)),
        "softmax": (ops.softmax, lambda y: ops.backprop_softmax(y, dY)),
    }
    forward, backward = job.one_input(table)
    if job.kernel == "hard_swish":
        raise Absent("another definition: x clip(0.2 x + 0.5)")
    y = forward(x.copy())
    shape = job.arguments["X"].shape
    return {"Y": y.reshape(shape), "gradient of X": np.asarray(backward(y)).reshape(shape)}


def _thinc_lstm(ops: Any, job: Job) -> dict:
    """The layer LSTM.v1; its initial states are the same for all sequences, so they stay zero."""
    from thinc.api import LSTM
    from thinc.types import Padded

    options = job.only("direction", arguments="X W R B")
    if options.get("direction") == "reverse":
        raise Absent("direction")
    a = job.arguments
    D, H, I = len(a["W"]), a["R"].shape[2], a["W"].shape[2]
    T, N = a["X"].shape[:2]
    order = [2, 0, 1, 3]  # its gates are f i o c
    back = list(np.argsort(order))
    parts = []
    for d in range(D):
        Bx, Bh = np.split(a["B"][d], 2) if "B" in a else [np.zeros(4 * H, dtype=np.float32)] * 2
        parts += [gates(m, order).ravel() for m in (a["W"][d], Bx, a["R"][d], Bh)]
    model = LSTM(nO=H * D, nI=I, bi=D == 2)
    model.initialize()
    model.set_param("LSTM", np.concatenate(parts))
    lengths = np.asarray(job.integers.get("sequence_lens", [T] * N))
    by_length = np.argsort(-lengths, kind="stable")
    sizes = np.asarray([int((lengths > t).sum()) for t in range(T)], dtype="i")

    def padded(data: np.ndarray) -> Any:
        rows = np.ascontiguousarray(data[:, by_length])
        return Padded(rows, sizes, lengths[by_length].astype("i"), by_length.astype("i"))

    y, backprop = model(padded(np.nan_to_num(a["X"])), is_train=True)
    undo = np.argsort(by_length)
    Y = y.data[:, undo].reshape(T, N, D, H).transpose(0, 2, 1, 3)
    dY = np.nan_to_num(job.cotangents["H_all"]).transpose(0, 2, 1, 3).reshape(T, N, D * H)
    dX = backprop(padded(dY)).data[:, undo]
    grads: dict = {k: [] for k in "WRB"}
    flat, at = model.get_grad("LSTM"), 0
    for _ in range(D):
        pieces = []
        for shape in ((4 * H, I), (4 * H,), (4 * H, H), (4 * H,)):
            size = int(np.prod(shape))
            pieces.append(gates(flat[at : at + size].reshape(shape), back))
            at += size
        grads["W"].append(pieces[0])
        grads["R"].append(pieces[2])
        grads["B"].append(np.tile(pieces[1], 2))  # it gives the gradient of their sum to the first bias alone
    found = {"X": dX, **{k: np.stack(v) for k, v in grads.items() if k in a}}
    return {"H_all": Y, **gradients(found, found.values())}


# --- the process --------------------------------------------------------------------------------------------

PEERS: dict[str, tuple[Callable[[Job], dict], str]] = {
    "pytorch": (pytorch, "torch"),
    "pytorch_native": (pytorch_native, "torch"),
    "onnx_runtime": (onnx_runtime, "onnxruntime"),
    "onnx_reference": (onnx_reference, "onnx"),
    "jax": (jax, "jax"),
    "keras": (keras, "tensorflow"),
    "thinc": (thinc, "thinc"),
}
_ALSO = {"keras": ("keras",)}


def _versions(peer: str) -> Iterator[str]:
    import importlib
    import importlib.metadata

    for module in (PEERS[peer][1], *_ALSO.get(peer, ())):
        version = getattr(importlib.import_module(module), "__version__", None)
        yield f"{module} {version or importlib.metadata.version(module)}"
    yield f"NumPy {np.__version__}"


def main() -> int:
    """Run all jobs of one peer."""
    peer, jobs, results = sys.argv[1:]
    compute = PEERS[peer][0]
    arrays: dict = {}
    report: dict = {"versions": list(_versions(peer)), "jobs": []}
    with np.load(jobs) as archive:
        for about in json.loads(str(archive["jobs"])):
            entry: dict = {"id": about["id"], "status": "done"}
            try:
                with contextlib.redirect_stdout(sys.stderr):
                    found = compute(Job(about, archive))
            except Absent as absent:
                entry |= {"status": "absent", "message": str(absent)}
            except Exception as error:  # whatever a peer raises is its answer
                first = (str(error).strip() or type(error).__name__).splitlines()[0]
                entry |= {"status": "refused", "message": first[:2000]}
            else:
                entry["names"] = list(found)
                arrays |= {f"{about['id']}/{name}": np.asarray(array) for name, array in found.items()}
            report["jobs"].append(entry)
    np.savez(results, report=json.dumps(report), **arrays)
    return 0


if __name__ == "__main__":
    sys.exit(main())
