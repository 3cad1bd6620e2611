"""Keras with its own layers, on the backend of the process (`KERAS_BACKEND`)."""

from collections.abc import Callable
from typing import Any

from .. import keras_models


def keras() -> Any:
    """Import Keras on its backend, or say why not."""
    try:
        import keras
    except ImportError as error:  # of the backend, perhaps
        raise NotImplementedError(f"Keras does not run: {error}") from error
    return keras


def training_step(work: Any, prepare: Callable[[Any], Any]) -> keras_models.TrainingStep:
    """An example's training step, its model prepared."""
    keras()
    return keras_models.TrainingStep(keras_models.EXAMPLES[work.example], prepare)


RUNS: dict[str, Any] = {"KerasStep": lambda work: training_step(work, lambda model: model)}


def describe() -> str:
    """The version and the backend."""
    return f"Keras {keras().__version__} on {keras().backend.backend()}: train_on_batch"
