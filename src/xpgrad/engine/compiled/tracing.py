"""Formulas as LLVM instructions: a formula is called once, on numbers that record its operations.

A formula has one type and no branches. Needs llvmlite.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from xpgrad.engine.compiled.translate import Code

_CONTRACT = ("contract",)  # a product and a sum may become one instruction


class Emitter:
    """Where instructions are written, and the dtype of numbers, ``np.float32`` or ``np.float64``."""

    def __init__(self, code: Code, real: type[np.floating]) -> None:
        self.code, self.builder, self.real = code, code.builder, real
        self.type = ir.FloatType() if real is np.float32 else ir.DoubleType()

    def value(self, number: Any) -> ir.Value:
        """The LLVM value of a number or condition; numbers from Python become constants.

        NumPy's integers stay integers; every other number gets the dtype.
        """
        if isinstance(number, Number):
            return number.value
        if isinstance(number, (bool, np.bool_)):
            return ir.Constant(ir.IntType(1), int(number))
        if isinstance(number, np.integer):
            return ir.Constant(ir.IntType(8 * number.itemsize), int(number))
        return ir.Constant(self.type, float(self.real(number)))

    def alike(self, operands: Sequence[Any]) -> list[ir.Value]:
        """The values of an instruction's operands; with a real number, integers become real numbers."""
        values = [self.value(operand) for operand in operands]
        if all(value.type == values[0].type for value in values):
            return values
        return [
            self.builder.sitofp(value, self.type)
            if isinstance(value.type, ir.IntType) and value.type.width > 1
            else value
            for value in values
        ]

    def rounded(self, value: ir.Value) -> Number:
        """A value of 64 bits as a number."""
        return Number(self, value if self.real is np.float64 else self.builder.fptrunc(value, self.type))

    def call(self, function: Any, numbers: Sequence[Any]) -> Number:
        """The result of a scalar function."""
        found = self.code.call(function, [self.value(number) for number in numbers])
        return Number(self, self.value(Number(self, found) if isinstance(found, ir.Value) else found))


def _operator(instruction: str, **options: Any) -> tuple[Callable[..., Number], Callable[..., Number]]:
    """The methods that write an instruction, and the instruction with swapped operands."""

    def forward(self: Number, other: Any) -> Number:
        return self.emit(instruction, self, other, **options)

    def backward(self: Number, other: Any) -> Number:
        return self.emit(instruction, other, self, **options)

    return forward, backward


def _comparison(how: str, *, of_nan: bool) -> Callable[..., Number]:
    """The method that writes a comparison of integers or reals; `of_nan` is its result for NaN."""
    of_reals = "fcmp_unordered" if of_nan else "fcmp_ordered"

    def compare(self: Number, other: Any) -> Number:
        emitter = self.emitter
        values = emitter.alike([self, other])
        for value in values:  # a compared sum is rounded as in NumPy: its rounding decides at a kink
            if getattr(value, "opname", None) in ("fadd", "fsub"):
                value.flags = []
        instruction = "icmp_signed" if isinstance(values[0].type, ir.IntType) else of_reals
        return Number(emitter, getattr(emitter.builder, instruction)(how, *values))

    return compare


class Number:
    """A number or condition of compiled code: operators and comparisons write instructions."""

    __array_ufunc__ = None  # NumPy's scalars leave their operators to this class
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, emitter: Emitter, value: ir.Value) -> None:
        self.emitter, self.value = emitter, value

    def __bool__(self) -> bool:
        raise TypeError("a formula cannot branch on its operands: use xp.where")

    def emit(self, instruction: str, *operands: Any, **options: Any) -> Number:
        """The result of one of llvmlite's instructions."""
        values = self.emitter.alike(operands)
        return Number(self.emitter, getattr(self.emitter.builder, instruction)(*values, **options))

    __add__, __radd__ = _operator("fadd", flags=_CONTRACT)
    __sub__, __rsub__ = _operator("fsub", flags=_CONTRACT)
    __mul__, __rmul__ = _operator("fmul", flags=_CONTRACT)
    __truediv__, __rtruediv__ = _operator("fdiv", flags=_CONTRACT)
    __and__, __rand__ = _operator("and_")
    __or__, __ror__ = _operator("or_")
    __xor__, __rxor__ = _operator("xor")
    __lt__, __le__ = _comparison("<", of_nan=False), _comparison("<=", of_nan=False)
    __gt__, __ge__ = _comparison(">", of_nan=False), _comparison(">=", of_nan=False)
    __eq__ = _comparison("==", of_nan=False)  # type: ignore[assignment]
    __ne__ = _comparison("!=", of_nan=True)  # type: ignore[assignment]

    def __neg__(self) -> Number:
        return self.emit("fneg", self, flags=_CONTRACT)

    def __pos__(self) -> Number:
        return self

    def __abs__(self) -> Number:
        return self.emit("select", self < 0, -self, self)

    def __invert__(self) -> Number:
        return self.emit("not_", self)


class Scalars:
    """The ``xp`` of a traced formula: the scalar functions of a dtype."""

    def __init__(self, dtype: str) -> None:
        self.real = getattr(np, dtype)
        self._functions = importlib.import_module(f"xpgrad.engine.compiled.scalar_{dtype}")

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """`x` where the condition holds, else `y`."""
        if not isinstance(condition, Number):
            return x if condition else y
        return condition.emit("select", condition, x, y)

    def maximum(self, x: Any, y: Any) -> Any:
        """The larger of the two; NaN if `x` is."""
        return self.where(x < y, y, x)

    def minimum(self, x: Any, y: Any) -> Any:
        """The smaller of the two; NaN if `x` is."""
        return self.where(x > y, y, x)

    def abs(self, x: Any) -> Any:
        """Absolute value."""
        return abs(x)

    def zeros_like(self, x: Any) -> Any:
        """Zero."""
        return self.real(0)

    def epsilon(self, x: Any) -> Any:
        """The distance from 1 to the next number."""
        return np.finfo(self.real).eps

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._functions, name)
        if not callable(function):
            return function

        def call(*numbers: Any) -> Any:
            traced = next((number for number in numbers if isinstance(number, Number)), None)
            if traced is None:
                return function(*map(self.real, numbers))
            return traced.emitter.call(function, numbers)

        return call
