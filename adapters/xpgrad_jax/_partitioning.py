"""How XLA splits a call over devices: each device runs the kernel on its part of the batch.

`xpgrad._operators.axes` names the axes of all arrays. Samples do not depend on one another, so their axis may
be split, and so may the output channels of a convolution without groups. The gradient of an array without
this axis is summed over the devices.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from xpgrad._operators.kernel_description import OPEN
from xpgrad.engine.process.variables import with_value
from xpgrad_jax._kernel import Attributes, JaxKernel

Labels = tuple[str | None, ...]
"""The labels of an array's axes: axes with a label may be split, equally in all arrays; others have None."""
Shape = tuple[int, ...]


class Axes(NamedTuple):
    """The axes of a call's operands and results."""

    operands: tuple[Labels, ...]
    results: tuple[Labels, ...]


# --- which axes may be split


def axes_of_call(
    kernel: JaxKernel,
    attributes: Attributes,
    operands: Sequence[tuple[str, Shape]],
    results: Sequence[tuple[str, Shape]],
    per_sample: bool = False,
) -> Axes | None:
    """The axes of a call of a kernel, of its gradient or tangent; None if no axis may be split.

    `operands` and `results` are the kernel's names with shapes; gradients and tangents have their operand's
    name. With `per_sample`, gradients of parameters have an axis for the samples in front.
    """
    leader = next(shape for name, shape in operands if name in kernel.shapes)
    labels = tuple(_labels(kernel, name, shape, leader, attributes) for name, shape in operands)
    made = tuple(
        ("N", *_labels(kernel, name, shape[1:], leader, attributes))
        if per_sample and kernel.batch_axis(name, attributes) is None
        else _labels(kernel, name, shape, leader, attributes)
        for name, shape in results
    )
    return agreeing(Axes(labels, made), [shape for _, shape in (*operands, *results)])


def agreeing(axes: Axes, shapes: Sequence[Shape]) -> Axes | None:
    """Remove labels of different sizes, and of size 1; None if no label is left."""
    sizes: dict[str, set[int]] = {}
    for labels, shape in zip((*axes.operands, *axes.results), shapes, strict=True):
        for label, size in zip(labels, shape, strict=True):
            if label is not None:
                sizes.setdefault(label, set()).add(size)
    kept = {label for label, found in sizes.items() if len(found) == 1 and found != {1}}
    if not kept:
        return None
    return Axes(*(tuple(tuple(x if x in kept else None for x in own) for own in part) for part in axes))


def shapes_of_results(axes: Axes, parts: Sequence[Shape], whole: Sequence[Shape]) -> list[Shape]:
    """The shapes of the results for parts of the operands, from the shapes for whole operands."""
    sizes: dict[str | None, int] = {}
    for labels, shape in zip(axes.operands, parts, strict=True):
        sizes |= zip(labels, shape, strict=True)
    return [
        tuple(size if label is None else sizes[label] for label, size in zip(labels, shape, strict=True))
        for labels, shape in zip(axes.results, whole, strict=True)
    ]


def _labels(kernel: JaxKernel, name: str, shape: Shape, leader: Shape, attributes: Attributes) -> Labels:
    """The labels of an array's axes; an array without an entry is broadcast to the leading operand."""
    if name not in kernel.shapes:
        own = _labels(kernel, "X", leader, leader, attributes)
        ends = zip(reversed(own), reversed(leader), reversed(shape), strict=False)
        aligned = [label if size == full else None for label, full, size in ends]
        return (*(None,) * (len(shape) - len(aligned)), *reversed(aligned))
    names = kernel.axes(name, attributes)
    known = [axis for axis in names if axis not in OPEN]
    if len(shape) < len(known):  # a single sample
        return (None,) * len(shape)
    apart = {"N", "O"} if attributes.get("group", 1) == 1 else {"N"}
    labels: list[str | None] = [axis if axis in apart else None for axis in known]
    labels += [f"axis{k}" if kernel.elementwise else None for k in range(len(known), len(shape))]
    if "axis" in attributes:  # a kernel works along it, such as a softmax
        axis = attributes["axis"] % len(shape)
        end = len(shape) if attributes.get("flatten") else axis + 1
        labels[axis:end] = [None] * (end - axis)
    return tuple(labels)


# --- types that say how the user splits arrays


def varying(form: Any) -> frozenset[Any]:
    """The mesh axes over which an array varies, if this version of JAX has them."""
    return getattr(getattr(form, "manual_axis_type", None), "varying", frozenset())


