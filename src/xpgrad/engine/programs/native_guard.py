"""The compiled checks of a guard before and after each instruction of a program; needs llvmlite.

`records.Guard` describes the lists. Nothing is raised here: the first error is written into the Guard's
Finding, and no instruction follows.
"""

import numpy as np

from xpgrad.engine.compiled.native import array_at, fields, inside
from xpgrad.engine.compiled.records import (
    FindingKind,
    Guard,
    InstructionHead,
    LoopHead,
    ProgramHead,
    QuantityLimit,
    RedZone,
    RowsLimit,
    Unwritten,
    positions,
)
from xpgrad.engine.formulas.formula import Span
from xpgrad.engine.process.guard import UNWRITTEN, WORD
from xpgrad.engine.programs.native_program import execute

__all__ = ["after", "before", "execute_guarded"]

_GUARD, _KIND, _HEAD = positions(Guard), positions(FindingKind), positions(InstructionHead)
_ZONE, _MEMORY, _LIMIT = positions(RedZone), positions(Unwritten), positions(QuantityLimit)
_ROWS, _LOOP, _SPAN = positions(RowsLimit), positions(LoopHead), positions(Span)
_AT = positions(ProgramHead).guard


@inside()
def _found(guard, number, kind, which, low, high):
    at = _GUARD.finding
    if guard[at.instruction] == 0:
        guard[at.instruction], guard[at.kind], guard[at.which] = number + 1, kind, which
        guard[at.low], guard[at.high] = low, high


@inside()
def _check_zones(guard, number):
    """Find changed bytes in the red zones that are in use."""
    at = _ZONE
    for k in range(guard[_GUARD.zone_count]):
        zone = fields(guard[_GUARD.zones] + 8 * len(at) * k)
        if zone[at.first] <= number <= zone[at.last]:
            found, low, high = array_at(zone[at.address], np.uint8, zone[at.bytes]), -1, -1
            for i in range(len(found)):
                if found[i] != WORD:
                    low, high = i if low < 0 else low, i
            if low >= 0:
                _found(guard, number, _KIND.zone, k, low, high)


@inside()
def _check_schedule(guard, number):
    """Check that quantities are at most as large as planned, and that the tables are consistent."""
    at, of = _LIMIT, _GUARD.tables
    quantities = fields(guard[_GUARD.quantities])
    for k in range(guard[_GUARD.limit_count]):
        limit = fields(guard[_GUARD.limits] + 8 * len(at) * k)
        value = quantities[limit[at.number]]
        if value < 0 or value > limit[at.most]:
            _found(guard, number, _KIND.quantity, k, value, limit[at.most])
    batch, steps, tables = guard[of.batch], guard[of.steps], guard[of.tables]
    order, place = fields(tables + 8 * guard[of.order]), fields(tables + 8 * guard[of.place])
    ordered, starts = fields(tables + 8 * guard[of.ordered]), fields(tables + 8 * guard[of.starts])
    longest = ordered[0] if batch else 0
    for p in range(batch):
        if order[p] < 0 or order[p] >= batch or place[order[p]] != p:
            _found(guard, number, _KIND.table, 0, order[p], batch - 1)
        if ordered[p] < 0 or ordered[p] > (ordered[p - 1] if p else steps):
            _found(guard, number, _KIND.table, 1, ordered[p], steps)
    for step in range(longest):
        if starts[0] != 0 or starts[step + 1] < starts[step] or starts[step + 1] > starts[step] + batch:
            _found(guard, number, _KIND.table, 2, starts[step + 1], starts[step] + batch)


@inside()
def _check_rows(guard, number):
    """Check that the rows of a time loop's steps are within its matrices."""
    at = _ROWS
    for k in range(guard[_GUARD.row_count]):
        limit = fields(guard[_GUARD.rows] + 8 * len(at) * k)
        if limit[at.number] != number:
            continue
        loop = fields(limit[at.head])
        for step in range(loop[_LOOP.steps]):
            span = fields(loop[_LOOP.spans] + 8 * len(_SPAN) * step)
            count = 1 if limit[at.one] else span[_SPAN.rows]
            first = 0 if limit[at.at] < 0 else span[limit[at.at]]
            if count > 0 and (first < 0 or first + count > limit[at.rows]):
                _found(guard, number, _KIND.rows, k, first + count, limit[at.rows])


@inside()
def before(code, number):
    """Fill memory and red zones that instruction `number` is the first to use; check a loop's rows."""
    guard = fields(code[_AT])
    for k in range(guard[_GUARD.unwritten_count]):
        memory = fields(guard[_GUARD.unwritten] + 8 * len(_MEMORY) * k)
        if memory[_MEMORY.first] == number:
            array_at(memory[_MEMORY.address], np.uint8, memory[_MEMORY.bytes])[:] = UNWRITTEN
    for k in range(guard[_GUARD.zone_count]):
        zone = fields(guard[_GUARD.zones] + 8 * len(_ZONE) * k)
        if zone[_ZONE.first] == number:
            array_at(zone[_ZONE.address], np.uint8, zone[_ZONE.bytes])[:] = WORD
    _check_rows(guard, number)


@inside()
def after(code, number):
    """Check the memory after instruction `number`."""
    guard = fields(code[_AT])
    _check_zones(guard, number)
    if guard[_GUARD.scheduled] == number:
        _check_schedule(guard, number)


@inside()
def execute_guarded(address, begin, end):
    """Do the same as `native_program.execute`, with checks, and stop at the first error."""
    code, i, number = fields(address), begin, 0
    while i < end:
        before(code, number)
        if fields(code[_AT])[_GUARD.finding.instruction] != 0:
            return
        after_it = i + code[i + _HEAD.length]
        execute(address, i, after_it)
        after(code, number)
        if fields(code[_AT])[_GUARD.finding.instruction] != 0:
            return
        i, number = after_it, number + 1
