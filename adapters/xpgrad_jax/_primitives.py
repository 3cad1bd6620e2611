"""Kernels as primitives of JAX, with the rules of its transformations.

Three primitives serve all kernels. `forward_p` is a kernel, `gradient_p` its gradient: on a CPU each is one
call of its program, if it has one; otherwise JAX's own operations. `tangent_p` connects them: it is the
linear function of the operands' tangents that forward mode needs, and its transpose is the gradient. Reverse
mode transposes it and never runs it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

import xpgrad
from xpgrad._operators.for_adapters import Mapped, MappedCall, write_program
from xpgrad.engine.programs.instructions import CannotRecordError
from xpgrad_jax import _ffi, _partitioning
from xpgrad_jax._inline import foreign_machine, inlining
from xpgrad_jax._kernel import Attributes, JaxKernel
from xpgrad_jax._partitioning import alike, varying

Names = tuple[str, ...]
Way = Callable[..., list[Any]]
_HALF = ("float16", "bfloat16")


class BoundCall(NamedTuple):
    """The parameter of the primitives: a kernel, the names of its arrays, and its options."""

    kernel: JaxKernel
    present: Names
    attributes: Attributes
    wrt: Names = ()
    per_sample: bool = False


def _x64() -> bool:
    """Whether 64-bit numbers are enabled in JAX for this thread now."""
    return bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]


def _primitive(name: str) -> Primitive:
    primitive = Primitive(name)
    primitive.multiple_results = True
    return primitive


forward_p = _primitive("xpgrad_ffi_call")
gradient_p = _primitive("xpgrad_gradient_ffi_call")
tangent_p = _primitive("xpgrad_tangent")


def forward(kernel: JaxKernel, arrays: Mapping[str, Any], attributes: Attributes) -> list[Any]:
    """All outputs of a kernel."""
    call = BoundCall(kernel, tuple(arrays), attributes)
    return forward_p.bind(*alike(arrays.values()), call=call)


def gradient(
    kernel: JaxKernel, arrays: Mapping[str, Any], wrt: Names, attributes: Attributes, per_sample: bool = False
) -> list[Any]:
    """A kernel's gradients in the order of `wrt`, from operands, saved outputs and cotangents by name."""
    call = BoundCall(kernel, tuple(arrays), attributes, wrt, per_sample)
    return gradient_p.bind(*alike(arrays.values()), call=call)


# --- JAX's own operations


def _as_arrays(values: Iterable[Any]) -> list[Any]:
    """Return JAX's arrays: a NumPy array within a jitted function comes as a type of its own."""
    return [x if isinstance(x, jax.Array) else jnp.asarray(x) for x in values]


def _plain_forward(*arrays: Any, call: BoundCall) -> list[Any]:
    given = dict(zip(call.present, _as_arrays(arrays), strict=True))
    return list(call.kernel.plain_forward(given, call.attributes))


def _plain_gradient(*arrays: Any, call: BoundCall) -> list[Any]:
    given = dict(zip(call.present, _as_arrays(arrays), strict=True))
    return list(call.kernel.plain_gradient(given, call.wrt, call.attributes, call.per_sample))


def _plain_tangent(*arrays: Any, call: BoundCall) -> list[Any]:
    """The tangents of the outputs, computed from the operands and their tangents only."""
    if call.attributes.get("peephole", "full") != "full":
        raise ValueError(
            f"{call.kernel.name}: peephole is 'truncated', expected 'full' in forward mode, which follows "
            "the function itself"
        )
    arrays = tuple(_as_arrays(arrays))
    operands, tangents = dict(zip(call.present, arrays, strict=False)), arrays[len(arrays) - len(call.wrt) :]

    def function(*values: Any) -> list[Any]:
        given = operands | dict(zip(call.wrt, values, strict=True))
        return _plain_forward(*given.values(), call=call)

    return jax.jvp(function, tuple(operands[name] for name in call.wrt), tuple(tangents))[1]


# --- programs


@functools.lru_cache(maxsize=1024)
def _program(
    name: str, run: Callable[..., Any], names: Names, forms: tuple, options: Attributes, threads: int
) -> _ffi.Key | None:
    """The key of a kernel's or gradient's program for these shapes and dtypes; None without a program."""
    if any(0 in shape for shape, _ in forms):
        return None
    try:
        program = write_program(run, foreign_machine, dict(zip(names, forms, strict=True)), dict(options))
    except CannotRecordError:
        return None
    described = [(name, shape, dtype.name) for name, (shape, dtype) in zip(names, forms, strict=True)]
    return _ffi.registry().add(f"{xpgrad.__version__} {name} {described} {options} {threads}", program)


