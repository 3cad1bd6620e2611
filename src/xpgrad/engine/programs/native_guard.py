"""What a guard does before and after each instruction of a program, compiled; needs llvmlite.

The lists and their meaning are in `records.Guard`. Nothing is raised here: the first thing that is wrong is
written into the Guard's Finding, and no instruction follows.
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
    """Look for bytes that differ in the red zones that are in use."""
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
    """Quantities at most as large as planned, and tables that are what they should be."""
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
    """The rows of a time loop's steps are within its matrices."""
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
    """Fill memory that instruction `number` is the first one to use, paint red zones, check a loop's rows."""
    guard = fields(code[_AT])
    at = _MEMORY
    for k in range(guard[_GUARD.unwritten_count]):
        memory = fields(guard[_GUARD.unwritten] + 8 * len(at) * k)
        if memory[at.first] == number:
            array_at(memory[at.address], np.uint8, memory[at.bytes])[:] = UNWRITTEN
    zone_at = _ZONE
    for k in range(guard[_GUARD.zone_count]):
        zone = fields(guard[_GUARD.zones] + 8 * len(zone_at) * k)
        if zone[zone_at.first] == number:
            array_at(zone[zone_at.address], np.uint8, zone[zone_at.bytes])[:] = WORD
    _check_rows(guard, number)


@inside()
def after(code, number):
    """Check what instruction `number` has left."""
    guard = fields(code[_AT])
    _check_zones(guard, number)
    if guard[_GUARD.scheduled] == number:
        _check_schedule(guard, number)


@inside()
def execute_guarded(address, begin, end):
    """As `native_program.execute`, one instruction after the other until something is wrong."""
    code, i, number = fields(address), begin, 0
    while i < end:
        before(code, number)
        if fields(code[_AT])[_GUARD.finding.instruction] != 0:
            return
        behind = i + code[i + _HEAD.length]
        execute(address, i, behind)
        after(code, number)
        if fields(code[_AT])[_GUARD.finding.instruction] != 0:
            return
        i, number = behind, number + 1
