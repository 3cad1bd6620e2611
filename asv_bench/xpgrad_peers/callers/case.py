"""A case for a peer, and rearrangements that several peers need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class Absent(Exception):  # noqa: N818 - not an error of anything
    """The peer has no such operator or option."""


class Job:
    """A case: arrays by name, whole numbers, attributes, cotangents; the pads of a convolution, by end."""

    def __init__(
        self, kernel: str, attributes: dict, gradient_attributes: dict, pads: list,
        arguments: dict, integers: dict, cotangents: dict,
    ) -> None:  # fmt: skip
        self.kernel, self.attributes, self.gradient_attributes = kernel, attributes, gradient_attributes
        self.pads = pads
        self.arguments, self.integers, self.cotangents = arguments, integers, cotangents

    @classmethod
    def read(cls, about: dict, archive: Any) -> Job:
        """A case of an archive, in float32."""

        def arrays(kind: str) -> dict:
            found = {name: archive[f"{about['id']}/{kind}/{name}"] for name in about[kind]}
            return {k: v.astype(np.float32) if v.dtype.kind == "f" else v for k, v in found.items()}

        own = [about[k] for k in ("kernel", "attributes", "gradient_attributes", "pads")]
        return cls(*own, *map(arrays, ("arguments", "integers", "cotangents")))

    @property
    def per_sample(self) -> bool:
        """Whether the gradients of parameters are wanted for each sample."""
        return bool(self.gradient_attributes.get("per_sample"))

    def only(self, *attributes: str, arguments: str | None = None) -> dict:
        """The attributes; there are no other attributes or arguments than these."""
        beyond = set(self.attributes) - set(attributes)
        if arguments is not None:
            beyond |= (set(self.arguments) | set(self.integers)) - set(arguments.split())
        if beyond:
            raise Absent(", ".join(sorted(beyond)))
        return dict(self.attributes)

    def one_input(
        self,
        table: dict[str, tuple[Callable, str]],
        selu: Callable | None = None,
        hard_sigmoid: Callable | None = None,
    ) -> Callable:
        """The table's function for the kernel; it takes the attributes listed after it.

        The two others, where a framework has them, have no options there.
        """
        if self.kernel == "selu" and selu is not None:
            _selu_of_frameworks(self)
            return selu
        if self.kernel == "hard_sigmoid" and hard_sigmoid is not None:
            _hard_sigmoid_of_frameworks(self)
            return hard_sigmoid
        if self.kernel not in table:
            raise Absent(self.kernel)
        function, attributes = table[self.kernel]
        self.only(*attributes.split(), arguments="X")
        return function

    def spatial(self) -> tuple[list, list]:
        """Strides and dilations of a convolution, for each dimension."""
        rank = self.arguments["X"].ndim - 2
        stride, dilation = (per_dimension(self.attributes.get(k, 1), rank) for k in ("strides", "dilations"))
        return stride, dilation


def gradients(names: Any, found: Any) -> dict:
    """Gradients by argument."""
    return {f"gradient of {name}": np.asarray(array) for name, array in zip(names, found)}  # noqa: B905


def gates(rows: np.ndarray, order: list) -> np.ndarray:
    """Blocks of rows in another order."""
    return rows.reshape(len(order), -1, *rows.shape[1:])[np.asarray(order)].reshape(rows.shape)


def per_dimension(value: Any, rank: int) -> list:
    """One number for all dimensions, or one each."""
    return [value] * rank if isinstance(value, int) else list(value)


def is_close(number: float, expected: float) -> bool:
    """Whether an option equals the constant that a library uses in its place."""
    return abs(number - expected) < 1e-9


SELU = (1.6732632423543772, 1.0507009873554805)
"""The paper's numbers, which are in all frameworks."""


def _hard_sigmoid_of_frameworks(job: Job) -> None:
    """Frameworks have no options and the slope 1/6."""
    a = job.only("alpha", "beta", arguments="X")
    if not (is_close(a.get("alpha", 0.2), 1 / 6) and is_close(a.get("beta", 0.5), 0.5)):
        raise Absent("alpha or beta")


def _selu_of_frameworks(job: Job) -> None:
    """Frameworks have no options; ONNX's defaults are the paper's numbers except for their last digits."""
    a = job.only("alpha", "gamma", arguments="X")
    if a and not (is_close(a["alpha"], SELU[0]) and is_close(a["gamma"], SELU[1])):
        raise Absent("alpha or gamma")
