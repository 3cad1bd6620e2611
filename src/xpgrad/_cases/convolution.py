"""The options and oracles of convolutions, for `check`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._conv.choice import METHODS
from .._testing.comparing import to_numpy
from .._testing.convolution import conv_grad_reference, conv_reference
from .case import Arrays, Case, KernelCases, draw, kernel_cases, seeded, sum_or_stack

__all__ = ["CONVOLUTIONS"]


class Numbers(NamedTuple):
    """An option's geometry in plain numbers, for oracles."""

    strides: Sequence[int]
    begins: Sequence[int]
    ends: Sequence[int]
    dilations: Sequence[int]
    group: int
    output: tuple[int, ...]
    """The spatial sizes of Y."""
    added: Sequence[int]
    """For a transposed convolution: the positions at Y's ends that no input reaches."""


# ------------------------------------------------------------------------------------------- the options

# All sizes differ, so that no size can replace another. `equals` gives the pads that an option leaves to the
# kernel, worked out by hand from the ONNX specification.
_SAME = {"size": (6, 5), "kernel": (3, 2), "strides": (2, 1)}
_OPTIONS: dict[str, dict[str, Any]] = {
    "1-D": {"size": (7,), "kernel": (3,)},
    "2-D": {"size": (5, 4), "kernel": (3, 2)},
    "3-D": {"size": (3, 4, 2), "kernel": (2, 3, 1), "pads": (0, 1, 0)},
    "no bias": {"size": (5, 4), "kernel": (3, 2), "bias": False},
    "pointwise": {"size": (3, 4), "kernel": (1, 1)},
    "strides": {"size": (6, 5), "kernel": (3, 2), "strides": (3, 2), "pads": (1, 0)},
    "pads of each end": {"size": (4, 3), "kernel": (3, 2), "pads": (2, 0, 1, 1)},
    "dilations": {"size": (6, 5), "kernel": (3, 2), "dilations": (2, 3), "pads": 1},
    "VALID": {"size": (5, 4), "kernel": (3, 2), "auto_pad": "VALID", "equals": (0, 0, 0, 0)},
    "groups": {"size": (4, 3), "kernel": (2, 3), "channels": 4, "outputs": 6, "group": 2, "pads": 1},
    "depthwise": {"size": (4, 3), "kernel": (3, 2), "channels": 3, "outputs": 3, "group": 3, "pads": 1},
    "large kernel": {"size": (9,), "kernel": (15,), "pads": 7},
    "per_sample": {"size": (4, 3), "kernel": (2, 3), "pads": 1, "gradient": {"per_sample": True}},
    "per_sample, norm": {"size": (4, 3), "kernel": (2, 3), "pads": 1, "gradient": {"per_sample": "norm"}},
    "sample_weight": {"size": (4, 3), "kernel": (2, 3), "pads": 1, "weights": True},
    "everything": {
        "size": (7, 6),
        "kernel": (2, 3),
        "channels": 4,
        "outputs": 6,
        "group": 2,
        "strides": (2, 3),
        "dilations": (3, 2),
        "pads": (1, 2, 0, 2),
        "gradient": {"per_sample": True},
    },
    "SAME_UPPER": {**_SAME, "auto_pad": "SAME_UPPER", "equals": (0, 0, 1, 1)},
    "SAME_LOWER": {**_SAME, "auto_pad": "SAME_LOWER", "equals": (1, 1, 0, 0)},
}
# For each method a geometry that it supports.
_METHODS: dict[str, dict[str, Any]] = {
    "fft": {"size": (6, 5), "kernel": (4, 5), "pads": 2},
    "patches": {"size": (6, 5), "kernel": (3, 2), "strides": 2, "pads": 1},
    "clipped": {"size": (4, 3), "kernel": (3, 3), "dilations": 2, "pads": 2},
    "pointwise": {"size": (3, 4), "kernel": (1, 1)},
    "shifted": {"size": (6, 5), "kernel": (3, 2), "strides": 2, "pads": 1},
    "taps": {"size": (4, 3), "kernel": (3, 2), "channels": 3, "outputs": 3, "group": 3, "pads": 1},
    "winograd": {"size": (6, 5), "kernel": (3, 3), "pads": 1},
}
_METHOD_OPTIONS = {
    **{f"method {name}": {**_METHODS[name], "method": name} for name in METHODS},
    "method winograd, strides": {
        "size": (6, 8),
        "kernel": (4, 4),
        "strides": 2,
        "pads": 1,
        "method": "winograd",
    },
    "method winograd, 5 x 5": {"size": (6, 5), "kernel": (5, 5), "pads": 2, "method": "winograd"},
    "method winograd, dilated": {
        "size": (7, 9),
        "kernel": (3, 3),
        "dilations": (2, 3),
        "pads": 2,
        "method": "winograd",
    },
    "method winograd, 5 x 5, strides": {
        "size": (9, 8),
        "kernel": (5, 5),
        "strides": 2,
        "pads": 2,
        "method": "winograd",
    },
    "method winograd, volume": {"size": (3, 4, 5), "kernel": (2, 3, 3), "pads": 1, "method": "winograd"},
    "method winograd, row": {"size": (9,), "kernel": (3,), "pads": 1, "method": "winograd"},
    "method winograd, dilated row": {
        "size": (13,),
        "kernel": (6,),
        "dilations": 2,
        "pads": 3,
        "method": "winograd",
    },
}
_CONV_OPTIONS = {
    **_OPTIONS,
    "depthwise, multiplier": {"size": (4, 3), "kernel": (3, 2), "channels": 2, "outputs": 6, "group": 2},
    **_METHOD_OPTIONS,
}
_TRANSPOSED_OPTIONS = {
    **_OPTIONS,
    "output_padding": {"size": (3, 4), "kernel": (2, 3), "strides": (3, 2), "output_padding": (2, 1)},
    "output_shape": {
        "size": (3, 4),
        "kernel": (3, 2),
        "strides": (2, 3),
        "output_shape": (6, 9),
        "equals": (1, 1, 0, 1),
    },
    **_METHOD_OPTIONS,
}


