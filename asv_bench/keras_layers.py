"""Training steps of xpgrad_keras' layers beside Keras' own, on each backend.

    python asv_bench/keras_layers.py                       every backend that is installed, a process each
    python asv_bench/keras_layers.py --backends torch jax  these
    python asv_bench/keras_layers.py --rounds 9 --quick    smaller models
    python asv_bench/keras_layers.py --processor           one thread, in time of the processor

Layers: a training step of a model of one layer, as `fit` runs it. Models: three of Keras' published
examples at their sizes, on synthetic data: a bidirectional LSTM on texts, addition from sequence to
sequence, a time series. Each figure is the median of interleaved rounds, after two without a clock. The
difference is the largest one of the two curves of losses, relative to the largest loss.

The rest is a step whose recurrent layers take no time: optimizer, loss, other layers, the backend itself. The
products are the time of the recurrent layers' matrix products at the machine's highest rate. "At most" is
Keras' time over these two together: no recurrent layer is faster.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from xpgrad._operators.operation_counts import forward_operations, gradient_operations
from xpgrad_bench.floor import best_rate

BACKENDS = ("torch", "jax", "tensorflow")
SHAPES = ((32, 50, 64, 64), (32, 50, 256, 256), (64, 100, 128, 512))
"""Batch, steps, inputs, units."""
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "XPGRAD_NUM_THREADS": "1",
}


class Work(NamedTuple):
    """A model, and a batch to train it on."""

    name: str
    build: Callable[[], Any]
    x: np.ndarray
    y: np.ndarray
    loss: str


def layer_works(rng: np.random.Generator, quick: bool) -> Iterator[Work]:
    """A layer of each kind, at three sizes; with a mask; behind a mask that is no prefix."""
    from keras import Sequential, layers

    for N, T, I, H in SHAPES[: 1 if quick else None]:
        x, y = rng.normal(size=(N, T, I)).astype("float32"), rng.normal(size=(N, H)).astype("float32")
        for layer in (layers.LSTM, layers.GRU, layers.SimpleRNN):

            def build(layer=layer, T=T, I=I, H=H):
                return Sequential([layers.Input((T, I)), layer(H)])

            yield Work(f"{layer.__name__} {(N, T, I, H)}", build, x, y, "mse")
    N, T, I, H = SHAPES[0]
    lengths = rng.integers(1, T + 1, size=(N, 1))
    for name, mask in (("behind", np.arange(T) < lengths), ("in front", np.arange(T) >= T - lengths)):
        x = rng.normal(size=(N, T, I)).astype("float32") * mask[:, :, None]
        y = rng.normal(size=(N, H)).astype("float32")
        build = lambda: Sequential([layers.Input((T, I)), layers.Masking(), layers.LSTM(H)])  # noqa: E731
        yield Work(f"LSTM {(N, T, I, H)}, padding {name}", build, x, y, "mse")


def model_works(rng: np.random.Generator, quick: bool) -> Iterator[Work]:
    """Three examples of Keras, with its sizes."""
    from keras import Model, Sequential, layers

    words, steps = 20000, 50 if quick else 200

    def imdb() -> Any:
        inputs = layers.Input((None,), dtype="int32")
        x = layers.Embedding(words, 128)(inputs)
        x = layers.Bidirectional(layers.LSTM(64, return_sequences=True))(x)
        x = layers.Bidirectional(layers.LSTM(64))(x)
        return Model(inputs, layers.Dense(1, activation="sigmoid")(x))

    x = rng.integers(1, words, size=(32, steps))
    yield Work("IMDB, bidirectional LSTM", imdb, x, rng.integers(0, 2, size=(32, 1)), "binary_crossentropy")

    digits, characters = 3, 12

    def addition() -> Any:
        return Sequential(
            [
                layers.Input((2 * digits + 1, characters)),
                layers.LSTM(128),
                layers.RepeatVector(digits + 1),
                layers.LSTM(128, return_sequences=True),
                layers.Dense(characters, activation="softmax"),
            ]
        )

    x = np.eye(characters, dtype="float32")[rng.integers(0, characters, size=(32, 2 * digits + 1))]
    y = np.eye(characters, dtype="float32")[rng.integers(0, characters, size=(32, digits + 1))]
    yield Work("addition, sequence to sequence", addition, x, y, "categorical_crossentropy")

    def weather() -> Any:
        inputs = layers.Input((120, 7))
        return Model(inputs, layers.Dense(1)(layers.LSTM(32)(inputs)))

    x = rng.normal(size=(256, 120, 7)).astype("float32")
    yield Work("time series, LSTM", weather, x, rng.normal(size=(256, 1)).astype("float32"), "mse")


class Weightless:
    """A recurrent layer that takes no time; its outputs depend on all that the real one's depend on.

    `noted` gets the operations of the real one's products, `passes_on` says whether the input has a gradient.
    """

    noted: list[float] | None = None
    passes_on = False

    def inner_loop(self, sequences: Any, initial_state: Any, mask: Any, training: bool = False) -> Any:
        """Return results of the right shapes."""
        from keras import ops

        layer: Any = self
        cell, H = layer.cell, layer.units
        bias = ops.reshape(cell.bias, (-1,))
        row = cell.kernel[0, :H] + cell.recurrent_kernel[0, :H] + bias[:H] + initial_state[0]
        last = row + sequences[:, -1, :1]
        outputs = last[:, None]
        if layer.return_sequences:
            outputs = ops.broadcast_to(outputs, (*ops.shape(sequences)[:2], H))
        if layer.noted is not None:
            layer.noted.append(_operations(layer, sequences, mask))
        return last, outputs, [last] * len(initial_state)


def _operations(layer: Any, X: Any, mask: Any) -> float:
    """How many operations the products of a layer's step have; masked steps have none."""
    N, T, I = X.shape
    if mask is not None:
        T = float(np.asarray(mask).sum()) / N
    shapes = {"X": (T, N, I), "W": layer.cell.kernel.shape, "R": layer.cell.recurrent_kernel.shape}
    wanted = ("X", "W", "R") if layer.passes_on else ("W", "R")
    output = (T, N, layer.units)
    return forward_operations("rnn", shapes, output) + gradient_operations("rnn", shapes, output, wanted)


