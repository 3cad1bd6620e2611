"""Training steps of xpgrad_keras' layers and of Keras' own, on each backend.

    python asv_bench/keras_layers.py                       every backend that is installed, a process each
    python asv_bench/keras_layers.py --backends torch jax  these
    python asv_bench/keras_layers.py --only LSTM            models whose names have this part
    python asv_bench/keras_layers.py --processor           one thread, in time of the processor

`xpgrad_bench.keras_models` has the models; each is trained as `fit` does it. Each figure is the median of
interleaved rounds, after two untimed rounds. The difference is the largest between the two curves of losses,
relative to the largest loss.

The rest is a step whose recurrent layers take no time: optimizer, loss, other layers, the backend itself. The
products are the time of the recurrent layers' matrix products at the machine's highest rate. "At most" is
Keras' time over the sum of these two: no recurrent layer is faster.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from xpgrad_bench.floor import best_rate
from xpgrad_bench.keras_models import BACKENDS, EXAMPLES, Example, KerasStep, TrainingStep

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "XPGRAD_NUM_THREADS": "1",
}


class Weightless:
    """A recurrent layer that takes no time; its outputs depend on the same arrays as the real layer's."""

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
        return last, outputs, [last] * len(initial_state)


def without_recurrence(model: Any) -> None:
    """Make a model's recurrent layers take no time."""
    from keras import layers

    for outer in model.layers:
        two = isinstance(outer, layers.Bidirectional)
        for layer in (outer.forward_layer, outer.backward_layer) if two else (outer,):
            if isinstance(layer, layers.RNN):
                layer.__class__ = type(type(layer).__name__, (Weightless, type(layer)), {})


def measured(example: Example, rounds: int, clock: Callable[[], float]) -> dict[str, Any]:
    """Milliseconds of a step by Keras' layers, by ours and without; the difference of the losses."""
    import xpgrad_keras

    ways = {"theirs": lambda model: None, "ours": xpgrad_keras.swap, "rest": without_recurrence}
    steps = {name: TrainingStep(example, prepare) for name, prepare in ways.items()}
    for one in steps.values():
        one.model.set_weights(steps["theirs"].model.get_weights())
    times: dict[str, list[float]] = {name: [] for name in steps}
    losses: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 2):
        for name, one in steps.items():
            begin = clock()
            loss = one.step()
            if number > 1:
                times[name].append(1e3 * (clock() - begin))
            losses[name].append(loss)
    theirs, ours = (np.array(losses[name]) for name in ("theirs", "ours"))
    off = float(np.abs(theirs - ours).max() / np.abs(theirs).max())
    return {name: statistics.median(each) for name, each in times.items()} | {"off": off}


def product_rate() -> float:
    """The highest rate of NumPy's products, in operations per millisecond."""
    rng = np.random.default_rng(0)

    def make(m: int, k: int, n: int) -> Callable[[], Any]:
        a, b = (rng.normal(size=size).astype("float32") for size in ((m, k), (k, n)))
        return lambda: a @ b

    return best_rate(make, 0.4) / 1e3


def measure_here(rounds: int, only: str, clock: Callable[[], float]) -> None:
    """Print a line of JSON for each example, on the backend of this process."""
    rate = 0.0
    for name, example in EXAMPLES.items():
        if only in name:
            found = measured(example, rounds, clock)
            rate = max(rate, product_rate())
            products = KerasStep(name).operations("step") / rate
            print(json.dumps({"name": name, "products": products, **found}), flush=True)


def main() -> None:
    """Measure each backend in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="models whose names have this part")
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--processor", action="store_true", help="one thread, the processor's time")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        measure_here(
            options.rounds, options.only, time.process_time if options.processor else time.perf_counter
        )
        return
    columns = ("Keras, ms", "ours, ms", "rest, ms", "products, ms", "times as fast", "at most")
    print(f"| backend | model | {' | '.join(columns)} | losses differ by |")
    print("| --- | --- " + "| ---: " * (len(columns) + 1) + "|")
    for backend in options.backends:
        environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        own = ["--here", "--rounds", str(options.rounds), "--only", options.only]
        if options.processor:
            own.append("--processor")
            environment |= ONE_THREAD
        child = subprocess.Popen(
            [sys.executable, __file__, *own], stdout=subprocess.PIPE, text=True, env=environment
        )
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
