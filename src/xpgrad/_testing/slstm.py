"""The sLSTM by its definition, one sample and one step at a time."""

from __future__ import annotations

from typing import Any

from xpgrad._operators.units import UNITS
from xpgrad._testing.activations import sigmoid
from xpgrad._testing.cells import unit_reference

Array = Any


def slstm_step(
    xp: Any, x: Array, h: Array, c: Array, n: Array, m: Array, W: Any, R: Any, v: Any, forget: str = "sigmoid"
) -> tuple[Array, ...]:
    """One step of the sLSTM, for `unit_reference`."""
    zi, zf, zz, zo = (getattr(W, g)(x) + getattr(R, g)(h) + getattr(v, g) for g in "ifzo")
    kept = m + (xp.log(sigmoid(xp, zf)) if forget == "sigmoid" else zf)
    m = xp.where(n == 0, zi, xp.where(kept > zi, kept, zi))
    i, f = xp.exp(zi - m), xp.exp(xp.where(kept - m < 80, kept - m, 80.0))
    c, n = f * c + i * xp.tanh(zz), f * n + i
    return sigmoid(xp, zo) * c / n, c, n, m


_run = unit_reference(UNITS["slstm"], slstm_step)


def slstm_reference(
    X: Array,
    W: Array,
    R: Array,
    B: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    initial_n: Array | None = None,
    initial_m: Array | None = None,
    *,
    heads: int = 1,
    forget: str = "sigmoid",
    direction: str = "forward",
) -> tuple[Array, ...]:
    r"""Naive sLSTM: `xpgrad.slstm` by the definition.

    The function uses plain operations of the array namespace and writes nothing in place. With torch tensors
    that require gradients, PyTorch's autograd differentiates it.

    Parameters
    ----------
    X, W, R, B, sequence_lens, initial_h, initial_c, initial_n, initial_m : array
        As for `xpgrad.slstm`. They are taken to be valid.
    heads, forget, direction
        As for `xpgrad.slstm`.

    Returns
    -------
    tuple of array
        H_all, H_t, C_t, N_t, M_t, C_all, N_all, M_all.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import slstm_reference
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = rng.normal(size=(5, 2, 3)), rng.normal(size=(1, 16, 3)), rng.normal(size=(1, 16, 2))
    >>> slstm_reference(X, W, R, heads=2)[0].shape
    (5, 1, 2, 4)
    """
    return _run(
        X, W, R, B, sequence_lens, direction, heads, initial_h=initial_h, initial_c=initial_c,
        initial_n=initial_n, initial_m=initial_m, forget=forget,
    )  # fmt: skip
