"""The rows of each step of a recurrence, for sequence lengths and directions.

An array (T, N, width) becomes rows (S, width), one row for each valid pair of time and sequence. The
sequences are sorted by falling length. So the sequences that still run at a step are the first of the batch,
and a step works on a prefix of the previous step's rows. In the reverse direction step k of a sequence of
length L is time L - 1 - k, so it starts at the sequence's own end. Padding has no row: it costs nothing, and
NaN in it reaches nothing.

If all sequences have length T, the array's own rows are used, and nothing is copied or sorted.

Kernels use the interface `RowOrder`. A `Timeline` knows the lengths. A `RecordedTimeline` belongs to a
program, whose calls each have their own lengths: `programs/schedule.py` and `native_timeline.py` then find
the rows. A `MaskedTimeline` has lengths that a trace does not know.

Resets cut a sequence into independent pieces. The initial state belongs to the piece with which the direction
starts, the final state to the piece with which it ends, and all other pieces start at zero. If a reset is
before the first step, no piece of the forward direction takes the initial state. Lengths with resets are one
array (N, 1 + T): each sequence's length, and a 1 for each reset (`resets`). In a `Timeline` the pieces
replace the sequences: a batch with resets is a batch of more and shorter sequences. In a program the
sequences stay whole, and a time loop reads zeros where a reset cuts: no row moves, and no step has few rows,
so resets cost nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import device

from xpgrad.engine.compiled.records import positions
from xpgrad.engine.formulas.formula import Span
from xpgrad.engine.programs.instructions import Quantity, most
from xpgrad.engine.programs.recorded import Recorded
from xpgrad.engine.programs.recorder import Recorder
from xpgrad.engine.programs.schedule import RowSlice, ScheduledChunk, ScheduledSteps

_SPAN = positions(Span)


class Chunk(NamedTuple):
    """Consecutive steps in the order of a backward loop; their rows are contiguous from `start` on.

    The first step is separate, because its previous state is the initial state, not a row. Each step is a row
    of integers, a Span of the engines; `local` counts rows from `start`.
    """

    start: int
    rows: int
    later: Any
    first: Any

    @property
    def most(self) -> int:
        """The largest possible number of rows."""
        return self.rows

    @property
    def part(self) -> slice:
        """The place of its rows among all rows."""
        return slice(self.start, self.start + self.rows)


class RowOrder(ABC):
    """The order of rows for one direction: the interface of its implementations.

    States (N, width) are in the order of the batch, or in the order of a step's rows.

    Attributes
    ----------
    steps, batch : int
        T and N.
    rows : int
        S, the number of all rows.
    reverse : bool
        Whether time runs backwards.
    """

    steps: Any
    batch: Any
    rows: Any
    reverse: bool

    # --- the steps, as `TimeLoops.scan` takes them

    @abstractmethod
    def forward(self) -> tuple[Any, Any]:
        """The first step, which starts from the initial state, and the later steps."""

    @abstractmethod
    def chunks(self, limit: int | None) -> Iterable[Any]:
        """All steps from last to first, as chunks of at most `limit` rows or one step; None: one chunk."""

    # --- between arrays over time and batch, and rows

    @abstractmethod
    def pack(self, array: Any) -> Any:
        """(T, N, width) to rows (S, width)."""

    @abstractmethod
    def unpack(self, rows: Any) -> Any:
        """Rows (S, width) to (T, N, width); padding is 0."""

    def keep(self, rows: Any) -> Any:
        """Rows (S, width) as they are, in an array of fixed shape (T * N, width), for `kept`."""
        return rows

    def kept(self, array: Any) -> Any:
        """The rows that `keep`, or a caller with packed sequences, put into the array."""
        return array

    def turn(self, rows: Any) -> Any:
        """Reorder rows from this direction of time to the other; rows of the forward direction stay."""
        raise NotImplementedError(
            f"{type(self).__name__}: packed rows, expected sequences over time and batch"
        )

    # --- states

    def sort(self, states: Any) -> Any:
        """States (N, width) before the sequences, in the order of the rows."""
        return states

    def sort_ends(self, states: Any) -> Any:
        """States (N, width) at the sequences' ends, in the order of the rows."""
        return self.sort(states)

    def sort_each(self, states: Any) -> Any:
        """Arrays (N, width) that hold at every step of a sequence, in the order of the rows."""
        return self.sort(states)

    def unsort(self, states: Any) -> Any:
        """The inverse of `sort`: states (N, width); zero for sequences whose state no piece takes."""
        return states

    @abstractmethod
    def zeros(self, width: int, rows: Any = None) -> Any:
        """Zero states in the order of the rows; or this number of rows."""

    @abstractmethod
    def last(self, rows: Any, initial: Any) -> Any:
        """(N, width): the row of each sequence's last step; an empty sequence has its initial state."""

    @abstractmethod
    def previous(self, rows: Any, initial: Any, chunk: Any) -> Any:
        """For each row of a chunk the previous step's row; at the first step the sorted initial state."""

    def pieces_before(self, rows: Any, initial: Any, chunk: Any) -> list[tuple[Any, Any]] | None:
        """`previous` without a copy: parts of the chunk's rows with the rows before each, or None."""
        return None


