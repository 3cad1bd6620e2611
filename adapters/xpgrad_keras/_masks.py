"""Masks: the steps that a mask keeps move to the front of their sequences, and results back to their places.

A kernel takes lengths, here the numbers of kept steps. If a mask keeps a prefix of each sequence, nothing
moves.
"""

from typing import Any, NamedTuple

from keras import ops

from xpgrad_keras._backends import KerasBackend


class Kept(NamedTuple):
    """The steps that a mask keeps."""

    mask: Any  # (N, T)
    counts: Any  # the number of kept steps up to and including each step, (N, T)
    lengths: Any  # the number of kept steps of each sequence, (N,)
    is_prefix: Any  # whether all kept steps are in front, a boolean that a trace may not know
    backend: KerasBackend

    def in_front(self, X: Any) -> Any:
        """Return X (N, T, I) with the kept steps at the front."""

        def moved() -> Any:
            T = ops.shape(X)[1]
            steps = ops.arange(T, dtype="int32")
            return _taken(X, ops.argsort(self.backend.where(self.mask, steps, steps + T), axis=1))

        return self.backend.choose(self.is_prefix, lambda: X, moved)

    def outputs(self, H_all: Any, end: Any, start: Any, reverse: bool, zero: bool) -> Any:
        """Return the outputs at all steps, in the order of the input.

        `H_all` (N, T, H) has the kernel's outputs: first of the kept steps, then zeros. `end` (N, H) is the
        last output, and `start` the output before the first kept step; `reverse` says whether the kernel
        began at the end. Steps that the mask drops have the output zero if `zero`, else the output before.
        """
        mask = self.mask[:, :, None]
        nothing = ops.zeros_like(H_all)

        def in_place() -> Any:
            if zero:
                return H_all
            return self.backend.where(mask, H_all, (start if reverse else end)[:, None])

        def moved() -> Any:
            place = self.counts - ops.cast(self.mask, "int32") if reverse else self.counts - 1
            lengths = self.lengths[:, None]
            known = place < lengths if reverse else place >= 0
            taken = _taken(H_all, ops.clip(place, 0, ops.shape(H_all)[1] - 1))
            if zero:
                return self.backend.where(mask, taken, nothing)
            return self.backend.where(known[:, :, None], taken, start[:, None])

        return self.backend.choose(self.is_prefix, in_place, moved)


def kept_steps(mask: Any, backend: KerasBackend) -> Kept:
    """Return the steps that a mask (N, T) keeps."""
    mask = ops.cast(mask, "bool")
    ones = ops.cast(mask, "int32")
    counts, lengths = ops.cumsum(ones, axis=1), ops.sum(ones, axis=1)
    steps = ops.arange(ops.shape(mask)[1], dtype="int32")
    return Kept(mask, counts, lengths, ops.all(mask == (steps < lengths[:, None])), backend)


def _taken(X: Any, steps: Any) -> Any:
    """Return the steps (N, T) of X (N, T, width), taken as rows of a matrix, whose gradient is fast."""
    N, T, width = ops.shape(X)
    rows = ops.cast(steps, "int32") + T * ops.arange(N, dtype="int32")[:, None]
    taken = ops.take(ops.reshape(X, (-1, X.shape[-1])), ops.reshape(rows, (-1,)), axis=0)
    return ops.reshape(taken, (N, T, width))
