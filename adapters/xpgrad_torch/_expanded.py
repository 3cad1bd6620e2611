"""Per-sample gradients for PyTorch's ExpandedWeights.

`call_for_per_sample_grads` replaces weights by expanded weights. A backward gives an expanded weight no
gradient; the original weight gets a gradient for each sample, as `grad_sample`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from xpgrad._operators.kernel_description import KernelDescription
from xpgrad_torch._private import ExpandedWeight, set_grad_sample
from xpgrad_torch._stacked import flattened, grouped

Run = Callable[..., Sequence[Tensor]]
Axes = Sequence[int | None]


def has_expanded(arrays: Iterable[Any]) -> bool:
    """Tell whether an array is an expanded weight."""
    return ExpandedWeight in map(type, arrays)


def run_expanded(
    operator: str,
    kernel: KernelDescription,
    operands: Mapping[str, Any],
    attributes: Mapping[str, Any],
    outputs: int,
    run: Callable[[dict[str, Any]], Sequence[Tensor]],
) -> tuple[Tensor, ...]:
    """Return a kernel's first outputs. Their backward computes each sample's gradient in expanded weights.

    `run` runs the kernel on operands by name; samples are independent in it, and `torch.func` can map it.
    """
    layout, flat = flattened(operands.values())
    sizes = zip(operands, layout, strict=True)
    axes = [kernel.batch_axis(name, attributes) for name, (size, _) in sizes for _ in range(size)]
    _check(operator, flat, axes)

    def run_flat(*arrays: Tensor | None) -> Sequence[Tensor]:
        return run(dict(zip(operands, grouped(layout, arrays), strict=True)))

    output_axes = [kernel.batch_axis(name, attributes) or 0 for name in kernel.outputs[:outputs]]
    return _Expanded.apply(run_flat, axes, output_axes, *flat)


def _check(operator: str, arrays: Sequence[Tensor], axes: Axes) -> None:
    """Raise RuntimeError for a weight expanded for another batch, or if not all trained weights are."""
    batch = next(x.shape[k] for x, k in zip(arrays, axes, strict=True) if k is not None)
    for x, axis in zip(arrays, axes, strict=True):
        if axis is not None:
            continue
        if isinstance(x, ExpandedWeight):
            if x.batch_size != batch:
                raise RuntimeError(
                    f"{operator}: a weight is expanded for {x.batch_size} samples and the input has {batch}, "
                    "expected as many; pass batch_size or batch_first to call_for_per_sample_grads"
                )
        elif x.requires_grad:
            raise RuntimeError(
                f"{operator}: a weight of shape {tuple(x.shape)} requires a gradient and is not expanded, "
                "but others are, expected all or none"
            )


class _Expanded(torch.autograd.Function):
    """A function of arrays, with expanded weights among them."""

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
    arrays: Sequence[Tensor],
    axes: Axes,
    output_axes: Sequence[int],
    cotangents: Sequence[Tensor],
    wanted: Sequence[int],
) -> Sequence[Tensor]:
    """Return each sample's gradient in the wanted arrays, with the samples along the first axis."""

    def of_sample(sample: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Sequence[Tensor]:
        def total(*values: Tensor) -> Tensor:
            given = list(sample)
            for k, value in zip(wanted, values, strict=True):
                given[k] = value
            batch = [x if k is None else x.unsqueeze(k) for x, k in zip(given, axes, strict=True)]
            outputs = [y.squeeze(axis) for y, axis in zip(run(*batch), output_axes, strict=True)]
            return torch.stack([(y * c).sum() for y, c in zip(outputs, cotangents, strict=True)]).sum()

        values: list[Any] = [sample[k] for k in wanted]
        return torch.func.grad(total, tuple(range(len(wanted))))(*values)

    return torch.func.vmap(of_sample, (list(axes), list(output_axes)))(list(arrays), list(cotangents))
