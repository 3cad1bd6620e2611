"""A formula without llvmlite: traced once into function calls that write into buffers.

The formula is called with stand-ins for arrays, which record the operations (`tape`). An expression that
occurs twice is computed once. A buffer is reused as soon as its value is no longer needed. The last call
writes the result. The formula becomes a Python function of only these calls, for arrays of a few elements and
for blocks that stay in the cache.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from xpgrad.engine.arrays.tape import NUMPY_FUNCTIONS, Tape, Value
from xpgrad.engine.formulas.formula import Formula
from xpgrad.engine.formulas.row_formula import RowFormula

BLOCK = 131072
"""Elements of a block: few enough for a cache, and many, since between any two calls threads wait for the
interpreter lock and for one another."""

_STORES = {
    ("each", "f"): "f", ("each", "?"): "m",
    ("row", "f"): "r", ("row", "?"): "s",
    ("column", "f"): "c", ("column", "?"): "d",
}  # fmt: skip
"""What buffers are called: by the axes of their values, numbers or flags."""


class _TracedProgram:
    """The record of a tape, as a Python function."""

    def __init__(self, tape: Tape, operands: Sequence[Value | None], results: Sequence[Any]) -> None:
        self._memory = _ThreadBuffers(tape)
        given = [operand for operand in operands if operand is not None]
        text = _TracedText(given, [tape.made(result) for result in results], self._memory)
        self.text = text.text()
        exec(compile(self.text, "<traced formula>", "exec"), text.known)
        self._run = text.known["run"]


class TracedFormula(_TracedProgram):
    """A formula with one result, for arrays of a dtype, with its numbers fixed.

    `absent` says which of its operands are None. `text` is the source of ``run(y, *operands, *buffers)``.
    """

    def __init__(
        self, formula: Formula, absent: Sequence[bool], dtype: np.dtype, numbers: Sequence[float]
    ) -> None:
        tape = Tape(dtype)
        operands = [None if missing else tape.operand() for missing in absent]
        with np.errstate(all="ignore"):
            results = formula(tape, *operands, **dict(zip(formula.parameters, numbers, strict=True)))
            super().__init__(tape, operands, results)

    def __call__(self, out: Any, operands: Sequence[Any]) -> None:
        """Write the result; the arrays have one axis, with as many elements as `out` or a single one.

        The caller silences NumPy's warnings.
        """
        self._run(out, *operands, *self._memory.views(out.shape))


class TracedRows(_TracedProgram):
    """The same as `TracedFormula` for a row formula."""

    def __init__(
        self, formula: RowFormula, absent: Sequence[bool], dtype: np.dtype, numbers: Sequence[float]
    ) -> None:
        tape = Tape(dtype)
        axes = ["each"] * len(formula.each) + ["row"] * len(formula.rows) + ["column"] * len(formula.columns)
        operands = [
            None if missing else tape.operand(kind) for missing, kind in zip(absent, axes, strict=True)
        ]
        # numbers of rows first: a result in place of an operand is written after all reads
        self._order = sorted(
            range(len(formula.outputs)), key=lambda number: formula.outputs[number] == formula.each_output
        )
        with np.errstate(all="ignore"):
            results = formula.evaluate(tape, operands, numbers)
            super().__init__(tape, operands, [results[number] for number in self._order])

    def __call__(self, outs: Sequence[Any], operands: Sequence[Any], shape: tuple[int, int]) -> None:
        """Write the outputs; the arrays have two axes, with a single column or row if it holds for all.

        The caller silences NumPy's warnings.
        """
        self._run(*[outs[number] for number in self._order], *operands, *self._memory.views(shape))


class _ThreadBuffers:
    """The buffers of a program, separate for each thread."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._threads = threading.local()
        self.counts = dict.fromkeys(_STORES.values(), 0)

    def views(self, shape: tuple[int, ...]) -> list[Any]:
        """Views of each buffer as every dtype that its bytes may have."""
        threads = self._threads
        if getattr(threads, "shape", None) != shape:
            threads.views, threads.shape = [*self._make(shape)], shape
        return threads.views

    def _make(self, shape: tuple[int, ...]) -> Iterator[Any]:
        sizes = {"each": shape, "row": (*shape[:-1], 1), "column": (1, *shape[1:])}
        for (axes, kind), store in _STORES.items():
            for _ in range(self.counts[store]):
                yield from self.tape.buffer(sizes[axes], kind)


