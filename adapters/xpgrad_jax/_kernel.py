"""Description of a kernel and its gradient for JAX, the same for all uses."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim

import xpgrad
from xpgrad._operators.for_adapters import run_foreign
from xpgrad._operators.kernel_description import KernelDescription


class Attributes(dict[str, Any]):
    """Attributes by name, as an immutable part of keys. They are equal if their texts are.

    As values 1, 1.0 and True would be equal although not all are allowed; 0.0 would equal -0.0, and NaN not
    itself.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attributes) and repr(self) == repr(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(repr(self))


_FACTORS = {"conv": ("X", "W"), "conv_transpose": ("X", "W")}
"""For kernels that are sums of products: the operands in each of which they are linear."""

AS_SAVED = "as_saved"
"""A gradient's attribute: its saved arrays are the caller's, and do not depend on other arrays."""


class JaxKernel(KernelDescription):
    """A kernel and its gradient, as JAX's primitives see them; see `KernelDescription`."""

    def __init__(self, name: str, **described: Any) -> None:
        super().__init__(name, **described)
        self.key = name
        """Text that identifies the kernel in any process."""
        if (cell := described.get("cell")) is not None:
            self.key = f"cell_{name}_{cell.digest}"
            self.result, self.gradient_result = cell.results
        absent: dict[str, Any] = dict.fromkeys(self.operands)  # some functions take None, and have no default
        self.call = functools.partial(
            run_foreign, self.function(0), keep_products=self.keeps_products, **absent
        )
        self._gradient = functools.partial(run_foreign, self.function(1))
        self.is_recurrent = not {"R", "sequence_lens"}.isdisjoint(self.operands)
        """Whether the whole kernel is one program; other kernels have programs for their loops."""
        self.factors = _FACTORS.get(name, ())
        """Operands in each of which the kernel is linear, for fixed others."""

    def __repr__(self) -> str:
        return self.key

    # --- running it on the engine of the moment

    def forward(self, arrays: Mapping[str, Any], attributes: Attributes) -> tuple[Any, ...]:
        """Run the kernel; return all outputs."""
        outputs = self.call(**arrays, **self.own(attributes))
        return tuple(outputs) if isinstance(outputs, tuple) else (outputs,)

    def gradient(
        self, arrays: Mapping[str, Any], wrt: Sequence[str], attributes: Attributes, per_sample: bool
    ) -> tuple[Any, ...]:
        """Run the gradient; return the wanted gradients, in the order of `wrt`."""
        function, options = self.gradient_call(wrt, attributes, per_sample)
        named = dict(zip(self.arguments_of(tuple(arrays)), arrays.values(), strict=True))
        results = self.by_operand(function(**named, **options))
        return tuple(results[name] for name in wrt)

    def gradient_call(
        self, wrt: Sequence[str], attributes: Attributes, per_sample: bool
    ) -> tuple[Any, dict[str, Any]]:
        """Return the gradient and its arguments besides arrays."""
        options = self.gradient_options(wrt, attributes, per_sample)
        options.pop(AS_SAVED, None)
        return self._gradient, options

    # --- the plain way: JAX's own operations

    def plain_forward(self, arrays: Mapping[str, Any], attributes: Attributes) -> tuple[Any, ...]:
        """The kernel as JAX's own operations."""

        def run(given: Mapping[str, Any]) -> tuple[Any, ...]:
            return self.forward(given, attributes)

        with xpgrad.use_engine("standard"):
            if self._samples_are_open(arrays, attributes):
                axes = [self.batch_axis(name, attributes) for name in self.outputs]
                return tuple(self._each_sample(run, arrays, axes, attributes))
            return run(arrays)

    def plain_gradient(
        self, arrays: Mapping[str, Any], wrt: Sequence[str], attributes: Attributes, per_sample: bool
    ) -> tuple[Any, ...]:
        """The gradient as JAX's own operations, of operands and cotangents only.

        Saved arrays are computed again, so for JAX they are functions of the operands; unless the attributes
        say that they are operands themselves.
        """

        def run(given: Mapping[str, Any]) -> tuple[Any, ...]:
            known = dict(given)
            if self.saved and self.taken and AS_SAVED not in attributes:
                operands = {name: known[name] for name in self.operands if name in known}
                known |= zip(self.saved, self.saved_of(self.forward(operands, attributes)), strict=True)
            return self.gradient(known, wrt, attributes, per_sample)

        with xpgrad.use_engine("standard"):
            if not self._samples_are_open(arrays, attributes):
                return run(arrays)
            axes = [self.batch_axis(name, attributes) for name in wrt]
            if per_sample:
                return tuple(self._each_sample(run, arrays, [axis or 0 for axis in axes], attributes))
            made = self._each_sample(run, arrays, axes, attributes)
        return tuple(g.sum(axis=0) if axis is None else g for g, axis in zip(made, axes, strict=True))

    def _samples_are_open(self, arrays: Mapping[str, Any], attributes: Attributes) -> bool:
        """Whether the batch size of a recurrent kernel is symbolic, so its rows cannot be laid out.

        Other sizes must not be symbolic.
        """
        if not self.is_recurrent:
            return False
        for name, x in arrays.items():
            batch = self.batch_axis(name, attributes)
            if any(is_symbolic_dim(size) for axis, size in enumerate(x.shape) if axis != batch):
                raise ValueError(
                    f"{self.name}: {name} has shape {x.shape}, expected numbers; only the batch's size "
                    "may be symbolic"
                )
        return any(is_symbolic_dim(size) for x in arrays.values() for size in x.shape)

    def _each_sample(
        self,
        run: Callable[[Mapping[str, Any]], Sequence[Any]],
        arrays: Mapping[str, Any],
        out_axes: Sequence[int | None],
        attributes: Attributes,
    ) -> list[Any]:
        """Run on batches of one sample, mapped by JAX, for given batch axes of the results.

        A result without a batch axis gets an axis for the samples in front.
        """
        axes = {name: self.batch_axis(name, attributes) for name in arrays}

        def one(samples: Mapping[str, Any]) -> list[Any]:
            made = run({name: _with_axis(x, axes[name]) for name, x in samples.items()})
            pairs = zip(made, out_axes, strict=True)
            return [y if axis is None else jnp.squeeze(y, axis) for y, axis in pairs]

        return jax.vmap(one, in_axes=(axes,), out_axes=[axis or 0 for axis in out_axes])(dict(arrays))


def _with_axis(x: Any, axis: int | None) -> Any:
    """The array with one more axis, of size 1; unchanged for None."""
    return x if axis is None else jnp.expand_dims(x, axis)


def as_attributes(operator: str, values: Mapping[str, Any]) -> Attributes:
    """Attributes as a part of keys: lists become tuples, and arrays of one number become this number."""
    return Attributes({name: _frozen(operator, name, value) for name, value in values.items()})


def _frozen(operator: str, name: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_frozen(operator, name, item) for item in value)
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"{operator}: {name} is traced, expected a number that is known while JAX traces: options have "
            "no gradient"
        )
    if isinstance(value, np.ndarray | jax.Array):
        if value.ndim:
            raise TypeError(
                f"{operator}: {name} is an array of shape {value.shape}, expected a number, or "
                "numbers in a list"
            )
        return value.item()
    if type(value).__hash__ is None:
        raise TypeError(f"{operator}: {name} is a {type(value).__name__}, expected a number or a word")
    return value


def as_array(operator: str, name: str, operand: Any) -> jax.Array:
    """An operand of JAX or NumPy as a JAX array."""
    if isinstance(operand, jax.Array):
        return operand
    if isinstance(operand, np.ndarray):
        return jnp.asarray(operand)
    raise TypeError(f"{operator}: {name} is a {type(operand).__name__}, expected an array of JAX or NumPy")
