"""PyTorch: torch.nn's modules and functions under its autograd; torch.func for gradients of each sample."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .case import (
    Absent,
    Job,
    gates,
    per_dimension,
)

__all__ = ["pytorch", "pytorch_native"]

# The order in which ours come in its weights.
_ORDERS = {"lstm": [0, 2, 3, 1], "gru": [1, 0, 2], "rnn": [0]}


def pytorch(job: Job) -> dict:
    """Compute a case as a user would."""
    if job.kernel in _ORDERS:
        return _layer(job)
    if job.kernel.removesuffix("_cell") in _ORDERS:
        return _cell(job)
    if job.kernel in ("conv", "conv_transpose"):
        function, batch = _convolution(job), {"X": 0, "Y": 0}
        parameters = [k for k in ("W", "B") if k in job.arguments]
        return _run(job, lambda a: {"Y": function(*(a[k] for k in job.arguments))}, parameters, batch)
    function = _loss(job) or _activation(job)
    return _run(job, lambda a: {"Y": function(*(a[k] for k in job.arguments))}, [], {})


def pytorch_native(job: Job) -> dict:
    """The same without oneDNN."""
    import torch

    with torch.backends.mkldnn.flags(enabled=False):
        return pytorch(job)


def _run(
    job: Job, function: Callable[[dict], dict], parameters: Sequence[str], batch: dict[str, int], **more: Any
) -> dict:
    """A function of named tensors, and its gradients; per-sample ones by torch.func.

    `batch` gives the sample axes of arguments and outputs; `more` are arrays besides the case's, such as a
    module's parameters.
    """
    import torch

    arrays = {k: v for k, v in job.arguments.items() if not (more and k in "WRBS")} | more
    leaves = {k: torch.tensor(v, requires_grad=True) for k, v in arrays.items()}
    outputs = function(leaves)
    cotangents = {k: torch.tensor(np.nan_to_num(job.cotangents[k])) for k in outputs}
    found = torch.autograd.grad(list(outputs.values()), list(leaves.values()), list(cotangents.values()))
    values = {k: v.detach().numpy() for k, v in outputs.items()}
    grads = {k: g.numpy() for k, g in zip(leaves, found)}  # noqa: B905
    if job.per_sample:
        plain = {k: v.detach() for k, v in leaves.items()}
        mapped = {k: batch.get(k) for k in plain}

        def of_one(own: dict, cotangents: dict) -> dict:
            own = {k: v if k in parameters else v.unsqueeze(batch[k]) for k, v in own.items()}
            pullback = torch.func.vjp(lambda p: function(own | p), {k: own[k] for k in parameters})[1]
            return pullback({k: v.unsqueeze(batch[k]) for k, v in cotangents.items()})[0]

        axes = {k: batch[k] for k in cotangents}
        each = torch.func.vmap(of_one, in_dims=(mapped, axes))(plain, cotangents)
        grads |= {k: g.numpy() for k, g in each.items()}
    return values | {f"gradient of {k}": g for k, g in grads.items()}


# --- recurrent layers and cells -----------------------------------------------------------------------------


def _options(job: Job, *own: str) -> dict:
    """The attributes, if the modules have them all; the RNN's function by PyTorch's name."""
    gru, rnn = (job.kernel.startswith(kind) for kind in ("gru", "rnn"))
    options = job.only(
        *own, *["linear_before_reset"] * gru, *["activations"] * rnn,
        arguments="X W R B S H C initial_h initial_c sequence_lens",
    )  # fmt: skip
    if gru and not options.pop("linear_before_reset", 0):
        raise Absent("the reset before the product")
    names = set(options.pop("activations", ()))
    if names - {"Tanh", "Relu"} or len(names) > 1:
        raise Absent("activations")
    return options | ({"nonlinearity": names.pop().lower()} if names else {})


def _parameters(job: Job, ends: Sequence[str]) -> dict[str, np.ndarray]:
    """W, R and B as the module's parameters: separate for each direction, with two biases."""
    order = _ORDERS[job.kernel.removesuffix("_cell")]
    arrays: dict[str, np.ndarray] = {}
    for kind, name in (("weight_ih", "W"), ("weight_hh", "R")):
        arrays |= {kind + end: m for end, m in zip(ends, _each(job.arguments[name], ends))}  # noqa: B905
    if "B" in job.arguments:
        for end, both in zip(ends, _each(job.arguments["B"], ends)):  # noqa: B905
            arrays["bias_ih" + end], arrays["bias_hh" + end] = np.split(both, 2)
    arrays = {k: gates(v, order) for k, v in arrays.items()}
    projections = job.arguments.get("S", ())
    return arrays | {f"weight_hr{end}": S for end, S in zip(ends, projections)}  # noqa: B905


