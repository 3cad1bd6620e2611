"""Rules for `jax.vmap`: the mapped axis joins the kernels' own batch axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from xpgrad._operators.for_adapters import Mapped, MappedCall
from xpgrad_jax._kernel import Attributes, JaxKernel

Arrays = Mapping[str, Any]


def map_forward(
    kernel: JaxKernel,
    run: Callable[[Arrays, Attributes], Sequence[Any]],
    arrays: Arrays,
    dims: Mapping[str, int | None],
    attributes: Attributes,
) -> Mapped:
    """Map a kernel over `dims` of its operands; return outputs, and the place of each one's mapped axis.

    `run` calls the kernel with operands by name and attributes.
    """
    call = MappedCall(jnp, kernel, arrays, dims, attributes)
    if call.is_separate():
        return _one_by_one(lambda slices: run(slices, attributes), call)
    return call.forward(lambda given, changed: run(given, Attributes(changed)))


def map_gradient(
    kernel: JaxKernel,
    run: Callable[[Arrays, Attributes, bool], Sequence[Any]],
    arrays: Arrays,
    dims: Mapping[str, int | None],
    attributes: Attributes,
    wrt: Sequence[str],
    per_sample: bool,
) -> Mapped:
    """Map a gradient; for parameters, sum the kernel's per-sample gradients over each batch.

    `run` calls the gradient with arrays, attributes, and whether it is per sample.
    """
    call = MappedCall(jnp, kernel, arrays, dims, attributes)
    if call.is_separate(wrt):
        return _one_by_one(lambda slices: run(slices, attributes, per_sample), call)
    return call.gradient(lambda given, changed, each: run(given, Attributes(changed), each), wrt, per_sample)


def _one_by_one(run: Callable[[Arrays], Sequence[Any]], call: MappedCall) -> Mapped:
    """Run slice by slice, in one loop of XLA's."""

    def one(slices: dict[str, Any]) -> list[Any]:
        return list(run({name: slices.get(name, x) for name, x in call.arrays.items()}))

    results = jax.lax.map(one, {name: call.arrays[name] for name in call.arrays if name in call.mapped})
    return results, [0] * len(results)
