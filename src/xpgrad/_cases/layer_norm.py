"""Options and oracles of the recurrent operators with layer normalization."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from .._testing import layer_norm_gru_reference, layer_norm_lstm_reference, to_numpy
from .case import Array, Arrays, Case, KernelCases, draw, oracles_of, resets_of, run_vjp, seeded, sum_or_stack

__all__ = ["LAYER_NORM"]


class _LayerNormCase(NamedTuple):
    """The differences between the two operators."""

    name: str
    gates: int
    states: tuple[str, ...]
    outputs: tuple[str, ...]
    """Those that have a cotangent."""
    reference: Callable[..., tuple[Array, ...]]


_OPERATORS = (
    _LayerNormCase(
        "layer_norm_lstm", 4, ("initial_h", "initial_c"), ("H_all", "H_t", "C_t", "C_all"),
        layer_norm_lstm_reference,
    ),
    _LayerNormCase("layer_norm_gru", 3, ("initial_h",), ("H_all", "H_t"), layer_norm_gru_reference),
)  # fmt: skip
_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "reverse": {"direction": "reverse"},
    "lengths, NaN padding": {"lengths": True, "direction": "bidirectional"},
    "layout 1": {"layout": 1},
    "clip": {"clip": 0.7013},
    "activations": {
        "activations": ("HardSigmoid", "Elu", "Softsign"),
        "activation_alpha": [0.3],
        "activation_beta": [0.45],
    },
    "per_sample": {"lengths": True, "gradient": {"per_sample": True}},
    "per_sample, norm": {"gradient": {"per_sample": "norm"}},
    "sample_weight": {"lengths": True, "weights": True},
    "resets, lengths, bidirectional": {"resets": True, "lengths": True, "direction": "bidirectional"},
}


def _sample_axis(name: str, layout: int) -> int:
    return 0 if layout else 2 if name.endswith("_all") else 1


def _case(
    op: _LayerNormCase,
    *,
    seed: int,
    bias: bool = True,
    lengths: bool = False,
    resets: bool = False,
    weights: bool = False,
    gradient: Mapping[str, Any] | None = None,
    **attributes: Any,
) -> Case:
    """A small problem in which no two sizes are equal."""
    T, N, I, H = 5, 3, 2, 4
    attributes["epsilon"] = 0.5  # otherwise a row of nearly equal numbers loses digits
    if "activations" in attributes:
        attributes["activations"] = list(attributes["activations"][: 3 if op.gates == 4 else 2])
    G, D = op.gates * H, 2 if attributes.get("direction") == "bidirectional" else 1
    rng = np.random.default_rng(seed)
    arguments: dict[str, Any] = {"X": draw(rng, T, N, I), "W": draw(rng, D, G, I), "R": draw(rng, D, G, H)}
    if bias:
        arguments["B"] = draw(rng, D, 2 * G)
    else:
        attributes["B"] = None
    arguments |= {"gamma": draw(rng, D, 2, G) / 2, "beta": draw(rng, D, 2, G) / 2}
    if op.gates == 4:
        arguments |= {"gamma_c": draw(rng, D, H) / 2, "beta_c": draw(rng, D, H)}
    arguments |= {name: draw(rng, D, N, H) for name in op.states}
    cotangents = {name: draw(rng, *((T, D) if name.endswith("_all") else (D,)), N, H) for name in op.outputs}
    integers: dict[str, Any] = {}
    if lengths:
        integers["sequence_lens"] = np.asarray([3, 0, 5], dtype=np.int64)
        for n, length in enumerate(integers["sequence_lens"]):
            arguments["X"][length:, n] = np.nan
            for name in cotangents:
                if name.endswith("_all"):
                    cotangents[name][length:, :, n] = np.nan
    if resets:
        integers["reset"] = resets_of(rng, T, N)
    layout = attributes.get("layout", 0)
    if layout:
        for name in ("X", *op.states):
            arguments[name] = arguments[name].swapaxes(0, 1)
        cotangents = {k: np.moveaxis(v, _sample_axis(k, 0), 0) for k, v in cotangents.items()}
    axes = {name: _sample_axis(name, layout) for name in ("X", *op.states, *cotangents)}
    own = {"sample_weight": draw(rng, N)} if weights else {}
    return Case(arguments, integers, attributes, cotangents, gradient or {}, axes, weights=own)


def _from_reference(op: _LayerNormCase, case: Case) -> Arrays:
    outputs = op.reference(**case.arguments, **case.integers, **case.attributes)
    return dict(zip(op.outputs, outputs, strict=True))


def _from_autograd(op: _LayerNormCase, case: Case) -> Arrays:
    import torch

    tensors: dict[str, Any] = {
        name: torch.tensor(a, requires_grad=True) for name, a in case.arguments.items()
    }
    outputs = op.reference(**tensors, **case.integers, **case.attributes)

    def pullback(cotangents: Arrays) -> dict[str, np.ndarray]:
        given = [torch.tensor(cotangents[name]) for name in op.outputs]
        found = torch.autograd.grad(outputs, list(tensors.values()), given, retain_graph=True)
        return {name: to_numpy(gradient) for name, gradient in zip(tensors, found, strict=True)}

    return sum_or_stack(case, pullback)


def _kernel(op: _LayerNormCase) -> KernelCases:
    return KernelCases(
        op.name,
        seeded(_case, op, _OPTIONS),
        functools.partial(run_vjp, op.name),
        oracles_of(op.name, op, _from_reference, _from_autograd),
    )


LAYER_NORM = tuple(map(_kernel, _OPERATORS))
