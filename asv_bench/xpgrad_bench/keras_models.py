"""Training steps of Keras' models: single layers, and three of its published examples, on random data.

The products of the recurrent layers are counted without Keras.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .recurrent import Recurrent

BACKENDS = ("torch", "jax", "tensorflow")
SHAPES = ((32, 50, 64, 64), (32, 50, 256, 256), (64, 100, 128, 512))
"""Batch, steps, inputs, units."""
GATES = {"LSTM": 4, "GRU": 3, "SimpleRNN": 1}
WORDS, TEXT = 20000, 200
DIGITS, CHARACTERS = 3, 12


class Recurrence(NamedTuple):
    """A model's recurrent layer, for counting."""

    layer: str
    shape: tuple[int, int, int, int]
    """Batch, steps, inputs, units."""
    passes_on: bool = False
    """Whether the input has a gradient."""
    kept: float = 1.0
    """The share of the steps that a mask keeps."""

    def operations(self) -> float:
        """Operations of the products of a training step; masked steps have none."""
        from xpgrad._operators.operation_counts import forward_operations, gradient_operations

        N, T, I, H = self.shape
        G = GATES[self.layer]
        shapes = {"X": (T, N, I), "W": (I, G * H), "R": (H, G * H)}
        wanted = ("X", "W", "R") if self.passes_on else ("W", "R")
        output = (T, N, H)
        forward = forward_operations("rnn", shapes, output)
        return self.kept * (forward + gradient_operations("rnn", shapes, output, wanted))

    def traffic(self) -> int:
        """Bytes that must be read or written at least once."""
        N, T, I, H = self.shape
        operator = "rnn" if self.layer == "SimpleRNN" else self.layer.lower()
        return Recurrent(operator, (round(T * self.kept), N, I, H)).traffic("step")


class Example(NamedTuple):
    """A model, the batch to train it on, and its recurrent layers."""

    build: Callable[[], Any]
    batch: Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]
    loss: str
    recurrences: tuple[Recurrence, ...]


class KerasStep(NamedTuple):
    """A training step of one of the `EXAMPLES`, as `fit` runs it."""

    example: str
    dtype: str = "float32"

    @property
    def label(self) -> str:
        """The example's name."""
        return self.example

    def operations(self, what: str) -> float:
        """Operations of the products of its recurrent layers."""
        return sum(one.operations() for one in EXAMPLES[self.example].recurrences)

    def traffic(self, what: str) -> int:
        """The least number of bytes to move for these layers."""
        return sum(one.traffic() for one in EXAMPLES[self.example].recurrences)


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype("float32")


def _layer(kind: str, shape: tuple[int, int, int, int]) -> Example:
    N, T, I, H = shape

    def build() -> Any:
        from keras import Sequential, layers

        return Sequential([layers.Input((T, I)), getattr(layers, kind)(H)])

    return Example(
        build, lambda rng: (_normal(rng, N, T, I), _normal(rng, N, H)), "mse", (Recurrence(kind, shape),)
    )


def _padded(shape: tuple[int, int, int, int], in_front: bool) -> Example:
    """An LSTM behind a mask: lengths from 1 to T, padding behind or in front."""
    N, T, I, H = shape
    lengths = np.random.default_rng(0).integers(1, T + 1, size=(N, 1))
    mask = np.arange(T) >= T - lengths if in_front else np.arange(T) < lengths

    def build() -> Any:
        from keras import Sequential, layers

        return Sequential([layers.Input((T, I)), layers.Masking(), layers.LSTM(H)])

    kept = float(mask.mean())
    return Example(
        build,
        lambda rng: (_normal(rng, N, T, I) * mask[:, :, None], _normal(rng, N, H)),
        "mse",
        (Recurrence("LSTM", shape, kept=kept),),
    )


def _texts() -> Any:
    from keras import Model, layers

    inputs = layers.Input((None,), dtype="int32")
    x = layers.Embedding(WORDS, 128)(inputs)
    x = layers.Bidirectional(layers.LSTM(64, return_sequences=True))(x)
    x = layers.Bidirectional(layers.LSTM(64))(x)
    return Model(inputs, layers.Dense(1, activation="sigmoid")(x))


def _addition() -> Any:
    from keras import Sequential, layers

    return Sequential(
        [
            layers.Input((2 * DIGITS + 1, CHARACTERS)),
            layers.LSTM(128),
            layers.RepeatVector(DIGITS + 1),
            layers.LSTM(128, return_sequences=True),
            layers.Dense(CHARACTERS, activation="softmax"),
        ]
    )


def _sums(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    one = np.eye(CHARACTERS, dtype="float32")
    given, made = 2 * DIGITS + 1, DIGITS + 1
    return one[rng.integers(0, CHARACTERS, size=(32, given))], one[
        rng.integers(0, CHARACTERS, size=(32, made))
    ]


def _series() -> Any:
    from keras import Model, layers

    inputs = layers.Input((120, 7))
    return Model(inputs, layers.Dense(1)(layers.LSTM(32)(inputs)))


EXAMPLES: dict[str, Example] = {
    **{f"{kind} {shape}": _layer(kind, shape) for shape in SHAPES for kind in GATES},
    f"LSTM {SHAPES[0]}, padding behind": _padded(SHAPES[0], in_front=False),
    f"LSTM {SHAPES[0]}, padding in front": _padded(SHAPES[0], in_front=True),
    "bidirectional LSTM on texts": Example(
        _texts,
        lambda rng: (rng.integers(1, WORDS, size=(32, TEXT)), rng.integers(0, 2, size=(32, 1))),
        "binary_crossentropy",
        (Recurrence("LSTM", (32, TEXT, 128, 64), passes_on=True),) * 4,
    ),
    "addition, sequence to sequence": Example(
        _addition,
        _sums,
        "categorical_crossentropy",
        (
            Recurrence("LSTM", (32, 2 * DIGITS + 1, CHARACTERS, 128)),
            Recurrence("LSTM", (32, DIGITS + 1, 128, 128), passes_on=True),
        ),
    ),
    "LSTM on a time series": Example(
        _series,
        lambda rng: (_normal(rng, 256, 120, 7), _normal(rng, 256, 1)),
        "mse",
        (Recurrence("LSTM", (256, 120, 7, 32)),),
    ),
}
"""By name."""


class TrainingStep:
    """An example's model, ready for training steps. `prepare` may change the model before."""

    def __init__(self, example: Example, prepare: Callable[[Any], Any] = lambda model: model) -> None:
        import keras

        keras.utils.set_random_seed(0)
        self.model = example.build()
        prepare(self.model)
        self.model.compile(optimizer="adam", loss=example.loss)
        self._batch = example.batch(np.random.default_rng(0))

    def step(self) -> float:
        """Train on the batch, as `fit` does; the loss."""
        return float(np.ravel(self.model.train_on_batch(*self._batch))[0])
