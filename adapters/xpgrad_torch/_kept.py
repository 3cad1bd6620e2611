"""Outputs that a gradient needs and the caller may write to, for example by ``y += x``.

A copy of each output would cost every caller time and memory. So autograd keeps the output's own memory. If
the backward finds that the caller has written to it, it runs the kernel again.
"""

from collections.abc import Sequence

from torch import Tensor

from xpgrad_torch._private import base_of, has_saved_tensors_hooks, version_of

__all__ = ["keep", "was_written_to", "without_views"]


def keep(output: Tensor, copies: bool) -> Tensor:
    """Return the tensor to save for an output, within an autograd function.

    It shares the output's memory but not its version: autograd refuses a gradient after a change of version.
    For `was_written_to` it holds the output's version and a tensor that shares it. It is a copy if `copies`,
    if the output has no version, or if hooks move saved tensors, as hooks would lose what it holds.
    """
    version = version_of(output)
    if copies or version is None or has_saved_tensors_hooks():
        return output.clone()
    kept = output.data
    kept.watched = output.detach(), version  # type: ignore[attr-defined]
    return kept


def was_written_to(kept: Tensor) -> bool:
    """Tell whether the caller has written to an output after `keep`."""
    watched = getattr(kept, "watched", None)
    return watched is not None and version_of(watched[0]) != watched[1]


def without_views(outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return an autograd function's outputs with views copied: autograd forbids writing to such views."""
    return tuple([output if base_of(output) is output else output.clone() for output in outputs])
