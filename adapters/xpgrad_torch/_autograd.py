"""xpgrad's kernels under autograd and `torch.func`: one autograd function for all of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import xpgrad
from xpgrad_torch._batching import vmap_forward, vmap_gradient
from xpgrad_torch._expanded import has_expanded, run_expanded
from xpgrad_torch._kernel import Kernel, autocasts
from xpgrad_torch._opacus import KernelSamples, collecting
from xpgrad_torch._private import (
    add_older_batch,
    are_transforms_active,
    count_dispatch_modes,
    is_forward_mode,
    is_of_older_vmap,
    no_setup_context,
    older_vmap_level,
    remove_older_batch,
)
from xpgrad_torch._stacked import Stacked, joined

__all__ = ["Kernel", "apply", "autocasts", "is_followed", "map_older_batch"]


class _XpgradKernel(torch.autograd.Function):
    """A kernel with its gradient as the backward.

    Its arguments are a `Kernel`, the operands, the attributes of both, those of the gradient alone, and
    whether the gradient is to run the kernel again instead of keeping its outputs. What is saved are operands
    and outputs, not attributes of the context, so that autograd owns and frees them.
    """

    @staticmethod
    def forward(*args: Any) -> Any:
        kernel, *operands, attributes, _, _ = args
        return tuple(kernel.forward(*operands, **attributes))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        kernel, *operands, attributes, asked, again = inputs
        by_name = dict(zip(kernel.operands, operands, strict=True))
        saved = [] if again else kernel.saved_of(output)
        ctx.save_for_backward(*(by_name[name] for name in kernel.taken), *saved)
        ctx.mark_non_differentiable(*output[len(kernel.cotangents) :])
        ctx.set_materialize_grads(False)
        ctx.kernel, ctx.attributes, ctx.asked, ctx.again = kernel, attributes, asked, again
        ctx.samples = _samples_of(kernel, by_name)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        needs = ctx.needs_input_grad[1 : len(ctx.kernel.operands) + 1]
        if all(cotangent is None for cotangent in cotangents):
            return (None,) * len(ctx.needs_input_grad)
        grads = _XpgradKernel._gradients(ctx, needs, list(ctx.saved_tensors), cotangents)
        return None, *grads, None, None, None

    @staticmethod
    def _gradients(
        ctx: Any, needs: Sequence[bool], arrays: list[Tensor | None], cotangents: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Return the gradients of those operands that need one, from what the forward saved."""
        kernel = ctx.kernel
        wrt = tuple(name for name, need in zip(kernel.operands, needs, strict=True) if need)
        # Where this gradient is part of a graph, or of something that torch.func follows, it needs rules too.
        followed = torch.is_grad_enabled() or are_transforms_active()
        if ctx.again and kernel.saved:
            operands = _all_operands(kernel, arrays)
            outputs = (
                _XpgradKernel.apply(kernel, *operands, ctx.attributes, ctx.asked, True)
                if followed
                else kernel.forward(*operands, **ctx.attributes)
            )
            arrays += kernel.saved_of(outputs)
        arrays += cotangents[: len(kernel.cotangents)]
        if ctx.samples is not None and ctx.samples.is_wanted:
            found = ctx.samples.gradients(kernel, arrays, wrt, ctx.attributes | ctx.asked)
            return [found.get(name) for name in kernel.operands]
        if any(c is not None and is_of_older_vmap(c) for c in cotangents):
            grads = map_older_batch(kernel, arrays, wrt, ctx.attributes, ctx.asked)
        elif followed:
            grads = _XpgradGradient.apply(kernel, *arrays, wrt, ctx.attributes, ctx.asked, False)
        else:
            grads = kernel.gradient(arrays, wrt, ctx.attributes | ctx.asked)
        by_name = dict(zip(wrt, grads, strict=True))
        return [by_name.get(name) for name in kernel.operands]

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        kernel, *operands, attributes, asked, again = args
        return vmap_forward(
            kernel,
            lambda joined, changed: _XpgradKernel.apply(kernel, *joined, changed, asked, again),
            info.batch_size,
            in_dims[1:-3],
            operands,
            attributes,
        )


class _EagerKernel(_XpgradKernel):
    """The same where no transformation of `torch.func` is at work.

    PyTorch then calls one function instead of two, and does not look up the forward's signature each time.
    """

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        outputs = _XpgradKernel.forward(*args)
        _XpgradKernel.setup_context(ctx, args, outputs)
        return outputs

    setup_context = staticmethod(no_setup_context)