def _each(array: np.ndarray, ends: Sequence[str]) -> Sequence[np.ndarray]:
    return [array] if ends == [""] else list(array)


def _as_ours(job: Job, results: dict, ends: Sequence[str]) -> dict:
    """The gradients of W, R and B from the gradients of the module's parameters."""
    back = list(np.argsort(_ORDERS[job.kernel.removesuffix("_cell")]))

    def joined(kind: str) -> np.ndarray:
        found = [results.pop(f"gradient of {kind}{end}") for end in ends]
        if job.per_sample:
            found = [np.stack([gates(one, back) for one in each]) for each in found]
        else:
            found = [gates(one, back) for one in found]
        return found[0] if ends == [""] else np.stack(found, axis=int(job.per_sample))

    results |= {f"gradient of {k}": joined(f"weight_{v}h") for k, v in (("W", "i"), ("R", "h"))}
    if "S" in job.arguments:
        each = [results.pop(f"gradient of weight_hr{end}") for end in ends]
        results["gradient of S"] = np.stack(each, axis=int(job.per_sample))
    if "B" in job.arguments:
        results["gradient of B"] = np.concatenate([joined("bias_ih"), joined("bias_hh")], axis=-1)
    return results


def _layer(job: Job) -> dict:
    import torch

    options = _options(job, "direction", "layout")
    first = options.pop("layout", 0) == 1
    if options.pop("direction", "forward") == "reverse":
        raise Absent("direction")
    W, R = job.arguments["W"], job.arguments["R"]
    D, width, I = len(W), R.shape[2], W.shape[2]
    H = W.shape[1] // len(_ORDERS[job.kernel])
    if "S" in job.arguments:
        options["proj_size"] = width
    bias = "B" in job.arguments
    ends = ["_l0" + "_reverse" * d for d in range(D)]
    module = getattr(torch.nn, job.kernel.upper())(
        I, H, bias=bias, bidirectional=D == 2, batch_first=first, **options
    )
    lengths = job.integers.get("sequence_lens")
    parameters = _parameters(job, ends)

    def forward(a: dict) -> dict:
        given = [a[k] for k in ("initial_h", "initial_c") if k in a]
        given = [s.swapaxes(0, 1).contiguous() if first else s for s in given]
        state = None if not given else tuple(given) if job.kernel == "lstm" else given[0]
        feed = a["X"]
        if lengths is not None:
            counts = torch.tensor(lengths)
            feed = torch.nn.utils.rnn.pack_padded_sequence(
                feed, counts, batch_first=first, enforce_sorted=False
            )
        y, last = torch.func.functional_call(module, {k: a[k] for k in parameters}, (feed, state))
        if lengths is not None:
            steps = a["X"].shape[1 if first else 0]
            y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first=first, total_length=steps)
        y = y.unflatten(-1, (D, width))
        outputs = {"H_all": y if first else y.swapaxes(1, 2)}
        for key, end in zip(("H_t", "C_t"), last if job.kernel == "lstm" else [last]):  # noqa: B905
            outputs[key] = end.swapaxes(0, 1) if first else end
        return outputs

    batch = {"X": 1, "initial_h": 1, "initial_c": 1, "H_all": 2, "H_t": 1, "C_t": 1}
    return _as_ours(job, _run(job, forward, list(parameters), batch, **parameters), ends)


def _cell(job: Job) -> dict:
    import torch

    options, lstm = _options(job), job.kernel == "lstm_cell"
    W, R = job.arguments["W"], job.arguments["R"]
    name = f"{job.kernel.removesuffix('_cell').upper()}Cell"
    module = getattr(torch.nn, name)(W.shape[1], R.shape[1], bias="B" in job.arguments, **options)
    parameters = _parameters(job, [""])

    def forward(a: dict) -> dict:
        state = (a["H"], a["C"]) if lstm else a["H"]
        ends = torch.func.functional_call(module, {k: a[k] for k in parameters}, (a["X"], state))
        return dict(zip(("H_next", "C_next"), ends if lstm else [ends]))  # noqa: B905

    batch = dict.fromkeys(("X", "H", "C", "H_next", "C_next"), 0)
    return _as_ours(job, _run(job, forward, list(parameters), batch, **parameters), [""])