def alike(arrays: Iterable[Any]) -> list[Any]:
    """Make arrays vary over the same mesh axes, as JAX's own operations do.

    In a `shard_map` that knows which arrays are equal on all devices, the gradient of such an array is then
    the sum over the devices.
    """
    given = list(arrays)
    axes = [varying(jax.typeof(x)) for x in given]
    together = frozenset[Any]().union(*axes)
    return [
        jax.lax.pcast(x, tuple(together - own), to="varying") if together - own else x
        for x, own in zip(given, axes, strict=True)
    ]


def has_explicit_axes(form: Any) -> bool:
    """Whether the type of an array says how it is split over a mesh."""
    return not varying(form) and AxisType.Explicit in (form.sharding.mesh.axis_types or ())


def typed(results: Sequence[Any], operands: Sequence[Any], axes: Axes | None) -> list[Any]:
    """The types of results, if the operands' types say how they are split."""
    mesh = next(x.sharding.mesh for x in operands if has_explicit_axes(x))
    if axes is None:
        axes = Axes(*(tuple((None,) * len(x.shape) for x in part) for part in (operands, results)))
    by: dict[str, Any] = {}
    for labels, x in zip(axes.operands, operands, strict=True):
        for label, entry in zip(labels, x.sharding.spec, strict=True):
            if label is not None and entry is not None and entry not in by.values():
                by.setdefault(label, entry)
    return [
        jax.core.ShapedArray(
            y.shape, y.dtype, sharding=NamedSharding(mesh, PartitionSpec(*(by.get(x or "") for x in labels)))
        )
        for y, labels in zip(results, axes.results, strict=True)
    ]


# --- splitting

_splitting_among: ContextVar[tuple[Any, ...]] = ContextVar("xpgrad_jax_splitting_among", default=())


def is_splitting() -> bool:
    """Whether the current lowering is for several devices, among which XLA splits the call."""
    return bool(_splitting_among.get())


def splitting(context: Any, lower: Callable[[Any], Any]) -> Any:
    """Call `lower` with the context for lowering; meanwhile `is_splitting` tells about this rule's context.

    JAX lowers without naming devices, and the partitioners only count them, so any devices can represent
    them. Exported text must not contain rules, which are functions of this process. In a `shard_map` arrays
    are already parts.
    """
    module = context.module_context
    axes = module.axis_context
    count = getattr(axes, "num_devices", 1)
    devices: tuple[Any, ...] = ()
    if count > 1 and not module.lowering_parameters.for_export:
        devices = tuple(axes.device_assignment or _devices_of(module.platforms[0])[:count])
    if len(devices) == count > 1:
        axes = dataclasses.replace(axes, device_assignment=devices)
        context = context.replace(module_context=module.replace(axis_context=axes))
    else:
        devices = ()
    if not any(map(has_explicit_axes, context.avals_in)):
        return with_value(_splitting_among, devices, lower, context)
    # within a kernel JAX must not ask for shardings that it cannot infer; the call already has types
    untyped = [jax.core.ShapedArray(x.shape, x.dtype) for x in context.avals_in]
    with jax.sharding.use_abstract_mesh(_NO_MESH):
        return with_value(_splitting_among, devices, lower, context.replace(avals_in=untyped))


def _devices_of(platform: str) -> list[Any]:
    """The devices of a platform; none if JAX lowers for another machine."""
    try:
        return jax.devices(platform)
    except RuntimeError:
        return []


def split(run: Callable[..., Sequence[Any]], what: str, axes: Axes, *arrays: Any) -> list[Any]:
    """The results of `run` for arrays that XLA may split along `axes`.

    `run` takes arrays, or their parts, and returns the results, or their parts and terms of sums. `what`
    describes the computation, and distinguishes executables in JAX's cache.
    """
    rule = _SplitRule(run, axes, _splitting_among.get())
    call = custom_partitioning(rule.run)
    call.def_partition(
        rule.partition, rule.shardings_of_results, decode_shardings=False, sharding_rule=rule.text()
    )

    def named(*given: Any) -> Any:
        return call(*given)

    named.__name__ = f"xpgrad_{hashlib.blake2b(what.encode(), digest_size=8).hexdigest()}"
    return jax.jit(named)(*arrays)


_NO_MESH = AbstractMesh((), ())
"""Parts have no mesh, in any context of the caller."""