class _StackedKernel(torch.autograd.Function):
    """The same for operands of which some are `Stacked`: what joins them needs no nodes of autograd's.

    Its arguments are a `Kernel`, of each operand the number of parameters and of directions, these parameters
    one behind the other, and what `_XpgradKernel` has behind the operands.
    """

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        kernel, layout, *flat, attributes, asked, again = args
        operands = _grouped(layout, flat)
        outputs = tuple(kernel.forward(*joined(operands), **attributes))
        ctx.save_for_backward(*flat, *([] if again else kernel.saved_of(outputs)))
        ctx.mark_non_differentiable(*outputs[len(kernel.cotangents) :])
        ctx.set_materialize_grads(False)
        ctx.kernel, ctx.attributes, ctx.asked, ctx.again = kernel, attributes, asked, again
        ctx.layout, ctx.count = layout, len(flat)
        ctx.samples = _samples_of(kernel, dict(zip(kernel.operands, operands, strict=True)))
        return outputs

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        if all(cotangent is None for cotangent in cotangents):
            return (None,) * len(ctx.needs_input_grad)
        kernel, count, saved = ctx.kernel, ctx.count, ctx.saved_tensors
        operands = _grouped(ctx.layout, saved[:count])
        needed = _grouped(ctx.layout, ctx.needs_input_grad[2 : count + 2])
        needs = [any(one.parameters) if type(one) is Stacked else one for one in needed]
        by_name = dict(zip(kernel.operands, joined(operands), strict=True))
        arrays = [by_name[name] for name in kernel.taken]
        grads = _XpgradKernel._gradients(ctx, needs, [*arrays, *saved[count:]], cotangents)
        flat: list[Tensor | None] = []
        for operand, grad in zip(operands, grads, strict=True):
            flat += operand.parts(grad) if type(operand) is Stacked else (grad,)
        return None, None, *flat, None, None, None


def _samples_of(kernel: Kernel, operands: Mapping[str, Any]) -> KernelSamples | None:
    """Return what the backward is to find out about samples, where the module that runs was asked to."""
    samples = collecting.get()
    return None if samples is None else samples.of_kernel(operands)


def _grouped(layout: Sequence[tuple[int, int]], flat: Sequence[Any]) -> list[Any]:
    """Return operands from their parameters one behind the other; those of no parameters are as they are."""
    operands: list[Any] = []
    start = 0
    for size, directions in layout:
        whole = directions < 0
        operands.append(flat[start] if whole else Stacked(flat[start : start + size], directions))
        start += size
    return operands


def _apply_stacked(
    kernel: Kernel,
    operands: Sequence[Any],
    attributes: Mapping[str, Any],
    asked: Mapping[str, Any],
    again: bool,
) -> Sequence[Tensor]:
    """Run the kernel on operands of which some are `Stacked`."""
    layout: list[tuple[int, int]] = []
    flat: list[Any] = []
    for x in operands:
        stacked = type(x) is Stacked
        flat += x.parameters if stacked else (x,)
        layout.append((len(x.parameters), x.directions) if stacked else (1, -1))
    return _StackedKernel.apply(kernel, layout, *flat, attributes, asked, again)


class _XpgradGradient(torch.autograd.Function):
    """A kernel's gradient where it is differentiated or mapped itself.

    Its arguments are a `Kernel`, the gradient's arrays, the operands to differentiate in, the attributes, and
    whether the parameters' gradients are wanted for every sample.
    """

    @staticmethod
    def forward(*args: Any) -> Any:
        kernel, *arrays, wrt, attributes, asked, per_sample = args
        return kernel.gradient(arrays, wrt, attributes | asked, per_sample)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        kernel, *arrays, wrt, attributes, asked, per_sample = inputs
        ctx.save_for_backward(*arrays)
        ctx.kernel, ctx.wrt, ctx.attributes, ctx.per_sample = kernel, wrt, attributes | asked, per_sample

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        grads = ctx.kernel.gradient_pullback(
            ctx.saved_tensors,
            ctx.wrt,
            ctx.attributes,
            ctx.per_sample,
            ctx.needs_input_grad[1:-4],
            cotangents,
        )
        return None, *grads, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        kernel, *arrays, wrt, attributes, asked, per_sample = args
        return vmap_gradient(
            kernel,
            lambda joined, changed, each: _XpgradGradient.apply(kernel, *joined, wrt, changed, asked, each),
            info.batch_size,
            in_dims[1:-4],
            arrays,
            attributes,
            wrt,
            per_sample,
        )


def map_older_batch(
    kernel: Kernel,
    arrays: Sequence[Tensor | None],
    wrt: Sequence[str],
    attributes: dict[str, Any],
    asked: dict[str, Any],
) -> tuple[Tensor, ...]:
    """Map the gradient for ``torch.autograd.grad(is_grads_batched=True)``, whose vmap knows no rules."""
    level = older_vmap_level()
    mapped = [x is not None and is_of_older_vmap(x) for x in arrays]
    bare = [
        remove_older_batch(x, level) if x is not None and batched else x
        for x, batched in zip(arrays, mapped, strict=True)
    ]
    size = next(x.shape[0] for x, batched in zip(bare, mapped, strict=True) if x is not None and batched)
    grads, dims = vmap_gradient(
        kernel,
        lambda joined, changed, each: _XpgradGradient.apply(kernel, *joined, wrt, changed, asked, each),
        size,
        [0 if batched else None for batched in mapped],
        bare,
        attributes,
        wrt,
        False,
    )
    return tuple(add_older_batch(g, dim, level) for g, dim in zip(grads, dims, strict=True))


