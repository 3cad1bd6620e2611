"""A formula without numba: traced once into function calls that write into buffers.

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


class _Program:
    """The record of a tape, as a Python function."""

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
        The source of ``run(y, *operands, *buffers)``.

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
        """Write the result; the arrays have one axis, with as many elements as `out` or a single one.

        The caller silences NumPy's warnings.
        """
        self._run(out, *operands, *self._memory.views(out.shape))


class TracedRows(_Program):
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


class _Memory:
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


def _text(operands: Sequence[Value], results: Sequence[Value], memory: _Memory) -> tuple[str, dict[str, Any]]:
    """The program as a Python function ``run``, and its global names."""
    tape, order = memory.tape, _needed(results)
    last = {id(used): number for number, value in enumerate(order) for used in value.uses}
    targets = {id(result): f"y{number or ''}" for number, result in enumerate(results)}
    if results[-1].called("clear_rows") and id(results[-1].uses[-1]) not in targets:
        # the array whose rows it clears is already in its place
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
        call: Any = value.call  # all values in `order` have one
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
