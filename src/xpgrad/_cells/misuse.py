"""Errors for operations that a step's formula cannot contain; they say what to write instead."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NoReturn

# The names of Python's operators and protocols in messages, by method.
_ARITHMETIC = {
    "__add__": "+", "__radd__": "+", "__sub__": "-", "__rsub__": "-", "__mul__": "*", "__rmul__": "*",
    "__truediv__": "/", "__rtruediv__": "/", "__pow__": "**", "__and__": "&", "__rand__": "&", "__or__": "|",
    "__ror__": "|", "__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">=", "__eq__": "==",
    "__ne__": "!=", "__neg__": "-", "__pos__": "+", "__abs__": "abs", "__bool__": "an if",
}  # fmt: skip
_NEVER = {
    "__matmul__": "@", "__rmatmul__": "@", "__floordiv__": "//", "__rfloordiv__": "//", "__mod__": "%",
    "__rmod__": "%", "__rpow__": "**", "__xor__": "^", "__rxor__": "^", "__lshift__": "<<",
    "__rlshift__": "<<", "__rshift__": ">>", "__rrshift__": ">>", "__invert__": "~",
    "__float__": "float or a function of math", "__int__": "int", "__index__": "range or an index",
    "__setitem__": "an assignment to an index", "__len__": "len", "__iter__": "a loop",
    "__getitem__": "an index", "__array__": "numpy.asarray",
    "__contains__": "in", "__round__": "round", "__divmod__": "divmod", "__complex__": "complex",
    "__floor__": "math.floor", "__ceil__": "math.ceil", "__trunc__": "math.trunc",
}  # fmt: skip


def _refusing(what: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *operands: Any, **options: Any) -> NoReturn:
        raise self.refused(what)

    return refuse


class Refusing(ABC):
    """Raises for operations that no formula can contain."""

    @abstractmethod
    def refused(self, what: str) -> Exception:
        """The error for an operator or function that a step applied to it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(str(self.refused(f".{name}")))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> NoReturn:
        raise self.refused(f"numpy.{function.__name__}")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        own = next(one for one in _flat(args) if isinstance(one, Refusing))
        raise own.refused(f"torch.{function.__name__}")


for _name, _what in _NEVER.items():
    setattr(Refusing, _name, _refusing(_what))


class StandIn(Refusing):
    """An argument of a step that is not a value: the input, a block of weights, all blocks.

    Messages call it `what`, and name `instead`, which a formula has in its place.
    """

    def __init__(self, operator: str, what: str, instead: str) -> None:
        self._operator, self.what, self.instead = operator, what, instead

    def refused(self, what: str) -> Exception:
        """The error for an operator or function that a step applied to it."""
        return TypeError(f"{self._operator}: step applies {what} to {self.what}, expected {self.instead}")

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **options: Any) -> NoReturn:
        raise self.refused(f"numpy.{ufunc.__name__}")

    __hash__ = object.__hash__


for _name, _what in _ARITHMETIC.items():
    setattr(StandIn, _name, _refusing(_what))
setattr(StandIn, "__call__", _refusing("a call"))  # noqa: B010 - as the others


def _flat(values: Any) -> Any:
    """The elements of nested tuples and lists."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from _flat(value)
        else:
            yield value
