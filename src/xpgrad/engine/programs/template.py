"""A program for calls of many sizes: recorded once with symbols, its integers follow for other sizes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from xpgrad.engine.programs.program import Program
from xpgrad.engine.symbols import Trace


class Template:
    """A recorded program, and what of it depends on sizes, as a function of the sizes of `trace`."""

    def __init__(self, program: Program, trace: Trace) -> None:
        own = program.symbolic
        assert own is not None
        self._program, self._kept = program, len(own.kept)
        self._places = np.asarray([place for place, _ in own.numbers], dtype=np.int64)
        self._ranks = [None if shape is None else len(shape) for shape in own.shapes]
        sizes = itertools.chain.from_iterable(shape for shape in own.shapes if shape is not None)
        numbers = [number for _, number in own.numbers]
        self._results = trace.function([own.arena_bytes, *sizes, *own.kept, *numbers])

    def program(self, sizes: Sequence[int]) -> Program | None:
        """The program for calls of these sizes; None if other instructions would be recorded for them."""
        try:
            found = self._results(*sizes)
        except (ArithmeticError, LookupError, ValueError):  # no recording would ask for this
            return None
        if found is None:
            return None
        arena_bytes, *rest = found
        results = iter(rest)
        shapes = [None if rank is None else tuple(itertools.islice(results, rank)) for rank in self._ranks]
        kept = tuple(itertools.islice(results, self._kept))
        return self._program.of_sizes(arena_bytes, shapes, kept, self._places, [*results])
