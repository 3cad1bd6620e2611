"""Keras with xpgrad_keras' layers, on the backend of the process (`KERAS_BACKEND`)."""

from typing import Any

from . import keras_own, need

RUNS: dict[str, Any] = {
    "KerasStep": lambda work: keras_own.training_step(work, need("xpgrad_keras").swap),
}


def describe() -> str:
    """The version and the backend."""
    described = keras_own.describe()
    need("xpgrad_keras")
    return f"xpgrad_keras in {described}"
