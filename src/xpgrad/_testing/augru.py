"""The GRU with an attentional update gate by its definition, one sample and one step at a time."""

from __future__ import annotations

from typing import Any

from xpgrad._operators.units import UNITS
from xpgrad._testing.activations import sigmoid
from xpgrad._testing.cells import unit_reference

Array = Any


def augru_step(
    xp: Any, x: Array, h: Array, W: Any, R: Any, v: Any, attention: Array, linear_before_reset: int = 0
) -> Array:
    """One step of the AUGRU, for `unit_reference`."""
    r = sigmoid(xp, W.r(x) + R.r(h) + v.wr + v.rr)
    z = (1 - attention) * sigmoid(xp, W.z(x) + R.z(h) + v.wz + v.rz)
    inside = r * (R.h(h) + v.rh) if linear_before_reset else R.h(r * h) + v.rh
    return (1 - z) * xp.tanh(W.h(x) + v.wh + inside) + z * h


_run = unit_reference(UNITS["augru"], augru_step)


def augru_reference(
    X: Array,
    attention: Array,
    W: Array,
    R: Array,
    B: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    linear_before_reset: int = 0,
    direction: str = "forward",
) -> tuple[Array, ...]:
    r"""Naive AUGRU: `xpgrad.augru` by the definition.

    The function uses plain operations of the array namespace and writes nothing in place. With torch tensors
    that require gradients, PyTorch's autograd differentiates it.

    Parameters
    ----------
    X, attention, W, R, B, sequence_lens, initial_h : array
        As for `xpgrad.augru`. They are taken to be valid.
    linear_before_reset, direction
        As for `xpgrad.augru`.

    Returns
    -------
    tuple of array
        H_all, H_t.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import augru_reference
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = rng.normal(size=(5, 2, 3)), rng.normal(size=(1, 12, 3)), rng.normal(size=(1, 12, 4))
    >>> augru_reference(X, rng.uniform(size=(5, 2, 1)), W, R)[0].shape
    (5, 1, 2, 4)
    """
    return _run(
        X, W, R, B, sequence_lens, direction, attention=attention, initial_h=initial_h,
        linear_before_reset=linear_before_reset,
    )  # fmt: skip
