"""The rows of each step of a recurrence: the only place that knows sequence lengths and directions.

An array (T, N, width) becomes rows (S, width), one row for each valid pair of time and sequence. The
sequences are sorted by falling length, so those still running at a step are the first ones of the batch, and
a step works on a prefix of the previous step's rows. In the reverse direction step k of a sequence of length
L is time L - 1 - k, so it starts at its own end. Padding has no row, so it costs nothing, and NaN in it
reaches nothing.

If all sequences have length T, the rows are those of the array itself, and nothing is copied or sorted. In a
program each call has its own lengths, so the same work is recorded instead (`RecordedTimeline`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import device

from xpgrad.engine.compiled.records import positions
from xpgrad.engine.formulas.formula import Span
from xpgrad.engine.programs.recorder import Recorded, Recorder
from xpgrad.engine.programs.schedule import Part, ScheduledChunk, Steps

_SPAN = positions(Span)


class Chunk(NamedTuple):
    """Consecutive steps in the order of a backward loop; their rows are contiguous from `start` on.

    The first step is separate, because its previous state is the initial state and not a row. Each step is a
    row of integers as in the engines' Span; `local` counts rows from `start`.
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
        """The place of its rows among all."""
        return slice(self.start, self.start + self.rows)


class Timeline:
    """The order of rows for one direction.

    Parameters
    ----------
    xp : namespace
        Of the arrays that are packed.
    steps, batch : int
        T and N.
    lengths : list of int or None
        Of each sequence; None if all have length T.
    reverse : bool
        Whether time runs backwards.
    like : array
        An array on the device in use.

    Attributes
    ----------
    rows : int
        S, the number of valid pairs of time and sequence.
    """

    def __init__(
        self, xp: Any, steps: int, batch: int, lengths: list[int] | None, reverse: bool, like: Any
    ) -> None:
        self.xp, self.steps, self.batch, self.reverse, self._like = xp, steps, batch, reverse, like
        self.dense = lengths is None or all(length == steps for length in lengths)
        if self.dense:
            self.rows = steps * batch
            starts = np.arange(steps if batch else 0) * batch
            self._set_steps(np.full(len(starts), batch), starts[::-1] if reverse else starts)
            return
        self._lengths = np.asarray(lengths, dtype=np.int64)
        self._order = np.argsort(-self._lengths, kind="stable")
        ordered = self._lengths[self._order]
        counts = np.searchsorted(-ordered, -np.arange(int(ordered.max(initial=0))), side="left")
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.rows = int(self._starts[-1])
        self._set_steps(counts, self._starts[:-1])
        # of every row: its step, and its place in the sorted batch
        self._row_step = np.repeat(np.arange(len(counts)), counts)
        self._row_place = np.arange(self.rows) - self._starts[self._row_step]

    def _set_steps(self, counts: np.ndarray, starts: np.ndarray) -> None:
        """Store the steps, a Span each."""
        self._steps = np.zeros((len(counts), len(_SPAN)), dtype=np.int64)
        self._steps[:, _SPAN.rows], self._steps[:, _SPAN.now] = counts, starts
        self._steps[1:, _SPAN.before] = starts[:-1]

    def forward(self) -> tuple[np.ndarray, np.ndarray]:
        """The first step, which starts from the initial state, and the later ones."""
        return self._steps[:1], self._steps[1:]

    def chunks(self, limit: int | None) -> Iterator[Chunk]:
        """All steps from last to first, in chunks of at most `limit` rows or one step; None: one chunk."""
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
        """(T, N, width) to rows (S, width)."""
        flat = self.xp.reshape(array, (self.steps * self.batch, array.shape[2]))
        return flat if self.dense else self._take(flat, self._flat_index())

    def unpack(self, rows: Any) -> Any:
        """Rows (S, width) to (T, N, width); padding is 0."""
        shape = (self.steps, self.batch, rows.shape[1])
        if not self.dense:
            row_of = np.full(self.steps * self.batch, self.rows)
            row_of[self._flat_index()] = np.arange(self.rows)
            rows = self._take(self.xp.concat([rows, self._zeros(1, rows.shape[1])], axis=0), row_of)
        return self.xp.reshape(rows, shape)

    def keep(self, rows: Any) -> Any:
        """Rows (S, width) as they are, in an array of fixed shape (T * N, width), for `kept`."""
        rest = self.steps * self.batch - self.rows
        return self.xp.concat([rows, self._zeros(rest, rows.shape[1])], axis=0) if rest else rows

    def kept(self, array: Any) -> Any:
        """The rows that `keep` put into the array."""
        return array[: self.rows, :]

    def turn(self, rows: Any) -> Any:
        """Rows in the order in which they have the other direction of time, and back; forward as they are."""
        if self.dense or not self.reverse:
            return rows
        _, time = self._places()
        return self._take(rows, self._starts[time] + self._row_place)

    def sort(self, states: Any) -> Any:
        """States (N, width) in the order of the rows; for None see `zeros`."""
        return states if self.dense else self._take(states, self._order)

    def unsort(self, states: Any) -> Any:
        """The inverse of `sort`."""
        return states if self.dense else self._take(states, np.argsort(self._order))

    def last(self, rows: Any, initial: Any) -> Any:
        """(N, width): the row of each sequence's last step; for an empty one its sorted initial state."""
        if self.rows == 0:
            return self.unsort(initial)
        if self.dense:
            start = int(self._steps[-1, _SPAN.now])
            return rows[start : start + self.batch, :]
        lengths = self._lengths[self._order]
        row = self._starts[np.maximum(lengths - 1, 0)] + np.arange(self.batch)
        states = self._take(rows, np.minimum(row, self.rows - 1))
        if not lengths.all():
            empty = self.xp.asarray((lengths == 0)[:, None], device=device(self._like))
            states = self.xp.where(empty, initial, states)
        return self.unsort(states)

    def previous(self, rows: Any, initial: Any, chunk: Chunk) -> Any:
        """For each row of a chunk the previous step's row; at the first step the sorted initial state."""
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
        """The same without a copy: parts of the chunk's rows, and the rows before each; or None."""
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

    def zeros(self, width: int) -> Any:
        """Zero states (N, width)."""
        return self._zeros(self.batch, width)

    def _zeros(self, count: int, width: int) -> Any:
        return self.xp.zeros((count, width), dtype=self._like.dtype, device=device(self._like))

    def _flat_index(self) -> np.ndarray:
        """The place of every row in (T * N)."""
        sequence, time = self._places()
        return time * self.batch + sequence

    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """Of every row the sequence and the time."""
        sequence = self._order[self._row_place]
        return sequence, self._lengths[sequence] - 1 - self._row_step if self.reverse else self._row_step

    def _take(self, array: Any, index: np.ndarray) -> Any:
        indices = self.xp.asarray(index.astype(np.int64), device=device(self._like))
        return self.xp.take(array, indices, axis=0)