class _Digit(NamedTuple):
    """A device's part: a digit of its number, and how many consecutive devices have the same digit."""

    stride: int
    values: int


class _SplitRule:
    """The answers to XLA's partitioners about a call."""

    def __init__(self, run: Callable[..., Sequence[Any]], axes: Axes, devices: tuple[Any, ...]) -> None:
        self._run, self._axes, self._devices = run, axes, devices

    def run(self, *arrays: Any) -> list[Any]:
        """The results for arrays, or for parts their parts and terms."""
        return list(self._run(*arrays))

    def text(self) -> str:
        """For Shardy: every axis by name; axes that are not split have unique names."""
        names = map("own{}".format, itertools.count())

        def side(arrays: Sequence[Labels]) -> str:
            return ", ".join(" ".join(label or next(names) for label in labels) for labels in arrays)

        return f"{side(self._axes.operands)} -> {side(self._axes.results)}"

    def shardings_of_results(self, _: Any, operands: Sequence[Any], results: Any) -> list[NamedSharding]:
        """For GSPMD: the results' shardings from the operands'."""
        mesh = self._mesh(self._axes.operands, operands)
        return [_sharding(mesh, labels) for labels in self._axes.results]

    def partition(self, _: Any, operands: Sequence[Any], results: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
        """Each device's computation, and the shardings of results and operands."""
        mesh = self._mesh(self._axes.operands + self._axes.results, [*operands, *results])
        made, given = (
            [_sharding(mesh, own) for own in part] for part in (self._axes.results, self._axes.operands)
        )

        def run(*parts: Any) -> list[Any]:
            with jax.sharding.use_abstract_mesh(_NO_MESH):
                results = zip(self.run(*parts), self._axes.results, strict=True)
                return [_summed(y, mesh, labels) for y, labels in results]

        return mesh, run, made, tuple(given)

    def _mesh(self, axes: Sequence[Labels], arrays: Sequence[Any]) -> Mesh:
        """The devices, with an axis for each split label, as in the first array that splits it."""
        digits: dict[str, _Digit] = {}
        for labels, x in zip(axes, arrays, strict=True):
            for label, size, digit in zip(labels, x.shape, self._digits(x), strict=True):
                if label is None or label in digits or digit is None or size % digit.values:
                    continue
                if _shape_of(len(self._devices), [*digits.values(), digit]) is not None:
                    digits[label] = digit
        shape = _shape_of(len(self._devices), [*digits.values()]) or ()
        between = map("between{}".format, itertools.count())
        names = [""] * len(shape)
        names[::2] = [next(between) for _ in names[::2]]
        names[1::2] = sorted(digits, key=lambda label: -digits[label].stride)
        return Mesh(np.asarray(self._devices).reshape(shape), names)

    def _digits(self, x: Any) -> list[_Digit | None]:
        """How each axis of an array is split; None if it is not split, or not by one digit."""
        count = len(self._devices)
        if x.sharding is None:
            return [None] * len(x.shape)
        # the number of an axis's parts does not depend on its size, and divides the number of devices
        slices = list(x.sharding.devices_indices_map((count,) * len(x.shape)).values())
        return [_digit([own[axis].start or 0 for own in slices]) for axis in range(len(x.shape))]


def _digit(starts: Sequence[int]) -> _Digit | None:
    """The digit of the device numbers that determines the start of each device's part."""
    values = sorted({*starts})
    parts = [values.index(start) for start in starts]
    if len(values) < 2 or parts[0]:
        return None
    digit = _Digit(parts.index(1), len(values))
    return digit if parts == [k // digit.stride % digit.values for k in range(len(parts))] else None


def _shape_of(devices: int, digits: Sequence[_Digit]) -> list[int] | None:
    """The devices as an array with axes for all digits, and between them; None if two digits overlap."""
    shape, left = [], devices
    for digit in sorted(digits, reverse=True):
        if left % (digit.stride * digit.values):
            return None
        shape += [left // (digit.stride * digit.values), digit.values]
        left = digit.stride
    return [*shape, left]


def _sharding(mesh: Mesh, labels: Labels) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*(label if label in mesh.shape else None for label in labels)))


def _summed(y: Any, mesh: Mesh, labels: Labels) -> Any:
    """A result, summed over the devices that split axes which the result lacks."""
    over = [name for name in mesh.axis_names if name not in labels and not name.startswith("between")]
    return jax.lax.psum(y, tuple(over)) if over else y
