"""Rules for `torch.func.vmap`: the mapped axis joins the kernel's batch axis."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import array_api_compat.torch as xp
import torch
from torch import Tensor

from xpgrad._operators.for_adapters import MappedCall
from xpgrad_torch._kernel import TorchKernel

Arrays = Sequence[Tensor | None]
Dims = Sequence[int | None]
Mapped = tuple[tuple[Tensor, ...], tuple[int, ...]]


def vmap_forward(
    kernel: TorchKernel,
    run: Callable[[Arrays, Mapping[str, Any]], Sequence[Tensor]],
    dims: Dims,
    operands: Arrays,
    attributes: Mapping[str, Any],
) -> Mapped:
    """Map a kernel over axes `dims` of its operands. Return the outputs and their mapped axes.

    `run` calls the kernel with operands and attributes.
    """
    names = kernel.operands
    call = _call(kernel, names, operands, dims, attributes)
    if call.is_separate():
        return _one_by_one(lambda slices: run(slices, attributes), call, names)
    results, axes = call.forward(lambda given, changed: run(_in_order(given, names), changed))
    return tuple(results), tuple(axes)


def vmap_gradient(
    kernel: TorchKernel,
    run: Callable[[Arrays, Mapping[str, Any], bool], Sequence[Tensor]],
    dims: Dims,
    arrays: Arrays,
    attributes: Mapping[str, Any],
    wrt: Sequence[str],
    per_sample: bool,
) -> Mapped:
    """Map a gradient. For parameters it is the kernel's per-sample gradient, summed over each batch.

    `run` calls the gradient with arrays, attributes and `per_sample`.
    """
    names = kernel.gradient_arrays
    call = _call(kernel, names, arrays, dims, attributes)
    if call.is_separate(wrt):
        return _one_by_one(lambda slices: run(slices, attributes, per_sample), call, names)
    results, axes = call.gradient(
        lambda given, changed, each: run(_in_order(given, names), changed, each), wrt, per_sample
    )
    return tuple(results), tuple(axes)


def _call(
    kernel: TorchKernel, names: Sequence[str], arrays: Arrays, dims: Dims, attributes: Mapping[str, Any]
) -> MappedCall:
    given = {name: x for name, x in zip(names, arrays, strict=True) if x is not None}
    return MappedCall(xp, kernel, given, dict(zip(names, dims, strict=True)), attributes)


def _in_order(arrays: Mapping[str, Tensor], names: Sequence[str]) -> list[Tensor | None]:
    return [arrays.get(name) for name in names]


def _one_by_one(run: Callable[[Arrays], Sequence[Tensor]], call: MappedCall, names: Sequence[str]) -> Mapped:
    """Run slice by slice."""
    slices = [
        run(_in_order({n: x[k] if n in call.mapped else x for n, x in call.arrays.items()}, names))
        for k in range(call.size)
    ]
    results = tuple(torch.stack(parts) for parts in zip(*slices, strict=True))
    return results, (0,) * len(results)
