"""Kernels as registered operators for PyTorch's compilers: ``torch.ops.xpgrad.lstm`` and so on.

`torch.compile`, `torch.export` and other recorders see each kernel and each gradient as one operator, and
``FlopCounterMode`` counts its products. Schemas, shapes and derivatives follow from their descriptions.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from xpgrad._operators.kernel_description import OPEN
from xpgrad._operators.operation_counts import forward_operations, gradient_operations
from xpgrad.engine import only_shapes
from xpgrad_torch._batching import vmap_forward, vmap_gradient
from xpgrad_torch._kept import keep, was_written_to
from xpgrad_torch._kernel import TorchKernel
from xpgrad_torch._layout import placed_as
from xpgrad_torch._lengths import LENGTHS
from xpgrad_torch._private import count_dispatch_modes, is_wrapped, register_autograd

# `torch.library.custom_op` does the same, but the package's import took a sixth longer.
_LIBRARY = torch.library.Library("xpgrad", "FRAGMENT")

# A list with one integer means this integer for all dimensions.
_SIZES = "int | Sequence[int]"
_TYPES = {
    "str": "str",
    **dict.fromkeys(
        ("Approximate", "AutoPad", "ConvMethod", "Peephole", "Reduction", "TimeDirection"), "str"
    ),
    "int": "int",
    "int | None": "int?",
    "bool": "bool",
    "float": "float",
    "float | None": "float?",
    "Sequence[str] | None": "str[]?",
    "Sequence[float] | None": "float[]?",
    "Sequence[int] | None": "int[]?",
    _SIZES: "int[1]",
}


MOST_ARGUMENTS = 64
"""The most arguments that an operator of PyTorch may have."""


def count_arguments(kernel: TorchKernel) -> int:
    """Return the number of arguments of the gradient's operator; the kernel's own has fewer."""
    options = len(kernel.attributes | kernel.gradient_attributes) + kernel.has_per_sample + 1  # wrt
    return len(kernel.gradient_arrays) + options


def registered(kernel: TorchKernel) -> TorchKernel:
    """Register a kernel and its gradient as operators, and return it."""
    kernel.operator = _ForwardOperator(kernel, kernel.operator_name).call
    kernel.gradient_operator = _GradientOperator(kernel, f"{kernel.operator_name}_grad").call
    return kernel


class _RegisteredOperator:
    """The common part of kernels' operators and gradients' operators, which have the rules for PyTorch."""

    run: Callable[..., Any]
    fake: Callable[..., Any]
    setup_context: Callable[..., None]
    backward: Callable[..., Any]
    vmap: Callable[..., Any]
    operations: Callable[..., int]

    def __init__(self, kernel: TorchKernel, name: str, schema: str) -> None:
        self.kernel = kernel
        parameters = kernel.attributes | kernel.gradient_attributes
        self.defaults = {name: p.default for name, p in parameters.items()}
        self.sizes = [name for name, p in parameters.items() if p.annotation == _SIZES]
        _LIBRARY.define(name + schema, tags=torch.Tag.pt2_compliant_tag)
        self.call = getattr(torch.ops.xpgrad, name).default
        _LIBRARY.impl(self.call, self.run, "CompositeExplicitAutograd")
        torch.library.register_fake(self.call, self.fake, lib=_LIBRARY)
        torch.library.register_vmap(self.call, self.vmap, lib=_LIBRARY)
        register_autograd(_LIBRARY, self.call, self.backward, self.setup_context)
        if "W" in kernel.operands:
            register_flop_formula(getattr(torch.ops.xpgrad, name))(self.operations)

    def numbers(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Return all attributes as the kernel takes them; PyTorch omits attributes with their default."""
        return self.defaults | {
            name: value[0] if name in self.sizes and len(value) == 1 else value
            for name, value in attributes.items()
        }