def without_recurrence(model: Any, x: np.ndarray) -> float:
    """Let a model's recurrent layers take no time, and return the operations of their products in a step."""
    from keras import layers

    noted: list[float] = []
    is_trained, kinds = False, []
    for outer in model.layers:
        two = isinstance(outer, layers.Bidirectional)
        for layer in (outer.forward_layer, outer.backward_layer) if two else (outer,):
            if isinstance(layer, layers.RNN):
                own = {"noted": noted, "passes_on": is_trained}
                layer.__class__ = type(type(layer).__name__, (Weightless, type(layer)), own)
                kinds.append(type(layer))
        is_trained |= bool(outer.trainable_weights)
    model(x)
    for kind in kinds:
        kind.noted = None
    return sum(noted)


def measured(work: Work, rounds: int, clock: Callable[[], float]) -> dict[str, Any]:
    """Milliseconds of a step by Keras' layers, by ours and by none; how far the losses differ.

    And how many operations the products of recurrent layers have.
    """
    import keras

    import xpgrad_keras

    models, operations = {}, 0.0
    for name in ("theirs", "ours", "rest"):
        keras.utils.set_random_seed(0)
        models[name] = work.build()
        models[name].set_weights(models["theirs"].get_weights())
        if name == "ours":
            xpgrad_keras.swap(models[name])
        if name == "rest":
            operations = without_recurrence(models[name], work.x)
        models[name].compile(optimizer="adam", loss=work.loss)
    times: dict[str, list[float]] = {name: [] for name in models}
    losses: dict[str, list[float]] = {name: [] for name in models}
    for number in range(rounds + 2):
        for name, model in models.items():
            begin = clock()
            loss = model.train_on_batch(work.x, work.y)
            if number > 1:
                times[name].append(1e3 * (clock() - begin))
            losses[name].append(float(np.ravel(loss)[0]))
    theirs, ours = (np.array(losses[name]) for name in ("theirs", "ours"))
    off = float(np.abs(theirs - ours).max() / np.abs(theirs).max())
    medians = {name: statistics.median(each) for name, each in times.items()}
    return medians | {"off": off, "operations": operations}


def product_rate() -> float:
    """The highest rate of NumPy's products, in operations per millisecond."""
    rng = np.random.default_rng(0)

    def make(m: int, k: int, n: int) -> Callable[[], Any]:
        a, b = (rng.normal(size=size).astype("float32") for size in ((m, k), (k, n)))
        return lambda: a @ b

    return best_rate(make, 0.4) / 1e3


def measure_here(rounds: int, quick: bool, only: str, clock: Callable[[], float]) -> None:
    """Print a line of JSON for each work, on the backend of this process."""
    rng, rate = np.random.default_rng(0), 0.0
    for work in (*layer_works(rng, quick), *model_works(rng, quick)):
        if only in work.name:
            found = measured(work, rounds, clock)
            rate = max(rate, product_rate())
            products = found.pop("operations") / rate
            print(json.dumps({"name": work.name, "products": products, **found}), flush=True)


def main() -> None:
    """Measure each backend in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="works whose names have this part")
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--processor", action="store_true", help="one thread, the processor's time")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        clock = time.process_time if options.processor else time.perf_counter
        measure_here(options.rounds, options.quick, options.only, clock)
        return
    columns = ("Keras, ms", "ours, ms", "rest, ms", "products, ms", "times as fast", "at most")
    print(f"| backend | model | {' | '.join(columns)} | losses differ by |")
    print("| --- | --- " + "| ---: " * (len(columns) + 1) + "|")
    for backend in options.backends:
        environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [
            sys.executable,
            __file__,
            "--here",
            "--rounds",
            str(options.rounds),
            "--only",
            options.only,
        ]
        command += ["--quick"] if options.quick else []
        if options.processor:
            command.append("--processor")
            environment |= ONE_THREAD
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        for line in child.stdout or ():
            row = json.loads(line)
            theirs, ours, rest, products = (row[name] for name in ("theirs", "ours", "rest", "products"))
            numbers = (theirs, ours, rest, products, theirs / ours, theirs / (rest + products))
            text = " | ".join(f"{number:.2f}" for number in numbers)
            print(f"| {backend} | {row['name']} | {text} | {row['off']:.1e} |", flush=True)
        if child.wait():
            print(f"| {backend} | it ended with status {child.returncode} " + "| " * (len(columns) + 1) + "|")


if __name__ == "__main__":
    main()