class Timeline(RowOrder):
    """The order of rows for lengths that are known.

    `lengths` are a list, with resets an array (N, 1 + T), or None if all are T. `like` is an array on the
    device in use. `pieces` is the number of sequences, or of their pieces.
    """

    def __init__(self, xp: Any, steps: int, batch: int, lengths: Any, reverse: bool, like: Any) -> None:
        self.xp, self.steps, self.batch, self.reverse, self._like = xp, steps, batch, reverse, like
        is_list = isinstance(lengths, list)
        self.dense = lengths is None or (is_list and all(length == steps for length in lengths))
        if self.dense:
            self.rows, self.pieces = steps * batch, batch
            starts = np.arange(steps if batch else 0) * batch
            self._set_steps(np.full(len(starts), batch), starts[::-1] if reverse else starts)
            return
        pieces = _pieces_of(np.asarray(lengths, dtype=np.int64))
        order = np.argsort(-pieces.length, kind="stable")
        place = np.argsort(order)
        self.pieces = len(order)
        # for each place in the sorted batch: its sequence, and the piece's first time and length
        self._owner, self._begin, self._ordered = (
            pieces.owner[order],
            pieces.begin[order],
            pieces.length[order],
        )
        # for each sequence: the place where the direction starts; `pieces` if no piece takes the state
        head, tail = place[pieces.head], place[pieces.tail]
        self._start = tail if reverse else np.where(pieces.fresh, self.pieces, head)
        self._end = head if reverse else tail
        ordered = self._ordered
        counts = np.searchsorted(-ordered, -np.arange(int(ordered.max(initial=0))), side="left")
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.rows = int(self._starts[-1])
        self._set_steps(counts, self._starts[:-1])
        # for each row: its step, and its place in the sorted batch
        self._row_step = np.repeat(np.arange(len(counts)), counts)
        self._row_place = np.arange(self.rows) - self._starts[self._row_step]

    def _set_steps(self, counts: np.ndarray, starts: np.ndarray) -> None:
        """Store the steps, a Span each."""
        self._steps = np.zeros((len(counts), len(_SPAN)), dtype=np.int64)
        self._steps[:, _SPAN.rows], self._steps[:, _SPAN.now] = counts, starts
        self._steps[1:, _SPAN.before] = starts[:-1]

    def forward(self) -> tuple[Any, Any]:
        return self._steps[:1], self._steps[1:]

    def chunks(self, limit: int | None) -> Iterator[Chunk]:
        stop = len(self._steps)
        while True:
            rows = np.cumsum(self._steps[:stop, _SPAN.rows][::-1])
            taken = len(rows) if limit is None else max(1, int(np.searchsorted(rows, limit, side="right")))
            first = max(stop - taken, 0)
            steps = self._steps[first:stop][::-1].copy()
            start = int(steps[:, _SPAN.now].min(initial=self.rows)) if len(steps) else 0
            steps[:, _SPAN.local] = steps[:, _SPAN.now] - start
            alone = 1 if first == 0 else 0
            later = steps[: len(steps) - alone]
            yield Chunk(start, int(steps[:, _SPAN.rows].sum()), later, steps[len(later) :])
            if first == 0:
                return
            stop = first

    # --- between arrays over time and batch, and rows

    def pack(self, array: Any) -> Any:
        flat = self.xp.reshape(array, (self.steps * self.batch, array.shape[2]))
        return flat if self.dense else self._take(flat, self._flat_index())

    def unpack(self, rows: Any) -> Any:
        shape = (self.steps, self.batch, rows.shape[1])
        if not self.dense:
            row_of = np.full(self.steps * self.batch, self.rows)
            row_of[self._flat_index()] = np.arange(self.rows)
            rows = self._take_or_zero(rows, row_of)
        return self.xp.reshape(rows, shape)

    def keep(self, rows: Any) -> Any:
        rest = self.steps * self.batch - self.rows
        return self.xp.concat([rows, self.zeros(rows.shape[1], rest)], axis=0) if rest else rows

    def kept(self, array: Any) -> Any:
        return array[: self.rows, :]

    def turn(self, rows: Any) -> Any:
        if self.dense or not self.reverse:
            return rows
        other = self._ordered[self._row_place] - 1 - self._row_step
        return self._take(rows, self._starts[other] + self._row_place)

    def sort(self, states: Any) -> Any:
        return states if self.dense else self._spread(states, self._start)

    def sort_ends(self, states: Any) -> Any:
        return states if self.dense else self._spread(states, self._end)

    def sort_each(self, states: Any) -> Any:
        return states if self.dense else self._take(states, self._owner)

    def _spread(self, states: Any, places: np.ndarray) -> Any:
        """The states at these places, zeros at all others."""
        sequence_at = np.full(self.pieces + 1, self.batch)
        sequence_at[places] = np.arange(self.batch)
        return self._take_or_zero(states, sequence_at[: self.pieces])

    def unsort(self, states: Any) -> Any:
        return states if self.dense else self._take_or_zero(states, self._start)

    def last(self, rows: Any, initial: Any) -> Any:
        if self.rows == 0:
            return self.unsort(initial)
        if self.dense:
            start = int(self._steps[-1, _SPAN.now])
            return rows[start : start + self.batch, :]
        lengths = self._ordered[self._end]
        row = self._starts[np.maximum(lengths - 1, 0)] + self._end
        states = self._take(rows, np.minimum(row, self.rows - 1))
        if not lengths.all():
            empty = self.xp.asarray((lengths == 0)[:, None], device=device(self._like))
            states = self.xp.where(empty, self._take(initial, self._end), states)
        return states

    def previous(self, rows: Any, initial: Any, chunk: Chunk) -> Any:
        start, stop = chunk.start, chunk.start + chunk.rows
        if not self.dense and chunk.rows:
            step, place = self._row_step[start:stop], self._row_place[start:stop]
            if not len(chunk.first):
                return self._take(rows, self._starts[step - 1] + place)
            # the first step's rows come from the initial state, and are the first of the chunk
            count = int(chunk.first[0, 0])
            later = self._take(rows, self._starts[step[count:] - 1] + place[count:])
            return self.xp.concat([initial[:count, :], later], axis=0)
        pieces = [piece for _, piece in self.pieces_before(rows, initial, chunk) or ()]
        return pieces[0] if len(pieces) == 1 else self.xp.concat(pieces, axis=0)

    def pieces_before(self, rows: Any, initial: Any, chunk: Chunk) -> list[tuple[slice, Any]] | None:
        start, stop, N = chunk.start, chunk.start + chunk.rows, self.batch
        if chunk.rows == 0:
            return [(slice(0, 0), rows)]
        if not self.dense:
            return None
        if not len(chunk.first):
            shift = N if self.reverse else -N
            return [(slice(0, chunk.rows), rows[start + shift : stop + shift, :])]
        rest = chunk.rows - N
        if self.reverse:
            parts = [(slice(0, rest), rows[start + N : stop, :]), (slice(rest, chunk.rows), initial)]
        else:
            parts = [(slice(0, N), initial), (slice(N, chunk.rows), rows[start : stop - N, :])]
        return parts if rest else [(slice(0, N), initial)]

    def zeros(self, width: int, rows: int | None = None) -> Any:
        shape = self.pieces if rows is None else rows, width
        return self.xp.zeros(shape, dtype=self._like.dtype, device=device(self._like))

    def _flat_index(self) -> np.ndarray:
        """The place of every row in (T * N)."""
        place, step = self._row_place, self._row_step
        within = self._ordered[place] - 1 - step if self.reverse else step
        return (self._begin[place] + within) * self.batch + self._owner[place]

    def _take_or_zero(self, array: Any, index: np.ndarray) -> Any:
        """Rows of an array; zeros for the index behind the last row."""
        count = array.shape[0]
        if len(index) and int(index.max()) == count:
            array = self.xp.concat([array, self.zeros(array.shape[1], 1)], axis=0)
        return self._take(array, index)

    def _take(self, array: Any, index: np.ndarray) -> Any:
        indices = self.xp.asarray(index.astype(np.int64), device=device(self._like))
        return self.xp.take(array, indices, axis=0)


