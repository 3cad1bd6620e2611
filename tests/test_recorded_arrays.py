"""Kernels of whole arrays written down as programs, as a host that knows no Python runs them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xpgrad
from xpgrad._conv.choice import choose
from xpgrad._conv.geometry import conv_geometry
from xpgrad.engine import Recorder, of_type
from xpgrad.engine.process.settings import jit_enabled
from xpgrad.engine.programs.recorded import CannotRecordError
from xpgrad.engine.programs.recorder import row_major

pytestmark = pytest.mark.skipif(not jit_enabled(), reason="programs need numba")

PLAIN: dict[str, Any] = {"strides": 1, "pads": 0, "dilations": 1, "group": 1, "auto_pad": "NOTSET"}
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "strides": ((2, 2, 5, 4), (2, 2, 3, 3), {"pads": 1, "strides": 2}),
    "uneven": ((3, 4, 7, 6), (8, 4, 3, 2), {"dilations": (1, 2), "pads": (1, 0, 2, 1), "strides": (2, 1)}),
    "groups": ((3, 4, 7, 6), (8, 2, 3, 2), {"group": 2, "pads": 1}),
    "depthwise": ((3, 4, 7, 6), (4, 1, 3, 3), {"group": 4, "strides": (1, 2)}),
    "pointwise": ((3, 4, 7, 6), (8, 2, 1, 1), {"group": 2}),
    "one dimension": ((3, 4, 7), (8, 4, 3), {"auto_pad": "SAME_UPPER", "strides": 2}),
    "three dimensions": ((2, 4, 5, 4, 3), (8, 4, 3, 2, 2), {"pads": 1, "strides": (2, 1, 1)}),
}


def run(write: Any, *given: np.ndarray) -> np.ndarray:
    """The result of what `write` asks a recorder for."""
    engine = of_type(given[0])
    layouts = {str(k): (x.shape, row_major(x.shape)) for k, x in enumerate(given)}
    recorder = Recorder(engine, layouts, given[0].dtype)
    program = recorder.program([write(recorder, *(recorder.input(name) for name in layouts))])
    look = engine.look(given)
    return program.run(look.addresses, look.fresh)[0]


@pytest.mark.parametrize("name", ["auto", "patches", "taps"])
@pytest.mark.parametrize("case", CASES)
def test_convolutions(case: str, name: str, rng: np.random.Generator) -> None:
    x_shape, w_shape, options = CASES[case]
    geometry = conv_geometry("conv", x_shape, w_shape, **PLAIN | options)
    X, W, B, dY = (rng.normal(size=s) for s in (x_shape, w_shape, w_shape[0], geometry.output_shape))

    def sums(of: str) -> Any:
        def write(recorder: Any, *arrays: Any) -> Any:
            method = choose("conv", name, recorder, geometry)
            return getattr(method, of)(recorder, geometry, *arrays)

        return write

    with xpgrad.use_engine("standard"):
        Y, grads = xpgrad.conv(X, W, B, **options), xpgrad.conv_grad(dY, X, W, **options)
    np.testing.assert_allclose(run(sums("forward"), X, W, B), Y, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(run(sums("input_gradient"), dY, W), grads.dX, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(run(sums("weight_gradient"), dY, X), grads.dW, rtol=1e-12, atol=1e-12)


def test_what_has_no_instruction_is_refused(rng: np.random.Generator) -> None:
    geometry = conv_geometry("conv", (1, 8, 200), (8, 8, 150), **PLAIN)

    def large(recorder: Any, X: Any, W: Any) -> Any:
        return choose("conv", "fft", recorder, geometry).forward(recorder, geometry, X, W, None)

    with pytest.raises(CannotRecordError, match="Fourier transforms"):
        run(large, rng.normal(size=geometry.input_shape), rng.normal(size=geometry.weight_shape))


def test_an_array_of_four_axes_is_copied_in_pieces(rng: np.random.Generator) -> None:
    x = rng.normal(size=(3, 4, 5, 6))
    turned = run(lambda recorder, x: recorder.contiguous(recorder.xp.permute_dims(x, (3, 1, 0, 2))), x)
    np.testing.assert_array_equal(turned, x.transpose(3, 1, 0, 2))
    np.testing.assert_array_equal(run(lambda _, x: x[:, 1::2, ::3, 2:5], x), x[:, 1::2, ::3, 2:5])
