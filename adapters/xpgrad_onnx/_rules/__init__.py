"""Gradients of operators, with a file for each kind."""

from xpgrad_onnx._rules import (  # noqa: F401
    activations,
    elementwise,
    moves,
    products,
    recurrent,
    reductions,
    windows,
)