class OneStepTimeline(Timeline):
    """The order of the rows of a single step in a program; N may be a symbol, so steps are lists of Spans."""

    def __init__(self, xp: Any, batch: Any, reverse: bool, like: Any) -> None:
        self.xp, self.steps, self.batch, self.reverse, self._like = xp, 1, batch, reverse, like
        self.dense, self.rows, self.pieces = True, batch, batch

    def forward(self) -> tuple[list[Span], list[Span]]:
        return [Span(self.batch)], []

    def chunks(self, limit: int | None) -> Iterator[Chunk]:
        yield Chunk(0, self.batch, [], [Span(self.batch)])

    def last(self, rows: Any, initial: Any) -> Any:
        return rows


class _Pieces(NamedTuple):
    """The sequences, or the pieces between their resets, in the order of sequences and of time."""

    owner: np.ndarray
    """The sequence of each piece."""
    begin: np.ndarray
    """Its first time."""
    length: np.ndarray
    head: np.ndarray
    """The first piece of each sequence."""
    tail: np.ndarray
    """The last piece."""
    fresh: np.ndarray
    """Whether a reset is before the sequence's first step."""


def _pieces_of(lengths: np.ndarray) -> _Pieces:
    """The pieces of sequences with these lengths (N,), or of lengths with resets (N, 1 + T)."""
    batch = np.arange(lengths.shape[0])
    if lengths.ndim == 1:
        return _Pieces(batch, np.zeros_like(lengths), lengths, batch, batch, np.zeros(len(batch), dtype=bool))
    length, begins = lengths[:, 0], lengths[:, 1:] != 0
    begins &= np.arange(begins.shape[1]) < length[:, None]
    fresh = begins[:, 0].copy()
    begins[:, 0] = True
    owner, begin = np.nonzero(begins)
    head = np.searchsorted(owner, batch)
    tail = np.searchsorted(owner, batch, side="right") - 1
    ends = np.append(begin[1:], 0)
    ends[tail] = length
    return _Pieces(owner, begin, ends - begin, head, tail, fresh)