class _ForwardOperator(_RegisteredOperator):
    """A kernel. It takes the gradient's own attributes too, for its backward."""

    def __init__(self, kernel: TorchKernel, name: str) -> None:
        # No defaults: PyTorch would omit such arguments, and count gradients without them.
        operands = [f"Tensor{'' if x in kernel.required else '?'} {x}" for x in kernel.operands]
        results = ", ".join(["Tensor"] * len(kernel.outputs))
        super().__init__(kernel, name, _schema(kernel, operands, [], f"({results})"))

    def run(self, *operands: Any, **attributes: Any) -> Any:
        kernel, own = self.kernel, self.kernel.own(self.numbers(attributes))
        named = dict(zip(kernel.operands, operands, strict=True))
        outputs = kernel.forward(*operands, **own)
        return _result([placed_as(y, kernel.empty_output(y.shape, named, own)) for y in outputs])

    def fake(self, *operands: Any, **attributes: Any) -> Any:
        kernel, own = self.kernel, self.kernel.own(self.numbers(attributes))
        sizes = _axis_sizes(kernel, _shapes(kernel.operands, operands), own)
        told = [_shape_of(kernel, name, sizes, own) for name in kernel.outputs]
        shapes = [shape for shape in told if shape is not None]
        if len(shapes) < len(told):
            # without lengths: their values are unknown, and no shape depends on them
            pairs = zip(kernel.operands, operands, strict=True)
            given = [None if name == LENGTHS else x for name, x in pairs]
            outputs = only_shapes(lambda: kernel.forward(*given, **own))
            shapes = [list(y.shape) for y in outputs]
        named = dict(zip(kernel.operands, operands, strict=True))
        return _result([kernel.empty_output(shape, named, own) for shape in shapes])

    def setup_context(self, ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any = None) -> None:
        kernel = self.kernel
        outputs = output if isinstance(output, tuple | list) else (output,)
        operands = dict(zip(kernel.operands, inputs, strict=True))
        kept = list(outputs)
        if kernel.returned and all(map(_is_eager, outputs)):
            kept = [keep(y, False) if k in kernel.returned else y for k, y in enumerate(outputs)]
        ctx.save_for_backward(*(operands[name] for name in kernel.taken), *kernel.saved_of(kept))
        ctx.mark_non_differentiable(*outputs[len(kernel.cotangents) :])
        ctx.attributes = keyword_only_inputs or {}

    def backward(self, ctx: Any, *cotangents: Any) -> Any:
        kernel = self.kernel
        needed = dict(zip(kernel.operands, ctx.needs_input_grad, strict=True))
        wrt = [name for name in kernel.operands if needed[name]]
        saved = ctx.saved_tensors  # a checkpoint lets its tensors be read once
        taken, kept = saved[: len(kernel.taken)], saved[len(kernel.taken) :]
        if any(map(was_written_to, kept)):
            again = self.call(*kernel.operands_of(taken), **ctx.attributes)
            kept = kernel.saved_of(_list(again))
        arrays = [*taken, *kept, *cotangents[: len(kernel.cotangents)]]
        grads = kernel.gradient_operator(*arrays, **ctx.attributes, wrt=wrt)
        by_name = dict(zip(wrt, grads, strict=True))
        return tuple(by_name.get(name) for name in kernel.operands)

    def vmap(self, info: Any, dims: Any, *operands: Any, **attributes: Any) -> Any:
        def run(joined: Any, changed: Any) -> Sequence[Any]:
            return _list(self.call(*joined, **changed))

        attributes = self.numbers(attributes)
        results, positions = vmap_forward(self.kernel, run, dims, operands, attributes)
        return _result(results), _result(positions)

    def operations(self, *shapes: Any, out_shape: Any, **attributes: Any) -> int:
        first = out_shape if isinstance(out_shape, torch.Size) else out_shape[0]
        return forward_operations(self.kernel.operator_name, _given(self.kernel.operands, shapes), first)


class _GradientOperator(_RegisteredOperator):
    """A kernel's gradient: the gradients of the operands `wrt`, in this order.

    Its own derivative treats the saved arrays as functions of the operands.
    """

    def __init__(self, kernel: TorchKernel, name: str) -> None:
        given = {*kernel.required, *kernel.saved}
        arrays = [f"Tensor{'' if x in given else '?'} {x}" for x in kernel.gradient_arrays]
        options = [*(["bool per_sample=False"] if kernel.has_per_sample else []), "str[] wrt"]
        super().__init__(kernel, name, _schema(kernel, arrays, options, "Tensor[]"))

    def run(
        self, *arrays: Any, wrt: Sequence[str], per_sample: bool = False, **attributes: Any
    ) -> list[Tensor]:
        kernel = self.kernel
        named = dict(zip(kernel.gradient_arrays, arrays, strict=True))
        grads = kernel.gradient(arrays, wrt, self.numbers(attributes), per_sample)
        return [
            placed_as(grad, kernel.empty_gradient(name, grad.shape, named, per_sample))
            for name, grad in zip(wrt, grads, strict=True)
        ]

    def fake(
        self, *arrays: Any, wrt: Sequence[str], per_sample: bool = False, **attributes: Any
    ) -> list[Tensor]:
        kernel, attributes = self.kernel, self.numbers(attributes)
        named = dict(zip(kernel.gradient_arrays, arrays, strict=True))
        sizes = _axis_sizes(kernel, _shapes(kernel.gradient_arrays, arrays), attributes)
        grads = []
        for name in wrt:
            # a bias is no argument of the gradient: its shape follows from its axes' names
            shape: Any = named[name].shape if name in named else _shape_of(kernel, name, sizes, attributes)
            if per_sample and kernel.batch_axis(name, attributes) is None:
                shape = (*sizes["N"], *shape)
            grads.append(kernel.empty_gradient(name, shape, named, per_sample))
        return grads

    def setup_context(self, ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any = None) -> None:
        ctx.save_for_backward(*inputs)
        attributes = dict(keyword_only_inputs)
        ctx.wrt, ctx.per_sample = attributes.pop("wrt"), attributes.pop("per_sample", False)
        ctx.attributes = attributes

    def backward(self, ctx: Any, *cotangents: Any) -> Any:
        (grads,) = cotangents
        arrays, needs = ctx.saved_tensors, ctx.needs_input_grad[: len(self.kernel.gradient_arrays)]
        pullback, attributes = self.kernel.gradient_pullback, self.numbers(ctx.attributes)
        return tuple(pullback(arrays, ctx.wrt, attributes, ctx.per_sample, needs, grads))

    def vmap(
        self,
        info: Any,
        dims: Any,
        *arrays: Any,
        wrt: Sequence[str],
        per_sample: bool = False,
        **attributes: Any,
    ) -> Any:
        def run(joined: Any, changed: Any, each: bool) -> Any:
            return self.call(*joined, **changed, **({"per_sample": True} if each else {}), wrt=wrt)

        attributes = self.numbers(attributes)
        mapped = vmap_gradient(self.kernel, run, dims, arrays, attributes, wrt, per_sample)
        return tuple(map(list, mapped))

    def operations(self, *shapes: Any, out_shape: Any, wrt: Sequence[str] = (), **attributes: Any) -> int:
        kernel, given = self.kernel, _given(self.kernel.gradient_arrays, shapes)
        output = given.get(kernel.cotangents[0], ())
        layout = self.numbers(attributes).get("layout", 0)
        return gradient_operations(kernel.operator_name, given, output, wrt, layout)