def _native(
    name: str, run: Callable[..., Any], names: Names, options: Mapping[str, Any], arrays: Sequence[Any],
    results: Sequence[Any],
) -> list[Any] | None:  # fmt: skip
    """The results as one call of a program; None without a program."""
    if _ffi.why_not() is not None:
        return None
    half = any(x.dtype.name in _HALF for x in arrays)
    if half:
        arrays = [x.astype(jnp.float32) if x.dtype.name in _HALF else x for x in arrays]
    # programs take integers, which are lengths, as 64-bit numbers
    dtypes = [np.dtype(x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else np.int64) for x in arrays]
    forms = tuple((tuple(x.shape), dtype) for x, dtype in zip(arrays, dtypes, strict=True))
    key = _program(name, run, names, forms, Attributes(options), foreign_machine.team.size())
    if key is None:
        return None
    wanted = [jax.ShapeDtypeStruct(y.shape, jnp.float32 if half else y.dtype) for y in results]
    made = _ffi.call(key, [_as_program_takes(x) for x in arrays], wanted)
    return [y.astype(given.dtype) for y, given in zip(made, results, strict=True)] if half else made


def _as_program_takes(x: Any) -> Any:
    """Lengths as 64-bit integers, or as two halves if JAX has no 64-bit integers.

    Negative lengths become 0.
    """
    if jnp.issubdtype(x.dtype, jnp.floating):
        return x
    if _x64():
        return x.astype(jnp.int64)
    low = jnp.maximum(x, 0).astype(jnp.int32)
    return jnp.stack([low, jnp.zeros_like(low)], axis=-1)


def _cpu_forward(*arrays: Any, call: BoundCall) -> list[Any]:
    kernel = call.kernel
    if _is_open(arrays):
        return _plain_forward(*arrays, call=call)
    if kernel.is_recurrent:
        results, options = _shapes_of(_plain_forward, arrays, call), kernel.own(call.attributes)
        made = _native(kernel.key, kernel.call, call.present, options, arrays, results)
        if made is not None:
            return made
    return inlining(functools.partial(_plain_forward, call=call), *arrays)


def _cpu_gradient(*arrays: Any, call: BoundCall) -> list[Any]:
    kernel = call.kernel
    if _is_open(arrays):
        return _plain_gradient(*arrays, call=call)
    if kernel.is_recurrent:
        function, options = kernel.gradient_call(call.wrt, call.attributes, call.per_sample)
        shapes = dict(zip(call.wrt, _shapes_of(_plain_gradient, arrays, call), strict=True))
        ordered = [name for name in kernel.graded if name in shapes]
        names, results = kernel.arguments_of(call.present), [shapes[name] for name in ordered]
        made = _native(f"{kernel.key}_grad", function, names, options, arrays, results)
        if made is not None:
            by_name = dict(zip(ordered, made, strict=True))
            return [by_name[name] for name in call.wrt]
    return inlining(functools.partial(_plain_gradient, call=call), *arrays)


def _shapes_of(function: Way, arrays: Sequence[Any], call: BoundCall) -> list[Any]:
    """Shapes and dtypes of the results of JAX's own operations; an error if a kernel cannot use a symbol."""
    forms = tuple((tuple(x.shape), np.dtype(x.dtype)) for x in arrays)
    try:
        return _known_shapes(function, forms, call, _x64())
    except Exception as error:
        if not _is_open(arrays) or type(error) in (ValueError, TypeError):  # an error of ours
            raise
        pairs = zip(call.present, arrays, strict=False)
        given = ", ".join(f"{name} {tuple(x.shape)}" for name, x in pairs)
        raise ValueError(
            f"{call.kernel.name}: a size is symbolic, expected a number where the kernel depends on it; the "
            f"shapes are {given}; {error}"
        ) from error


def _is_open(arrays: Sequence[Any]) -> bool:
    """Whether a size is symbolic, as in an export: programs need numbers."""
    return any(is_symbolic_dim(size) for x in arrays for size in x.shape)


@functools.lru_cache(maxsize=4096)
def _known_shapes(function: Way, forms: tuple, call: BoundCall, x64: bool) -> list[Any]:
    given = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in forms]
    return jax.eval_shape(functools.partial(function, call=call), *given)