class RecordedTimeline(RowOrder):
    """The order of rows for one direction in a program whose calls have their own lengths, or their own T.

    Sizes that depend on these are quantities of the program. With resets the sequences stay whole, and time
    loops read zeros where a reset cuts (`Resets`). `steps` is the largest T. `lengths` are 64-bit integers,
    (N, 1 + T) with resets, or None if all are each call's T.
    """

    def __init__(
        self, recorder: Recorder, steps: int, batch: int, lengths: Recorded | None, reverse: bool
    ) -> None:
        self._recorder, self.batch, self.reverse = recorder, batch, reverse
        self.steps: Any = steps if recorder.steps is None else recorder.steps
        self._schedule = recorder.schedule(lengths, steps, batch)
        # The rows of a full batch are in the order of time in both directions, as in a dense Timeline.
        self._is_full = self._schedule.is_full
        self._is_turned = self._is_full and reverse
        self.rows: Any = self.steps * batch if self._is_full else self._schedule.rows

    def forward(self) -> tuple[ScheduledSteps, ScheduledSteps]:
        return self._schedule.forward(self.reverse, self._is_turned)

    def chunks(self, limit: int | None) -> list[ScheduledChunk]:
        limit = most(self.rows) if limit is None else limit
        return self._schedule.chunks(limit, self.reverse, self._is_turned)

    def pack(self, array: Recorded) -> Recorded:
        sizes = (self.rows, array.shape[-1])
        step, row, column = array.strides
        if self._is_full and (step == row * self.batch or self.batch == 1):
            return array.view(array.offset, sizes, (step if self.batch == 1 else row, column))
        return self._recorder.move_rows("pack", array, sizes, reverse=self.reverse and not self._is_full)

    def unpack(self, rows: Recorded) -> Recorded:
        sizes, (row, column) = (self.steps, self.batch, rows.shape[-1]), rows.strides
        if self._is_full:
            return rows.view(rows.offset, sizes, (row * self.batch, row, column))
        return self._recorder.move_rows("unpack", rows, sizes, reverse=self.reverse)

    def keep(self, rows: Recorded) -> Recorded:
        """Nothing is written behind the rows."""
        return rows.view(rows.offset, (self.steps * self.batch, rows.shape[1]), rows.strides)

    def kept(self, array: Recorded) -> Recorded:
        return array[: self.rows, :]

    def turn(self, rows: Recorded) -> Recorded:
        if not self.reverse or self._is_full:
            return rows
        return self._recorder.move_rows("turn", rows, (self.rows, rows.shape[-1]))

    def sort(self, states: Recorded) -> Recorded:
        if self._is_full:
            return states
        return self._recorder.move_rows("sort", states, (self.batch, states.shape[-1]), reverse=self.reverse)

    def unsort(self, states: Recorded) -> Recorded:
        if self._is_full and not self._schedule.resets:
            return states
        sizes = (self.batch, states.shape[-1])
        return self._recorder.move_rows("unsort", states, sizes, reverse=self.reverse)

    def last(self, rows: Recorded, initial: Recorded) -> Recorded:
        sizes = (self.batch, initial.shape[-1])
        return self._recorder.move_rows("last", rows, sizes, reverse=self.reverse, initial=initial)

    def previous(self, rows: Recorded, initial: Recorded, chunk: ScheduledChunk) -> Recorded:
        sizes = (chunk.rows, rows.shape[-1])
        return self._recorder.move_rows(
            "previous", rows, sizes, reverse=self.reverse, initial=initial, chunk=chunk
        )

    def pieces_before(
        self, rows: Recorded, initial: Recorded, chunk: ScheduledChunk
    ) -> list[tuple[RowSlice, Recorded]] | None:
        """Which of several chunks has the first step is not known."""
        if not self._is_full or self._schedule.resets or not chunk.is_alone:
            return None
        N, later = self.batch, self._schedule.later * self.batch
        if self.reverse:
            return [(RowSlice(0, later), rows[RowSlice(N, later), :]), (RowSlice(later, N), initial)]
        return [(RowSlice(0, N), initial), (RowSlice(N, later), rows[RowSlice(0, later), :])]

    def zeros(self, width: int, rows: int | Quantity | None = None) -> Recorded:
        return self._recorder.arithmetic("zero", shape=(self.batch if rows is None else rows, width))