class RecordedTimeline:
    """The order of rows for one direction in a program, with lengths, or a T, that each call brings.

    It has the interface of `Timeline`. Sizes that depend on them are quantities of the program.

    Parameters
    ----------
    recorder : Recorder
        It records the program.
    steps, batch : int
        The largest T, and N.
    lengths : Recorded or None
        Of each sequence, 64-bit integers; None if all are T, which each call brings.
    reverse : bool
        Whether time runs backwards.
    """

    def __init__(
        self, recorder: Recorder, steps: int, batch: int, lengths: Recorded | None, reverse: bool
    ) -> None:
        self._recorder, self.batch, self.reverse = recorder, batch, reverse
        self.steps: Any = steps if recorder.steps is None else recorder.steps
        self._schedule = recorder.schedule(lengths, steps, batch)
        # Of a full batch the rows have the order of time in both directions, as those of a dense Timeline.
        self._is_full = lengths is None
        self._is_turned = self._is_full and reverse
        self.rows: Any = self.steps * batch if self._is_full else self._schedule.rows

    def forward(self) -> tuple[Steps, Steps]:
        """See Timeline."""
        return self._schedule.forward(self._is_turned)

    def chunks(self, limit: int | None) -> list[ScheduledChunk]:
        """See Timeline."""
        return self._schedule.chunks(self.rows.most if limit is None else limit, self._is_turned)

    def pack(self, array: Recorded) -> Recorded:
        """See Timeline."""
        sizes = (self.rows, array.shape[-1])
        step, row, column = array.strides
        if self._is_full and (step == row * self.batch or self.batch == 1):
            return array.view(array.offset, sizes, (step if self.batch == 1 else row, column))
        return self._recorder.move_rows("pack", array, sizes, reverse=self.reverse and not self._is_full)

    def unpack(self, rows: Recorded) -> Recorded:
        """See Timeline."""
        sizes, (row, column) = (self.steps, self.batch, rows.shape[-1]), rows.strides
        if self._is_full:
            return rows.view(rows.offset, sizes, (row * self.batch, row, column))
        return self._recorder.move_rows("unpack", rows, sizes, reverse=self.reverse)

    def keep(self, rows: Recorded) -> Recorded:
        """See Timeline. Nothing is written behind the rows."""
        return rows.view(rows.offset, (self.steps * self.batch, rows.shape[1]), rows.strides)

    def kept(self, array: Recorded) -> Recorded:
        """See Timeline."""
        return array[: self.rows, :]

    def turn(self, rows: Recorded) -> Recorded:
        """See Timeline."""
        if not self.reverse or self._is_full:
            return rows
        return self._recorder.move_rows("turn", rows, (self.rows, rows.shape[-1]))

    def sort(self, states: Recorded) -> Recorded:
        """See Timeline."""
        return states if self._is_full else self._recorder.move_rows("sort", states, states.sizes)

    def unsort(self, states: Recorded) -> Recorded:
        """See Timeline."""
        return states if self._is_full else self._recorder.move_rows("unsort", states, states.sizes)

    def last(self, rows: Recorded, initial: Recorded) -> Recorded:
        """See Timeline."""
        return self._recorder.move_rows("last", rows, initial.sizes, initial=initial, reverse=self._is_turned)

    def previous(self, rows: Recorded, initial: Recorded, chunk: ScheduledChunk) -> Recorded:
        """See Timeline."""
        sizes = (chunk.rows, rows.shape[-1])
        return self._recorder.move_rows(
            "previous", rows, sizes, initial=initial, chunk=chunk, reverse=self._is_turned
        )

    def pieces_before(
        self, rows: Recorded, initial: Recorded, chunk: ScheduledChunk
    ) -> list[tuple[Part, Recorded]] | None:
        """See Timeline. Which of several chunks has the first step is not known."""
        if not self._is_full or chunk.most < self.rows.most:
            return None
        N, later = self.batch, self._schedule.later * self.batch
        if self.reverse:
            return [(Part(0, later), rows[Part(N, later), :]), (Part(later, N), initial)]
        return [(Part(0, N), initial), (Part(N, later), rows[Part(0, later), :])]

    def zeros(self, width: int) -> Recorded:
        """See Timeline."""
        return self._recorder.arithmetic("zero", shape=(self.batch, width))


