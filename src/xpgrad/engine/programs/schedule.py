"""Instructions for sequences of uneven lengths: tables that follow from the lengths, and moves of rows.

`native_timeline` executes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xpgrad.engine.compiled import records
from xpgrad.engine.compiled.formula_code import c_function
from xpgrad.engine.compiled.machine import LoopSize
from xpgrad.engine.formulas.formula import Span
from xpgrad.engine.process import guard
from xpgrad.engine.process.guard import Zone
from xpgrad.engine.process.memory import LINE
from xpgrad.engine.process.team import Team
from xpgrad.engine.programs.instructions import (
    Additions,
    Address,
    Block,
    Location,
    Quantity,
    Work,
    parts_for,
    strided,
)
from xpgrad.engine.symbols import larger, smaller

_QUANTITY = records.positions(records.Quantities)
_CHUNK = records.length(records.ChunkQuantities)
_SPAN = records.length(Span)  # integers of a step
_PART = "int64 data, int64 part"


def steps_of_call(most: int) -> Quantity:
    """T, if the calls of a program have different T."""
    return Quantity(_QUANTITY.padded, most)


class Schedule(Work):
    """Find what follows from a call's lengths and T: the batch's order, steps, rows, cuts between threads.

    It writes tables of integers, among them the program's quantities, and inserts these into the program.

    `lengths` has the length of each sequence as contiguous 64-bit integers; with resets, T numbers follow
    each length. None means that all lengths are T. `steps` is the largest T, `batch` is N. `resets` is 1 if
    the lengths have resets, and 2 if also all lengths are T. `itemsize` is the number of bytes of an element
    of the program's arrays.
    """

    def __init__(
        self, lengths: Block | None, steps: int, batch: int, resets: int, itemsize: int, team: Team
    ) -> None:
        self.steps, self.batch, self.tables = steps, batch, Block(0)
        places = [Location(block) for block in (lengths, self.tables) if block is not None]
        self._lengths, self._itemsize, self.resets = lengths, itemsize, resets
        self.is_full = lengths is None or resets == 2
        call = f"schedule(fields(data), {self.is_full}, {resets > 0})"
        function = c_function("schedule", "programs.native_timeline", _PART, call)
        super().__init__("Schedule", (steps, batch), function, 1, team, places)
        self._size = 0
        self._order, self._ordered, self._place = (self._table(batch) for _ in range(3))
        self._starts = self._table(steps + 2)
        self._quantities = records.length(records.Quantities)
        self._marks: dict[bool, int] = {}  # by whether time runs backwards
        self._spans: dict[bool, int] = {}  # by whether rows have the order of time, and steps run against it
        self._chunks: list[records.ChunkRequest] = []
        self._cuts: list[records.CutRequest] = []

    def _table(self, count: int) -> int:
        """Reserve `count` integers; return their place."""
        place, self._size = self._size, self._size + count
        if guard.on:
            self.tables.zones.append(Zone(8 * self._size, 8 * self._size + LINE))
            self._size += LINE // 8
        self.tables.size = -(-8 * self._size // self._itemsize)
        return place

    def marks(self, reverse: bool) -> Address | None:
        """The table of marks, which say from what resets cut off each row; None without resets."""
        if not self.resets:
            return None
        if reverse not in self._marks:
            self._marks[reverse] = self._table(self.steps * self.batch)
        return Address(self.tables, 8 * self._marks[reverse])

    @property
    def rows(self) -> Quantity:
        """S, the number of rows."""
        return Quantity(_QUANTITY.rows, self.steps * self.batch)

    @property
    def later(self) -> Quantity:
        """The number of steps after the first one."""
        return Quantity(_QUANTITY.later, self.steps - 1)

    def forward(
        self, reverse: bool = False, is_turned: bool = False
    ) -> tuple[ScheduledSteps, ScheduledSteps]:
        """The first step, which reads the initial state, and the later steps.

        With `is_turned` the rows of a full batch have the order of time, and steps run against it.
        """
        if is_turned not in self._spans:
            self._spans[is_turned] = self._table(_SPAN * self.steps)
        at, spans, one = _QUANTITY, self._spans[is_turned], Quantity(_QUANTITY.first, 1)
        first = ScheduledSteps(self, one, at.zero, at.first, spans, None, reverse)
        later = ScheduledSteps(self, self.later, at.first, at.steps, spans, one, reverse)
        return first, later

    def chunks(self, limit: int, reverse: bool = False, is_turned: bool = False) -> list[ScheduledChunk]:
        """The steps from last to first, in the largest possible number of chunks of about `limit` rows.

        If the sequences are short, the last chunks are empty.
        """
        rows = self.steps * self.batch
        limit = larger(1, smaller(limit, rows))
        known = [one for one in self._chunks if one.is_turned == is_turned and one.limit == limit]
        if not known:
            count, spans = int(-(-rows // limit)), self._table(_SPAN * self.steps)
            known = [records.ChunkRequest(limit, count, int(is_turned), self._quantities, spans)]
            self._chunks += known
            self._quantities += count * _CHUNK
        asked, largest = known[0], smaller(limit + self.batch, rows)
        begins = range(asked.quantities, asked.quantities + asked.most * _CHUNK, _CHUNK)
        chunks = [ScheduledChunk(self, begin, asked.spans, largest, reverse) for begin in begins]
        chunks[0].is_alone = len(chunks) == 1
        return chunks

    def cuts(self, parts: int, low: int, high: int) -> Address:
        """The table of cuts between threads, for the steps between two quantities."""
        table = self._table(parts + 1)
        self._cuts.append(records.CutRequest(parts, low, high, table))
        return Address(self.tables, 8 * table)

    def known(self) -> records.Tables:
        """What `native_timeline` reads of it."""
        return records.Tables(
            batch=self.batch,
            steps=self.steps,
            tables=Address(self.tables, 0),
            order=self._order,
            ordered=self._ordered,
            place=self._place,
            starts=self._starts,
            marks=self._marks.get(False, -1),
            reverse_marks=self._marks.get(True, -1),
        )

    def quantities(self) -> Address:
        """The table of quantities, after `numbers` was called."""
        return Address(self.tables, 8 * self._quantities_at)

    def numbers(self, addresses: Sequence[Any]) -> list[Any]:
        """See Work."""
        self._quantities_at = self._table(self._quantities)
        head = records.ScheduleRecord(
            lengths=0 if self._lengths is None else Address(self._lengths, 0),
            known=self.known(),
            spans=self._spans.get(False, -1),
            turned_spans=self._spans.get(True, -1),
            quantities=self._quantities_at,
            code=Address(None, 0),
            additions=Additions.WHERE,
            addition_count=Additions.COUNT,
            chunk_count=len(self._chunks),
            cut_count=len(self._cuts),
        )
        requests = [number for request in [*self._chunks, *self._cuts] for number in request]
        return [*records.flat(head), *requests]


@dataclass(frozen=True)
class ScheduledSteps:
    """`count` steps of a time loop that a Schedule finds.

    They are between the quantities `low` and `high`, counted from the first step. `table` is the place of the
    table of steps in the schedule's tables, `first` the number of the first of these steps in it, and
    `reverse` says whether time runs backwards.
    """

    schedule: Schedule
    count: Quantity
    low: int
    high: int
    table: int
    first: Quantity | None
    reverse: bool

    def size(self) -> LoopSize:
        """The size of the loop for the longest possible sequences."""
        batch, most = self.schedule.batch, self.count.most
        return LoopSize(most, batch * most, batch)

    def put_into(self, head: records.LoopHead, parts: int) -> records.LoopHead:
        """The head with these steps, and the cuts between `parts` threads."""
        shifts = [] if self.first is None else [(self.first, 8 * _SPAN)]
        spans = Address(self.schedule.tables, 8 * self.table, shifts)
        bounds = self.schedule.cuts(parts, self.low, self.high)
        return head._replace(steps=self.count, spans=spans, bounds=bounds)


class ScheduledChunk:
    """Consecutive steps, from last to first, that a Schedule finds; see `_recurrent.timeline.Chunk`.

    `base` is the first of the chunk's quantities, `table` the place of the steps from last to first in the
    schedule's tables. It has at most `most` rows. `reverse` says whether time runs backwards.
    """

    is_alone = False  # the only chunk of all calls

    def __init__(self, schedule: Schedule, base: int, table: int, most: int, reverse: bool) -> None:
        all_rows, steps = schedule.steps * schedule.batch, schedule.steps
        at = records.ChunkQuantities(*range(base, base + _CHUNK))
        self.start, self.rows = Quantity(at.start, all_rows), Quantity(at.count, most)
        self.part = RowSlice(self.start, self.rows)
        self.low, self.high = Quantity(at.low, steps), Quantity(at.high, steps)
        later, later_place = Quantity(at.later, steps), Quantity(at.later_place, steps)
        first, first_place = Quantity(at.first, 1), Quantity(at.first_place, steps)
        self.later = ScheduledSteps(schedule, later, at.middle, at.high, table, later_place, reverse)
        self.first = ScheduledSteps(schedule, first, at.low, at.middle, table, first_place, reverse)

    @property
    def most(self) -> int:
        """The largest number of rows."""
        return self.rows.most


@dataclass(frozen=True)
class RowSlice:
    """`rows` rows of an array from `start` on, as a key for `Recorded.__getitem__`."""

    start: Quantity | int
    rows: Quantity | int


def move_rows(
    kind: str,
    schedule: Schedule,
    reverse: bool,
    places: Sequence[Location],
    width: int,
    chunk: ScheduledChunk | None,
    team: Team,
    dtype: str,
) -> Work:
    """Move rows between the order of the batch and the order of the time loop; for `kind` see `MoveKind`.

    `reverse` says whether time runs backwards; the rows of a full batch keep the order of time even then. The
    places are the target, the source and, for some kinds, the initial states. Arrays over time and batch
    (T, N, width) have three strides, other arrays two. With a `chunk`, only its rows are moved.
    """
    over_time = kind in ("pack", "unpack", "turn", "previous")
    parts = parts_for(width * schedule.batch * (schedule.steps if over_time else 1), team)
    if kind in ("previous", "unsort"):  # a reset cuts off the step before
        schedule.marks(reverse)
    steps, zero = Quantity(_QUANTITY.steps, schedule.steps), Quantity(_QUANTITY.zero, 0)
    low, high, first = zero, steps, zero
    if chunk is not None:
        low, high, first = chunk.low, chunk.high, chunk.start
    elif kind == "unpack":
        high = Quantity(_QUANTITY.padded, schedule.steps)

    def numbers(addresses: Sequence[Any]) -> list[Any]:
        target, source, initial = strided(records.Strided, places, addresses)
        record = records.MoveRowsRecord(
            parts=parts, reverse=int(reverse), known=schedule.known(), low=low, high=high, first=first,
            is_turned=int(reverse and schedule.is_full), steps=steps, width=width, target=target,
            source=source, initial=initial,
        )  # fmt: skip
        return records.flat(record)

    move = "unpack_rows" if kind == "unpack" else "fetch_rows" if over_time else "move_states"
    call = f"{move}(fields(data), part, np.{dtype}, {records.MoveKind._fields.index(kind)})"
    function = c_function(f"{kind}_rows_{dtype}", "programs.native_timeline", _PART, call)
    tables = Location(schedule.tables)
    return Work(f"MoveRows {kind}", width, function, parts, team, [*places, tables], numbers)
