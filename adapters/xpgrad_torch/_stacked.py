"""Operands that consist of several parameters of a PyTorch module."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Stacked(NamedTuple):
    """Parameters that together are one operand of a kernel, direction by direction."""

    parameters: Sequence[Tensor]
    directions: int
    """The length of the operand's first axis; 0 for a single step, whose operands have no such axis."""

    def joined(self) -> Tensor:
        """Return the operand."""
        if len(self.parameters) == 1:
            (whole,) = self.parameters
            return whole.unsqueeze(0) if self.directions else whole  # no copy
        whole = torch.cat(list(self.parameters))
        return whole.view(self.directions, -1, *whole.shape[1:]) if self.directions else whole

    def outline(self) -> Tensor:
        """Return a tensor of the operand's shape without its elements, which takes no time for large weights.

        They are NaN: nobody reads them.
        """
        if len(self.parameters) == 1:
            return self.joined()
        rows, rest = sum([x.shape[0] for x in self.parameters]), self.parameters[0].shape[1:]
        shape = (self.directions, rows // self.directions, *rest) if self.directions else (rows, *rest)
        return self.parameters[0].new_full((), math.nan).expand(shape)

    def parts(self, grad: Tensor | None) -> Sequence[Tensor | None]:
        """Return each parameter's part of the operand's gradient."""
        if grad is None:
            return (None,) * len(self.parameters)
        flat = grad.reshape(-1, *grad.shape[2:]) if self.directions else grad
        if len(self.parameters) == 1:
            return (flat,)
        return flat.split([parameter.shape[0] for parameter in self.parameters])


def stacked(parameters: Sequence[Tensor], directions: int) -> Tensor | Stacked:
    """Return parameters as an operand; a single step's only parameter is returned unchanged."""
    return Stacked(parameters, directions) if directions or len(parameters) > 1 else parameters[0]


Layout = tuple[tuple[int, int], ...]
"""For each operand its numbers of parameters and of directions."""
PLAIN, ABSENT = (1, -1), (0, -1)
"""An operand that is a tensor, and an operand that is not given."""


def flattened(operands: Iterable[Any]) -> tuple[Layout, list[Tensor]]:
    """Return the layout of operands, and the list of all their parameters."""
    layout: list[tuple[int, int]] = []
    flat: list[Tensor] = []
    for x in operands:
        if type(x) is Stacked:
            flat += x.parameters
            layout.append((len(x.parameters), x.directions))
        elif x is None:
            layout.append(ABSENT)
        else:
            flat.append(x)
            layout.append(PLAIN)
    return tuple(layout), flat


def grouped(layout: Layout, flat: Sequence[Any]) -> list[Any]:
    """Return operands from the list of all their parameters."""
    operands: list[Any] = []
    start = 0
    for size, directions in layout:
        if directions < 0:
            operands.append(flat[start] if size else None)
        else:
            operands.append(Stacked(flat[start : start + size], directions))
        start += size
    return operands


def joined(
    operands: Iterable[Any], make: Callable[[Stacked], Tensor] = Stacked.joined
) -> list[Tensor | None]:
    """Return the operands, each as one tensor; `make` makes it of a `Stacked`."""
    return [make(x) if type(x) is Stacked else x for x in operands]
