"""Arrays that run backwards in memory, as what NumPy flips does, are computed like their copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import xpgrad

pytestmark = pytest.mark.usefixtures("compiled")
Arrays = dict[str, np.ndarray]
T, N, I, H = 3, 20, 4, 5


def recurrent(kind: str, gates: int) -> dict[str, tuple[int, ...]]:
    return {"X": (T, N, I), "W": (1, gates * H, I), "R": (1, gates * H, H), "B": (1, 2 * gates * H)}


def cell(kind: str, gates: int) -> dict[str, tuple[int, ...]]:
    states = ("H", "C") if kind == "lstm" else ("H",)
    return {"X": (N, I)} | dict.fromkeys(states, (N, H)) | {"W": (gates * H, I), "R": (gates * H, H)}


def images(channels: int, outputs: int, group: int = 1, size: int = 3) -> dict[str, tuple[int, ...]]:
    return {"X": (2, channels, 9, 7), "W": (outputs, channels // group, size, size), "B": (outputs,)}


CALLS: dict[str, tuple[str, dict[str, tuple[int, ...]], dict[str, Any]]] = {
    "lstm": ("lstm", recurrent("lstm", 4), {}),
    "gru": ("gru", recurrent("gru", 3), {}),
    "lstm_cell": ("lstm_cell", cell("lstm", 4), {}),
    "gru_cell": ("gru_cell", cell("gru", 3), {}),
    "taps of few channels": ("conv", images(2, 3), {"method": "taps"}),
    "taps of many channels": ("conv", images(32, 32), {"method": "taps"}),
    "winograd": ("conv", images(32, 32), {"method": "winograd"}),
    "groups": ("conv", images(8, 8, 4), {"group": 4}),
    "softmax": ("softmax", {"X": (6, 5, 4)}, {"axis": 1}),
    "gelu": ("gelu", {"X": (6, 5, 4)}, {}),
}


def backwards(arrays: Arrays) -> Iterator[tuple[str, Arrays]]:
    """The same numbers, one array after the other along one axis, or along all, the other way round."""
    for name, array in arrays.items():
        for axes in [*((axis,) for axis in range(array.ndim)), tuple(range(array.ndim))]:
            flipped = np.flip(np.flip(array, axes).copy(), axes)
            np.testing.assert_array_equal(flipped, array)
            yield f"{name} {axes}", arrays | {name: flipped}


def results(function: Callable[..., Any], arrays: Arrays, **options: Any) -> list[np.ndarray]:
    outputs, pullback = xpgrad.vjp(function, **arrays, **options)
    rng = np.random.default_rng(1)
    first = outputs[0] if isinstance(outputs, tuple) else outputs
    grads = pullback(rng.normal(size=first.shape).astype(first.dtype))
    found = [outputs, grads] if not isinstance(outputs, tuple) else [*outputs, *grads]
    return [x for part in found for x in (part if isinstance(part, tuple) else (part,)) if x is not None]


@pytest.mark.parametrize("name", CALLS)
def test_arrays_that_run_backwards(name: str, rng: np.random.Generator) -> None:
    operator, shapes, options = CALLS[name]
    function = getattr(xpgrad, operator)
    arrays = {key: rng.normal(size=shape).astype("float32") for key, shape in shapes.items()}
    expected = results(function, arrays, **options)
    for what, given in backwards(arrays):
        for got, right in zip(results(function, given, **options), expected, strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-4, err_msg=what)
