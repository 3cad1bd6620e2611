"""The number of operations in an operator's matrix products, from shapes: for tools that count them.

A multiplication and an addition are two operations. Each weight is multiplied once for each place where it is
used: recurrent weights at each step of each sequence, a convolution's weights at each position of the output,
a transposed convolution's at each position of the input. Nothing else counts, as in PyTorch's counter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

__all__ = ["forward_operations", "gradient_operations"]

_WEIGHTS = ("W", "R", "S")
Shapes = Mapping[str, Sequence[int]]


def forward_operations(operator: str, shapes: Shapes, output: Sequence[int]) -> int:
    """The operations of an operator, for the shapes of its operands by name and of its first output."""
    return sum(_products(operator, shapes, output).values())


def gradient_operations(
    operator: str, shapes: Shapes, output: Sequence[int], wanted: Collection[str], layout: int = 0
) -> int:
    """The operations of its gradients by the wanted operands.

    A recurrence takes cotangents back through all steps but the first, and through the first step only for an
    initial state.
    """
    products = _products(operator, shapes, output)
    count = sum(products.get(name, 0) for name in wanted)
    if "X" in wanted:
        count += products.get("W", 0)
    if wanted:
        count += products.get("S", 0) + products.get("R", 0)
        if "R" in products and not any(name == "H" or name.startswith("initial_") for name in wanted):
            X = shapes["X"]
            count -= 2 * prod(shapes["R"]) * X[1 - layout if len(X) == 3 else 0]
    return count


def _products(operator: str, shapes: Shapes, output: Sequence[int]) -> dict[str, int]:
    """The operations of the forward product with each weight."""
    X = shapes["X"]
    images = {"conv": output, "conv_transpose": X}.get(operator)
    places = prod(X[:-1]) if images is None else images[0] * prod(images[2:])
    return {name: 2 * prod(shapes[name]) * places for name in _WEIGHTS if name in shapes}
