"""Times the layers of a model against their replacements, on the inputs that they get."""

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from xpgrad_torch._private import with_other_tensors

__all__ = ["first_inputs", "slower_than"]

_TURNS = 5


@contextmanager
def first_inputs(layers: Sequence[nn.Module]) -> Iterator[dict[nn.Module, Tensor]]:
    """Collect the first CPU input of each layer that runs within the block, without its values."""
    seen: dict[nn.Module, Tensor] = {}

    def note(module: nn.Module, inputs: tuple) -> None:
        X = inputs[0] if inputs else None
        if module not in seen and isinstance(X, Tensor) and X.device.type == "cpu":
            seen[module] = torch.empty_like(X, device="meta").requires_grad_(X.requires_grad)

    handles = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def slower_than(
    inputs: Mapping[nn.Module, Tensor], replacement: Callable[[nn.Module], nn.Module]
) -> dict[nn.Module, float]:
    """Return the layers whose replacement takes longer, with the ratio of the times.

    A step is a forward and a backward for all gradients. Equal layers with equal inputs are timed once.
    """
    ratios: dict[tuple, float] = {}
    slower: dict[nn.Module, float] = {}
    for layer, X in inputs.items():
        form = (repr(layer), X.shape, X.dtype, X.stride(), X.requires_grad)
        if form not in ratios:
            ratios[form] = _ratio(layer, replacement(layer), X)
        if ratios[form] > 1:
            slower[layer] = ratios[form]
    return slower


def _ratio(theirs: nn.Module, ours: nn.Module, X: Tensor) -> float:
    """Return the time of our step over the time of theirs: medians of alternating steps."""
    source = torch.Generator().manual_seed(0)
    given = torch.empty_strided(X.shape, X.stride(), dtype=X.dtype)
    given.copy_(torch.randn(X.shape, generator=source)).requires_grad_(X.requires_grad)
    steps = [_step_of(layer, given) for layer in (theirs, ours)]
    times: list[list[float]] = [[], []]
    for turn in range(_TURNS + 1):
        for step, record in zip(steps, times, strict=True):
            start = time.perf_counter()
            step()
            if turn:
                record.append(time.perf_counter() - start)
    return statistics.median(times[1]) / statistics.median(times[0])


def _step_of(layer: nn.Module, X: Tensor) -> Callable[[], None]:
    """Return a forward and a backward of the layer, without the hooks of a call.

    They run on a copy with leaves: a hook may have computed the weight, in a graph that has ended.
    """
    leaves = [X] if X.requires_grad else []

    def leaf(x: Tensor) -> Tensor:
        own = x.detach().requires_grad_(x.requires_grad)
        leaves.extend([own] if own.requires_grad else [])
        return own

    return functools.partial(_step, with_other_tensors(layer, leaf), X, leaves)


def _step(layer: nn.Module, X: Tensor, leaves: Sequence[Tensor]) -> None:
    with torch.set_grad_enabled(bool(leaves)):
        Y = layer.forward(X)
        if leaves:
            torch.autograd.grad(Y, leaves, torch.ones_like(Y), allow_unused=True)
