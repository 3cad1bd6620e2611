"""Rules for `jax.vmap`: what it maps over joins the kernels' own batch axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from xpgrad_jax._kernel import Attributes, Kernel

Arrays = Mapping[str, Any]
Mapped = tuple[list[Any], list[Any]]


def map_forward(
    kernel: Kernel,
    run: Callable[[Arrays, Attributes], Sequence[Any]],
    names: Sequence[str],
    arrays: Sequence[Any],
    dims: Sequence[int | None],
    attributes: Attributes,
) -> Mapped:
    """Map a kernel over `dims` of its operands: outputs, and where the mapped axis is in each.

    `run` calls the kernel with operands by name and attributes.
    """
    given = _in_front(names, arrays, dims)
    if _share_nothing(kernel, given, attributes):
        return _one_by_one(lambda slices: run(slices, attributes), given)
    size = given.size()
    if kernel.elementwise:
        outputs = run(*_whole(kernel, given, attributes))
        return list(outputs), [0] * len(outputs)
    outputs = run(_joined(kernel, given, attributes), attributes)
    axes = [kernel.batch_axis(name, attributes) or 0 for name in kernel.outputs]
    return [_parted(y, axis, size) for y, axis in zip(outputs, axes, strict=True)], list(axes)


def map_gradient(
    kernel: Kernel,
    run: Callable[[Arrays, Attributes, bool], Sequence[Any]],
    names: Sequence[str],
    arrays: Sequence[Any],
    dims: Sequence[int | None],
    attributes: Attributes,
    wrt: Sequence[str],
    per_sample: bool,
) -> Mapped:
    """Map a gradient; of the parameters it is the kernel's per-sample gradient, summed over each batch.

    `run` calls the gradient with arrays and attributes, and is told whether that is to be per sample.
    """
    given = _in_front(names, arrays, dims)
    axes = [kernel.batch_axis(name, attributes) for name in wrt] if not kernel.elementwise else []
    alone = _share_nothing(kernel, given, attributes) or (None in axes and not kernel.has_per_sample)
    if alone:
        return _one_by_one(lambda slices: run(slices, attributes, per_sample), given)
    size = given.size()
    if kernel.elementwise:
        grads = run(*_whole(kernel, given, attributes, wrt), False)
        shapes = {name: x.shape[1:] if name in given.mapped else x.shape for name, x in given.arrays.items()}
        pairs = zip(grads, wrt, strict=True)
        shaped = [g.reshape((size, *shapes[name])) if name in shapes else g for g, name in pairs]
        return shaped, [0] * len(grads)
    grads = run(_joined(kernel, given, attributes), attributes, None in axes)
    results = []
    for grad, axis in zip(grads, axes, strict=True):
        parts = _parted(grad, axis or 0, size)
        results.append(jnp.sum(parts, axis=1) if axis is None and not per_sample else parts)
    return results, [axis or 0 for axis in axes]


class _Given:
    """Arrays by name, those that are mapped over with the mapped axis in front."""

    def __init__(self, arrays: dict[str, Any], mapped: set[str]) -> None:
        self.arrays, self.mapped = arrays, mapped

    def size(self) -> int:
        return next(x.shape[0] for name, x in self.arrays.items() if name in self.mapped)


def _in_front(names: Sequence[str], arrays: Sequence[Any], dims: Sequence[int | None]) -> _Given:
    mapped = {name for name, dim in zip(names, dims, strict=True) if dim is not None}
    moved = {
        name: x if dim is None else jnp.moveaxis(x, dim, 0)
        for name, x, dim in zip(names, arrays, dims, strict=True)
    }
    return _Given(moved, mapped)


def _share_nothing(kernel: Kernel, given: _Given, attributes: Attributes) -> bool:
    """Tell whether the mapped calls cannot be one on a larger batch.

    So it is with other weights, which share no product.
    """
    if kernel.elementwise:
        return False
    return any(kernel.batch_axis(name, attributes) is None for name in given.mapped)


def _one_by_one(run: Callable[[Arrays], Sequence[Any]], given: _Given) -> Mapped:
    """Run slice by slice, as one loop of XLA's."""
    fixed = {name: x for name, x in given.arrays.items() if name not in given.mapped}
    order = list(given.arrays)

    def one(slices: dict[str, Any]) -> list[Any]:
        together = fixed | slices
        return list(run({name: together[name] for name in order}))

    results = jax.lax.map(one, {name: given.arrays[name] for name in order if name in given.mapped})
    return results, [0] * len(results)


def _joined(kernel: Kernel, given: _Given, attributes: Attributes) -> dict[str, Any]:
    """The arrays with the mapped axis in front of the batch axis, as one axis."""
    size, joined = given.size(), {}
    for name, x in given.arrays.items():
        axis = kernel.batch_axis(name, attributes)
        if axis is not None:
            if name in given.mapped:
                x = jnp.moveaxis(x, 0, axis)
            else:
                x = jnp.broadcast_to(jnp.expand_dims(x, axis), (*x.shape[:axis], size, *x.shape[axis:]))
            together = x.shape[axis] * x.shape[axis + 1]
            x = x.reshape((*x.shape[:axis], together, *x.shape[axis + 2 :]))
        joined[name] = x
    return joined


def _parted(x: Any, axis: int, size: int) -> Any:
    """The way back: the mapped axis, then the rest of the batch axis."""
    return x.reshape((*x.shape[:axis], size, x.shape[axis] // max(size, 1), *x.shape[axis + 1 :]))


def _whole(
    kernel: Kernel, given: _Given, attributes: Attributes, wrt: Sequence[str] = ()
) -> tuple[dict[str, Any], Attributes]:
    """Arrays of an elementwise kernel with the mapped axis in front, and attributes that count it in."""
    ranks = {name: x.ndim - (name in given.mapped) for name, x in given.arrays.items()}
    rank, size, moved = max(ranks.values()), given.size(), {}
    for name, x in given.arrays.items():
        bare = x.shape[1:] if name in given.mapped else x.shape
        front = size if name in given.mapped else 1
        x = x.reshape((front, *(1,) * (rank - ranks[name]), *bare))  # what is broadcast has fewer axes
        if name in kernel.shapes or name in wrt:
            x = jnp.broadcast_to(x, (size, *x.shape[1:]))
        moved[name] = x
    if attributes.get("axis", -1) >= 0:
        attributes = Attributes(attributes | {"axis": attributes["axis"] + 1})
    return moved, attributes
