"""Keras on TensorFlow: its layers, functions and losses under a GradientTape."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .case import (
    Absent,
    Job,
    gates,
    gradients,
    per_dimension,
)

__all__ = ["keras"]

# The order in which ours come in its weights, and the layers' names.
_ORDERS = {"lstm": [0, 2, 3, 1], "gru": [0, 1, 2], "rnn": [0]}
_LAYERS = {"lstm": "LSTM", "gru": "GRU", "rnn": "SimpleRNN"}


def keras(job: Job) -> dict:
    """Compute a case."""
    if job.kernel in _ORDERS:
        return _layer(job)
    if job.kernel.removesuffix("_cell") in _ORDERS:
        return _cell(job)
    if job.kernel.startswith("conv"):
        return _convolution(job)
    if job.kernel == "prelu":
        return _prelu(job)
    function = _loss(job) or _activation(job)
    (Y,), (dX,) = _taped(lambda x: [function(x)], [job.arguments["X"]], [], [job.cotangents["Y"]])
    return {"Y": Y, "gradient of X": dX}


def _taped(function: Callable[..., list], arrays: list, weights: list, cotangents: list) -> tuple:
    """Outputs, then gradients of arrays, then of weights."""
    import tensorflow as tf

    inputs = [tf.constant(array) for array in arrays]
    with tf.GradientTape() as tape:
        for tensor in inputs:
            tape.watch(tensor)
        outputs = function(*inputs)
    grads = tape.gradient(
        outputs, [*inputs, *weights], output_gradients=[tf.constant(np.nan_to_num(c)) for c in cotangents]
    )
    return [np.asarray(y) for y in outputs], [np.asarray(g) for g in grads]


# --- recurrent layers and cells -----------------------------------------------------------------------------


def _options(job: Job, kind: str, *own: str) -> dict:
    """The layer's arguments for the attributes, if it has them all."""
    states = "H C initial_h initial_c sequence_lens"
    also = {"lstm": [], "gru": ["linear_before_reset"], "rnn": ["activations"]}[kind]
    options = job.only(*own, *also, arguments=f"X W R B {states}")
    made: dict = {"use_bias": "B" in job.arguments}
    if kind == "gru":
        made["reset_after"] = bool(options.get("linear_before_reset", 0))
    names = set(options.get("activations", ()))
    if names - {"Tanh", "Relu"} or len(names) > 1:
        raise Absent("activations")
    return made | ({"activation": names.pop().lower()} if names else {})


def _weights(job: Job, kind: str, W: np.ndarray, R: np.ndarray, B: Any) -> list:
    """One bias in place of the operator's two: their sum, unless the GRU resets after the product."""
    order = _ORDERS[kind]
    weights = [gates(W, order).T, gates(R, order).T]
    if B is not None:
        both = [gates(half, order) for half in np.split(B, 2)]
        weights.append(np.stack(both) if job.attributes.get("linear_before_reset") else both[0] + both[1])
    return weights


def _as_ours(kind: str, dW: Any, dR: Any, dB: Any = None) -> dict:
    """Both biases have the gradient of their sum."""
    back = list(np.argsort(_ORDERS[kind]))
    found = {"W": gates(dW.T, back), "R": gates(dR.T, back)}
    if dB is not None:
        halves = list(dB) if dB.ndim == 2 else [dB, dB]
        found["B"] = np.concatenate([gates(half, back) for half in halves])
    return found


