"""An elementwise operator, declared once: its formulas, its arguments, and its description.

A declaration determines both kernels with their checks, both docstrings, and the use of the operator in
adapters, `check`, random calls, and the tables and the plot of docs/activations.md. The signatures of its two
functions have the defaults and the types, for type checkers.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from xpgrad._elementwise.activation_formulas import Activation
from xpgrad._elementwise.kernel import ElementwiseKernel, NumberCheck, evaluate, pull
from xpgrad._operators.arguments import check_given, check_number, check_wrt
from xpgrad.engine import Formula

__all__ = ["DECLARED", "Attribute", "Declaration", "DeclaredOperand", "formulas_of"]

_Function = TypeVar("_Function", bound=Callable)

_DOCSTRING = """{summary}

.. math::

    {equation}

Parameters
----------
{arguments}out : array, optional
    Array for the result, of its shape and dtype; it may be one of the inputs.

Returns
-------
{result}

Raises
------
ValueError
    If shapes do not fit, an attribute breaks its rule, or `out` is read-only.
TypeError
    If an argument is not an array, or arrays differ in namespace, dtype or device.

References
----------
{source}

Examples
--------
>>> import numpy as np
{example}
{expected}
"""
_FLOATS = "float32 or float64; float16 and bfloat16 if the namespace has them, computed in float32."
_INPUT = f"X : array, shape (...)\n    Input. {_FLOATS}\n"
_COTANGENT = f"dY : array, shape (...)\n    Cotangent of the output. {_FLOATS}\n"
_RESIDUALS = {
    "X": "X : array, shape (...)\n    The input of `{name}`.\n",
    "Y": "Y : array, shape (...)\n    The output of `{name}`.\n",
}
_OPERAND = """{name} : array
    {about}, of a shape that broadcasts to X's; (C, 1, 1) is one {name} per channel
    of an (N, C, H, W) input.
"""
_WANTED = """wrt : iterable of {{{names}}}, optional
    The gradients to compute; all by default. `out` needs X among them.
"""
_SHOWN = "np.asarray([-1.0, 0.5])"  # X of the examples


def formulas_of(
    activation: Activation, residual: str = "X", parameters: tuple[str, ...] = (), **fixed: float
) -> tuple[Formula, Formula]:
    """The formulas of a function of the table: the value, and the gradient by the residual X or Y.

    Each call gives the `parameters`, alpha or beta or both; `fixed` has the values of the others.
    """
    own = {"alpha": activation.alpha, "beta": activation.beta}
    for name, default in own.items():
        if default is not None and name not in (*parameters, *fixed):
            raise TypeError(f"{activation.name}: {name} has no value, expected a parameter or a number")
    constants = {name: fixed.get(name) for name in own if name not in parameters}
    pullback = (activation.input_pullback if residual == "X" else None) or activation.pullback
    return (
        Formula(evaluate, {"value": activation.value, **constants}, parameters),
        Formula(pull, {"pullback": pullback, **constants}, parameters),
    )


@dataclass(frozen=True)
class DeclaredOperand:
    """Another array, which broadcasts to X and has a gradient."""

    about: str
    """Its description, for docstrings."""
    pullback: Callable[..., tuple]
    """Each element's term of the gradient, their sum; operands are `d`, `x` and the operators' arrays."""
    shown: float
    """Its value in examples and in the plot."""

    @cached_property
    def formula(self) -> Formula:
        """Each element's term of the gradient."""
        return Formula(self.pullback)

    @cached_property
    def taken(self) -> tuple[str, ...]:
        """The arrays that the formula takes, by the gradient's names for them."""
        return tuple(
            {"d": "dY", "x": "X"}.get(n, n) for n in list(inspect.signature(self.pullback).parameters)[1:]
        )


class Attribute(NamedTuple):
    """A number in the function's formulas, or a word that chooses between formulas."""

    about: str
    """Its description, for docstrings."""
    check: NumberCheck | None = check_number
    """``check(operator, name, value)`` returns the number or raises; None for a word."""
    kind: str = "float"
    """Its type, for docstrings."""


