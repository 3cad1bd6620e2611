"""A formula without numba: traced once into calls of ufuncs, each of which writes into a buffer.

The formula is called with stand-ins for arrays, which record what is done to them. An expression that occurs
twice is computed once; a buffer serves again as soon as its value has been used; the last call writes the
result. What remains of the formula is a Python function without anything but such calls, for arrays of a few
elements as for blocks that stay in the cache.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from xpgrad.engine.formula import Formula

BLOCK = 131072
"""Elements of a block: few enough for a cache, and many, since between any two calls threads wait for the
interpreter lock and for one another."""

_INTEGERS = {np.dtype(np.float32): np.dtype(np.int32), np.dtype(np.float64): np.dtype(np.int64)}
_FLAGS = (
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "equal",
    "not_equal",
    "isnan",
    "isinf",
    "isfinite",
)


class _Use(NamedTuple):
    """An argument of a call: a value, or a constant, and as what it is read (a key of `_Memory.views`)."""

    value: Any
    kind: str


class _Call(NamedTuple):
    function: str
    uses: tuple[_Use, ...]
    kind: str


class _Value:
    """What a formula sees in the place of an array: an operand, or the result of a call."""

    def __init__(self, tape: _Tape, call: _Call | None) -> None:
        self.tape, self.call, self.dtype = tape, call, tape.dtype

    @property
    def uses(self) -> list[_Value]:
        """The values that its call reads."""
        return [use.value for use in self.call.uses if isinstance(use.value, _Value)] if self.call else []

    @property
    def is_flag(self) -> bool:
        """Whether it is true or false, in a byte."""
        return self.call is not None and self.call.kind in "?b"

    def __neg__(self) -> _Value:
        return self.tape.apply("negative", self)


def _operator(function: str, turned: bool) -> Callable[[_Value, Any], _Value]:
    def operate(self: _Value, other: Any) -> _Value:
        return self.tape.apply(function, *((other, self) if turned else (self, other)))

    return operate


for _name, _ufunc in {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "and": "logical_and",
    "or": "logical_or",
}.items():  # fmt: skip
    setattr(_Value, f"__{_name}__", _operator(_ufunc, turned=False))
    setattr(_Value, f"__r{_name}__", _operator(_ufunc, turned=True))
for _name, _ufunc in zip(("lt", "le", "gt", "ge", "eq", "ne"), _FLAGS, strict=False):
    setattr(_Value, f"__{_name}__", _operator(_ufunc, turned=False))
_Value.__hash__ = object.__hash__  # type: ignore[method-assign]


class _Tape:
    """Records calls, each only once. Stands in the place of ``xp``."""

    float32, float64, inf = np.float32, np.float64, float("inf")

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype
        self.calls: dict[tuple, _Value] = {}

    def __getattr__(self, name: str) -> Callable[..., _Value]:
        if not isinstance(getattr(np, name, None), np.ufunc):
            raise AttributeError(f"a formula may not use {name}: it is no elementwise function")
        return lambda *arguments: self.apply(name, *arguments)

    def abs(self, x: _Value) -> _Value:
        """Absolute value."""
        return self.apply("absolute", x)

    def zeros_like(self, x: _Value) -> float:
        """A number, which ufuncs broadcast."""
        return 0.0

    def where(self, condition: _Value, x: Any, y: Any) -> _Value:
        """`x` where the condition holds, else `y`; NumPy's own branches on every element."""
        return self._by_order(condition, x, y) or self._by_bits(condition, x, y)

    def _by_order(self, condition: _Value, x: Any, y: Any) -> _Value | None:
        """What is a maximum, a minimum or an absolute value in truth, for NaN as well."""
        if condition.call is None or len(condition.call.uses) < 2:
            return None
        function, (left, right) = condition.call.function, (use.value for use in condition.call.uses)
        if isinstance(right, _Value):
            return None
        if y is left and _same(x, right) and function in ("less", "less_equal", "greater", "greater_equal"):
            return self.apply("maximum" if function.startswith("less") else "minimum", y, x)
        if function == "less" and _same(right, 0.0):
            if x is left and y is self.apply("negative", x):
                return -self.abs(x)
            if y is left and x is self.apply("negative", y):
                return self.abs(y)
        return None

    def _by_bits(self, condition: _Value, x: Any, y: Any) -> _Value:
        """By integers: under a mask of all ones or none."""
        if _same(x, 0.0):
            return self._masked(self._call("subtract", "b", _Use(condition, "b"), _Use(1, "b")), y)
        mask = self._call("negative", "b", _Use(condition, "b"))
        if _same(y, 0.0):
            return self._masked(mask, x)
        difference = self._call("bitwise_xor", "i", _Use(x, "i"), _Use(y, "i"))
        return self._call("bitwise_xor", "i", _Use(self._masked(mask, difference), "i"), _Use(y, "i"))

    def _masked(self, mask: _Value, x: Any) -> _Value:
        wide = self._call("copyto", "i", _Use(mask, "b"))
        return self._call("bitwise_and", "i", _Use(wide, "i"), _Use(x, "i"))

    def apply(self, function: str, *arguments: Any) -> _Value:
        """A ufunc of values and numbers; none where it would change nothing."""
        if function in ("multiply", "divide") and _same(arguments[1], 1.0):
            return arguments[0]
        if function == "multiply" and _same(arguments[0], 1.0):
            return arguments[1]
        uses = [_Use(a, "?" if isinstance(a, _Value) and a.is_flag else "f") for a in arguments]
        return self._call(function, "?" if function in _FLAGS or uses[0].kind == "?" else "f", *uses)

    def _call(self, function: str, kind: str, *uses: _Use) -> _Value:
        key = (function, *((id(value) if isinstance(value, _Value) else repr(value), k) for value, k in uses))
        if key not in self.calls:
            self.calls[key] = _Value(self, _Call(function, uses, kind))
        return self.calls[key]


