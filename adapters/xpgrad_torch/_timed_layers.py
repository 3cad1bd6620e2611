"""Times the layers of a model against their replacements, on the inputs that they get."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

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
    times: dict[nn.Module, list[float]] = {theirs: [], ours: []}
    for turn in range(_TURNS + 1):
        for layer, record in times.items():
            start = time.perf_counter()
            _step(layer, given)
            if turn:
                record.append(time.perf_counter() - start)
    return statistics.median(times[ours]) / statistics.median(times[theirs])


def _step(layer: nn.Module, X: Tensor) -> None:
    """Run forward and backward, without the hooks of a call."""
    leaves = [x for x in (X, *layer.parameters()) if x.requires_grad]
    with torch.set_grad_enabled(bool(leaves)):
        Y = layer.forward(X)
        if leaves:
            torch.autograd.grad(Y, leaves, torch.ones_like(Y))
