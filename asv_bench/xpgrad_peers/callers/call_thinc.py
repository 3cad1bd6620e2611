"""Thinc: its LSTM layer, and the functions of NumpyOps that come with a backprop."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .case import Absent, Job, gates, gradients, is_close

__all__ = ["thinc"]


def thinc(job: Job) -> dict:
    """Compute a case."""
    from thinc.api import NumpyOps

    ops = NumpyOps()
    if job.kernel == "lstm":
        return _lstm(job)
    a, dY = job.attributes, job.cotangents.get("Y")
    bounds = {"min_val": a.get("min_val", -1.0), "max_val": a.get("max_val", 1.0)}
    tanh = a.get("approximate", "none") == "tanh"
    gelu = (ops.gelu_approx, ops.backprop_gelu_approx) if tanh else (ops.gelu, ops.backprop_gelu)

    def by_input(forward: Callable, backward: Callable, **more: Any) -> Callable:
        return lambda x: (forward(x, **more), backward(dY, x, **more))

    def by_output(forward: Callable, backward: Callable) -> Callable:
        def run(x: np.ndarray) -> tuple:
            y = forward(x)
            return y, backward(dY, y)

        return run

    def both(x: np.ndarray) -> tuple:
        y = ops.swish(x)
        return y, ops.backprop_swish(dY, x, y)

    def softmax(x: np.ndarray) -> tuple:
        y = ops.softmax(x, axis=a.get("axis", -1))
        return y, ops.backprop_softmax(y, dY, axis=a.get("axis", -1))

    table: dict[str, tuple[Callable, str]] = {
        "relu": (by_output(ops.relu, ops.backprop_relu), ""),
        "gelu": (by_input(*gelu), "approximate"),
        "silu": (both, ""),
        "mish": (by_input(ops.mish, ops.backprop_mish), ""),
        "sigmoid": (by_output(ops.sigmoid, ops.backprop_sigmoid), ""),
        "hard_sigmoid": (by_input(ops.hard_sigmoid, ops.backprop_hard_sigmoid), "alpha beta"),
        "hard_tanh": (
            by_input(ops.clipped_linear, ops.backprop_clipped_linear, **bounds), "min_val max_val",
        ),
        "hard_swish": (by_input(ops.hard_swish_mobilenet, ops.backprop_hard_swish_mobilenet), ""),
        "softmax": (softmax, "axis"),
    }  # fmt: skip
    function = job.one_input(table)
    if job.kernel == "hard_sigmoid" and not (
        is_close(a.get("alpha", 0.2), 0.2) and is_close(a.get("beta", 0.5), 0.5)
    ):
        raise Absent("alpha or beta")
    y, dx = function(job.arguments["X"].copy())
    return {"Y": y, "gradient of X": np.asarray(dx)}


def _lstm(job: Job) -> dict:
    """The layer LSTM.v1; its initial states are the same for all sequences, so they stay zero."""
    from thinc.api import LSTM
    from thinc.types import Padded

    options = job.only("direction", arguments="X W R B sequence_lens")
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

    y, backprop = model(padded(a["X"]), is_train=True)
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
        grads["B"].append(np.tile(pieces[1], 2))  # it gives the gradient of their sum only to the first bias
    found = {"X": dX, **{k: np.stack(v) for k, v in grads.items() if k in a}}
    return {"H_all": Y, **gradients(found, found.values())}