# --- the others ---------------------------------------------------------------------------------------------


def _convolution(job: Job) -> Callable[..., Any]:
    import torch

    attributes, rank = job.attributes, job.arguments["X"].ndim - 2
    stride, dilation = job.spatial()
    begins, ends = job.pads
    groups = attributes.get("group", 1)
    transposed = job.kernel == "conv_transpose"
    function = getattr(torch.nn.functional, f"conv{'_transpose' * transposed}{rank}d")
    options = {"stride": tuple(stride), "dilation": tuple(dilation), "groups": groups}
    if transposed:
        if begins != ends or "output_shape" in attributes:
            raise Absent("pads of each end")
        added = tuple(per_dimension(attributes.get("output_padding", 0), rank))
        return lambda X, W, B=None: function(X, W, B, padding=begins, output_padding=added, **options)
    if attributes.get("auto_pad", "").startswith("SAME"):
        raise Absent("auto_pad with strides")
    if begins == ends:
        return lambda X, W, B=None: function(X, W, B, padding=tuple(begins), **options)
    around = [n for pair in zip(reversed(begins), reversed(ends)) for n in pair]  # noqa: B905
    return lambda X, W, B=None: function(torch.nn.functional.pad(X, around), W, B, **options)


def _activation(job: Job) -> Callable[..., Any]:
    import torch

    F, a = torch.nn.functional, job.attributes
    if job.kernel == "prelu":
        shape = job.arguments["slope"].shape
        if shape not in ((1,), (job.arguments["X"].shape[1], 1)):
            raise Absent("slopes beyond one for each channel")
        return lambda X, slope: F.prelu(X, slope.flatten())
    return job.one_input({
        "relu": (F.relu, ""),
        "leaky_relu": (lambda X: F.leaky_relu(X, a.get("alpha", 0.01)), "alpha"),
        "thresholded_relu": (lambda X: F.threshold(X, a.get("alpha", 1.0), 0.0), "alpha"),
        "elu": (lambda X: F.elu(X, a.get("alpha", 1.0)), "alpha"),
        "celu": (lambda X: F.celu(X, a.get("alpha", 1.0)), "alpha"),
        "softplus": (
            lambda X: F.softplus(X, a.get("beta", 1.0), a.get("threshold", 1e9)), "beta threshold",
        ),
        "gelu": (lambda X: F.gelu(X, approximate=a.get("approximate", "none")), "approximate"),
        "silu": (F.silu, ""),
        "mish": (F.mish, ""),
        "sigmoid": (torch.sigmoid, ""),
        "log_sigmoid": (F.logsigmoid, ""),
        "hard_swish": (F.hardswish, ""),
        "tanh": (torch.tanh, ""),
        "hard_tanh": (
            lambda X: F.hardtanh(X, a.get("min_val", -1.0), a.get("max_val", 1.0)), "min_val max_val",
        ),
        "softsign": (F.softsign, ""),
        "softmax": (lambda X: F.softmax(X, a.get("axis", -1)), "axis"),
        "log_softmax": (lambda X: F.log_softmax(X, a.get("axis", -1)), "axis"),
    }, lambda X: F.selu(X), lambda X: F.hardsigmoid(X))  # fmt: skip


def _loss(job: Job) -> Callable[..., Any] | None:
    import torch

    F, others = torch.nn.functional, {k: torch.tensor(v) for k, v in job.integers.items()}
    if job.kernel == "softmax_cross_entropy":
        labels, weight = others["labels"], others.get("weights")
        return lambda X: F.cross_entropy(X, labels, weight, **job.attributes)
    if job.kernel == "binary_cross_entropy_with_logits":
        options: dict[str, Any] = {**others, **job.attributes}
        target = options.pop("targets")
        return lambda X: F.binary_cross_entropy_with_logits(X, target, **options)
    return None
