"""A formula without numba: traced once into calls of functions, each of which writes into a buffer.

The formula is called with stand-ins for arrays, which record what is done to them (`tape`). An
expression that occurs twice is computed once. A buffer serves again as soon as its value has been used. The
last call writes the result. What remains of the formula is a Python function of such calls alone, for arrays
of a few elements as for blocks that stay in the cache.
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


class _Program:
    """What a tape has recorded, as a Python function."""

    def __init__(self, tape: Tape, operands: Sequence[Value | None], results: Sequence[Any]) -> None:
        self._memory = _Memory(tape)
        given = [operand for operand in operands if operand is not None]
        self.text, known = _text(given, [tape.made(result) for result in results], self._memory)
        exec(compile(self.text, "<traced formula>", "exec"), known)
        self._run = known["run"]


class TracedFormula(_Program):
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

    Raises
    ------
    Untraceable
        Where the tape has no words for the formula.
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
        """Write the result; arrays of one axis, with as many elements as `out` has or one for all.

        NumPy's warnings are the caller's to silence.
        """
        self._run(out, *operands, *self._memory.views(out.shape))


class TracedRows(_Program):
    """A row formula, as `TracedFormula` is a formula."""

    def __init__(
        self, formula: RowFormula, absent: Sequence[bool], dtype: np.dtype, numbers: Sequence[float]
    ) -> None:
        tape = Tape(dtype)
        axes = ["each"] * len(formula.each) + ["row"] * len(formula.rows) + ["column"] * len(formula.columns)
        operands = [
            None if missing else tape.operand(kind) for missing, kind in zip(absent, axes, strict=True)
        ]
        # numbers of rows first: what has the place of an operand is written when all has been read
        self._order = sorted(
            range(len(formula.outputs)), key=lambda number: formula.outputs[number] == formula.each_output
        )
        with np.errstate(all="ignore"):
            results = formula.evaluate(tape, operands, numbers)
            super().__init__(tape, operands, [results[number] for number in self._order])

    def __call__(self, outs: Sequence[Any], operands: Sequence[Any], shape: tuple[int, int]) -> None:
        """Write the outputs; arrays of two axes, with one column or one row where that serves for all.

        NumPy's warnings are the caller's to silence.
        """
        self._run(*[outs[number] for number in self._order], *operands, *self._memory.views(shape))


class _Memory:
    """The buffers of a program, for each thread its own."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._threads = threading.local()
        self.counts = dict.fromkeys(_STORES.values(), 0)

    def views(self, shape: tuple[int, ...]) -> list[Any]:
        """Each buffer as what its bytes may be read."""
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
    """What is called, in order, each result after all that the one before needs."""
    order: dict[int, Value] = {}

    def visit(value: Value) -> None:
        if value.call is not None and id(value) not in order:
            if value.called("clear_rows"):
                # the flags last before what is cleared, whose operands are in the cache by then
                for used in value.uses[-1].uses:
                    visit(used)
            for used in value.uses:
                visit(used)
            order[id(value)] = value

    for result in results:
        visit(result)
    return [*order.values()]


def _text(operands: Sequence[Value], results: Sequence[Value], memory: _Memory) -> tuple[str, dict[str, Any]]:
    """The program as a Python function ``run``, and what it knows by name."""
    tape, order = memory.tape, _needed(results)
    last = {id(used): number for number, value in enumerate(order) for used in value.uses}
    targets = {id(result): f"y{number or ''}" for number, result in enumerate(results)}
    if results[-1].called("clear_rows") and id(results[-1].uses[-1]) not in targets:
        # what it clears rows of is already where it belongs
        targets[id(results[-1].uses[-1])] = targets[id(results[-1])]
    names = {id(operand): f"x{number}" for number, operand in enumerate(operands)}
    of_bits: set[str] = set()
    known: dict[str, Any] = {"bits": tape.integers}
    free: dict[str, list[str]] = {store: [] for store in memory.counts}
    lines = []

    def text(value: Any, kind: str) -> str:
        if not isinstance(value, Value):
            name = f"k{len(known)}"
            known[name] = tape.constant(value, kind)
            return name
        name = names[id(value)]
        if kind == "i" and name[0] in "xy":
            of_bits.add(name)
        return f"{name}{'_bits' if kind in 'ib' else ''}"

    for number, value in enumerate(order):
        call: Any = value.call  # all that stand in order have one
        arguments = [text(*use) for use in call.uses]
        for name in {names[id(used)] for used in value.uses if last[id(used)] == number}:
            if name[0] in free:  # a buffer
                free[name[0]].append(name)
        store = _STORES[value.axes, tape.store(value)]
        if id(value) in targets:
            names[id(value)] = targets[id(value)]
        elif free[store]:
            names[id(value)] = free[store].pop()
        else:
            names[id(value)] = f"{store}{memory.counts[store]}"
            memory.counts[store] += 1
        known[call.function] = getattr(NUMPY_FUNCTIONS, call.function)
        arguments.append(f"out={text(value, call.kind)}")
        lines.append(f"{call.function}({', '.join(arguments)})")
    buffers = [f"{store}{n}" for store in _STORES.values() for n in range(memory.counts[store])]
    parameters = [
        *(f"y{number or ''}" for number in range(len(results))),
        *(names[id(operand)] for operand in operands),
        *(f"{b}{end}" for b in buffers for end in ("", "_bits")),
    ]
    views = [f"{name}_bits = bits({name})" for name in sorted(of_bits)]
    return "\n    ".join([f"def run({', '.join(parameters)}):", *views, *lines]), known
