"""What a call works on: the caller's arrays, or a recorder's stand-ins for them.

A call that is computed has values; in one that is recorded, values and lengths are those of later calls.
Only `call_arrays` asks which of the two a call is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from xpgrad._calls.computation import Computation
from xpgrad._calls.plans import Asked
from xpgrad._operators.arguments import check_known
from xpgrad._recurrent.timeline import MaskedTimeline, RecordedTimeline, Timeline, UncountedTimeline
from xpgrad.engine import Recorder, TimeLoops
from xpgrad.engine.programs.instructions import CannotRecordError

_SAME: Mapping[str, str] = MappingProxyType({})
_MOST_SAMPLES = 1024  # whose norms a program computes: it has products for each


class CallArrays(Protocol):
    """The arrays of a call, and what depends on whether they have values."""

    @property
    def engine(self) -> TimeLoops:
        """The engine that the kernel computes with, or the recorder."""

    def lift(self, name: str, array: Any) -> Any:
        """The engine's array for one of the caller's, of the rank of sequence operators."""

    def lower(self, array: Any) -> Any:
        """A result in the caller's namespace and dtype."""

    def timeline(
        self, steps: int, batch: int, lengths: Any, reverse: bool, like: Any
    ) -> Timeline | RecordedTimeline | MaskedTimeline:
        """The rows of one direction."""

    def check_norms(self, batch: int) -> None:
        """Raise CannotRecordError if these are too many samples for norms of each."""

    def check_parts(self, lengths: Any) -> None:
        """Raise CannotRecordError if the batch cannot be taken in parts."""


def call_arrays(asked: Asked, xp: Any, floats: Sequence[Any], names: Mapping[str, str] = _SAME) -> CallArrays:
    """The arrays of a checked call.

    Parameters
    ----------
    asked : Asked
        The call.
    xp : namespace
        The caller's.
    floats : sequence of array or None
        The call's arrays of one floating-point dtype.
    names : mapping of str to str
        For a single step: its own names for those arrays that it calls by another name.
    """
    if asked.recorder is None:
        return _Given(asked.operator, Computation(asked.operator, xp, floats))
    return _RecordedArrays(asked.recorder, names)


class _Given:
    """The arrays of a call that is computed."""

    def __init__(self, operator: str, computation: Computation) -> None:
        self.engine, self._operator = computation.engine, operator
        self._computation = computation

    def lift(self, name: str, array: Any) -> Any:
        """See CallArrays."""
        return self._computation.lift(array)

    def lower(self, array: Any) -> Any:
        """See CallArrays."""
        return self._computation.lower(array)

    def timeline(
        self, steps: int, batch: int, lengths: Any, reverse: bool, like: Any
    ) -> Timeline | MaskedTimeline:
        """See CallArrays. A trace does not know what is in an array of lengths."""
        if not self.engine.counts_steps:
            return UncountedTimeline(self.engine.xp, steps, batch, lengths, reverse, like)
        for name, size in (("T", steps), ("N", batch)):
            check_known(self._operator, name, size)
        known = lengths is None or isinstance(lengths, list | np.ndarray)
        kind = Timeline if known else MaskedTimeline
        return kind(self.engine.xp, steps, batch, lengths, reverse, like)

    def check_norms(self, batch: int) -> None:
        """See CallArrays: any number will do."""

    def check_parts(self, lengths: Any) -> None:
        """See CallArrays: it always can."""


class _RecordedArrays:
    """What stands for the arrays of a call that is recorded."""

    def __init__(self, recorder: Recorder, names: Mapping[str, str]) -> None:
        self.engine = recorder
        self._names = names

    def lift(self, name: str, array: Any) -> Any:
        """See CallArrays. A single step's arrays lack axes."""
        recorded = self.engine.input(self._names.get(name, name))
        while recorded.ndim < array.ndim:
            recorded = self.engine.xp.expand_dims(recorded, axis=0)
        return recorded

    def lower(self, array: Any) -> Any:
        """See CallArrays. A result stays what it is until the program runs."""
        return array

    def timeline(
        self, steps: int, batch: int, lengths: Any, reverse: bool, like: Any
    ) -> Timeline | RecordedTimeline:
        """See CallArrays. A program reads the lengths of each call."""
        if lengths is None and self.engine.steps is None:
            return Timeline(self.engine.xp, steps, batch, None, reverse, like)
        given = None if lengths is None else self.engine.input("sequence_lens")
        return RecordedTimeline(self.engine, steps, batch, given, reverse)

    def check_norms(self, batch: int) -> None:
        """See CallArrays."""
        if batch > _MOST_SAMPLES:
            raise CannotRecordError("norms of many samples")

    def check_parts(self, lengths: Any) -> None:
        """See CallArrays."""
        if lengths is not None or self.engine.steps is not None:
            raise CannotRecordError("some samples of lengths that are not known")