def _needed(results: Sequence[Value]) -> list[Value]:
    """The calls in order; before each result come the calls that it needs."""
    order: dict[int, Value] = {}

    def visit(value: Value) -> None:
        if value.call is not None and id(value) not in order:
            if value.called("clear_rows"):
                # the flags just before the clearing, whose operands are then in the cache
                for used in value.uses[-1].uses:
                    visit(used)
            for used in value.uses:
                visit(used)
            order[id(value)] = value

    for result in results:
        visit(result)
    return [*order.values()]


class _TracedText:
    """The program as the text of a Python function ``run``, and its global names.

    ``run`` takes memory for the results, the operands, and the buffers, which `memory` counts.
    """

    def __init__(self, operands: Sequence[Value], results: Sequence[Value], memory: _ThreadBuffers) -> None:
        self._operands, self._results, self._memory = operands, results, memory
        self._order = _needed(results)
        self._last = {id(used): n for n, value in enumerate(self._order) for used in value.uses}
        self._targets = {id(result): f"y{number or ''}" for number, result in enumerate(results)}
        if results[-1].called("clear_rows") and id(results[-1].uses[-1]) not in self._targets:
            # the array whose rows it clears is already in its place
            self._targets[id(results[-1].uses[-1])] = self._targets[id(results[-1])]
        self._names = {id(operand): f"x{number}" for number, operand in enumerate(operands)}
        self._of_bits: set[str] = set()  # arrays that are also read as integers
        self._free: dict[str, list[str]] = {store: [] for store in memory.counts}
        self.known: dict[str, Any] = {"integers": memory.tape.dtypes["i"]}

    def text(self) -> str:
        """The source of ``run``; it completes the global names `known`."""
        lines = [self._line(number, value) for number, value in enumerate(self._order)]
        counts = self._memory.counts
        buffers = [f"{store}{n}" for store in _STORES.values() for n in range(counts[store])]
        parameters = [
            *(f"y{number or ''}" for number in range(len(self._results))),
            *(self._names[id(operand)] for operand in self._operands),
            *(f"{b}{end}" for b in buffers for end in ("", "_bits")),
        ]
        views = [f"{name}_bits = {name}.view(integers)" for name in sorted(self._of_bits)]
        return "\n    ".join([f"def run({', '.join(parameters)}):", *views, *lines])

    def _line(self, number: int, value: Value) -> str:
        """A call, whose result goes where it belongs."""
        call: Any = value.call  # all values in the order have one
        arguments = [self._name(*use) for use in call.uses]
        for name in {self._names[id(used)] for used in value.uses if self._last[id(used)] == number}:
            if name[0] in self._free:  # a buffer
                self._free[name[0]].append(name)
        self._names[id(value)] = self._place(value)
        self.known[call.function] = getattr(NUMPY_FUNCTIONS, call.function)
        arguments.append(f"out={self._name(value, call.kind)}")
        return f"{call.function}({', '.join(arguments)})"

    def _place(self, value: Value) -> str:
        """The name of the memory for a value: a result's, a buffer that is free, or a new one."""
        if id(value) in self._targets:
            return self._targets[id(value)]
        store = _STORES[value.axes, "?" if value.is_flag else "f"]
        if self._free[store]:
            return self._free[store].pop()
        self._memory.counts[store] += 1
        return f"{store}{self._memory.counts[store] - 1}"

    def _name(self, value: Any, kind: str) -> str:
        """The name of an argument, or of a constant."""
        if not isinstance(value, Value):
            name = f"k{len(self.known)}"
            self.known[name] = self._memory.tape.constant(value, kind)
            return name
        name = self._names[id(value)]
        if kind == "i" and name[0] in "xy":
            self._of_bits.add(name)
        return f"{name}{'_bits' if kind in 'ib' else ''}"
