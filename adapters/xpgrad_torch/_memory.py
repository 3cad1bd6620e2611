"""Sequences with less memory between forward and backward: the gradient computes the gates again."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from xpgrad._operators.arguments import check_lengths_within
from xpgrad._operators.for_adapters import halves_of_activations
from xpgrad._operators.resets import has_resets
from xpgrad_torch._autograd import TorchKernel, apply, is_followed
from xpgrad_torch._stacked import joined

# The final state of a segment is the initial state of the next.
_ENDS = {"initial_h": "H_t", "initial_c": "C_t", "initial_n": "N_t", "initial_m": "M_t"}


def check_save(operator: str, save: Any, steps: bool = True) -> None:
    """Raise TypeError or ValueError unless `save` is "all", "states" or, with `steps`, a number of steps."""
    expected = "'all', 'states' or a number of steps" if steps else "'all' or 'states'"
    if isinstance(save, str):
        if save not in ("all", "states"):
            raise ValueError(f"{operator}: save is {save!r}, expected {expected}")
    elif isinstance(save, bool) or not isinstance(save, int):
        raise TypeError(f"{operator}: save is {save!r} of type {type(save).__name__}, expected {expected}")
    elif not steps:
        raise ValueError(f"{operator}: save is {save}, expected {expected}")
    elif save < 1:
        raise ValueError(f"{operator}: save is {save}, expected a number of steps of at least 1")


def apply_in_segments(
    kernel: TorchKernel,
    operands: Sequence[Tensor | None],
    attributes: dict[str, Any],
    steps: int,
    grad_only: Mapping[str, Any],
) -> tuple[Tensor, ...]:
    """Return the outputs of a sequence kernel; autograd keeps the states of every `steps`-th step."""
    operands = joined(operands)
    kernel.check(operands)
    named = dict(zip(kernel.operands, operands, strict=True))
    parts = [
        _run_segments(kernel, one, own, steps, grad_only)
        for one, own in _directions(kernel, named, attributes)
    ]
    if len(parts) == 1:
        return parts[0]
    return tuple(
        torch.cat(pair, kernel.axes(name, attributes).index("D"))
        for name, pair in zip(kernel.outputs, zip(*parts, strict=True), strict=False)
    )


def _directions(
    kernel: TorchKernel, operands: Mapping[str, Tensor | None], attributes: dict[str, Any]
) -> list[tuple[dict[str, Tensor | None], dict[str, Any]]]:
    """Return the operands and attributes of each direction."""
    if attributes["direction"] != "bidirectional":
        return [(dict(operands), attributes)]
    names, halves = attributes.get("activations"), list[dict[str, Any]]([{}, {}])
    if names is not None:
        halves = halves_of_activations(names, attributes["activation_alpha"], attributes["activation_beta"])
    directions = []
    for number, direction in enumerate(("forward", "reverse")):
        own = attributes | {"direction": direction} | halves[number]
        taken = {name: _narrow(kernel, name, x, attributes, "D", number, 1) for name, x in operands.items()}
        directions.append((taken, own))
    return directions


def _run_segments(
    kernel: TorchKernel,
    operands: dict[str, Tensor | None],
    attributes: dict[str, Any],
    steps: int,
    grad_only: Mapping[str, Any],
) -> tuple[Tensor, ...]:
    """Run one direction in segments of `steps`: autograd keeps only the states between them."""
    X, lengths = operands["X"], operands["sequence_lens"]
    total = X.shape[kernel.axes("X", attributes).index("T")] if X is not None else 0
    if lengths is not None and not is_followed():  # the segments only get lengths within their range
        own = lengths[:, 0] if has_resets(lengths) else lengths
        check_lengths_within(kernel.name, "sequence_lens", own.flatten().tolist(), total)
    if lengths is not None and not lengths.is_floating_point() and lengths.dtype is not torch.bool:
        lengths = lengths.long()  # differences of unsigned lengths would not be negative
    starts = list(range(0, max(total, 1), steps))
    if attributes["direction"] == "reverse":
        starts.reverse()
    timed = [name for name in operands if "T" in kernel.axes(name, attributes)]
    pieces: dict[int, dict[str, Tensor]] = {}
    for start in starts:
        count = min(steps, total - start)
        segment = operands | {
            name: _narrow(kernel, name, operands[name], attributes, "T", start, count) for name in timed
        }
        if lengths is not None:
            segment["sequence_lens"] = _lengths_within(lengths, start, count)
        outputs = apply(kernel, list(segment.values()), attributes, again=True, **grad_only)
        by_name = dict(zip(kernel.outputs, outputs, strict=False))
        pieces[start] = by_name
        ends: dict[str, Tensor | None] = {
            name: by_name[end] for name, end in _ENDS.items() if name in operands
        }
        if attributes["direction"] == "reverse" and lengths is not None and has_resets(lengths):
            ends = {name: _handed_on(end, lengths, start, attributes) for name, end in ends.items()}
        operands = operands | ends
    for name in by_name:  # outputs over time are joined; other outputs are the last segment's
        axes = kernel.axes(name, attributes)
        if "T" in axes:
            by_name[name] = torch.cat([pieces[start][name] for start in sorted(pieces)], axes.index("T"))
    return tuple(by_name.values())


def _lengths_within(lengths: Tensor, start: int, count: int) -> Tensor:
    """Return the lengths within a segment, with its resets."""
    if not has_resets(lengths):
        return (lengths - start).clamp(0, count)
    return torch.cat(((lengths[:, :1] - start).clamp(0, count), lengths[:, 1 + start : 1 + start + count]), 1)


def _handed_on(
    state: Tensor | None, lengths: Tensor, start: int, attributes: Mapping[str, Any]
) -> Tensor | None:
    """Return the state (D, N, H) at a segment's begin for the earlier segment: 0 after a reset."""
    if state is None:
        return None
    is_reset = ((lengths[:, 1 + start] != 0) & (lengths[:, 0] > start))[:, None]
    return state.masked_fill(is_reset.unsqueeze(1) if attributes.get("layout") else is_reset, 0)


def _narrow(
    kernel: TorchKernel,
    name: str,
    x: Tensor | None,
    attributes: Mapping[str, Any],
    axis: str,
    start: int,
    count: int,
) -> Tensor | None:
    """Return a part of an operand along an axis; the whole operand if it lacks the axis."""
    axes = kernel.axes(name, attributes)
    return x if x is None or axis not in axes else x.narrow(axes.index(axis), start, count)
