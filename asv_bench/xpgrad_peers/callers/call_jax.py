"""JAX: jax.lax's convolutions, jax.nn's functions and the LSTM of jax.experimental.rnn, under jax.vjp."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .case import (
    Absent,
    Job,
    gates,
    gradients,
)

__all__ = ["jax"]


def jax(job: Job) -> dict:
    """Compute a case."""
    if job.kernel == "lstm":
        return _lstm(job)
    function = _convolution(job) if job.kernel.startswith("conv") else _activation(job)
    return _run(job, lambda a: {"Y": function(*(a[k] for k in job.arguments))}, {"X": 0, "Y": 0})


def _run(job: Job, function: Callable[[dict], dict], batch: dict[str, int]) -> dict:
    """Outputs and gradients; per-sample ones by jax.vmap, with the sample axes `batch`."""
    import jax

    arguments = {k: jax.numpy.asarray(v) for k, v in job.arguments.items()}
    outputs, pullback = jax.vjp(function, arguments)
    cotangents = {k: jax.numpy.asarray(np.nan_to_num(job.cotangents[k])) for k in outputs}
    found = pullback(cotangents)[0]
    if job.per_sample:
        parameters = [k for k in arguments if k not in batch]

        def of_one(own: dict, cotangents: dict) -> dict:
            own = {k: jax.numpy.expand_dims(v, batch[k]) if k in batch else v for k, v in own.items()}
            _, pullback = jax.vjp(lambda p: function(own | p), {k: own[k] for k in parameters})
            return pullback({k: jax.numpy.expand_dims(v, batch[k]) for k, v in cotangents.items()})[0]

        axes = {k: batch.get(k) for k in arguments}, {k: batch[k] for k in cotangents}
        found |= jax.vmap(of_one, in_axes=axes)(arguments, cotangents)
    values = {k: np.asarray(v) for k, v in outputs.items()}
    return values | gradients(found, found.values())


def _lstm(job: Job) -> dict:
    """`lstm_ref`, the reference of the LSTM for GPUs: two biases, all states, sequences of one length."""
    from jax.experimental import rnn

    options = job.only("direction", "layout", arguments="X W R B initial_h initial_c")
    if options.get("direction") == "reverse":
        raise Absent("direction")
    if not {"B", "initial_h", "initial_c"} <= set(job.arguments):
        raise Absent("without biases or states")
    first = options.get("layout", 0) == 1
    D, H = len(job.arguments["W"]), job.arguments["R"].shape[2]
    order = [0, 2, 3, 1]

    def forward(a: dict) -> dict:
        x = a["X"] if first else a["X"].swapaxes(0, 1)
        states = [a[k].swapaxes(0, 1) if first else a[k] for k in ("initial_h", "initial_c")]
        W, R, b, c = ({}, {}, {}, {})
        for d in range(D):
            W[d], R[d] = gates(a["W"][d], order), gates(a["R"][d], order)
            b[d], c[d] = (gates(a["B"][d, k * 4 * H : (k + 1) * 4 * H], order) for k in range(2))
        lengths = np.full(len(x), x.shape[1], dtype=np.int32)
        y, *ends = rnn.lstm_ref(
            x, *states, W, R, b, c, lengths,
            x.shape[2], H, 1, 0.0, D == 2,  # sizes, layers, dropout, bidirectional
        )  # fmt: skip
        y = y.reshape(*y.shape[:2], D, H)
        ends = [end.swapaxes(0, 1) if first else end for end in ends]
        return {"H_all": y if first else y.transpose(1, 2, 0, 3), "H_t": ends[0], "C_t": ends[1]}

    batch = {"X": 1, "initial_h": 1, "initial_c": 1, "H_all": 2, "H_t": 1, "C_t": 1}
    return _run(job, forward, batch)


def _convolution(job: Job) -> Callable[..., Any]:
    import jax

    rank = job.arguments["X"].ndim - 2
    stride, dilation = job.spatial()
    pads, group = list(zip(*job.pads)), job.attributes.get("group", 1)  # noqa: B905
    spatial = "HWD"[:rank]
    layout = ("NC" + spatial, "OI" + spatial, "NC" + spatial)
    options: dict = {"rhs_dilation": dilation, "dimension_numbers": layout}

    def plain(X: Any, W: Any, B: Any = None) -> Any:
        Y = jax.lax.conv_general_dilated(X, W, stride, pads, feature_group_count=group, **options)
        return Y if B is None else Y + B.reshape(-1, *[1] * rank)

    def transposed(X: Any, W: Any, B: Any = None) -> Any:
        Y = jax.lax.conv_transpose(X, W, stride, around, transpose_kernel=True, **options)
        return Y if B is None else Y + B.reshape(-1, *[1] * rank)

    if job.kernel == "conv":
        return plain
    if group > 1:
        raise Absent("groups")  # for groups its documentation recommends the general convolution
    # Its padding is that of the input after zeros were inserted between the elements.
    reach = [d * (k - 1) for d, k in zip(dilation, job.arguments["W"].shape[2:])]  # noqa: B905
    size = job.cotangents["Y"].shape[2:]
    inner = [s * (n - 1) + 1 for s, n in zip(stride, job.arguments["X"].shape[2:])]  # noqa: B905
    around = [
        (r - begin, y - n + begin)
        for r, (begin, _), y, n in zip(reach, pads, size, inner)  # noqa: B905
    ]
    return transposed


def _activation(job: Job) -> Callable[..., Any]:
    import jax

    a, nn = job.attributes, jax.nn
    return job.one_input({
        "relu": (lambda X: nn.relu(X), ""),
        "leaky_relu": (lambda X: nn.leaky_relu(X, a.get("alpha", 0.01)), "alpha"),
        "elu": (lambda X: nn.elu(X, a.get("alpha", 1.0)), "alpha"),
        "celu": (lambda X: nn.celu(X, a.get("alpha", 1.0)), "alpha"),
        "softplus": (lambda X: nn.softplus(X), ""),
        "gelu": (lambda X: nn.gelu(X, approximate=a.get("approximate", "none") == "tanh"), "approximate"),
        "silu": (lambda X: nn.silu(X), ""),
        "mish": (lambda X: nn.mish(X), ""),
        "sigmoid": (lambda X: nn.sigmoid(X), ""),
        "log_sigmoid": (lambda X: nn.log_sigmoid(X), ""),
        "hard_swish": (lambda X: nn.hard_swish(X), ""),
        "tanh": (lambda X: jax.numpy.tanh(X), ""),
        "hard_tanh": (lambda X: nn.hard_tanh(X), ""),
        "softsign": (lambda X: nn.soft_sign(X), ""),
        "softmax": (lambda X: nn.softmax(X, a.get("axis", -1)), "axis"),
        "log_softmax": (lambda X: nn.log_softmax(X, a.get("axis", -1)), "axis"),
    }, nn.selu, nn.hard_sigmoid)  # fmt: skip
