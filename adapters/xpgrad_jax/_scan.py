"""The standard engine for JAX: its time loop is one ``lax.scan``, whose graph does not grow with T."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from xpgrad.engine import Elementwise, Operand, Product, Span, StandardEngine
from xpgrad.engine.compiled.records import positions
from xpgrad_jax._partitioning import alike

inlined: ContextVar[Callable[[], StandardEngine] | None] = ContextVar("xpgrad_jax_inlined", default=None)
"""Makes the standard engine while a kernel is lowered for XLA, if it is another class."""
_SPAN = positions(Span)


class ScanEngine(StandardEngine):
    """Pure array API like the standard engine, but steps with equal numbers of rows run as one ``lax.scan``.

    Steps with different numbers of rows run one by one.
    """

    def __init__(self) -> None:
        super().__init__(jnp)

    def wrap(self, array: Any) -> Any:
        """See StandardEngine."""
        return _ScanRows(array.shape[1], array, array)

    def rows(self, count: int, width: int, like: Any) -> Any:
        """See StandardEngine."""
        return _ScanRows(width, like, None)

    def carry(self, array: Any) -> Any:
        """See StandardEngine."""
        return self.wrap(array)

    def scan(self, stages: Sequence[Elementwise | Product], steps: Any) -> None:
        """See StandardEngine; in MaskedSteps only some rows change, or read the previous rows."""
        if not len(steps):
            return
        valid, fresh = getattr(steps, "valid", None), getattr(steps, "fresh", None)
        table: np.ndarray = steps if valid is None else steps.table
        accesses = _accesses(stages)
        if not _are_alike(table, accesses) or (len(table) < 2 and valid is None):
            super().scan(stages, table)
            return
        loop, one = _ScanLoop(accesses, table), table[:1]

        def step(carried: tuple, given: tuple) -> tuple[tuple, tuple]:
            slices, valid, fresh = given
            found, slices = loop.without_before(carried, slices, fresh)
            with loop.at_step(found, slices):
                super(ScanEngine, self).scan(stages, one)
                return loop.results(carried, valid, fresh)

        carried, slices = loop.carried(), loop.slices()
        weights = [stage.weight for stage in stages if isinstance(stage, Product)]
        # in a `shard_map`, zeros of a missing operand become rows that differ between the devices
        carried = tuple(alike([*carried, *slices, *weights])[: len(carried)])
        loop.finish(*lax.scan(step, carried, (slices, valid, fresh), length=len(table)))


class _ScanRows:
    """Rows of an array, if it exists, with written rows replaced.

    Within a step of a loop it holds only the rows that the step touches, by the number of the first row.
    """

    def __init__(self, width: int, like: Any, array: Any) -> None:
        self._width, self._like, self._array = width, like, array
        self._pieces: dict[int, Any] = {}
        self.step: dict[int, Any] | None = None

    def write(self, first: int, piece: Any) -> None:
        if self.step is None:
            self._pieces[first] = piece
        else:
            self.step[first] = piece

    def read(self, first: int, count: int) -> Any:
        if self.step is not None:
            return self.step[first]
        for start, piece in self._pieces.items():
            if start <= first and first + count <= start + piece.shape[0]:
                return piece[first - start : first - start + count, :]
        return self.array()[first : first + count, :]

    def array(self) -> Any:
        if self._pieces:
            pieces, reached = [], 0
            for start in sorted(self._pieces):
                if start > reached:
                    pieces.append(self._array[reached:start, :])
                pieces.append(self._pieces[start])
                reached = start + self._pieces[start].shape[0]
            if self._array is not None and reached < self._array.shape[0]:
                pieces.append(self._array[reached:, :])
            self._array, self._pieces = jnp.concat(pieces, axis=0), {}
        if self._array is None:
            return jnp.zeros((0, self._width), dtype=self._like.dtype)
        return self._array


@dataclass
class _ScanAccess:
    """The rows of a buffer that steps read before they write them, and that they write, as operands' `at`."""

    rows: _ScanRows
    reads: list[str] = field(default_factory=list)
    writes: set[str] = field(default_factory=set)


def _accesses(stages: Sequence[Elementwise | Product]) -> list[_ScanAccess]:
    found: dict[int, _ScanAccess] = {}

    def access(operand: Operand) -> _ScanAccess:
        whole = getattr(operand.rows, "rows", operand.rows)  # not only some columns
        return found.setdefault(id(whole), _ScanAccess(whole))

    for stage in stages:
        if isinstance(stage, Product):
            inputs, outputs = [stage.source], [Operand(stage.target, 1, "first")]
        else:
            inputs, outputs = list(stage.inputs), list(stage.outputs)
        for operand in inputs:
            if operand.rows is not None:
                one = access(operand)
                if operand.at not in (*one.writes, *one.reads):
                    one.reads.append(operand.at)
        for operand in outputs:
            if operand.rows is not None:
                access(operand).writes.add(operand.at)
    return list(found.values())


def _first_rows(at: str, steps: np.ndarray) -> np.ndarray:
    """The first row of an operand, for each step."""
    return steps[:, getattr(_SPAN, at)] if at in Span._fields else np.zeros(len(steps), dtype=np.int64)