def _schema(kernel: TorchKernel, arrays: Sequence[str], options: Sequence[str], result: str) -> str:
    parameters = kernel.attributes | kernel.gradient_attributes
    options = [*map(_attribute, parameters.values()), *options]
    return f"({', '.join([*arrays, '*', *options] if options else arrays)}) -> {result}"


def _attribute(parameter: inspect.Parameter) -> str:
    """Return the text of an attribute in a schema, with the kernel's default."""
    default = parameter.default
    text = json.dumps(default) if isinstance(default, str) else str(default)
    return f"{_TYPES[str(parameter.annotation)]} {parameter.name}={text}"


def _shapes(names: Sequence[str], arrays: Sequence[Any]) -> dict[str, Sequence[int]]:
    """Return the shapes of the given arrays by name."""
    return {name: x.shape for name, x in _given(names, arrays).items()}


def _given(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """Return the values that are not None, by name."""
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def _is_eager(output: Tensor) -> bool:
    """Tell whether an output is plain memory, without a compiler, a mode or a transformation."""
    return type(output) is Tensor and not is_wrapped(output) and not count_dispatch_modes()


def _list(result: Any) -> Sequence[Any]:
    return result if isinstance(result, tuple | list) else (result,)


def _result(results: Sequence[Any]) -> Any:
    """Return the only result, or all as a tuple."""
    return results[0] if len(results) == 1 else tuple(results)


def _axis_sizes(
    kernel: TorchKernel, shapes: Mapping[str, Sequence[int]], attributes: Mapping[str, Any]
) -> dict[str, tuple[int, ...]]:
    """Return the size of each named axis as a tuple: several sizes for "...", none for a missing N."""
    sizes: dict[str, tuple[int, ...]] = {}
    multiples: dict[str, int] = {}
    # W comes last: a transposed convolution's has only the output channels of each group
    for name in sorted([name for name in shapes if name in kernel.shapes], key=lambda name: name == "W"):
        axes, shape = kernel.axes(name, attributes), tuple(shapes[name])
        if kernel.lacks_batch(name, len(shape), attributes):
            axes = [axis for axis in axes if axis != "N"]
            sizes.setdefault("N", ())
        for k, axis in enumerate(axes):
            if axis.isalpha() or axis in OPEN:
                sizes.setdefault(axis, shape[k:] if axis in OPEN else shape[k : k + 1])
            elif axis not in multiples:
                multiples[axis] = shape[k]
    for axis, size in multiples.items():  # if no array has the axis itself
        symbol = axis.lstrip("0123456789")
        if symbol and symbol not in sizes:
            sizes[symbol] = (size // int(axis.removesuffix(symbol)),)
    return sizes


def _shape_of(
    kernel: TorchKernel, name: str, sizes: Mapping[str, tuple[int, ...]], attributes: Mapping[str, Any]
) -> list[int] | None:
    """Return the shape of an array from the sizes of axes; None if only a computation tells it."""
    axes = kernel.axes(name, attributes)
    if "?" in axes:
        return None
    shape: list[int] = []
    for axis in axes:
        symbol = axis.lstrip("0123456789")
        factor = int(axis.removesuffix(symbol) or 1)
        shape += [factor * n for n in sizes[symbol]] if symbol else [factor]
    return shape