def _pair_of_ends(pads: int | Sequence[int], n: int) -> tuple[Sequence[int], Sequence[int]]:
    ends = [pads] * n if isinstance(pads, int) else list(pads)
    return (ends, ends) if len(ends) == n else (ends[:n], ends[n:])


def _each(value: int | Sequence[int], n: int) -> Sequence[int]:
    return [value] * n if isinstance(value, int) else value


def _numbers(transposed: bool, size: Sequence[int], kernel: Sequence[int], **attributes: Any) -> Numbers:
    n = len(size)
    strides, dilations = (_each(attributes.get(name, 1), n) for name in ("strides", "dilations"))
    begins, ends = _pair_of_ends(attributes.get("equals", attributes.get("pads", 0)), n)
    added = _each(attributes.get("output_padding", 0), n)
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = [b + e for b, e in zip(begins, ends, strict=True)]
    places = zip(size, strides, reach, pads, added, strict=True)
    output = tuple(
        s * (x - 1) + a + r - p if transposed else (x + p - r) // s + 1 for x, s, r, p, a in places
    )
    return Numbers(strides, begins, ends, dilations, attributes.get("group", 1), output, added)


def _case(transposed: bool, *, seed: Any, **option: Any) -> Case:
    """A small problem of two samples."""
    rng = np.random.default_rng(seed)
    n = _numbers(transposed, **option)
    size, kernel = option["size"], option["kernel"]
    channels, outputs = option.get("channels", 2), option.get("outputs", 3)
    ends = (channels, outputs // n.group) if transposed else (outputs, channels // n.group)
    arguments = {"X": draw(rng, 2, channels, *size), "W": draw(rng, *ends, *kernel) / 2}
    if option.get("bias", True):
        arguments["B"] = draw(rng, outputs)
    own = ("size", "kernel", "channels", "outputs", "bias", "gradient", "equals", "weights")
    attributes = {name: value for name, value in option.items() if name not in own}
    cotangents = {"Y": draw(rng, 2, outputs, *n.output)}
    weights = {"sample_weight": draw(rng, 2)} if option.get("weights") else {}
    axes = {"X": 0, "Y": 0}
    return Case(arguments, {}, attributes, cotangents, option.get("gradient", {}), axes, n, weights)


# ------------------------------------------------------------------------- the kernels, and the oracles


def _results(
    case: Case, forward: Callable[[], np.ndarray], pullback: Callable[[np.ndarray], Any]
) -> dict[str, np.ndarray]:
    """Y, and the gradients dX, dW, dB from `pullback` for a cotangent of Y."""

    def gradients(cotangents: Arrays) -> dict[str, np.ndarray]:
        found = dict(zip(("X", "W", "B"), pullback(cotangents["Y"]), strict=True))
        return {name: found[name] for name in case.arguments}

    return {"Y": forward(), **sum_or_stack(case, gradients)}


def _operands(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    return case.arguments["X"], case.arguments["W"], case.arguments.get("B")


def _spelled_out(n: Numbers) -> dict[str, Any]:
    """The attributes of the direct sums."""
    pads = (*n.begins, *n.ends)
    return {"strides": n.strides, "pads": pads, "dilations": n.dilations, "group": n.group}


def _from_reference(case: Case) -> dict[str, np.ndarray]:
    """The direct sums."""
    X, W, B = _operands(case)
    at = _spelled_out(case.numbers)
    return _results(
        case,
        lambda: conv_reference(X, W, B, **at),
        lambda dY: conv_grad_reference(dY, X, W, **at),
    )


def _from_transposed_reference(case: Case) -> dict[str, np.ndarray]:
    """A transposed convolution, as the gradient of a direct sum."""
    X, W, B = _operands(case)
    at = _spelled_out(case.numbers)

    def forward() -> np.ndarray:
        Y = conv_grad_reference(X, np.zeros(case.cotangents["Y"].shape), W, **at).dX
        return Y if B is None else Y + B.reshape(-1, *[1] * len(case.numbers.output))

    def pullback(dY: np.ndarray) -> tuple[np.ndarray, ...]:
        dW = conv_grad_reference(X, dY, W, **at).dW
        return conv_reference(dY, W, **at), dW, dY.sum(axis=(0, *range(2, dY.ndim)))

    return _results(case, forward, pullback)


def _from_torch(transposed: bool, case: Case) -> dict[str, np.ndarray]:
    """PyTorch's own convolution; padding the input or cropping the output is a separate step."""
    import torch

    numbers = case.numbers
    leaves = {name: torch.tensor(a, requires_grad=True) for name, a in case.arguments.items()}
    X, W, B = leaves["X"], leaves["W"], leaves.get("B")
    n = len(numbers.output)
    function = getattr(torch.nn.functional, f"conv{'_transpose' * transposed}{n}d")
    options = {"stride": numbers.strides, "dilation": numbers.dilations, "groups": numbers.group}
    if transposed:
        Y = function(X, W, B, **options, output_padding=numbers.added)
        for axis, begin in enumerate(numbers.begins):
            Y = Y.narrow(2 + axis, begin, numbers.output[axis])
    else:
        around = [p for ends in zip(numbers.begins[::-1], numbers.ends[::-1], strict=True) for p in ends]
        Y = function(torch.nn.functional.pad(X, around), W, B, **options)

    def pullback(dY: np.ndarray) -> list[np.ndarray]:
        found = torch.autograd.grad(Y, list(leaves.values()), torch.tensor(dY), retain_graph=True)
        grads = dict(zip(leaves, map(to_numpy, found), strict=True))
        return [grads.get(name, np.zeros(0)) for name in ("X", "W", "B")]

    return _results(case, lambda: to_numpy(Y), pullback)


def _kernel(name: str, options: Mapping[str, Mapping[str, Any]]) -> KernelCases:
    transposed = name == "conv_transpose"
    return kernel_cases(
        name,
        seeded(functools.partial(_case, transposed), options),
        _from_transposed_reference if transposed else _from_reference,
        module=functools.partial(_from_torch, transposed),
    )


CONVOLUTIONS: tuple[KernelCases, ...] = (
    _kernel("conv", _CONV_OPTIONS),
    _kernel("conv_transpose", _TRANSPOSED_OPTIONS),
)
