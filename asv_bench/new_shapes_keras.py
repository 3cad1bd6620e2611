"""The cost of a new shape for Keras' layers on TensorFlow: ``python asv_bench/new_shapes_keras.py``.

Each step has another number of sequences and another T; the last 100 inputs are then used again. The table
shows both medians (forward and backward, of the clock) in ms, and the resident memory of a process after a
fifth of the steps and at the end, before and after ``swap``. The extra ``tensorflow`` is needed.
"""

import argparse
import itertools
import multiprocessing
import os
import resource
import time
from pathlib import Path
from statistics import median

import numpy as np

from xpgrad.cli.info import read_cpu

LAYERS = ("LSTM", "GRU", "SimpleRNN")
WIDTH = 64


def resident():
    """The resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def measured(kind, is_ours, steps):
    """The medians of new and of known shapes, and the resident memory after a fifth and after all."""
    os.environ |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    import keras
    import tensorflow as tf

    import xpgrad_keras

    layer = getattr(keras.layers, kind)(WIDTH, return_sequences=True)
    model = keras.Sequential([keras.Input((None, WIDTH)), layer])
    model = xpgrad_keras.swap(model) if is_ours else model

    @tf.function(input_signature=[tf.TensorSpec([None, None, WIDTH])])
    def gradients(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True))
        return tape.gradient(loss, model.trainable_variables)

    def step(x):
        start = time.perf_counter()
        gradients(x)
        return 1e3 * (time.perf_counter() - start)

    rng = np.random.default_rng(0)
    sizes = rng.permutation([*itertools.product(range(1, 21), range(1, 501))])[:steps]
    new, memory, kept = [], [], []
    for number, (N, T) in enumerate(sizes, 1):
        x = tf.constant(rng.normal(size=(N, T, WIDTH)).astype("float32"))
        new.append(step(x))
        kept = [*kept[-99:], x]
        if number in (steps // 5, steps):
            memory.append(resident())
    return median(new), median([step(x) for x in kept]), *memory


def main():
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps", type=int, default=5000, metavar="N", help="from 10 to 10000 (default: 5000)"
    )
    steps = parser.parse_args().steps
    if not 10 <= steps <= 10_000:
        parser.error(f"--steps is {steps}, expected 10 to 10000")
    print(f"{read_cpu().label}, TensorFlow's own threads, {steps} shapes")
    heads = "".join(
        [f"{library + ': new':>12}{'again':>8}{'MiB':>8}{'':8}" for library in ("xpgrad", "keras")]
    )
    print(f"{'':14}{heads}")
    for kind in LAYERS:
        row = f"{kind + f'({WIDTH})':14}"
        for is_ours in (True, False):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                new, again, first, last = pool.apply(measured, (kind, is_ours, steps))
            row += f"{new:12.2f}{again:8.2f}{first:8.0f}{last:8.0f}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