# --- rules


def _abstract(primitive: Primitive, function: Way) -> Way:
    def rule(*avals: Any, call: BoundCall) -> list[Any]:
        results = _shapes_of(function, avals, call)
        if any(map(_partitioning.has_explicit_axes, avals)):
            return _partitioning.typed(results, avals, _axes(primitive, avals, results, call))
        return [_of_form(y, avals[0]) for y in results]

    return rule


def _of_form(y: Any, like: Any) -> Any:
    """The type of a result that varies over the same axes of a mesh as an operand."""
    if not varying(like):
        return jax.core.ShapedArray(y.shape, y.dtype)
    sharding = NamedSharding(like.sharding.mesh, PartitionSpec(*[None] * len(y.shape)))
    return jax.core.ShapedArray(y.shape, y.dtype, sharding=sharding, manual_axis_type=like.manual_axis_type)


@functools.lru_cache(maxsize=1024)
def _compiled(primitive: Primitive, call: BoundCall) -> Way:
    return jax.jit(functools.partial(primitive.bind, call=call))


def _abstract_tangent(*avals: Any, call: BoundCall) -> list[Any]:
    """A tangent has its output's form. Reverse mode needs only this, so no form is refused here."""
    rule = _abstract(forward_p, _plain_forward)
    outputs = rule(*avals[: len(call.present)], call=call._replace(wrt=()))
    return [y.to_tangent_aval() for y in outputs]


def _run(primitive: Primitive, *arrays: Any, call: BoundCall) -> Any:
    """Run a primitive, compiled even under `jax.disable_jit`, as JAX's own primitives."""
    with jax.disable_jit(False) if jax.config.jax_disable_jit else nullcontext():  # type: ignore[attr-defined]
        return _compiled(primitive, call)(*arrays)


def _register(primitive: Primitive, plain: Way, native: Way, abstract: Way) -> None:
    primitive.def_impl(functools.partial(_run, primitive))
    primitive.def_abstract_eval(abstract)
    mlir.register_lowering(primitive, _lowering(primitive, plain))
    mlir.register_lowering(primitive, _lowering(primitive, native), platform="cpu")


def _lowering(primitive: Primitive, way: Way) -> Callable[..., Any]:
    """The rule that lowers a primitive; each of several devices computes the same with its part."""

    def rule(context: Any, *values: Any, call: BoundCall) -> Any:
        def lower(within: Any) -> Any:
            run, axes = functools.partial(way, call=call), None
            if _partitioning.is_splitting() and not call.kernel.reduces(call.attributes):
                axes = _axes(primitive, context.avals_in, context.avals_out, call)
            if axes is not None:
                each, what = functools.partial(primitive.bind, call=call), f"{primitive} {call}"
                run = functools.partial(_partitioning.split, each, what, axes)
            return mlir.lower_fun(run, multiple_results=True)(within, *values)

        return _partitioning.splitting(context, lower)

    return rule


def _axes(
    primitive: Primitive, arrays: Sequence[Any], results: Sequence[Any], call: BoundCall
) -> _partitioning.Axes | None:
    """The axes of a primitive's operands and results."""
    kernel, present = call.kernel, call.present
    names = (*present, *kernel.saved, *call.wrt) if primitive is tangent_p else present
    made = call.wrt if primitive is gradient_p else kernel.outputs
    given, out = (
        [(name, tuple(x.shape)) for name, x in zip(own, forms, strict=True)]
        for own, forms in ((names, arrays), (made, results))
    )
    return _partitioning.axes_of_call(kernel, call.attributes, given, out, call.per_sample)


_register(forward_p, _plain_forward, _cpu_forward, _abstract(forward_p, _plain_forward))
_register(gradient_p, _plain_gradient, _cpu_gradient, _abstract(gradient_p, _plain_gradient))
_register(tangent_p, _plain_tangent, _plain_tangent, _abstract_tangent)


def _is_zero(tangent: Any) -> bool:
    return type(tangent) is ad.Zero or tangent.dtype == jax.dtypes.float0


def _forward_jvp(
    arrays: Sequence[Any], tangents: Sequence[Any], *, call: BoundCall
) -> tuple[list[Any], list[Any]]:
    outputs = forward_p.bind(*arrays, call=call)
    moving = {name: t for name, t in zip(call.present, tangents, strict=True) if not _is_zero(t)}
    if not moving:
        return outputs, [ad.Zero(jax.typeof(y).to_tangent_aval()) for y in outputs]
    given = (*arrays, *call.kernel.saved_of(outputs), *moving.values())
    return outputs, tangent_p.bind(*given, call=call._replace(wrt=tuple(moving)))


