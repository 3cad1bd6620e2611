"""Convolutions in several blocks of images, or of channels, by engines without a program for them."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest

import xpgrad
from xpgrad._calls import families
from xpgrad.cli.check_random import in_threads
from xpgrad.engine.images import numpy_images
from xpgrad.testing import assert_close, conv_grad_reference, conv_reference

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((5, 6, 9, 8), (4, 6, 3, 3), {"pads": 1}),
    "groups": ((3, 16, 9, 8), (8, 4, 4, 3), {"group": 4, "pads": 2}),
    "strides": ((5, 4, 12, 9), (6, 4, 3, 2), {"strides": 2, "dilations": 2, "pads": 1}),
    "one image, many groups": ((1, 24, 30), (12, 2, 7), {"group": 12, "pads": 3}),
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("jit", ["1", "0"])
@pytest.mark.parametrize("method", ["fft", "taps", "patches", "shifted"])
@pytest.mark.parametrize("case", CASES)
def test_blocks(
    case: str, method: Any, jit: str, threads: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Smaller blocks than at real sizes: the tests' images are one block."""
    monkeypatch.setattr(numpy_images, "BLOCK_ELEMENTS", 300)
    monkeypatch.setattr(numpy_images.sharing, "IMAGES", 100)
    monkeypatch.setattr(families, "known", families.CallCache())
    monkeypatch.setenv("XPGRAD_JIT", jit)
    x_shape, w_shape, options = CASES[case]
    if method == "fft" and "strides" in options:
        pytest.skip("Fourier's method has no strides")
    X, W, B = (rng.normal(size=shape) for shape in (x_shape, w_shape, w_shape[:1]))
    Y = conv_reference(X, W, B, **options)
    dY = rng.normal(size=Y.shape)
    blocks = numpy_images.NumpyImages.blocks
    counts = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        found = blocks(*args, **kwargs)
        counts.append(len(found))
        return found

    with in_threads(threads), mock.patch.object(numpy_images.NumpyImages, "blocks", counted):
        assert_close(xpgrad.conv(X, W, B, **options, method=method), Y, label="Y")
        found = xpgrad.conv_grad(dY, X, W, **options, method=method)
    if method == "fft" or (jit == "0" and x_shape[0] > 1):
        assert max(counts) > 1
    for name, expected in zip(("dX", "dW", "dB"), conv_grad_reference(dY, X, W, **options), strict=True):
        assert_close(getattr(found, name), expected, label=name)