class MaskedTimeline(RowOrder):
    """The order of rows for one direction with traced lengths.

    Padding has rows too, after each sequence's own rows: they hold 0, and steps change neither them nor the
    states. A length below 0 counts as 0, a length above T as T. With resets the sequences stay whole, and the
    steps that begin a piece read zeros as the previous state (`MaskedSteps`). `lengths` are an array,
    (N, 1 + T) with resets; `like` is an array of the dtype in use.
    """

    def __init__(self, xp: Any, steps: int, batch: int, lengths: Any, reverse: bool, like: Any) -> None:
        self.xp, self.steps, self.batch, self.reverse, self._like = xp, steps, batch, reverse, like
        self.rows, self.pieces = steps * batch, batch
        self._set_lengths(lengths)
        self._fresh = None if lengths.ndim == 1 else self._fresh_steps(lengths[:, 1:].T != 0)
        self._table = np.zeros((steps, 4), dtype=np.int64)
        starts = np.arange(steps) * batch
        self._table[:, 0], self._table[:, 1], self._table[1:, 2] = batch, starts, starts[:-1]

    def _set_lengths(self, lengths: Any) -> None:
        """Find the rows that are not padding, and each step's mirror image within its sequence."""
        xp, steps = self.xp, self.steps
        own = lengths if lengths.ndim == 1 else lengths[:, 0]
        self._lengths = xp.clip(own, 0, steps)
        step = xp.reshape(xp.arange(steps, dtype=lengths.dtype), (steps, 1))
        row = self._lengths[None, :]  # JAX may refuse operands of different ranks
        self._valid = (step < row)[..., None]
        self._mirrored = xp.clip(row - 1 - step, 0)[..., None]

    def _fresh_steps(self, resets: Any) -> Any:
        """(T, N, 1): which steps of the direction begin a piece, without the initial state."""
        fresh = resets[..., None] & self._valid
        if not self.reverse or not self.steps:
            return fresh
        # step k is time L - 1 - k; the reset between it and the next time belongs to step k - 1
        turned = self.xp.take_along_axis(fresh, self._mirrored, axis=0)
        return self.xp.concat([self.xp.zeros_like(turned[:1]), turned[:-1]], axis=0) & self._valid

    def forward(self) -> tuple[MaskedSteps, MaskedSteps]:
        return _cut(self._table, self._valid, self._fresh, 1)

    def chunks(self, limit: int | None) -> Iterator[Chunk]:
        """Return a single chunk."""
        table = self._table[::-1].copy()
        table[:, 3] = table[:, 1]
        fresh = None if self._fresh is None else self.xp.flip(self._fresh, axis=0)
        valid = self.xp.flip(self._valid, axis=0)
        yield Chunk(0, self.rows, *_cut(table, valid, fresh, max(self.steps - 1, 0)))

    def pack(self, array: Any) -> Any:
        return self.xp.reshape(self._ordered(array), (self.rows, array.shape[2]))

    def unpack(self, rows: Any) -> Any:
        return self._ordered(self.xp.reshape(rows, (self.steps, self.batch, rows.shape[1])))

    def _ordered(self, array: Any) -> Any:
        """Reorder from time to steps, or back, which is the same map; 0 after each sequence's end."""
        if self.reverse and self.steps:
            array = self.xp.take_along_axis(array, self._mirrored, axis=0)
        return self.xp.where(self._valid, array, self.xp.zeros((), dtype=array.dtype))

    def last(self, rows: Any, initial: Any) -> Any:
        if not self.rows:
            return initial
        array = self.xp.reshape(rows, (self.steps, self.batch, rows.shape[1]))
        place = self.xp.clip(self._lengths - 1, 0)[None, :, None]
        states = self.xp.take_along_axis(array, place, axis=0)[0, ...]
        return self.xp.where(self._lengths[:, None] > 0, states, initial)

    def previous(self, rows: Any, initial: Any, chunk: Chunk) -> Any:
        before = self.xp.concat([initial, rows], axis=0)[: self.rows, :]
        if self._fresh is None:
            return before
        fresh = self.xp.reshape(self._fresh, (self.rows, 1))
        return self.xp.where(fresh, self.xp.zeros((), dtype=before.dtype), before)

    def zeros(self, width: int, rows: int | None = None) -> Any:
        return self.xp.zeros((self.batch if rows is None else rows, width), dtype=self._like.dtype)


