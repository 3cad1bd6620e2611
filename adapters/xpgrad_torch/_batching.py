"""Rules for `torch.func.vmap`: the mapped axis joins the kernel's batch axis."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from xpgrad_torch._kernel import Kernel

Arrays = Sequence[Tensor | None]
Dims = Sequence[int | None]
Mapped = tuple[tuple[Tensor, ...], tuple[int, ...]]


def vmap_forward(
    kernel: Kernel,
    run: Callable[[Arrays, Mapping[str, Any]], Sequence[Tensor]],
    size: int,
    dims: Dims,
    operands: Arrays,
    attributes: Mapping[str, Any],
) -> Mapped:
    """Map a kernel over `dims` of its operands. Return the outputs and the mapped axis of each.

    `run` calls the kernel with operands and attributes.
    """
    if _share_nothing(kernel, kernel.operands, dims, operands, attributes):
        return _one_by_one(lambda slices: run(slices, attributes), size, dims, operands)
    if kernel.elementwise:
        outputs = run(*_in_front(kernel, kernel.operands, dims, operands, attributes, size))
        return tuple(outputs), (0,) * len(outputs)
    axes = [kernel.batch_axis(name, attributes) for name in kernel.operands]
    batch = _batch(operands, dims, axes)
    outputs = run(_joined(operands, dims, axes, size), attributes)
    positions = tuple(kernel.batch_axis(name, attributes) or 0 for name in kernel.outputs)
    results = (y.unflatten(axis, (size, batch)) for y, axis in zip(outputs, positions, strict=True))
    return tuple(results), positions


def vmap_gradient(
    kernel: Kernel,
    run: Callable[[Arrays, Mapping[str, Any], bool], Sequence[Tensor]],
    size: int,
    dims: Dims,
    arrays: Arrays,
    attributes: Mapping[str, Any],
    wrt: Sequence[str],
    per_sample: bool,
) -> Mapped:
    """Map a gradient. For parameters it is the kernel's per-sample gradient, summed over each batch.

    `run` calls the gradient with arrays, attributes, and whether it is per sample.
    """
    names = kernel.gradient_arrays
    if _share_nothing(kernel, names, dims, arrays, attributes):
        return _one_by_one(lambda slices: run(slices, attributes, per_sample), size, dims, arrays)
    if kernel.elementwise:
        grads = run(*_in_front(kernel, names, dims, arrays, attributes, size, wrt), False)
        shapes = {
            n: _bare_shape(x, dim) for n, x, dim in zip(names, arrays, dims, strict=True) if x is not None
        }
        pairs = zip(wrt, grads, strict=True)
        bare = (g.reshape(size, *shapes[name]) if name in shapes else g for name, g in pairs)
        return tuple(bare), (0,) * len(wrt)
    positions = [kernel.batch_axis(name, attributes) for name in wrt]
    if None in positions and not kernel.has_per_sample:
        return _one_by_one(lambda slices: run(slices, attributes, per_sample), size, dims, arrays)
    axes = [kernel.batch_axis(name, attributes) for name in names]
    batch = _batch(arrays, dims, axes)
    grads = run(_joined(arrays, dims, axes, size), attributes, None in positions)
    results = []
    for grad, axis in zip(grads, positions, strict=True):
        parts = grad.unflatten(axis or 0, (size, batch))
        if axis is None and not per_sample:
            parts = parts.squeeze(1) if batch == 1 else parts.sum(1)
        results.append(parts)
    return tuple(results), tuple(axis or 0 for axis in positions)


def _share_nothing(
    kernel: Kernel, names: Sequence[str], dims: Dims, arrays: Arrays, attributes: Mapping[str, Any]
) -> bool:
    """Tell whether the mapped calls cannot be one call on a larger batch.

    They cannot if each returns one number, if each has weights of its own, or if there is no batch axis.
    """
    if kernel.reduces(attributes):
        return True
    if kernel.elementwise:
        return False
    for name, x, dim in zip(names, arrays, dims, strict=True):
        if dim is not None and kernel.batch_axis(name, attributes) is None:
            return True
        if name == "X" and x is not None and kernel.sizes({name: _bare_shape(x, dim)}, attributes)["N"] == ():
            return True
    return False


def _bare_shape(x: Tensor, dim: int | None) -> tuple[int, ...]:
    """Return the shape of an array in each of the mapped calls."""
    return tuple(n for k, n in enumerate(x.shape) if k != dim)


def _one_by_one(run: Callable[[Arrays], Sequence[Tensor]], size: int, dims: Dims, arrays: Arrays) -> Mapped:
    """Run slice by slice."""
    given = list(zip(arrays, dims, strict=True))
    slices = [
        run([x if x is None or dim is None else x.select(dim, k) for x, dim in given]) for k in range(size)
    ]
    results = tuple(torch.stack(parts) for parts in zip(*slices, strict=True))
    return results, (0,) * len(results)


# --- a batch axis of the kernel's own ----------------------------------------------------------------------


def _batch(arrays: Arrays, dims: Dims, axes: Sequence[int | None]) -> int:
    """Return the number of samples in each of the mapped calls."""
    for x, dim, axis in zip(arrays, dims, axes, strict=True):
        if x is not None and axis is not None:
            return x.shape[axis if dim is None or dim > axis else axis + 1]
    raise AssertionError("a kernel has an operand with a batch axis")


def _joined(arrays: Arrays, dims: Dims, axes: Sequence[int | None], size: int) -> list[Tensor | None]:
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


# --- kernels that take any axes ----------------------------------------------------------------------------


def _in_front(
    kernel: Kernel,
    names: Sequence[str],
    dims: Dims,
    arrays: Arrays,
    attributes: Mapping[str, Any],
    size: int,
    wrt: Sequence[str] = (),
) -> tuple[list[Tensor | None], Mapping[str, Any]]:
    """Return the arrays with the mapped axis in front of all others, and attributes that count it in."""
    rank = max(x.dim() - (dim is not None) for x, dim in zip(arrays, dims, strict=True) if x is not None)
    moved = []
    for name, x, dim in zip(names, arrays, dims, strict=True):
        if x is not None:
            x = x.unsqueeze(0) if dim is None else x.movedim(dim, 0)
            # an operand that is broadcast has fewer axes
            x = x.reshape(x.shape[0], *(1,) * (rank + 1 - x.dim()), *x.shape[1:])
            if name in kernel.shapes or name in wrt:
                x = x.expand(size, *x.shape[1:])
        moved.append(x)
    if attributes.get("axis", -1) >= 0:
        attributes = {**attributes, "axis": attributes["axis"] + 1}
    return moved, attributes