def _same(a: Any, b: Any) -> bool:
    """Whether it is one value, or one number, of one sign."""
    return a is b or (
        not isinstance(a, _Value) and not isinstance(b, _Value) and repr(float(a)) == repr(float(b))
    )


class TracedFormula:
    """A formula for arrays of a dtype, with its numbers fixed.

    Parameters
    ----------
    formula : Formula
        With one result.
    absent : sequence of bool
        Which of its operands are None.
    dtype : dtype
        float32 or float64.
    numbers : sequence of float
        Values of the formula's parameters.

    Attributes
    ----------
    text : str
        What it does: the source of ``run(y, *operands, *buffers)``.
    """

    def __init__(
        self, formula: Formula, absent: Sequence[bool], dtype: np.dtype, numbers: Sequence[float]
    ) -> None:
        tape = _Tape(dtype)
        operands = [None if missing else _Value(tape, None) for missing in absent]
        with np.errstate(all="ignore"):
            (result,) = formula(tape, *operands, **dict(zip(formula.parameters, numbers, strict=True)))
        if not isinstance(result, _Value) or result.call is None:  # an operand, or a number
            result = tape.apply("positive", result)
        self._memory = _Memory(dtype)
        given = [operand for operand in operands if operand is not None]
        self.text, known = _text(given, result, self._memory)
        exec(compile(self.text, f"<{formula.function.__name__}>", "exec"), known)
        self._run = known["run"]

    def __call__(self, out: np.ndarray, operands: Sequence[np.ndarray]) -> None:
        """Write the result; arrays of one axis, with as many elements as `out` has or one for all.

        NumPy's warnings are the caller's to silence.
        """
        self._run(out, *operands, *self._memory.views(out.size))


class _Memory:
    """The buffers of a program, for each thread its own."""

    def __init__(self, dtype: np.dtype) -> None:
        self._dtypes: dict[str, Any] = {
            "f": dtype,
            "i": _INTEGERS[dtype],
            "?": np.dtype(bool),
            "b": np.dtype(np.int8),
        }
        self._threads = threading.local()
        self.counts = {"f": 0, "?": 0}

    def constant(self, value: Any, kind: str) -> np.ndarray:
        """A number as an array."""
        if kind == "i":
            return np.asarray(value, dtype=self._dtypes["f"]).view(self._dtypes["i"])
        return np.asarray(value, dtype=self._dtypes[kind])

    def integers(self, array: np.ndarray) -> np.ndarray:
        """The bits."""
        return array.view(self._dtypes["i"])

    def views(self, size: int) -> list[np.ndarray]:
        """Each buffer as what its bytes may be read."""
        threads = self._threads
        if getattr(threads, "size", None) != size:
            threads.views, threads.size = [*self._make(size)], size
        return threads.views

    def _make(self, size: int) -> Iterator[np.ndarray]:
        for kind, other in (("f", "i"), ("?", "b")):
            for _ in range(self.counts[kind]):
                buffer = np.empty(size, self._dtypes[kind])
                yield buffer
                yield buffer.view(self._dtypes[other])


def _needed(result: _Value) -> list[Any]:
    """What is called, in order, the result last."""
    order: dict[int, _Value] = {}

    def visit(value: _Value) -> None:
        if value.call is not None and id(value) not in order:
            for used in value.uses:
                visit(used)
            order[id(value)] = value

    visit(result)
    return [*order.values()]


def _text(operands: Sequence[_Value], result: _Value, memory: _Memory) -> tuple[str, dict[str, Any]]:
    """The program as a Python function ``run``, and what it knows by name."""
    order = _needed(result)
    last = {id(used): number for number, value in enumerate(order) for used in value.uses}
    names = {id(operand): f"x{number}" for number, operand in enumerate(operands)}
    of_bits: set[str] = set()
    known: dict[str, Any] = {"bits": memory.integers}
    free: dict[str, list[str]] = {"f": [], "?": []}
    lines = []

    def text(value: Any, kind: str) -> str:
        if not isinstance(value, _Value):
            name = f"c{len(known)}"
            known[name] = memory.constant(value, kind)
            return name
        name = names[id(value)]
        if kind == "i" and name[0] in "xy":
            of_bits.add(name)
        return f"{name}{'_bits' if kind in 'ib' else ''}"

    for number, value in enumerate(order):
        arguments = [text(*use) for use in value.call.uses]
        for name in {names[id(used)] for used in value.uses if last[id(used)] == number}:
            if name[0] in "fm":  # a buffer
                free["f" if name[0] == "f" else "?"].append(name)
        kind = "?" if value.is_flag else "f"
        if value is result:
            names[id(value)] = "y"
        elif free[kind]:
            names[id(value)] = free[kind].pop()
        else:
            names[id(value)] = f"{'f' if kind == 'f' else 'm'}{memory.counts[kind]}"
            memory.counts[kind] += 1
        function, _, written = value.call
        known[function] = getattr(np, function)
        target = text(value, written)
        lines.append(
            f"copyto({target}, {arguments[0]})"
            if function == "copyto"
            else f"{function}({', '.join(arguments)}, out={target})"
        )
    buffers = [f"{'f' if kind == 'f' else 'm'}{n}" for kind in "f?" for n in range(memory.counts[kind])]
    parameters = [
        "y",
        *(names[id(operand)] for operand in operands),
        *(f"{b}{end}" for b in buffers for end in ("", "_bits")),
    ]
    views = [f"{name}_bits = bits({name})" for name in sorted(of_bits)]
    return "\n    ".join([f"def run({', '.join(parameters)}):", *views, *lines]), known