class UncountedTimeline(MaskedTimeline):
    """The order of rows for one direction, where T and N may be symbols: for engines with a loop operation.

    Without lengths the rows are in the order of time in both directions, as in a dense Timeline. With
    lengths, an array, padding has rows too.
    """

    def __init__(self, xp: Any, steps: Any, batch: Any, lengths: Any, reverse: bool, like: Any) -> None:
        self.xp, self.steps, self.batch, self.reverse, self._like = xp, steps, batch, reverse, like
        self.rows, self.pieces, self._fresh = steps * batch, batch, None
        self.dense, self._valid = lengths is None, None
        if lengths is not None:
            self._set_lengths(lengths)

    def forward(self) -> tuple[UncountedSteps, UncountedSteps]:  # type: ignore[override]
        return self._both(self.dense and self.reverse)

    def chunks(self, limit: int | None) -> Iterator[Chunk]:
        """Return a single chunk."""
        first, later = self._both(not (self.dense and self.reverse))
        yield Chunk(0, self.rows, later, first)

    def _both(self, descending: bool) -> tuple[UncountedSteps, UncountedSteps]:
        first, later = (UncountedSteps(self, is_first, descending, self._valid) for is_first in (True, False))
        return first, later

    def _ordered(self, array: Any) -> Any:
        return array if self.dense else super()._ordered(array)

    def last(self, rows: Any, initial: Any) -> Any:
        if not self.dense:
            return super().last(rows, initial)
        return self.xp.reshape(rows, (self.steps, self.batch, rows.shape[1]))[0 if self.reverse else -1, ...]

    def previous(self, rows: Any, initial: Any, chunk: Any) -> Any:
        array = self.xp.reshape(rows, (self.steps, self.batch, rows.shape[1]))
        start = self.xp.expand_dims(initial, axis=0)
        is_behind = self.dense and self.reverse
        pieces = [array[1:, ...], start] if is_behind else [start, array[:-1, ...]]
        return self.xp.reshape(self.xp.concat(pieces, axis=0), (self.rows, rows.shape[1]))


class UncountedSteps(NamedTuple):
    """The first step of a loop, or all later steps; an engine gets both, one after the other."""

    timeline: UncountedTimeline
    is_first: bool
    """Whether this is the step whose previous state is the initial state."""
    descending: bool
    """Whether the loop's last step has the first rows."""
    valid: Any
    """Boolean (T, N, 1): the rows that change; None for all."""


class MaskedSteps:
    """Steps over all rows, which change only some rows.

    `table` has a Span of the engines for each step. `valid` (S, N, 1) marks the rows that change, `fresh`, if
    not None, the rows that read zeros as the previous state, and pass no cotangent to it.
    """

    def __init__(self, table: np.ndarray, valid: Any, fresh: Any) -> None:
        self.table, self.valid, self.fresh = table, valid, fresh

    def __len__(self) -> int:
        return len(self.table)


def _cut(table: np.ndarray, valid: Any, fresh: Any, first: int) -> tuple[MaskedSteps, MaskedSteps]:
    """The first steps, and the others."""
    early, late = (
        MaskedSteps(table[part], valid[part], None if fresh is None else fresh[part])
        for part in (slice(None, first), slice(first, None))
    )
    return early, late