def _tangent_transpose(cotangents: Sequence[Any], *arrays: Any, call: BoundCall) -> list[Any]:
    kernel, present, attributes, wrt, _ = call
    fixed = arrays[: len(arrays) - len(wrt)]
    asked = [name for name, x in zip(present, fixed, strict=False) if ad.is_undefined_primal(x)]
    if asked:
        raise ValueError(
            f"{kernel.name}: the transpose of its derivative by {', '.join(asked)} is asked for, expected by "
            "the tangents: in these it is linear"
        )
    unknown: list[Any] = [None] * len(fixed)
    by_name = dict(zip(kernel.outputs, cotangents, strict=True))
    given = {name: c for name, c in by_name.items() if not _is_zero(c)}
    if not given:
        return unknown + [ad.Zero(x.aval) for x in arrays[len(fixed) :]]
    named = dict(zip((*present, *kernel.saved), fixed, strict=True))
    cotangent_of = dict(zip(kernel.outputs, kernel.cotangents, strict=False))
    if given.keys() <= cotangent_of.keys() and set(wrt) <= set(kernel.graded):
        taken = {name: named[name] for name in (*kernel.taken, *kernel.saved) if name in named}
        taken |= {cotangent_of[name]: c for name, c in given.items()}
        return unknown + gradient(kernel, taken, wrt, attributes)
    # an output or an operand has no gradient in the kernel
    operands = {name: named[name] for name in present}

    def function(*values: Any) -> list[Any]:
        changed = operands | dict(zip(wrt, values, strict=True))
        outputs = kernel.plain_forward(changed, attributes)
        return [y for y, name in zip(outputs, kernel.outputs, strict=True) if name in given]

    pullback = jax.vjp(function, *(operands[name] for name in wrt))[1]
    return unknown + list(pullback(list(given.values())))


def _forward_transpose(cotangents: Sequence[Any], *arrays: Any, call: BoundCall) -> list[Any]:
    """The transpose of a sum of products by a factor in which it is linear: the gradient by this factor."""
    kernel, present = call.kernel, call.present
    wrt = tuple(name for name, x in zip(present, arrays, strict=True) if ad.is_undefined_primal(x))
    _check_linear(kernel, wrt, present)
    if _is_zero(cotangents[0]):
        return [ad.Zero(x.aval) if ad.is_undefined_primal(x) else None for x in arrays]
    # the operand of the transpose counts as zeros: its values do not matter
    named = {
        name: jnp.zeros(x.aval.shape, x.aval.dtype) if ad.is_undefined_primal(x) else x
        for name, x in zip(present, arrays, strict=True)
    }
    taken = {name: named[name] for name in kernel.taken if name in named}
    taken[kernel.cotangents[0]] = cotangents[0]
    by_name = dict(zip(wrt, gradient(kernel, taken, wrt, call.attributes), strict=True))
    return [by_name.get(name) for name in present]


def _check_linear(kernel: JaxKernel, wrt: Names, present: Names) -> None:
    """Check that a kernel is linear in these operands together, for fixed others."""
    asked = ", ".join(wrt)
    if not kernel.factors:
        raise ValueError(
            f"{kernel.name}: its transpose by {asked} is asked for, expected that of a linear function, and "
            "it is none; jax.vjp gives its gradient"
        )
    added = [name for name in present if name not in kernel.factors]
    if len({*wrt} & {*kernel.factors}) != 1 or not {*added} <= {*wrt}:
        rule = " or ".join(" and ".join([name, *added]) for name in kernel.factors)
        raise ValueError(
            f"{kernel.name}: its transpose by {asked} is asked for, expected by {rule}: in these it is "
            "linear; jax.vjp gives its gradient"
        )