def _layer(job: Job) -> dict:
    import keras
    import tensorflow as tf

    kind, arguments = job.kernel, job.arguments
    made = _options(job, kind, "direction", "layout")
    direction, first = job.attributes.get("direction", "forward"), job.attributes.get("layout", 0) == 1
    if direction == "bidirectional":
        raise Absent("two directions in one layer")
    W, R = (arguments[k][0] for k in "WR")
    B = arguments["B"][0] if "B" in arguments else None
    layer = getattr(keras.layers, _LAYERS[kind])(
        R.shape[1], return_sequences=True, return_state=True, zero_output_for_mask=True,
        go_backwards=direction == "reverse", **made,
    )  # fmt: skip
    x = arguments["X"] if first else arguments["X"].swapaxes(0, 1)
    layer.build(x.shape)
    layer.set_weights(_weights(job, kind, W, R, B))
    names = [k for k in ("initial_h", "initial_c") if k in arguments]
    states = [arguments[k].reshape(len(x), -1) for k in names]
    lengths = job.integers.get("sequence_lens")
    mask = None if lengths is None else tf.constant(np.arange(x.shape[1]) < np.asarray(lengths)[:, None])
    outputs = [k for k in ("H_all", "H_t", "C_t") if k in job.cotangents]

    def forward(x: Any, *states: Any) -> list:
        y, *ends = layer(x, initial_state=list(states) or None, mask=mask)
        if direction == "reverse":
            y = tf.reverse(y, [1])
        y = y[:, :, None] if first else tf.transpose(y, [1, 0, 2])[:, None]
        return [y, *(end[:, None] if first else end[None] for end in ends)]

    values, grads = _taped(
        forward, [x, *states], layer.trainable_weights, [job.cotangents[k] for k in outputs]
    )
    dx, *rest = grads
    found = {"X": dx if first else dx.swapaxes(0, 1)}
    found |= {k: s.reshape(arguments[k].shape) for k, s in zip(names, rest)}  # noqa: B905
    found |= {k: v[None] for k, v in _as_ours(kind, *rest[len(names) :]).items()}
    return dict(zip(outputs, values)) | gradients(found, found.values())  # noqa: B905


def _cell(job: Job) -> dict:
    import keras

    kind, arguments = job.kernel.removesuffix("_cell"), job.arguments
    made = _options(job, kind)
    cell = getattr(keras.layers, f"{_LAYERS[kind]}Cell")(arguments["R"].shape[1], **made)
    cell.build(arguments["X"].shape)
    cell.set_weights(_weights(job, kind, arguments["W"], arguments["R"], arguments.get("B")))
    names = [k for k in ("H", "C") if k in arguments]
    values, (dx, *rest) = _taped(
        lambda x, *states: list(cell(x, list(states))[1]),
        [arguments[k] for k in ("X", *names)],
        cell.trainable_weights,
        [job.cotangents[f"{k}_next"] for k in names],
    )
    found = {"X": dx, **dict(zip(names, rest)), **_as_ours(kind, *rest[len(names) :])}  # noqa: B905
    outputs = {f"{k}_next": v for k, v in zip(names, values)}  # noqa: B905
    return outputs | gradients(found, found.values())


# --- convolutions -------------------------------------------------------------------------------------------


def _convolution(job: Job) -> dict:
    """Layers with channels last, as TensorFlow needs on CPUs; padding and cropping layers do the pads."""
    import keras
    import tensorflow as tf

    a, arguments, transposed = job.attributes, job.arguments, job.kernel == "conv_transpose"
    rank, group = arguments["X"].ndim - 2, a.get("group", 1)
    stride, dilation = job.spatial()
    same = a.get("auto_pad", "").startswith("SAME")
    if a.get("auto_pad") == "SAME_LOWER" or "output_shape" in a:
        raise Absent("SAME_LOWER or output_shape")
    if transposed and group > 1:
        raise Absent("groups")
    W = np.moveaxis(arguments["W"], (0, 1), (-1, -2))  # in both layers ONNX's first axis is the last
    B = arguments.get("B")
    options: dict = {
        "kernel_size": W.shape[:rank], "strides": stride, "dilation_rate": dilation,
        "padding": "same" if same else "valid", "use_bias": B is not None,
    }  # fmt: skip
    if transposed:
        if "output_padding" in a:
            options["output_padding"] = per_dimension(a["output_padding"], rank)
    else:
        options["groups"] = group
    filters = job.cotangents["Y"].shape[1]
    layer = getattr(keras.layers, f"Conv{rank}D{'Transpose' * transposed}")(filters, **options)
    around = [(0, 0)] * rank if same else [(int(b), int(e)) for b, e in zip(*job.pads)]  # noqa: B905
    kind = f"{'Cropping' if transposed else 'ZeroPadding'}{rank}D"
    edges = getattr(keras.layers, kind)(around[0] if rank == 1 else around)
    layer.build((None, *[None] * rank, arguments["X"].shape[1]))
    layer.set_weights([W] + ([] if B is None else [B]))

    def forward(x: Any) -> list:
        x = tf.transpose(x, [0, *range(2, rank + 2), 1])
        y = edges(layer(x)) if transposed else layer(edges(x))
        return [tf.transpose(y, [0, rank + 1, *range(1, rank + 1)])]

    (Y,), (dX, dW, *dB) = _taped(forward, [arguments["X"]], layer.trainable_weights, [job.cotangents["Y"]])
    return {"Y": Y, **gradients("XWB", [dX, np.moveaxis(dW, (-1, -2), (0, 1)), *dB])}


