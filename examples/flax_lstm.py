"""An LSTM layer for Flax: an `nnx.Module` around Flax's own cell, with xpgrad's time loop.

The parameters stay in Flax's cell, so checkpoints keep their form. Both layers learn whether the sum of a
sequence is positive, from the same weights on the same batches.

    python examples/flax_lstm.py --steps 100
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
from flax import nnx

import xpgrad_jax
from xpgrad import convert

STEPS, BATCH, INPUTS, HIDDEN = 12, 32, 3, 64


class LSTM(nnx.Module):
    """One of Flax's cells over sequences (T, N, I); gives all hidden states (T, N, H)."""

    def __init__(self, cell: nnx.OptimizedLSTMCell) -> None:
        self.cell = cell

    def __call__(self, X: jax.Array) -> jax.Array:
        """Return all hidden states."""
        inputs, recurrence = self.cell.dense_i, self.cell.dense_h
        bias = recurrence.bias[...]
        weights = {
            "weight_ih": inputs.kernel[...].T,
            "weight_hh": recurrence.kernel[...].T,
            "bias_ih": jnp.zeros_like(bias),  # Flax has one bias
            "bias_hh": bias,
        }
        onnx = convert("lstm", weights, "torch", "onnx")
        H_all, _, _ = xpgrad_jax.lstm(X, onnx["W"][None], onnx["R"][None], onnx["B"][None])
        return H_all[:, 0]


class Scan(nnx.Module):
    """The same as a scan over Flax's cell."""

    def __init__(self, cell: nnx.OptimizedLSTMCell) -> None:
        self.cell = cell

    def __call__(self, X: jax.Array) -> jax.Array:
        """Return all hidden states."""
        start = jnp.zeros((X.shape[1], HIDDEN))
        return jax.lax.scan(self.cell, (start, start), X)[1]


class Classifier(nnx.Module):
    """A recurrent layer and a linear one on its last state."""

    def __init__(self, layer: nnx.Module, head: nnx.Linear) -> None:
        self.layer, self.head = layer, head

    def __call__(self, X: jax.Array) -> jax.Array:
        """Return a score for each sequence, (N,)."""
        return self.head(self.layer(X)[-1])[:, 0]


def batch(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sequences (T, N, I), and for each whether its sum is positive."""
    X = jax.random.normal(key, (STEPS, BATCH, INPUTS))
    return X, (X.sum(axis=(0, 2)) > 0).astype(X.dtype)


def models(seed: int = 0) -> tuple[Classifier, Classifier]:
    """Ours and Flax's own, with the same parameters."""
    rngs = nnx.Rngs(seed)
    cell, head = nnx.OptimizedLSTMCell(INPUTS, HIDDEN, rngs=rngs), nnx.Linear(HIDDEN, 1, rngs=rngs)
    return Classifier(LSTM(cell), head), Classifier(Scan(cell), head)


def train(model: Classifier, steps: int, seed: int = 0) -> tuple[list[float], float]:
    """Return the losses of all steps, and the median seconds of one step."""
    graph, parameters, rest = nnx.split(model, nnx.Param, ...)

    @jax.jit
    def step(parameters, key):
        X, answer = batch(key)

        def loss(parameters):
            scores = nnx.merge(graph, parameters, rest)(X)
            return xpgrad_jax.binary_cross_entropy_with_logits(scores, answer)

        value, slopes = jax.value_and_grad(loss)(parameters)
        return jax.tree.map(lambda p, slope: p - 0.5 * slope, parameters, slopes), value

    keys = list(jax.random.split(jax.random.key(seed), steps))  # taking an array apart compiles, too
    jax.block_until_ready(step(parameters, keys[0]))  # compiles
    losses, seconds = [], []
    for key in keys:
        start = time.perf_counter()
        parameters, value = step(parameters, key)
        losses.append(float(value))  # waits for the step
        seconds.append(time.perf_counter() - start)
    return losses, statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="batches of 32 sequences")
    steps = parser.parse_args().steps
    for name, model in zip(("xpgrad's time loop", "Flax's"), models(), strict=True):
        losses, seconds = train(model, steps)
        print(f"{name}: loss {losses[0]:.4f} before, {losses[-1]:.4f} after, {seconds * 1e3:.2f} ms a step")


if __name__ == "__main__":
    main()