class MaskedTimeline:
    """The order of rows for one direction with traced lengths.

    It has the interface of `Timeline`. Padding has rows too, after each sequence's own: they hold 0, and
    steps change neither them nor the states. A length below 0 counts as 0, one above T as T.

    Parameters
    ----------
    xp : namespace
        Of the arrays.
    steps, batch : int
        T and N.
    lengths : array
        Of each sequence.
    reverse : bool
        Whether time runs backwards.
    like : array
        An array of the dtype in use.
    """

    def __init__(self, xp: Any, steps: int, batch: int, lengths: Any, reverse: bool, like: Any) -> None:
        self.xp, self.steps, self.batch, self.reverse, self._like = xp, steps, batch, reverse, like
        self.rows = steps * batch
        self._lengths = xp.clip(lengths, 0, steps)
        step = xp.reshape(xp.arange(steps, dtype=lengths.dtype), (steps, 1))
        self._valid = (step < self._lengths)[..., None]
        self._mirrored = xp.clip(self._lengths - 1 - step, 0)[..., None]
        self._table = np.zeros((steps, 4), dtype=np.int64)
        starts = np.arange(steps) * batch
        self._table[:, 0], self._table[:, 1], self._table[1:, 2] = batch, starts, starts[:-1]

    def forward(self) -> tuple[MaskedSteps, MaskedSteps]:
        """See Timeline."""
        return MaskedSteps(self._table[:1], self._valid[:1]), MaskedSteps(self._table[1:], self._valid[1:])

    def chunks(self, limit: int | None) -> Iterator[Chunk]:
        """All steps from last to first, in one chunk."""
        table = self._table[::-1].copy()
        table[:, 3] = table[:, 1]
        valid, alone = self.xp.flip(self._valid, axis=0), max(self.steps - 1, 0)
        later = MaskedSteps(table[:alone], valid[:alone])
        yield Chunk(0, self.rows, later, MaskedSteps(table[alone:], valid[alone:]))

    def pack(self, array: Any) -> Any:
        """See Timeline."""
        return self.xp.reshape(self._ordered(array), (self.rows, array.shape[2]))

    def unpack(self, rows: Any) -> Any:
        """See Timeline."""
        return self._ordered(self.xp.reshape(rows, (self.steps, self.batch, rows.shape[1])))

    def _ordered(self, array: Any) -> Any:
        """From time to steps, or back, which is the same map; 0 after each sequence's end."""
        if self.reverse and self.steps:
            array = self.xp.take_along_axis(array, self._mirrored, axis=0)
        return self.xp.where(self._valid, array, self.xp.zeros((), dtype=array.dtype))

    def keep(self, rows: Any) -> Any:
        """See Timeline: padding has rows too."""
        return rows

    def kept(self, array: Any) -> Any:
        """See Timeline."""
        return array

    def sort(self, states: Any) -> Any:
        """The states unchanged: the batch keeps its order."""
        return states

    def unsort(self, states: Any) -> Any:
        """The states unchanged."""
        return states

    def last(self, rows: Any, initial: Any) -> Any:
        """See Timeline."""
        if not self.rows:
            return initial
        array = self.xp.reshape(rows, (self.steps, self.batch, rows.shape[1]))
        place = self.xp.clip(self._lengths - 1, 0)[None, :, None]
        states = self.xp.take_along_axis(array, place, axis=0)[0, ...]
        return self.xp.where(self._lengths[:, None] > 0, states, initial)

    def previous(self, rows: Any, initial: Any, chunk: Chunk) -> Any:
        """See Timeline."""
        return self.xp.concat([initial, rows], axis=0)[: self.rows, :]

    def pieces_before(self, rows: Any, initial: Any, chunk: Chunk) -> None:
        """See Timeline: padding has rows too."""

    def zeros(self, width: int) -> Any:
        """See Timeline."""
        return self.xp.zeros((self.batch, width), dtype=self._like.dtype)


class MaskedSteps:
    """Steps over all rows, of which only some change.

    Parameters
    ----------
    table : integer array, shape (S, 4)
        The steps as in the engines' Span.
    valid : boolean array, shape (S, N, 1)
        Which rows change.
    """

    def __init__(self, table: np.ndarray, valid: Any) -> None:
        self.table, self.valid = table, valid

    def __len__(self) -> int:
        return len(self.table)