# --- the others ---------------------------------------------------------------------------------------------


def _prelu(job: Job) -> dict:
    """A layer with slopes shared along the named axes, and always along the batch axis."""
    import keras

    X, slope = job.arguments["X"], job.arguments["slope"]
    whole = slope.shape == X.shape
    x, dY = (a[None] if whole else a for a in (X, job.cotangents["Y"]))
    aligned = slope.reshape((1,) * (x.ndim - 1 - slope.ndim) + slope.shape)
    shared = [axis + 1 for axis, size in enumerate(aligned.shape) if size == 1 != x.shape[axis + 1]]
    layer = keras.layers.PReLU(shared_axes=shared)
    layer.build(x.shape)
    layer.set_weights([aligned])
    (Y,), (dX, da) = _taped(lambda x: [layer(x)], [x], layer.trainable_weights, [dY])
    return {
        "Y": Y.reshape(X.shape),
        **gradients(("X", "slope"), [dX.reshape(X.shape), da.reshape(slope.shape)]),
    }


def _activation(job: Job) -> Callable[..., Any]:
    import keras

    a, act = job.attributes, keras.activations
    return job.one_input({
        "relu": (act.relu, ""),
        "leaky_relu": (lambda x: act.leaky_relu(x, negative_slope=a.get("alpha", 0.01)), "alpha"),
        "thresholded_relu": (lambda x: act.threshold(x, a.get("alpha", 1.0), 0.0), "alpha"),
        "elu": (lambda x: act.elu(x, a.get("alpha", 1.0)), "alpha"),
        "celu": (lambda x: act.celu(x, a.get("alpha", 1.0)), "alpha"),
        "softplus": (act.softplus, ""),
        "gelu": (lambda x: act.gelu(x, approximate=a.get("approximate", "none") == "tanh"), "approximate"),
        "silu": (act.silu, ""),
        "mish": (act.mish, ""),
        "sigmoid": (act.sigmoid, ""),
        "log_sigmoid": (act.log_sigmoid, ""),
        "hard_swish": (act.hard_swish, ""),
        "tanh": (act.tanh, ""),
        "hard_tanh": (act.hard_tanh, ""),
        "softsign": (act.softsign, ""),
        "softmax": (lambda x: act.softmax(x, axis=a.get("axis", -1)), "axis"),
        "log_softmax": (lambda x: act.log_softmax(x, axis=a.get("axis", -1)), "axis"),
    }, act.selu, act.hard_sigmoid)  # fmt: skip


def _loss(job: Job) -> Callable[..., Any] | None:
    """The loss classes, which take logits; the mean of theirs is over all samples."""
    import keras
    import tensorflow as tf

    a = dict(job.attributes)
    given = a.pop("reduction", "mean")
    reduction = {"mean": "sum_over_batch_size", "sum": "sum", "none": None}[given]
    if job.kernel == "binary_cross_entropy_with_logits":
        if set(job.integers) != {"targets"}:
            raise Absent("weights")
        # It averages over its last axis, the outputs; here the elements are samples.
        loss = keras.losses.BinaryCrossentropy(from_logits=True, reduction=reduction)
        targets = tf.constant(job.integers["targets"][..., None])
        return lambda x: loss(targets, x[..., None])
    if job.kernel != "softmax_cross_entropy":
        return None
    if "weights" in job.integers:
        raise Absent("weights of classes")
    labels, smoothing = job.integers["labels"], a.pop("label_smoothing", 0.0)
    last = [0, *range(2, job.arguments["X"].ndim), 1]
    if labels.dtype.kind == "f" or smoothing:
        if a:
            raise Absent(", ".join(a))
        target = (
            labels.transpose(last)
            if labels.dtype.kind == "f"
            else np.eye(job.arguments["X"].shape[1])[labels]
        )
        categorical = keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=smoothing, reduction=reduction
        )
        return lambda x: categorical(tf.constant(target.astype(np.float32)), tf.transpose(x, last))
    sparse = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=a.pop("ignore_index", None), reduction=reduction
    )
    return lambda x: sparse(tf.constant(labels), tf.transpose(x, last))
