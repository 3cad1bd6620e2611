"""A call's arrays: the caller's, or a recorder's placeholders for them.

A computed call has values. In a recorded call, values and lengths are those of later calls. Only
`call_arrays` asks which kind a call is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from xpgrad._calls.computation import Computation
from xpgrad._calls.plans import Asked
from xpgrad._operators.arguments import check_known
from xpgrad._recurrent.timeline import (
    MaskedTimeline,
    OneStepTimeline,
    RecordedTimeline,
    Timeline,
    UncountedTimeline,
)
from xpgrad.engine import Recorder, TimeLoops
from xpgrad.engine.programs.instructions import CannotRecordError

_SAME: Mapping[str, str] = MappingProxyType({})
_MOST_SAMPLES = 1024  # with norms in a program, which needs products for each sample


def call_arrays(asked: Asked, xp: Any, floats: Sequence[Any], names: Mapping[str, str] = _SAME) -> CallArrays:
    """The arrays of a checked call.

    Parameters
    ----------
    asked : Asked
        The call.
    xp : namespace
        The caller's namespace.
    floats : sequence of array or None
        The call's arrays of one floating-point dtype.
    names : mapping of str to str
        For a single step: its own names for those arrays that it calls by another name.
    """
    if asked.recorder is None:
        return CallArrays(asked.operator, Computation(asked.operator, xp, floats))
    return _RecordedArrays(asked.recorder, names)


class CallArrays:
    """The arrays of a computed call; `engine` is the engine of the kernel, or a recorder."""

    engine: TimeLoops

    def __init__(self, operator: str, computation: Computation) -> None:
        self.engine, self._operator, self._computation = computation.engine, operator, computation

    def lift(self, name: str, array: Any) -> Any:
        """The engine's array for one of the caller's, of the rank of sequence operators."""
        return self._computation.lift(array)

    def sized(self, name: str, array: Any) -> Any:
        """Something of the shape of one of the caller's arrays."""
        return array

    def lengths(self, sequence_lens: Any, check: Callable[[Any], Any]) -> Any:
        """The checked lengths."""
        return check(sequence_lens)

    def lower(self, array: Any) -> Any:
        """A result in the caller's namespace and dtype."""
        return self._computation.lower(array)

    def timeline(
        self, steps: int, batch: int, lengths: Any, reverse: bool, like: Any
    ) -> Timeline | RecordedTimeline | MaskedTimeline:
        """The rows of one direction. A trace does not know the values of lengths."""
        if not self._computation.engine.counts_steps:
            return UncountedTimeline(self.engine.xp, steps, batch, lengths, reverse, like)
        for name, size in (("T", steps), ("N", batch)):
            check_known(self._operator, name, size)
        known = lengths is None or isinstance(lengths, list | np.ndarray)
        kind = Timeline if known else MaskedTimeline
        return kind(self.engine.xp, steps, batch, lengths, reverse, like)

    def check_norms(self, batch: int) -> None:
        """Raise CannotRecordError if a program has no norms for so many samples."""

    def check_parts(self, lengths: Any) -> None:
        """Raise CannotRecordError if a program cannot take the batch in parts."""


class _RecordedArrays(CallArrays):
    """The placeholders of a recorded call."""

    engine: Recorder

    def __init__(self, recorder: Recorder, names: Mapping[str, str]) -> None:
        self.engine, self._names = recorder, names

    def lift(self, name: str, array: Any) -> Any:
        """See CallArrays. A single step's arrays lack axes."""
        recorded = self.engine.input(self._names.get(name, name))
        while recorded.ndim < array.ndim:
            recorded = self.engine.xp.expand_dims(recorded, axis=0)
        return recorded

    def sized(self, name: str, array: Any) -> Any:
        """See CallArrays. Its sizes may be symbols, or the largest ones, but in an array that is joined."""
        return array if self.engine.joins(self._names.get(name, name)) else self.lift(name, array)

    def lengths(self, sequence_lens: Any, check: Callable[[Any], Any]) -> Any:
        """See CallArrays. Each call's lengths are checked before its program is found."""
        return sequence_lens

    def lower(self, array: Any) -> Any:
        """See CallArrays. The array has no values until the program runs."""
        return array

    def timeline(
        self, steps: int, batch: int, lengths: Any, reverse: bool, like: Any
    ) -> Timeline | RecordedTimeline:
        """See CallArrays. A program reads the lengths of each call."""
        if lengths is None and steps == 1:
            return OneStepTimeline(self.engine.xp, batch, reverse, like)
        if lengths is None and self.engine.steps is None and not self.engine.has_symbols:
            return Timeline(self.engine.xp, steps, batch, None, reverse, like)
        given = None if lengths is None else self.engine.input("sequence_lens")
        return RecordedTimeline(self.engine, steps, batch, given, reverse)

    def check_norms(self, batch: int) -> None:
        """See CallArrays."""
        if batch > _MOST_SAMPLES:
            raise CannotRecordError("norms of many samples")

    def check_parts(self, lengths: Any) -> None:
        """See CallArrays."""
        if lengths is not None or self.engine.steps is not None or self.engine.has_symbols:
            raise CannotRecordError("some samples of lengths or sizes that are not known")
