"""A program for calls of many sizes: recorded once with symbols, its integers follow for other sizes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from xpgrad.engine.programs.program import Program, SymbolicParts
from xpgrad.engine.symbols import Trace


class Template:
    """A recorded program, and its symbolic parts as a function of the sizes of `trace`."""

    def __init__(self, program: Program, parts: SymbolicParts, trace: Trace) -> None:
        self._program, self._kept = program, len(parts.kept)
        self._places = np.asarray([place for place, _ in parts.numbers], dtype=np.int64)
        self._ranks = [None if one is None else len(one) for one in parts.sizes]
        sizes = itertools.chain.from_iterable(one for one in parts.sizes if one is not None)
        numbers = [number for _, number in parts.numbers]
        self._results = trace.function([parts.arena_bytes, *sizes, *parts.kept, *numbers])

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
        result_sizes = [
            None if rank is None else tuple(itertools.islice(results, rank)) for rank in self._ranks
        ]
        kept = tuple(itertools.islice(results, self._kept))
        return self._program.of_sizes(arena_bytes, result_sizes, kept, self._places, [*results])
