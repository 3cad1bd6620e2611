"""Outputs that a gradient needs and the caller may write to: a layer's output with ``y += x`` behind it.

A copy of each would cost every caller time and memory. So autograd keeps the output's own memory, and the
backward finds out whether somebody has written to it; then it runs the kernel again.
"""

from collections.abc import Sequence

from torch import Tensor

from xpgrad_torch._private import base_of, has_saved_tensors_hooks, version_of

__all__ = ["keep", "was_written_to", "without_views"]


def keep(output: Tensor, copies: bool) -> Tensor:
    """Return what to save of an output, from inside of an autograd function.

    It has a version of its own, because autograd compares versions and refuses a gradient after a change. For
    `was_written_to` it holds the output's version, and a tensor that shares it. It is a copy with `copies`,
    for an output without a version, or where hooks move what is saved: they are given another tensor, which
    does not hold these.
    """
    version = version_of(output)
    if copies or version is None or has_saved_tensors_hooks():
        return output.clone()
    kept = output.data
    kept.watched = output.detach(), version  # type: ignore[attr-defined]
    return kept


def was_written_to(kept: Tensor) -> bool:
    """Tell whether somebody has written to an output that `keep` was given."""
    watched = getattr(kept, "watched", None)
    return watched is not None and version_of(watched[0]) != watched[1]


def without_views(outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return an autograd function's outputs, of views copies: autograd lets nobody write to such a view."""
    return tuple([output if base_of(output) is output else output.clone() for output in outputs])