def _all_operands(kernel: Kernel, taken: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return the kernel's operands in their order, from those that its gradient takes."""
    by_name = dict(zip(kernel.taken, taken, strict=True))
    return [by_name.get(name) for name in kernel.operands]


def apply(
    kernel: Kernel,
    operands: Sequence[Tensor | None],
    attributes: Mapping[str, Any],
    *,
    again: bool = False,
    **asked: Any,
) -> tuple[Tensor, ...]:
    """Return the kernel's outputs that have a cotangent.

    Parameters
    ----------
    kernel, operands, attributes
        What to run, on what, and how.
    again : bool
        Keep no outputs for the gradient, which then runs the kernel again: less memory for more time.
    **asked
        Attributes of the gradient alone.
    """
    stacked = Stacked in map(type, operands)
    if stacked and is_followed():
        operands, stacked = joined(operands), False
    kernel.check(operands)
    # The kernel's forward does not know this attribute, and the backward is late for an error.
    if asked.get("peephole", "full") not in ("full", "truncated"):
        raise ValueError(f"{kernel.name}: peephole is {asked['peephole']!r}, expected 'full' or 'truncated'")
    outputs: Sequence[Tensor]
    if has_expanded(operands):
        return _run_expanded(kernel, operands, attributes, again, asked)
    try:
        if stacked:
            outputs = _apply_stacked(kernel, operands, attributes, asked, again)
        elif is_recorded():
            outputs = _as_operator(kernel, operands, {**attributes, **asked}, again)
        elif is_forward_mode():
            outputs = _as_many_operators(kernel, operands, attributes, asked)
        else:
            function = _XpgradKernel if are_transforms_active() else _EagerKernel
            outputs = function.apply(kernel, *operands, attributes, asked, again)
    except Exception:
        kernel.explain(operands)
        raise
    return tuple(outputs[: len(kernel.cotangents)])


def _run_expanded(
    kernel: Kernel,
    operands: Sequence[Tensor | None],
    attributes: Mapping[str, Any],
    again: bool,
    asked: Mapping[str, Any],
) -> tuple[Tensor, ...]:
    """Run the kernel on operands of which some are expanded weights."""
    names = kernel.outputs[: len(kernel.cotangents)]
    return run_expanded(
        kernel.name,
        lambda *given: apply(kernel, given, attributes, again=again, **asked),
        operands,
        [kernel.batch_axis(name, attributes) for name in kernel.operands],
        [kernel.batch_axis(name, attributes) or 0 for name in names],
    )


def _as_operator(
    kernel: Kernel, operands: Sequence[Tensor | None], attributes: Mapping[str, Any], again: bool
) -> Sequence[Tensor]:
    """Run the kernel as the one operator that recorders of operators are to see.

    ONNX has the operators, but PyTorch's exporters know only PyTorch's. They would speak of a missing symbol.
    """
    if torch.onnx.is_in_onnx_export():
        raise RuntimeError(
            f"{kernel.name}: torch.onnx.export cannot translate xpgrad's operators, expected PyTorch's; "
            "export xpgrad_torch.unswap(model), which computes the same"
        )
    names = attributes.get("activations")
    if names is not None and torch.jit.is_tracing():
        raise RuntimeError(
            f"{kernel.name}: torch.jit.trace cannot record a list of words, activations is {names} and "
            "expected None; torch.export records xpgrad's operators with all attributes"
        )

    def run(*operands: Tensor | None) -> Any:
        return kernel.operator(*operands, **attributes)

    if again:
        outputs = checkpoint(run, *operands, use_reentrant=False, preserve_rng_state=False)
    else:
        outputs = run(*operands)
    return outputs if isinstance(outputs, tuple | list) else (outputs,)


def _as_many_operators(
    kernel: Kernel, operands: Sequence[Tensor | None], attributes: Mapping[str, Any], asked: Mapping[str, Any]
) -> Sequence[Tensor]:
    """Run the kernel as PyTorch's own operators, which have all rules that there are, step by step."""
    for name, value in asked.items():
        default = next(p.default for p in kernel.gradient_attributes if p.name == name)
        if value != default:
            raise ValueError(
                f"{kernel.name}: {name} is {value!r}, expected {default!r} in forward mode, which follows "
                "the function itself"
            )
    with xpgrad.use_engine("standard"):
        return kernel.forward(*operands, **attributes)


def is_recorded() -> bool:
    """Tell whether a compiler, `torch.jit.trace` or a dispatch mode records operators."""
    return bool(torch.compiler.is_compiling() or count_dispatch_modes() or torch.jit.is_tracing())


def is_followed() -> bool:
    """Tell whether a recorder, a transformation or forward mode looks at every operator."""
    return bool(is_recorded() or are_transforms_active() or is_forward_mode())