@dataclass(frozen=True)
class Declaration:
    """An elementwise function of X and its gradient."""

    name: str
    """The forward's public name."""
    formulas: tuple[Formula, Formula]
    """The value, from X and the operands; and X's gradient, from dY, the residual and the operands."""
    summary: str
    equation: str
    slope: str
    """The gradient's equation."""
    source: str
    """The source of the equations; these four are for docstrings and pages."""
    examples: tuple[str, str]
    """The results for X = [-1, 0.5], without and with the gradient, for dY = [1, 2]."""
    residual: str = "X"
    """The array, X or Y, that the gradient takes besides the cotangent."""
    operands: Mapping[str, DeclaredOperand] = field(default_factory=dict)
    """The other arrays, in their order."""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    """The other arguments; numbers in the order of the formulas' parameters."""
    kinks: tuple[float, ...] = ()
    """The places where the derivative jumps."""
    shown: Mapping[str, float] = field(default_factory=dict)
    """Attributes in the plot, if the defaults show little."""
    onnx: str = ""
    """ONNX's operator, followed by the function's attributes that it has: "Selu alpha gamma"."""
    torch: str | None = None
    """The name of its module in PyTorch, or in `xpgrad_torch` if PyTorch has none."""

    def __post_init__(self) -> None:
        """Raise TypeError if a parameter of a formula has no value."""
        numbers = [name for name, one in self.attributes.items() if one.check]
        for formula in self.formulas:
            code = formula.function.__code__  # `inspect` is a thousand times slower
            keywords = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
            lacking = [n for n in keywords if n not in (*formula.constants, *formula.parameters)]
            if lacking or len(formula.parameters) != len(numbers):
                raise TypeError(
                    f"{self.name}: its attributes are {numbers}, expected a number for each parameter of the "
                    f"formula: {[*formula.parameters, *lacking]}"
                )

    @cached_property
    def value(self) -> ElementwiseKernel:
        """The forward's kernel."""
        return self._kernel(self.name, self.formulas[0], "X")

    @cached_property
    def gradient(self) -> ElementwiseKernel:
        """The kernel of X's gradient."""
        return self._kernel(f"{self.name}_grad", self.formulas[1], "dY", self.residual)

    def _kernel(self, operator: str, formula: Formula, *arrays: str) -> ElementwiseKernel:
        checks = [(name, one.check) for name, one in self.attributes.items() if one.check]
        names = (*arrays, *self.operands)
        return ElementwiseKernel(operator, names, formula, arrays[-1], [*self.operands], checks=checks)

    def gradients(self, arrays: Sequence[Any], wrt: Iterable[str] | None, out: Any) -> list[Any]:
        """The gradients of X and of the operands, None for unwanted gradients; `out` is for X's gradient."""
        operator = f"{self.name}_grad"
        check_given(operator, dict(zip(("dY", "X", *self.operands), arrays, strict=True)))
        wanted = check_wrt(operator, wrt, ("X", *self.operands))
        if out is not None and "X" not in wanted:
            raise ValueError(f"{operator}: out is given, expected 'X' in wrt: out is for dX")
        # operands' gradients first: out may be the memory of dY or X
        others = [self._of_operand(name, arrays) if name in wanted else None for name in self.operands]
        return [self.gradient(arrays, (), out) if "X" in wanted else None, *others]

    def _of_operand(self, name: str, arrays: Sequence[Any]) -> Any:
        """The gradient of an operand: the elements' terms, summed over all elements that share a value."""
        computation, operand = self.gradient.check(arrays), self.operands[name]
        named = dict(zip(("dY", "X", *self.operands), arrays, strict=True))
        xp, engine = computation.xp, computation.engine
        terms = engine.elementwise(operand.formula, [computation.lift(named[key]) for key in operand.taken])
        shape = tuple(named[name].shape)
        first = terms.ndim - len(shape)
        axes = tuple(first + axis for axis, size in enumerate(shape) if size == 1)
        with engine.quiet():
            total = xp.sum(terms, axis=axes, keepdims=True) if axes else terms
            if first:
                rows = math.prod(total.shape[:first]), math.prod(shape)
                total = engine.column_sums(xp.reshape(total, rows))
        return computation.lower(xp.reshape(total, shape))

    # --- docstrings

    def forward(self, function: _Function) -> _Function:
        """Give the forward its docstring, and declare it."""
        DECLARED[self.name] = self
        result = "array, shape (...)\n    Y, of X's shape and dtype."
        return self._document(function, self.summary, self.equation, _INPUT, result, _SHOWN)

    def backward(self, function: _Function) -> _Function:
        """Give the gradient its docstring."""
        residual = _SHOWN if self.residual == "X" else f"xpgrad.{self.name}({_SHOWN})"
        result = (
            f"array, shape (...)\n    dX, the cotangent of the input, of {self.residual}'s shape and dtype."
        )
        if self.operands:
            names = ", ".join(["dX", *(f"d{name}" for name in self.operands)])
            kind = str(function.__annotations__["return"]).partition("[")[0]
            result = f"{kind}\n    ``({names})``; operands' gradients sum over elements that share a value."
        return self._document(
            function, f"Gradient of `{self.name}`.", self.slope,
            _COTANGENT + _RESIDUALS[self.residual].format(name=self.name), result,
            f"np.asarray([1.0, 2.0]), {residual}",
        )  # fmt: skip

    def _document(
        self, function: _Function, summary: str, equation: str, arrays: str, result: str, given: str
    ) -> _Function:
        name, is_gradient = function.__name__, function.__name__ != self.name
        described = [_OPERAND.format(name=key, about=operand.about) for key, operand in self.operands.items()]
        described += [f"{key} : {one.kind}\n    {one.about}\n" for key, one in self.attributes.items()]
        if self.operands and is_gradient:
            described.append(_WANTED.format(names=", ".join(f'"{key}"' for key in ("X", *self.operands))))
        given = ", ".join([given, *(f"np.asarray([{operand.shown}])" for operand in self.operands.values())])
        example = f">>> from xpgrad import {name}\n>>> {name}({given}).round(4)"
        if "xpgrad." in given:
            example = f">>> import xpgrad\n{example}"
        if self.operands and is_gradient:
            example = f">>> from xpgrad import {name}\n>>> [g.round(4) for g in {name}({given})]"
        function.__doc__ = _DOCSTRING.format(
            summary=summary, equation=equation, arguments="".join([arrays, *described]), result=result,
            source=self.source, example=example, expected=self.examples[is_gradient],
        )  # fmt: skip
        return function


DECLARED: dict[str, Declaration] = {}
"""The elementwise operators by name, in the order of their functions."""
