"""Lists of what a guard watches in a program, for compiled code, and the messages for what it finds.

`process.guard` says what a guard is; `native_guard` watches.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xpgrad.engine.compiled import records
from xpgrad.engine.compiled.formula_code import c_function
from xpgrad.engine.formulas.formula import Elementwise, Product, Span
from xpgrad.engine.process.guard import RED, GuardError
from xpgrad.engine.process.memory import LINE
from xpgrad.engine.programs.code import ProgramCode
from xpgrad.engine.programs.instructions import Address, Block, RunTimeLoop
from xpgrad.engine.programs.schedule import Schedule
from xpgrad.engine.symbols import rounded_up

if TYPE_CHECKING:
    from xpgrad.engine.programs.program import Draft

_FINDING, _TABLES = records.length(records.Finding), records.length(records.Tables)


class Watch:
    """What a guard watches in a program.

    `starts` are the places of the instructions in the program's `code`. The guard's integers are appended to
    it, with its Guard at `head`. `outside` is memory that is not in the arena.
    """

    def __init__(
        self,
        draft: Draft,
        starts: Sequence[int],
        code: ProgramCode,
        outside: Collection[Block],
    ) -> None:
        self._instructions, self.starts = draft.instructions, starts
        self._blocks = _lives(draft, outside)
        self._zones: list[tuple[Block, int, int]] = []
        for block in self._blocks:
            self._zones += _zones_of(block, code.itemsize)
        self._limits = _limits(code)
        self._rows = [
            limit for number, (one, start) in enumerate(zip(draft.instructions, starts, strict=True))
            if isinstance(one, RunTimeLoop) for limit in _row_limits(number, one, start)
        ]  # fmt: skip
        self._write(code)

    def _write(self, code: ProgramCode) -> None:
        """Append the lists, then the Guard."""

        def append(rows: Sequence[tuple]) -> Address:
            begin = Address(None, 8 * len(code))
            for row in rows:
                code.append(row)
            return begin

        lives = self._blocks
        zones = append([
            records.RedZone(Address(block, begin), end - begin, *lives[block])
            for block, begin, end in self._zones
        ])  # fmt: skip
        unwritten = append([
            records.Unwritten(Address(block, 0), block.size * code.itemsize, first)
            for block, (first, _) in lives.items()
        ])  # fmt: skip
        limits = append(self._limits)
        rows = append(self._rows)
        scheduled, quantities, tables = -1, Address(None, 0), records.Tables(*[0] * _TABLES)
        for number, instruction in enumerate(self._instructions):
            if isinstance(instruction, Schedule):
                scheduled, quantities, tables = number, instruction.quantities(), instruction.known()
        self.head = len(code)
        guard = records.Guard(
            zones=zones, zone_count=len(self._zones), unwritten=unwritten, unwritten_count=len(lives),
            limits=limits, limit_count=len(self._limits), rows=rows, row_count=len(self._rows),
            scheduled=scheduled, quantities=quantities, tables=tables,
            finding=records.Finding(*[0] * _FINDING),
        )  # fmt: skip
        code.append(records.flat(guard))

    @property
    def finding(self) -> int:
        """The place of the Finding in the program's integers."""
        return self.head + records.positions(records.Guard).finding.instruction

    def describe(self, numbers: np.ndarray) -> str | None:
        """The message for a Finding's integers; None if nothing was found."""
        found = records.Finding(*map(int, numbers[:_FINDING]))
        if not found.instruction:
            return None
        number = found.instruction - 1
        where = f"instruction {number}, {self._instructions[number]},"
        kinds = records.FindingKind._fields
        if kinds[found.kind] == "zone":
            block, begin, end = self._zones[found.which]
            users = [n for n, one in enumerate(self._instructions) if block in one.blocks()]
            more = " or further" if found.high + 1 == end - begin else ""
            return (
                f"{where} wrote to bytes {begin + found.low} to {begin + found.high}{more}: memory of "
                f"{block.size} elements, for instructions {users}, ends or is divided at byte {max(begin, 0)}"
            )
        if kinds[found.kind] == "quantity":
            limit = self._limits[found.which]
            return f"{where} found {found.low} for quantity {limit.number}, planned for at most {limit.most}"
        if kinds[found.kind] == "table":
            table = ("order", "lengths", "starts")[found.which]
            return f"{where} found {found.low} in the table of {table}, expected at most {found.high}"
        return f"{where} is to use rows up to {found.low} of a matrix of {found.high}"

    def raise_if_broken(self, code: np.ndarray) -> None:
        """Raise a GuardError if the run on these integers found something."""
        found = self.describe(code[self.finding :])
        if found:
            raise GuardError(f"guard: {found}")


def _lives(draft: Draft, outside: Collection[Block]) -> dict[Block, tuple[int, int]]:
    """The first and the last instruction that uses each block of the arena."""
    lives: dict[Block, tuple[int, int]] = {}
    for number, instruction in enumerate(draft.instructions):
        for part in instruction.blocks():
            block = draft.whole(part).block
            if block not in outside:
                lives[block] = lives.get(block, (number, number))[0], number
    return lives


def _zones_of(block: Block, itemsize: int) -> list[tuple[Block, int, int]]:
    """The red zones before, within and after a block."""
    size = block.size * itemsize
    inside = [(block, *zone) for zone in block.zones]
    return [(block, -RED, 0), *inside, (block, size, rounded_up(size, LINE) + RED)]


def _limits(code: ProgramCode) -> list[records.QuantityLimit]:
    """The largest value of each quantity among a program's integers and in its addresses."""
    named = [quantity for _, quantity in code.quantities]
    named += [quantity for *_, shifts in code.links for quantity, _ in shifts]
    return sorted({records.QuantityLimit(one.number, one.most // one.factor) for one in named if one.factor})


def _row_limits(number: int, instruction: RunTimeLoop, start: int) -> list[records.RowsLimit]:
    """The number of rows of each matrix whose rows a loop's steps name."""
    head = Address(None, 8 * (start + instruction.DATA))
    at = Span._fields
    found: dict[tuple[str, int], None] = {}
    for stage in instruction.stages:
        operands: list[Any] = []
        if isinstance(stage, Product):
            operands = [(stage.source.rows, stage.source.at), (stage.target, "first")]
        elif isinstance(stage, Elementwise):
            operands = [(one.rows, one.at) for one in (*stage.inputs, *stage.outputs) if one.rows is not None]
        found |= dict.fromkeys((where, rows.shape[0]) for rows, where in operands)
    return [
        records.RowsLimit(number, head, at.index(where) if where in at else -1, int(where == "every"), rows)
        for where, rows in found
    ]


@functools.cache
def watcher(name: str) -> Any:
    """The compiled ``before(code, number)`` or ``after``."""
    call, arguments = f"{name}(fields(code), number)", "int64 code, int64 number"
    address = c_function(f"guard_{name}", "programs.native_guard", arguments, call)
    return ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(address)
