"""Per-sample gradients for PyTorch's ExpandedWeights.

`call_for_per_sample_grads` replaces weights by expanded ones. A backward gives an expanded weight no
gradient; its original gets one for each sample, as `grad_sample`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from xpgrad_torch._private import ExpandedWeight, set_grad_sample

Run = Callable[..., Sequence[Tensor]]
Axes = Sequence[int | None]


def has_expanded(arrays: Iterable[Any]) -> bool:
    """Tell whether an array is an expanded weight."""
    return ExpandedWeight in map(type, arrays)


def run_expanded(
    operator: str, run: Run, arrays: Sequence[Tensor | None], axes: Axes, output_axes: Sequence[int]
) -> tuple[Tensor, ...]:
    """Run a function. Its backward computes each sample's gradient in the expanded weights.

    Parameters
    ----------
    operator : str
        For messages.
    run : callable
        The function. Samples are independent in it, and `torch.func` can map it over them.
    arrays : sequence of tensor or None
        Its arguments.
    axes : sequence of int or None
        The batch axis of each argument; None if all samples share it.
    output_axes : sequence of int
        The batch axis of each output.

    Returns
    -------
    tuple of tensors
        The outputs.

    Raises
    ------
    RuntimeError
        If a weight was expanded for another number of samples, or if some weights that require a gradient
        are expanded and others are not.
    """
    _check(operator, arrays, axes)
    return _Expanded.apply(run, axes, output_axes, *arrays)


def _check(operator: str, arrays: Sequence[Tensor | None], axes: Axes) -> None:
    batch = next(x.shape[k] for x, k in zip(arrays, axes, strict=True) if x is not None and k is not None)
    for x, axis in zip(arrays, axes, strict=True):
        if x is None or axis is not None:
            continue
        if isinstance(x, ExpandedWeight):
            if x.batch_size != batch:
                raise RuntimeError(
                    f"{operator}: a weight is expanded for {x.batch_size} samples and the input has {batch}, "
                    "expected as many; say batch_size or batch_first to call_for_per_sample_grads"
                )
        elif x.requires_grad:
            raise RuntimeError(
                f"{operator}: a weight of shape {tuple(x.shape)} requires a gradient and is not expanded "
                "beside others that are, expected all or none"
            )


class _Expanded(torch.autograd.Function):
    """A function of arrays; some of them are expanded weights."""

    @staticmethod
    def forward(ctx: Any, run: Run, axes: Axes, output_axes: Sequence[int], *arrays: Any) -> Any:
        bare = [x.orig_weight if isinstance(x, ExpandedWeight) else x for x in arrays]
        ctx.run, ctx.axes, ctx.output_axes = run, axes, output_axes
        ctx.weights = {k: x for k, x in enumerate(arrays) if isinstance(x, ExpandedWeight)}
        ctx.save_for_backward(*bare)
        return tuple(run(*bare))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        arrays, needs = ctx.saved_tensors, ctx.needs_input_grad[3:]
        wanted = [k for k, need in enumerate(needs) if need]
        grads = _per_sample_gradients(ctx.run, arrays, ctx.axes, ctx.output_axes, cotangents, wanted)
        results: list[Tensor | None] = [None] * len(arrays)
        for k, grad in zip(wanted, grads, strict=True):
            if k in ctx.weights:
                set_grad_sample(ctx.weights[k], lambda _, grad=grad: grad)
            else:
                results[k] = grad.movedim(0, ctx.axes[k])
        return None, None, None, *results


def _per_sample_gradients(
    run: Run,
    arrays: Sequence[Tensor | None],
    axes: Axes,
    output_axes: Sequence[int],
    cotangents: Sequence[Tensor],
    wanted: Sequence[int],
) -> Sequence[Tensor]:
    """Return the gradient of each sample in some of the arrays, samples along the first axis."""

    def of_sample(sample: Sequence[Tensor | None], cotangents: Sequence[Tensor]) -> Sequence[Tensor]:
        def total(*values: Tensor) -> Tensor:
            given = list(sample)
            for k, value in zip(wanted, values, strict=True):
                given[k] = value
            batch = [
                x if x is None or axis is None else x.unsqueeze(axis)
                for x, axis in zip(given, axes, strict=True)
            ]
            outputs = [y.squeeze(axis) for y, axis in zip(run(*batch), output_axes, strict=True)]
            return torch.stack([(y * c).sum() for y, c in zip(outputs, cotangents, strict=True)]).sum()

        values: list[Any] = [sample[k] for k in wanted]
        return torch.func.grad(total, tuple(range(len(wanted))))(*values)

    dims = [None if x is None else axis for x, axis in zip(arrays, axes, strict=True)]
    return torch.func.vmap(of_sample, (dims, list(output_axes)))(list(arrays), list(cotangents))