def _gradient_transpose(cotangents: Sequence[Any], *arrays: Any, call: BoundCall) -> list[Any]:
    """The transpose of a gradient by its cotangents: the tangents, by JAX's own operations."""
    kernel, asked = call.kernel, [k for k, x in enumerate(arrays) if ad.is_undefined_primal(x)]
    names = [call.present[k] for k in asked]
    if not {*names} <= {*kernel.cotangents}:
        raise ValueError(
            f"{kernel.gradient_name}: its transpose by {', '.join(names)} is asked for, expected by "
            f"{' or '.join(kernel.cotangents)}: in these it is linear"
        )

    def function(*values: Any) -> list[Any]:
        return _plain_gradient(*_replaced(arrays, asked, values), call=call)

    # not at zeros, because a kernel may omit products with zero; elsewhere the slope is the same
    ones = [jnp.ones(arrays[k].aval.shape, arrays[k].aval.dtype) for k in asked]
    made = jax.vjp(function, *ones)[1]([ad.instantiate_zeros(c) for c in cotangents])
    by_place = dict(zip(asked, made, strict=True))
    return [by_place.get(k) for k in range(len(arrays))]


def _replaced(arrays: Sequence[Any], places: Sequence[int], values: Sequence[Any]) -> list[Any]:
    """The arrays, with other values at some places."""
    by_place = dict(zip(places, values, strict=True))
    return [by_place.get(k, x) for k, x in enumerate(arrays)]


def _plain_jvp(primitive: Primitive, plain: Way) -> Callable[..., tuple[list, list]]:
    """The rule of a primitive that takes its tangents from JAX's own operations."""

    def rule(arrays: Sequence[Any], tangents: Sequence[Any], *, call: BoundCall) -> tuple[list, list]:
        moving = [k for k, t in enumerate(tangents) if not _is_zero(t)]

        def function(*values: Any) -> list[Any]:
            return plain(*_replaced(arrays, moving, values), call=call)

        outputs = primitive.bind(*arrays, call=call)
        given = tuple(arrays[k] for k in moving), tuple(tangents[k] for k in moving)
        return outputs, jax.jvp(function, *given)[1]

    return rule


ad.primitive_jvps[forward_p] = _forward_jvp
ad.primitive_jvps[gradient_p] = _plain_jvp(gradient_p, _plain_gradient)
ad.primitive_jvps[tangent_p] = _plain_jvp(tangent_p, _plain_tangent)
ad.primitive_transposes[forward_p] = _forward_transpose
ad.primitive_transposes[gradient_p] = _gradient_transpose
ad.primitive_transposes[tangent_p] = _tangent_transpose


def _batch_rule(plain: Way, mapped: Callable[..., Mapped] | None) -> Callable[..., Mapped]:
    """The rule that maps a primitive: by `mapped`, or by mapping JAX's own operations."""

    def rule(arrays: Sequence[Any], dims: Sequence[Any], *, call: BoundCall) -> Mapped:
        if mapped is not None and not call.kernel.reduces(call.attributes):
            named, at = (dict(zip(call.present, values, strict=True)) for values in (arrays, dims))
            return mapped(MappedCall(jnp, call.kernel, named, at, call.attributes), call)
        results = jax.vmap(functools.partial(plain, call=call), in_axes=tuple(dims))(*arrays)
        return results, [0] * len(results)

    return rule


def _mapped_forward(mapped: MappedCall, call: BoundCall) -> Mapped:
    def run(given: Mapping[str, Any], changed: Mapping[str, Any] = call.attributes) -> list[Any]:
        return forward(call.kernel, given, Attributes(changed))

    return _one_by_one(run, mapped) if mapped.is_separate() else mapped.forward(run)


def _mapped_gradient(mapped: MappedCall, call: BoundCall) -> Mapped:
    def run(
        given: Mapping[str, Any], changed: Mapping[str, Any] = call.attributes, each: bool = call.per_sample
    ) -> list[Any]:
        return gradient(call.kernel, given, call.wrt, Attributes(changed), each)

    if mapped.is_separate(call.wrt):
        return _one_by_one(run, mapped)
    return mapped.gradient(run, call.wrt, call.per_sample)


def _one_by_one(run: Callable[[Mapping[str, Any]], list[Any]], mapped: MappedCall) -> Mapped:
    """Run slice by slice, in one loop of XLA's."""
    arrays = {name: x for name, x in mapped.arrays.items() if name in mapped.mapped}
    results = jax.lax.map(lambda slices: run({**mapped.arrays, **slices}), arrays)
    return results, [0] * len(results)


batching.primitive_batchers[forward_p] = _batch_rule(_plain_forward, _mapped_forward)
batching.primitive_batchers[gradient_p] = _batch_rule(_plain_gradient, _mapped_gradient)
batching.primitive_batchers[tangent_p] = _batch_rule(_plain_tangent, None)
