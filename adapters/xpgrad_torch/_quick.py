"""Activations, softmax and losses: kernels with a gradient of only their first operand."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

import xpgrad
from xpgrad_torch._autograd import TorchKernel, apply, is_followed, is_recorded, map_older_batch, with_none
from xpgrad_torch._errors import INPUT, CallerNames
from xpgrad_torch._kernel import check_dense, check_flag
from xpgrad_torch._overrides import are_replaceable, as_plain, handed_over
from xpgrad_torch._private import applied_unwatched, base_of, is_of_older_vmap
from xpgrad_torch._profiling import shown

__all__ = ["run", "run_over"]

_NONE: Mapping[str, Tensor | None] = {}


class _FirstOperand(torch.autograd.Function):
    """A kernel with the gradient of its first operand as the backward.

    `call` is the kernel, its other operands by name, its attributes, and whether it overwrites X: `inplace`.
    Then `before` is a copy of X if the gradient needs it, in the graph for second derivatives, and the
    cotangent of X goes to X, where autograd expects it if X is a view. There is no `setup_context`, and one
    argument for most of the call: autograd's work with these would take longer than a kernel on a thousand
    elements.
    """

    @staticmethod
    def forward(
        ctx: Any,
        X: Tensor,
        before: Tensor | None,
        call: tuple[TorchKernel, Mapping[str, Tensor | None], Mapping[str, Any], bool],
    ) -> Tensor:
        kernel, others, attributes, inplace = call
        function = getattr(xpgrad, kernel.name)
        with shown(kernel.name):
            if inplace:
                Y = function(X, **others, **attributes, out=X)
                ctx.mark_dirty(X)
            else:
                Y = function(X.detach(), **others, **attributes)  # the core is faster without a gradient
        absent: Sequence[int] = ()
        if kernel.saved:
            ctx.save_for_backward(Y)
        else:
            given = [X if before is None else before, *others.values()]
            absent = [k for k, x in enumerate(given) if x is None]
            ctx.save_for_backward(*[x for x in given if x is not None])
        ctx.kernel, ctx.attributes, ctx.absent = kernel, attributes, absent
        return Y

    @staticmethod
    def backward(ctx: Any, dY: Tensor) -> Any:
        kernel, saved = ctx.kernel, with_none(ctx.saved_tensors, ctx.absent)
        if is_recorded():
            (dX,) = kernel.gradient_operator(*saved, dY, **ctx.attributes, wrt=("X",))
        elif is_of_older_vmap(dY):
            (dX,) = map_older_batch(kernel, (*saved, dY), ("X",), ctx.attributes, {})
        else:
            # With create_graph=True these tensors stay in a graph, and the core runs on the standard engine,
            # whose operators are differentiable.
            if not torch.is_grad_enabled():
                saved = [None if x is None else x.detach() for x in saved]
            others = dict(zip(kernel.taken[1:], saved[1:], strict=True)) if len(saved) > 1 else {}
            with shown(kernel.gradient_name):
                dX = getattr(xpgrad, kernel.gradient_name)(dY, saved[0], **others, **ctx.attributes)
        return dX, None, None


_apply_unwatched = applied_unwatched(_FirstOperand)


def run(
    kernel: TorchKernel,
    X: Tensor,
    attributes: Mapping[str, Any],
    inplace: bool = False,
    others: Mapping[str, Tensor | None] = _NONE,
    words: CallerNames = INPUT,
) -> Tensor:
    """Return the kernel's output for its first operand X, written over X if `inplace`.

    `others` are all other operands by name, in the kernel's order; `words` are the caller's names.
    """
    operands = (X, *others.values())
    if are_replaceable(operands):

        def again(X: Tensor, *values: Tensor | None) -> Tensor:
            return run(kernel, X, attributes, inplace, dict(zip(others, values, strict=True)), words)

        return handed_over(words.caller or kernel.name, again, operands)
    plain = as_plain(operands)
    if plain is not operands:
        others = dict(zip(others, plain[1:], strict=True))
    try:
        Y = _run(kernel, plain[0], attributes, inplace, others)
    except (TypeError, ValueError, RuntimeError) as error:
        words.put_into(error, kernel.name)
        raise
    return X if inplace else Y


def _run(
    kernel: TorchKernel,
    X: Tensor,
    attributes: Mapping[str, Any],
    inplace: bool,
    others: Mapping[str, Tensor | None],
) -> Tensor:
    if not isinstance(X, Tensor):
        raise TypeError(f"{kernel.name}: input is {type(X).__name__}, expected torch.Tensor")
    if inplace is not False:
        check_flag(kernel.name, "inplace", inplace)
    if is_followed() or (others and any(x is not None and x.requires_grad for x in others.values())):
        # The gradient takes X or the output, and X is about to be overwritten.
        source = X.clone() if inplace and not kernel.saved else X
        (Y,) = apply(kernel, (source, *others.values()), attributes)
        return X.copy_(Y) if inplace else Y
    graph = X.requires_grad and torch.is_grad_enabled()
    try:
        if inplace:
            return _run_in_place(kernel, X, attributes, graph)
        if graph:
            return _apply_unwatched(X, None, (kernel, others, attributes, False))
        with shown(kernel.name):
            return getattr(xpgrad, kernel.name)(X, **others, **attributes)
    except Exception:
        check_dense(kernel.name, "input", X)
        kernel.explain((X, *others.values()) if others else (X, *(None for _ in kernel.operands[1:])))
        raise


def run_over(compute: Callable[[Tensor], Tensor], X: Tensor, inplace: bool) -> Tensor:
    """Return `compute(X)`, written over X if `inplace`; its gradient then takes a copy of the old values."""
    Y = compute(X.clone() if inplace else X)
    return X.copy_(Y) if inplace else Y


def _run_in_place(kernel: TorchKernel, X: Tensor, attributes: Mapping[str, Any], graph: bool) -> Tensor:
    if not graph:
        is_inference = X.is_inference()
        if is_inference and not torch.is_inference_mode_enabled():
            raise RuntimeError(
                f"{kernel.name}: input was made in inference mode, expected another tensor: PyTorch forbids "
                "writing to it outside of inference mode"
            )
        with shown(kernel.name):
            getattr(xpgrad, kernel.name)(X, **attributes, out=X)
        if not is_inference:
            increment_version(X)  # graphs that have saved X notice the change
        return X
    if base_of(X).is_leaf:
        # PyTorch raises this error too, but only after the kernel has overwritten the values.
        raise RuntimeError(f"{kernel.name}: input is a leaf that requires grad, expected none to write over")
    if any(not stride and size > 1 for stride, size in zip(X.stride(), X.shape, strict=True)):
        # PyTorch raises an error too, but in the backward.
        raise ValueError(
            f"{kernel.name}: input is expanded (shape {tuple(X.shape)}, strides {X.stride()}) and requires a "
            "gradient, expected input.contiguous() to write over"
        )
    return _apply_unwatched(X, None if kernel.saved else X.clone(), (kernel, {}, attributes, True))
