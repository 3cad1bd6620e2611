"""Rules for `torch.func.vmap`: what it maps over joins the kernels' own batch axis."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from xpgrad_torch._kernel import Kernel

Mapped = tuple[tuple[Tensor, ...], tuple[int, ...]]


def vmap_forward(
    kernel: "Kernel",
    run: Callable[[Sequence[Tensor | None]], Sequence[Tensor]],
    size: int,
    dims: Sequence[int | None],
    operands: Sequence[Tensor | None],
    attributes: Mapping[str, Any],
) -> Mapped:
    """Map a kernel over `dims` of its operands: outputs, and where the mapped axis is in each."""
    axes = [kernel.batch_axis(name, attributes) for name in kernel.operands]
    if _parameters_mapped(axes, dims):
        return _one_by_one(run, size, dims, operands)
    batch = _batch(operands, dims, axes)
    outputs = run(_joined(operands, dims, axes, size))
    positions = [kernel.batch_axis(name, attributes) or 0 for name in kernel.outputs]
    return tuple(y.unflatten(axis, (size, batch)) for y, axis in zip(outputs, positions, strict=True)), tuple(
        positions
    )


def vmap_gradient(
    kernel: "Kernel",
    run: Callable[[Sequence[Tensor | None], bool], Sequence[Tensor]],
    size: int,
    dims: Sequence[int | None],
    arrays: Sequence[Tensor | None],
    attributes: Mapping[str, Any],
    wrt: Sequence[str],
    per_sample: bool,
) -> Mapped:
    """Map a gradient; of the parameters it is the kernel's per-sample gradient, summed over each batch."""
    axes = [kernel.batch_axis(name, attributes) for name in kernel.gradient_arrays]
    if _parameters_mapped(axes, dims):
        return _one_by_one(lambda slices: run(slices, per_sample), size, dims, arrays)
    batch = _batch(arrays, dims, axes)
    positions = [kernel.batch_axis(name, attributes) for name in wrt]
    grads = run(_joined(arrays, dims, axes, size), None in positions)
    results = []
    for grad, axis in zip(grads, positions, strict=True):
        parts = grad.unflatten(axis or 0, (size, batch))
        if axis is None and not per_sample:
            parts = parts.squeeze(1) if batch == 1 else parts.sum(1)
        results.append(parts)
    return tuple(results), tuple(axis or 0 for axis in positions)


def _parameters_mapped(axes: Sequence[int | None], dims: Sequence[int | None]) -> bool:
    return any(axis is None and dim is not None for axis, dim in zip(axes, dims, strict=True))


def _one_by_one(
    run: Callable[[Sequence[Tensor | None]], Sequence[Tensor]],
    size: int,
    dims: Sequence[int | None],
    arrays: Sequence[Tensor | None],
) -> Mapped:
    """Run slice by slice: other weights for each are other recurrences, which share no product."""
    given = list(zip(arrays, dims, strict=True))
    slices = [
        run([x if x is None or dim is None else x.select(dim, k) for x, dim in given]) for k in range(size)
    ]
    results = tuple(torch.stack(parts) for parts in zip(*slices, strict=True))
    return results, (0,) * len(results)


def _batch(arrays: Sequence[Tensor | None], dims: Sequence[int | None], axes: Sequence[int | None]) -> int:
    """Return how many samples each of the mapped calls has."""
    for x, dim, axis in zip(arrays, dims, axes, strict=True):
        if x is not None and axis is not None:
            return x.shape[axis if dim is None or dim > axis else axis + 1]
    raise AssertionError("a kernel has an operand with a batch axis")


def _joined(
    arrays: Sequence[Tensor | None], dims: Sequence[int | None], axes: Sequence[int | None], size: int
) -> list[Tensor | None]:
    """Return the arrays with the mapped axis in front of the batch axis, as one axis."""
    joined = []
    for x, dim, axis in zip(arrays, dims, axes, strict=True):
        if x is not None and axis is not None:
            if dim is None:
                x = x.unsqueeze(axis).expand(*x.shape[:axis], size, *x.shape[axis:])
            else:
                x = x.movedim(dim, axis)
            x = x.flatten(axis, axis + 1)
        joined.append(x)
    return joined
