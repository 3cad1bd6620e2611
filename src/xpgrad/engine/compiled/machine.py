"""The threads of compiled code, and the loops that are made for them."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from xpgrad.engine.compiled.products import matrix as products
from xpgrad.engine.compiled.records import ArraysHead, LoopHead, Panels, Rows, positions
from xpgrad.engine.formulas.formula import Elementwise, Operand, Product, Span
from xpgrad.engine.process import guard, sharing
from xpgrad.engine.process.blas import in_one_thread
from xpgrad.engine.process.memory import COMPUTED, address_of
from xpgrad.engine.process.settings import jit_enabled
from xpgrad.engine.process.team import Host, PoolTeam, Team, bits, integers
from xpgrad.engine.symbols import of_numbers, smaller

# A chunk of the backward loop: its bytes of cotangents, and the least number of rows, enough for a fast
# product and for a loop in threads.
_CHUNK_BYTES = 1 << 22
CHUNK_ROWS = 1024
# The least number of rows of a thread's products, as of a tile: fewer use each weight too few times.
_TILE_ROWS = 8
# Threads that share columns start and wait in each stage of a step: they must save this many multiply-adds.
_SAVED = 1 << 20
_SPAN = positions(Span)


class LoopWeight(NamedTuple):
    """A weight of a time loop, (k, n) or of heads as in `Product`, and its panels.

    The panels are None if NumPy multiplies, and for a single step.
    """

    array: Any
    panels: Any = None


class LoopMatrix(NamedTuple):
    """A matrix of a compiled time loop: its memory, its shape, and for a weight how many are stacked."""

    memory: Any
    shape: tuple[int, ...]
    stacked: int = 0

    @classmethod
    def of(cls, matrix: Any) -> LoopMatrix:
        """The matrix of a row buffer, or of a LoopWeight."""
        if not isinstance(matrix, LoopWeight):
            return cls(matrix, matrix.shape)
        *lead, rows, columns = matrix.array.shape
        return cls(matrix.panels, (rows, columns), prod(lead))

    def record(self, address: Any, line: Any) -> Panels | Rows:
        """The record that the loop reads; `line` is the distance of rows, except for a weight."""
        rows, columns = self.shape
        if self.stacked:
            return Panels(address, rows, columns, self.stacked)
        return Rows(address, rows, columns, line if rows > 1 else columns)


class LoopSize(NamedTuple):
    """The numbers of steps, of the rows of all steps, and of the rows of the longest step."""

    steps: int
    rows: Any
    most: Any

    @classmethod
    def of(cls, steps: np.ndarray) -> LoopSize:
        """The size of a loop with these steps."""
        rows = steps[:, _SPAN.rows]
        return cls(len(steps), int(rows.sum()), int(rows.max()))


class TimeLoop(NamedTuple):
    """A compiled time loop. Its integer arguments are `head`, and a record for each of its matrices.

    `kept` is the memory of the addresses in `head`.
    """

    function: int
    head: LoopHead
    matrices: list[LoopMatrix]
    parts: int
    size: LoopSize
    kept: tuple[np.ndarray, ...]


class Resets(NamedTuple):
    """Resets within sequences, for a time loop.

    A row that a reset cuts off from the previous step reads zeros for that step's results and for their
    products. Backwards, a row that a reset cuts off from the next step reads zeros for the cotangents carried
    from there. `marks` has a 64-bit integer for each row, see `records.Tables`. `carried` has the ids of the
    buffers that are carried from step to step.
    """

    marks: Any
    carried: Collection[int]


class Machine:
    """The threads of the host, or else the process's own. Engines that compile are machines.

    Parameters
    ----------
    find_host : callable
        Returns the engine of a framework whose threads this process uses, or None.
    """

    name = "machine"

    def __init__(self, find_host: Callable[[], Host | None] = lambda: None) -> None:
        self._find_host = find_host
        self._own_team: Team = PoolTeam()

    @property
    def team(self) -> Team:
        """The threads: the host's, or else our own."""
        host = self._find_host()
        return self._own_team if host is None else host.team

    def program_threads(self) -> tuple[Team, int, bool] | None:
        """The team that would run a program now, its size, and if it is quick; None without compiling."""
        if not jit_enabled():
            return None
        team = self.team
        return team, team.size(), team.is_quick()

    # --- work in threads

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """The function of each item, in threads, in which each product of NumPy's has one thread."""
        todo = list(items)
        if len(todo) < 2:
            return self.team.map(function, todo)
        return in_one_thread(self.team.map, function, todo)

    def deal(self, count: int, size: int, part: Callable[[int, int], None]) -> None:
        """Run ``part(start, stop)`` over 0 .. count, in threads if `size`, the elements, is large enough."""
        cuts = sharing.cuts(count, self.parts(size))
        self.team.map(lambda ends: part(*ends), list(itertools.pairwise(cuts)))

    def parts(self, size: int) -> int:
        """The number of threads for this many elements."""
        return self.team.free() if size >= sharing.ARRAY else 1

    def deal_compiled(
        self,
        count: int,
        size: int,
        code: Any,
        sizes: Sequence[int],
        addresses: Sequence[int],
        numbers: Sequence[float],
    ) -> None:
        """Run ``code.run(start, stop, *sizes, *addresses, *numbers)`` over 0 .. count, in threads.

        The caller keeps the arrays at these addresses alive. The threads run only compiled code, so none
        waits for the interpreter lock; for their number see `deal`.
        """
        parts = self.parts(size)
        if parts == 1:
            code.run(0, count, *sizes, *addresses, *numbers)
        else:
            data = integers([*ArraysHead(count, parts), *sizes, *addresses, *map(bits, numbers)])
            self.team.run(code.part, ctypes.addressof(data), parts)
        guard.check_results("a loop over arrays")

    # --- time loops

    def chunk(self, width: int, like: Any) -> int:
        """Rows of some megabytes: a cache keeps them from the loop to the products after it."""
        return max(CHUNK_ROWS, _CHUNK_BYTES // (max(1, width) * like.dtype.itemsize))

    def time_loop(
        self,
        stages: Sequence[Elementwise | Product],
        steps: np.ndarray | LoopSize,
        by_stages: bool = False,
        resets: Resets | None = None,
    ) -> TimeLoop:
        """The compiled loop and its arguments: without addresses for steps of which only the size is known.

        `by_stages` says that the caller can run each stage of each step by itself, in threads that share
        columns instead of rows.
        """
        from xpgrad.engine.compiled.time_loops import compiled_loop

        dtype = loop_dtype(stages)
        multiplies = any(isinstance(stage, Product) for stage in stages)
        size = steps if isinstance(steps, LoopSize) else LoopSize.of(steps)
        parts = _row_parts(size, _width(stages), self.team.free(), _TILE_ROWS if multiplies else 0)
        kept: tuple[np.ndarray, ...] = ()
        if not isinstance(steps, LoopSize):
            kept = (
                np.ascontiguousarray(steps, dtype=np.int64),
                _bounds(steps[:, _SPAN.rows], size.most, parts),
            )
        spans, cuts = map(address_of, kept) if kept else (0, 0)
        functions = products.compiled_products(dtype) if multiplies else None
        by_stages = (
            by_stages and multiplies and _share_columns(stages, size.most, self.team, parts, functions)
        )
        if by_stages:
            parts = self.team.free()
        function, matrices, far = compiled_loop(stages, dtype, by_stages, resets)
        f = functions
        multiplying = (f.tiles, f.by_panels, f.height, f.lanes) if f else (0, 0, 0, 0)
        columns = (parts, len(stages)) if by_stages else (0, 0)
        head = LoopHead(size.steps, spans, cuts, *multiplying, far, *columns, step=0, stage=0)
        return TimeLoop(function, head, [*map(LoopMatrix.of, matrices)], parts, size, kept)

    def run_loop(self, loop: TimeLoop, data: np.ndarray) -> None:
        """Run a loop on its integers, in threads if it has parts."""
        self.team.run(loop.function, data.ctypes.data, loop.parts)
        guard.check_results("a time loop")


def loop_dtype(stages: Sequence[Elementwise | Product]) -> str:
    """The name of a time loop's dtype; empty if loops of that dtype are not compiled."""
    stage = stages[0]
    rows = stage.target if isinstance(stage, Product) else _written(stage).rows
    return COMPUTED.get(rows.dtype, "")


def _written(stage: Elementwise) -> Operand:
    """The first result that a stage writes."""
    return next(output for output in stage.outputs if output.rows is not None)


def _width(stages: Sequence[Elementwise | Product]) -> int:
    """The number of columns of the widest result."""
    outputs = [_written(stage) for stage in stages if isinstance(stage, Elementwise)]
    return max((output.rows.shape[1] // output.blocks for output in outputs), default=0)


def _row_parts(size: LoopSize, width: int, threads: int, least: int) -> int:
    """The number of threads that share the rows of each step.

    `least` is the least number of a product's rows that is worth a thread, 0 without products.
    """
    few, small = (least, sharing.TIME_LOOP) if least else (1, sharing.ARRAY)
    if threads < 2 or size.rows * width < small:
        return 1
    return max(1, int(smaller(threads, size.most // few)))


def _bounds(counts: np.ndarray, most: int, parts: int) -> np.ndarray:
    """The boundaries that split the rows of all steps into parts of equal work.

    Steps have different numbers of rows, `most` at most, and all begin with the same ones.
    """
    if parts < 2:
        return np.asarray([0, most])
    work = np.cumsum(len(counts) - np.searchsorted(np.sort(counts), np.arange(most), side="right"))
    cuts = np.searchsorted(work, work[-1] * np.arange(1, parts) // parts) + 1
    return np.concatenate([[0], cuts, [most]]).astype(np.int64)


def _share_columns(
    stages: Sequence[Elementwise | Product], rows: Any, team: Team, parts: int, functions: Any
) -> bool:
    """Whether threads share the columns of each stage, instead of the rows of all steps in `parts` parts.

    They do if few rows, at most `rows` in a step, leave threads idle, or with low tiles, which take as long
    as taller tiles.
    """
    formulas = [stage for stage in stages if isinstance(stage, Elementwise)]
    if not team.is_quick() or any(output.of_row for stage in formulas for output in stage.outputs):
        return False
    multiplied = [stage for stage in stages if isinstance(stage, Product)]
    threads = min(team.free(), *(_pieces(stage, functions.width) for stage in multiplied))
    operations = sum(prod(stage.weight.array.shape) for stage in multiplied)
    return bool(_columns_pay(rows, parts, threads, functions.height, operations))


@of_numbers
def _columns_pay(rows: int, parts: int, threads: int, height: int, operations: int) -> bool:
    by_rows, by_columns = _tiles_time(-(-rows // parts), height), _tiles_time(rows, height) / threads
    return (by_rows - by_columns) * operations >= _SAVED


def _pieces(stage: Product, width: int) -> int:
    """The number of threads that can share the columns of a product, in panels of this width."""
    *lead, _, columns = stage.weight.array.shape
    parts = stage.target.shape[1] // columns if lead else 1
    return parts * max(1, columns // width)


def _tiles_time(rows: int, height: int) -> int:
    """The time of a product, in rows of the tallest tiles; a low tile takes at least half of their time."""
    whole, rest = divmod(rows, height)
    return whole * height + (max(rest, height // 2) if rest else 0)
