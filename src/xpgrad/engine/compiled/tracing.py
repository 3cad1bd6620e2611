"""Formulas as LLVM instructions: a formula is called once, on numbers that write down what is done with them.

numba would infer the types of every line first and then make instructions of each; that took two thirds of a
time loop's compiling. A formula has one type and no branches, so nothing needs to be inferred. Needs numba.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

_CONTRACT = ("contract",)  # a product and a sum may become one instruction


class Emitter:
    """Where instructions go, and the dtype of the numbers.

    Parameters
    ----------
    context, builder
        As numba passes them to an intrinsic's code generator.
    real : numpy scalar type
        ``np.float32`` or ``np.float64``.
    """

    def __init__(self, context: Any, builder: ir.IRBuilder, real: type[np.floating]) -> None:
        self.context, self.builder, self.real = context, builder, real
        self.number = types.float32 if real is np.float32 else types.float64
        self.type = context.get_value_type(self.number)

    def value(self, number: Any) -> ir.Value:
        """The LLVM value of a number or condition; numbers from Python become constants."""
        if isinstance(number, Number):
            return number.value
        if isinstance(number, (bool, np.bool_)):
            return ir.Constant(ir.IntType(1), int(number))
        return ir.Constant(self.type, float(self.real(number)))

    def call(self, function: Any, numbers: Sequence[Any]) -> Number:
        """The result of a scalar function that numba compiles."""
        values = [self.value(number) for number in numbers]
        kinds = tuple(types.boolean if v.type == ir.IntType(1) else self.number for v in values)
        typing = self.context.typing_context
        kind = typing.resolve_value_type(function)
        signature = typing.resolve_function_type(kind, kinds, {})
        implementation = self.context.get_function(kind, signature)
        result = implementation(self.builder, values)
        self.context.add_linking_libs(getattr(implementation, "libs", ()))
        return Number(self, result)


class Number:
    """A number or condition of the code that is being made: operators and comparisons add instructions."""

    __array_ufunc__ = None  # NumPy's scalars leave their operators to this class
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, emitter: Emitter, value: ir.Value) -> None:
        self.emitter, self.value = emitter, value

    def __bool__(self) -> bool:
        raise TypeError("a formula cannot branch on its operands: use xp.where")

    def _make(self, instruction: str, *operands: Any, **options: Any) -> Number:
        builder = self.emitter.builder
        values = [self.emitter.value(operand) for operand in operands]
        return Number(self.emitter, getattr(builder, instruction)(*values, **options))

    def __add__(self, other: Any) -> Number:
        return self._make("fadd", self, other, flags=_CONTRACT)

    def __radd__(self, other: Any) -> Number:
        return self._make("fadd", other, self, flags=_CONTRACT)

    def __sub__(self, other: Any) -> Number:
        return self._make("fsub", self, other, flags=_CONTRACT)

    def __rsub__(self, other: Any) -> Number:
        return self._make("fsub", other, self, flags=_CONTRACT)

    def __mul__(self, other: Any) -> Number:
        return self._make("fmul", self, other, flags=_CONTRACT)

    def __rmul__(self, other: Any) -> Number:
        return self._make("fmul", other, self, flags=_CONTRACT)

    def __truediv__(self, other: Any) -> Number:
        return self._make("fdiv", self, other, flags=_CONTRACT)

    def __rtruediv__(self, other: Any) -> Number:
        return self._make("fdiv", other, self, flags=_CONTRACT)

    def __neg__(self) -> Number:
        return self._make("fneg", self, flags=_CONTRACT)

    def __pos__(self) -> Number:
        return self

    def __lt__(self, other: Any) -> Number:
        return self._compare("<", other)

    def __le__(self, other: Any) -> Number:
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> Number:
        return self._compare(">", other)

    def __ge__(self, other: Any) -> Number:
        return self._compare(">=", other)

    def __eq__(self, other: Any) -> Number:  # type: ignore[override]
        return self._compare("==", other)

    def __ne__(self, other: Any) -> Number:  # type: ignore[override]
        builder, emitter = self.emitter.builder, self.emitter
        return Number(emitter, builder.fcmp_unordered("!=", self.value, emitter.value(other)))

    def _compare(self, how: str, other: Any) -> Number:
        """NaN compares as false."""
        builder, emitter = self.emitter.builder, self.emitter
        return Number(emitter, builder.fcmp_ordered(how, self.value, emitter.value(other)))

    def __and__(self, other: Any) -> Number:
        return self._make("and_", self, other)

    def __or__(self, other: Any) -> Number:
        return self._make("or_", self, other)

    def __xor__(self, other: Any) -> Number:
        return self._make("xor", self, other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self) -> Number:
        return self._make("not_", self)


class Scalars:
    """What stands for ``xp`` in the text of a traced formula.

    Parameters
    ----------
    dtype : str
        ``"float32"`` or ``"float64"``. The functions are those of the module of scalar functions of that
        name.
    """

    def __init__(self, dtype: str) -> None:
        self.real = getattr(np, dtype)
        self._functions = importlib.import_module(f"xpgrad.engine.compiled.scalar_{dtype}")

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """`x` where the condition holds, else `y`."""
        if not isinstance(condition, Number):
            return x if condition else y
        return condition._make("select", condition, x, y)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._functions, name)

        def call(*numbers: Any) -> Any:
            traced = next((number for number in numbers if isinstance(number, Number)), None)
            return function(*numbers) if traced is None else traced.emitter.call(function, numbers)

        return call
