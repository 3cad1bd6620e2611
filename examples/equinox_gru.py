"""A GRU layer for Equinox: an `equinox.Module` around Equinox's own cell, with xpgrad's time loop.

The parameters stay in Equinox's cell, so saved models keep their form. Both layers learn whether the sum of a
sequence is positive, from the same weights on the same batches. Equinox's layers have no batch axis:
`jax.vmap` adds one and joins it to the batch of xpgrad's kernel.

    python examples/equinox_gru.py --steps 100
"""

import argparse
import statistics
import time

import equinox
import jax
import jax.numpy as jnp

import xpgrad_jax
from xpgrad import convert

STEPS, BATCH, INPUTS, HIDDEN = 12, 32, 3, 64


class GRU(equinox.Module):
    """One of Equinox's cells over a sequence (T, I); gives the last state (H,)."""

    cell: equinox.nn.GRUCell

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the last state."""
        names = ("weight_ih", "weight_hh", "bias", "bias_n")
        weights = {name: getattr(self.cell, name) for name in names}
        onnx = convert("gru", weights, "equinox", "onnx", linear_before_reset=1)
        W, R, B = (onnx[name][None] for name in ("W", "R", "B"))
        return xpgrad_jax.gru(x[:, None], W, R, B, linear_before_reset=1)[1][0, 0]


class Scan(equinox.Module):
    """The same as Equinox's users write it."""

    cell: equinox.nn.GRUCell

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the last state."""
        start = jnp.zeros(self.cell.hidden_size)
        return jax.lax.scan(lambda state, step: (self.cell(step, state), None), start, x)[0]


class Classifier(equinox.Module):
    """A recurrent layer and a linear one on its last state."""

    layer: equinox.Module
    head: equinox.nn.Linear

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the sequence's score."""
        return self.head(self.layer(x))[0]


def batch(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sequences (N, T, I), and for each whether its sum is positive."""
    X = jax.random.normal(key, (BATCH, STEPS, INPUTS))
    return X, (X.sum(axis=(1, 2)) > 0).astype(X.dtype)


def models(seed: int = 0) -> tuple[Classifier, Classifier]:
    """Ours and Equinox's own, with the same parameters."""
    first, second = jax.random.split(jax.random.key(seed))
    cell, head = equinox.nn.GRUCell(INPUTS, HIDDEN, key=first), equinox.nn.Linear(HIDDEN, 1, key=second)
    return Classifier(GRU(cell), head), Classifier(Scan(cell), head)


def train(model: Classifier, steps: int, seed: int = 0) -> tuple[list[float], float]:
    """Return the losses of all steps, and the median seconds of one step."""

    @equinox.filter_jit
    def step(model, key):
        X, answer = batch(key)

        def loss(model):
            return xpgrad_jax.binary_cross_entropy_with_logits(jax.vmap(model)(X), answer)

        value, slopes = equinox.filter_value_and_grad(loss)(model)
        steps = jax.tree.map(lambda slope: -0.5 * slope, slopes)
        return equinox.apply_updates(model, steps), value

    keys = list(jax.random.split(jax.random.key(seed), steps))  # taking an array apart compiles, too
    jax.block_until_ready(step(model, keys[0])[1])  # compiles
    losses, seconds = [], []
    for key in keys:
        start = time.perf_counter()
        model, value = step(model, key)
        losses.append(float(value))  # waits for the step
        seconds.append(time.perf_counter() - start)
    return losses, statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="batches of 32 sequences")
    steps = parser.parse_args().steps
    for name, model in zip(("xpgrad's time loop", "Equinox's"), models(), strict=True):
        losses, seconds = train(model, steps)
        print(f"{name}: loss {losses[0]:.4f} before, {losses[-1]:.4f} after, {seconds * 1e3:.2f} ms a step")


if __name__ == "__main__":
    main()