def _are_alike(steps: np.ndarray, accesses: Sequence[_ScanAccess]) -> bool:
    """Whether all steps have equal row counts and strides, and read only the previous step's written rows."""
    count = steps[0, _SPAN.rows]
    if not count or (steps[:, _SPAN.rows] != count).any():
        return False
    for access in accesses:
        touched = {*access.reads, *access.writes}
        firsts = {at: _first_rows(at, steps) for at in touched}
        if len({int(first[0]) for first in firsts.values()}) < len(touched) or len(access.writes) > 1:
            return False
        for first in firsts.values():
            distances = np.diff(first)
            if not ((distances == 0).all() or (distances == count).all() or (distances == -count).all()):
                return False
        for written in access.writes:
            others = [firsts[at] for at in access.reads if at != written]
            if any((other[1:] != firsts[written][:-1]).any() for other in others):
                return False
    return True


class _ScanLoop:
    """The input slices, carried rows and results of a loop's steps.

    Rows that every step rewrites are carried; so are the rows that the previous step wrote into its own rows.
    Other rows are slices, one for each step. Rows that a step writes into its own rows are stacked results.
    """

    def __init__(self, accesses: Sequence[_ScanAccess], steps: np.ndarray) -> None:
        self._steps, self._count = steps, int(steps[0, _SPAN.rows])
        # the row that is read, and the row for the next step
        self._carried: list[tuple[_ScanRows, int, int]] = []
        self._slices: list[tuple[_ScanRows, str]] = []
        self._stacked: list[tuple[_ScanRows, str]] = []
        self._fixed: list[tuple[_ScanRows, Any]] = []
        for access in accesses:
            rows, written = access.rows, next(iter(access.writes), None)
            for at in access.reads:
                if at == "every":
                    self._fixed.append((rows, rows.read(0, 1)))
                elif written is None and at == "first":
                    self._fixed.append((rows, rows.read(0, self._count)))
                elif written is not None and at != written:
                    self._carried.append((rows, self._label(at), self._label(written)))
                elif at != "first":
                    self._slices.append((rows, at))
            if written == "first":
                self._carried.append((rows, 0, 0))
            elif written is not None:
                self._stacked.append((rows, written))

    def _label(self, at: str) -> int:
        """The row number by which a step knows its rows: the first step's number."""
        return int(_first_rows(at, self._steps)[0])

    def carried(self) -> tuple:
        """The carried rows before the first step."""
        return tuple(rows.read(read, self._count) for rows, read, _ in self._carried)

    def slices(self) -> tuple:
        """The rows of all steps, (steps, rows, width) each."""
        return tuple(self._sliced(rows, _first_rows(at, self._steps)) for rows, at in self._slices)

    def _sliced(self, rows: _ScanRows, firsts: np.ndarray) -> Any:
        array = rows.read(int(firsts.min()), len(firsts) * self._count)
        array = jnp.reshape(array, (len(firsts), self._count, array.shape[1]))
        return jnp.flip(array, axis=0) if firsts[-1] < firsts[0] else array

    def without_before(self, carried: tuple, slices: tuple, fresh: Any) -> tuple[tuple, tuple]:
        """The rows with zeros for the states before the step, where a piece begins."""
        if fresh is None:
            return carried, slices
        states = [read != written for _, read, written in self._carried]
        before = [at == "before" for _, at in self._slices]
        return _cleared(carried, states, fresh), _cleared(slices, before, fresh)

    @contextlib.contextmanager
    def at_step(self, carried: tuple, slices: tuple) -> Iterator[None]:
        """Make the buffers hold the rows that a step reads, and take the rows that it writes."""
        touched = [
            *(rows for rows, _ in self._fixed),
            *(rows for rows, _, _ in self._carried),
            *(rows for rows, _ in (*self._slices, *self._stacked)),
        ]
        for rows in touched:
            rows.step = {}
        for rows, value in self._fixed:
            rows.write(0, value)
        for (rows, read, _), value in zip(self._carried, carried, strict=True):
            rows.write(read, value)
        for (rows, at), value in zip(self._slices, slices, strict=True):
            rows.write(self._label(at), value)
        try:
            yield
        finally:
            for rows in touched:
                rows.step = None

    def results(self, before: tuple, valid: Any, fresh: Any = None) -> tuple[tuple, tuple]:
        """The carried rows after a step, and its results; invalid rows keep their old values.

        Backwards, rows where a piece begins carry no cotangent: it would belong to the zeros before them.
        """
        carried = tuple(rows.read(written, self._count) for rows, _, written in self._carried)
        stacked = tuple(rows.read(self._label(at), self._count) for rows, at in self._stacked)
        if valid is None:
            return carried, stacked
        kept = tuple(jnp.where(valid, new, old) for new, old in zip(carried, before, strict=True))
        if fresh is not None:
            kept = _cleared(kept, [read == written for _, read, written in self._carried], fresh)
        return kept, tuple(jnp.where(valid, new, jnp.zeros_like(new)) for new in stacked)

    def finish(self, carried: tuple, stacked: tuple) -> None:
        """Store the loop's results in the buffers."""
        for (rows, read, written), value in zip(self._carried, carried, strict=True):
            if read == written:
                rows.write(0, value)
        for (rows, at), value in zip(self._stacked, stacked, strict=True):
            firsts = _first_rows(at, self._steps)
            ordered = jnp.flip(value, axis=0) if firsts[-1] < firsts[0] else value
            rows.write(int(firsts.min()), jnp.reshape(ordered, (-1, value.shape[2])))


def _cleared(values: Sequence[Any], which: Sequence[bool], rows: Any) -> tuple:
    """Set some rows of some values to zero."""
    pairs = zip(values, which, strict=True)
    return tuple(jnp.where(rows, jnp.zeros_like(x), x) if clear else x for x, clear in pairs)
