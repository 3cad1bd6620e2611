"""What a method of convolution offers: a forward, and the two gradients, all of one geometry."""

from __future__ import annotations

from typing import Any

from xpgrad._conv.geometry import ConvGeometry


class Method:
    """A way to compute a convolution; every method gives the same numbers but for rounding.

    Arrays come lifted, in the engine's namespace, with the shapes of the geometry.
    """

    name: str

    def why_not(self, engine: Any, geometry: ConvGeometry) -> str | None:
        """Why the method can't compute this geometry here, as the end of a sentence, or None."""
        return None

    def forward(self, engine: Any, geometry: ConvGeometry, X: Any, W: Any, B: Any) -> Any:
        """Y, (N, O, *output_size); B, (O,), may be None."""
        raise NotImplementedError

    def input_gradient(self, engine: Any, geometry: ConvGeometry, dY: Any, W: Any, B: Any = None) -> Any:
        """dX, (N, C, *size); plus B, (C,), where given: then it is a transposed convolution."""
        raise NotImplementedError

    def weight_gradient(self, engine: Any, geometry: ConvGeometry, dY: Any, X: Any) -> Any:
        """dW, (O, C / group, *kernel)."""
        raise NotImplementedError


def with_bias(engine: Any, Y: Any, B: Any) -> Any:
    """Y (n, O, ...) plus B (O,) along its channels, where B is given."""
    if B is None:
        return Y
    return engine.add(Y, engine.xp.reshape(B, (B.shape[0],) + (1,) * (Y.ndim - 2)))
