"""Uses of xpgrad and xpgrad_jax with JAX arrays, as checkers of types see them; never run."""

from typing import assert_type

import jax
import numpy as np
from numpy.typing import NDArray

import xpgrad
import xpgrad_jax


def functions(X: jax.Array, W: jax.Array, R: NDArray[np.float32], lengths: jax.Array) -> None:
    assert_type(xpgrad_jax.lstm(X, W, R), tuple[jax.Array, jax.Array, jax.Array])
    assert_type(xpgrad_jax.gru(X, W, R, sequence_lens=lengths), tuple[jax.Array, jax.Array])
    assert_type(xpgrad_jax.lstm_cell(X, X, X, W, R, peephole="truncated"), tuple[jax.Array, jax.Array])
    assert_type(xpgrad_jax.gru_cell(X, X, W, R), jax.Array)
    assert_type(xpgrad_jax.conv(X, W, pads=1), jax.Array)
    assert_type(xpgrad_jax.gelu(X, approximate="tanh"), jax.Array)
    assert_type(xpgrad_jax.softmax_cross_entropy(X, lengths), jax.Array)


def kernels(X: jax.Array, W: jax.Array, R: jax.Array) -> None:
    assert_type(xpgrad.gru(X, W, R), xpgrad.GRUForward[jax.Array])
    assert_type(xpgrad.vjp(xpgrad.tanh, X)[0], jax.Array)


def mistakes(X: jax.Array) -> None:
    xpgrad_jax.lstm([X], X, X)  # type: ignore
    xpgrad_jax.relu(X, alpha=1.0)  # type: ignore
    xpgrad_jax.lstm(X, X, X, peephole="none")  # type: ignore


def loss(R: jax.Array, X: jax.Array, W: jax.Array) -> jax.Array:
    return xpgrad_jax.lstm(X, W, R)[1].sum()
