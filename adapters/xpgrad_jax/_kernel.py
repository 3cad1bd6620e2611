"""What JAX has to know of a kernel of xpgrad and of its gradient: one description for all of its uses."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import xpgrad
from xpgrad._recurrent import run_foreign


class Attributes(tuple[tuple[str, Any], ...]):
    """Attributes by name, as a part of keys. They are equal if their texts are.

    1, 1.0 and True are equal, and not all of them are allowed; 0.0 equals -0.0, NaN is not equal to itself.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attributes) and repr(self) == repr(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(repr(self))


AS_SAVED = "as_saved"
"""A gradient's attribute: its saved arrays are a caller's own, and a function of nothing else."""


class Kernel:
    """A kernel and its gradient.

    Its operands are the kernel's arguments that are arrays; those of the gradient's that are outputs of the
    kernel are saved for it.

    Parameters
    ----------
    name : str
        The kernel's name; with ``_grad`` behind it, the gradient's.
    outputs : tuple of str
        The names of the kernel's outputs, those first that callers see.
    cotangents : tuple of str
        The gradient's names for the cotangents of the first outputs.
    shapes : mapping of str to str
        The axes of operands and outputs by name, such as ``"T D N 4H"``, as `xpgrad._axes` writes them; N is
        the batch. Where X is ``"..."`` alone, the kernel works elementwise or along one axis: every axis
        could be a batch.
    replaced : mapping of str to str, optional
        Operands that the gradient takes although an output in their place does as well: that output.
    masks : collection of str
        Operands of which the kernel has no gradient.
    keeps_products : bool
        Whether the kernel can keep its products for the gradient, as one more output.
    """

    def __init__(
        self,
        name: str,
        outputs: tuple[str, ...],
        cotangents: tuple[str, ...],
        *,
        shapes: Mapping[str, str],
        replaced: Mapping[str, str] | None = None,
        masks: Collection[str] = (),
        keeps_products: bool = False,
    ) -> None:
        parameters = inspect.signature(getattr(xpgrad, name)).parameters.values()
        arrays = [p for p in parameters if p.annotation == "Any" and p.name != "out"]
        replaced = dict(replaced or {})
        self.name, self.gradient_name = name, f"{name}_grad"
        self.operands = tuple(p.name for p in arrays)
        self.required = {p.name for p in arrays if p.default is p.empty}
        self.differentiable = tuple(x for x in self.operands if x not in ("sequence_lens", *masks))
        taken = inspect.signature(getattr(xpgrad, self.gradient_name)).parameters
        self.taken = tuple(name for name in self.operands if name in taken and name not in replaced)
        self.call, self._gradient = getattr(xpgrad, name), getattr(xpgrad, self.gradient_name)
        """The kernel."""
        more = ("products",) if keeps_products else ()
        if keeps_products:
            self.call = functools.partial(run_foreign, self.call, keep_products=True)
            self._gradient = functools.partial(run_foreign, self._gradient)
        self.outputs, self.cotangents = (*outputs, *more), cotangents
        self.saved = tuple(y for y in self.outputs if y in taken or y in (*replaced.values(), *more))
        self.gradient_arrays = (*self.taken, *self.saved, *cotangents)
        self._argument = {output: operand for operand, output in replaced.items()}
        self.attributes = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.annotation != "Any"}
        self._selects = "wrt" in taken
        self.graded = self.differentiable if self._selects else self.operands[:1]
        self.has_per_sample = "per_sample" in taken
        self.shapes = dict(shapes) | {c: shapes[y] for c, y in zip(cotangents, outputs, strict=False)}
        self.elementwise = shapes["X"] == "..."
        self.is_recurrent = "R" in self.operands
        """Whether all of it is written down as one program; others have programs for their loops."""

    def __repr__(self) -> str:
        return self.name

    # --- running it on the engine of the moment

    def forward(self, arrays: Mapping[str, Any], attributes: Attributes) -> tuple[Any, ...]:
        """Run the kernel; all of its outputs."""
        own = {name: value for name, value in attributes if name in self.attributes}
        outputs = self.call(**arrays, **own)
        return tuple(outputs) if isinstance(outputs, tuple) else (outputs,)

    def gradient(
        self, arrays: Mapping[str, Any], wrt: Sequence[str], attributes: Attributes, per_sample: bool
    ) -> tuple[Any, ...]:
        """Run the gradient; what is asked for, in the order of `wrt`."""
        function, options = self.gradient_call(wrt, attributes, per_sample)
        results = function(**{self._argument.get(name, name): x for name, x in arrays.items()}, **options)
        return self.selected(results, wrt)

    def gradient_call(
        self, wrt: Sequence[str], attributes: Attributes, per_sample: bool
    ) -> tuple[Any, dict[str, Any]]:
        """Return the gradient and what it takes beside arrays."""
        options = {name: value for name, value in attributes if name != AS_SAVED}
        if self._selects:
            options["wrt"] = tuple(wrt)
        if per_sample:
            options["per_sample"] = True
        return self._gradient, options

    def gradient_arguments(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the gradient's own names of its arrays."""
        return tuple(self._argument.get(name, name) for name in names)

    def selected(self, results: Any, wrt: Sequence[str]) -> tuple[Any, ...]:
        """What was asked for, of all that the gradient returns."""
        if not self._selects:
            return (results,)
        return tuple(dict(zip(self.graded, results, strict=True))[name] for name in wrt)

    # --- the plain way: JAX's own operations

    def plain_forward(self, arrays: Mapping[str, Any], attributes: Attributes) -> tuple[Any, ...]:
        """The kernel as JAX's own operations."""
        with xpgrad.use_engine("standard"):
            return self.forward(arrays, attributes)

    def plain_gradient(
        self, arrays: Mapping[str, Any], wrt: Sequence[str], attributes: Attributes, per_sample: bool
    ) -> tuple[Any, ...]:
        """The gradient as JAX's own operations, of operands and cotangents alone.

        Saved arrays are made anew: so they are what they are, functions of the operands, to whoever follows;
        unless the attributes say that they are operands themselves.
        """
        with xpgrad.use_engine("standard"):
            given = dict(arrays)
            if self.saved and self.taken and (AS_SAVED, True) not in attributes:
                operands = {name: given[name] for name in self.operands if name in given}
                outputs = dict(zip(self.outputs, self.forward(operands, attributes), strict=True))
                given |= {name: outputs[name] for name in self.saved}
            return self.gradient(given, wrt, attributes, per_sample)

    # --- describing it

    def axes(self, name: str, attributes: Attributes) -> list[str]:
        """Return the axes of an operand or output as the attributes lay them out."""
        if self.reduces(attributes) and name in (*self.outputs, *self.cotangents):
            return []
        axes = self.shapes[name].split()
        if dict(attributes).get("layout") and "N" in axes:
            axes.remove("N")
            axes.insert(0, "N")
        return axes

    def batch_axis(self, name: str, attributes: Attributes) -> int | None:
        """Return which axis of an operand or output is the batch; None for a parameter."""
        axes = self.axes(name, attributes)
        return axes.index("N") if "N" in axes else None

    def reduces(self, attributes: Attributes) -> bool:
        """Tell whether the output is a number for the whole batch, as that of a loss."""
        return dict(attributes).get("reduction", "none") != "none"


def as_attributes(operator: str, values: Mapping[str, Any]) -> Attributes:
    """Attributes as a part of keys: lists become tuples, and arrays of one number that number.

    Raises
    ------
    TypeError
        For a number that is traced, for an array of several numbers, and for what is no part of a key.
    """
    return Attributes((name, _frozen(operator, name, value)) for name, value in values.items())


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
    """An operand as an array of JAX's; what NumPy has becomes one as `jax.numpy.asarray` makes it.

    Raises
    ------
    TypeError
        Where it is neither JAX's nor NumPy's.
    """
    if isinstance(operand, jax.Array):
        return operand
    if isinstance(operand, np.ndarray):
        return jnp.asarray(operand)
    raise TypeError(f"{operator}: {name} is a {type(operand).__name__}, expected an array of JAX or NumPy")
