"""Masks: the steps that a mask keeps go to the front of their sequences, and results back to their places.

A kernel takes lengths. So the kept steps of each sequence are put in front, in their order, and a kernel runs
over so many. A mask that is a prefix needs nothing to be moved.
"""

from typing import Any, NamedTuple

from keras import ops

from xpgrad_keras._backends import KerasBackend

__all__ = ["Kept", "kept_steps"]


class Kept(NamedTuple):
    """The steps that a mask keeps.

    Parameters
    ----------
    mask : tensor
        Booleans (N, T).
    counts : tensor
        How many steps are kept up to each one, itself included (N, T).
    lengths : tensor
        How many are kept of each sequence (N,).
    is_prefix : tensor
        Whether all of them are in front already: a boolean, perhaps one that is not known yet.
    backend : KerasBackend
        What chooses and takes.
    """

    mask: Any
    counts: Any
    lengths: Any
    is_prefix: Any
    backend: KerasBackend

    def in_front(self, X: Any) -> Any:
        """Return X (N, T, I) with the kept steps in front."""

        def moved() -> Any:
            T = ops.shape(X)[1]
            steps = ops.arange(T, dtype="int32")
            return _taken(X, ops.argsort(self.backend.where(self.mask, steps, steps + T), axis=1))

        return self.backend.choose(self.is_prefix, lambda: X, moved)

    def outputs(self, H_all: Any, end: Any, start: Any, reverse: bool, zero: bool) -> Any:
        """Return the outputs at all steps, in the order of the input.

        Parameters
        ----------
        H_all : tensor
            The kernel's outputs: those of kept steps in front, zeros behind (N, T, H).
        end : tensor
            The last of them (N, H).
        start : tensor
            The output where no step was kept before (N, H).
        reverse : bool
            Whether the kernel began at the end.
        zero : bool
            Whether other steps have the output zero; else the output of the last step that was kept before.
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
            return (
                self.backend.where(mask, taken, nothing)
                if zero
                else self.backend.where(known[:, :, None], taken, start[:, None])
            )

        return self.backend.choose(self.is_prefix, in_place, moved)


def kept_steps(mask: Any, backend: KerasBackend) -> Kept:
    """Return what a mask (N, T) keeps."""
    mask = ops.cast(mask, "bool")
    ones = ops.cast(mask, "int32")
    counts, lengths = ops.cumsum(ones, axis=1), ops.sum(ones, axis=1)
    steps = ops.arange(ops.shape(mask)[1], dtype="int32")
    return Kept(mask, counts, lengths, ops.all(mask == (steps < lengths[:, None])), backend)


def _taken(X: Any, steps: Any) -> Any:
    """Return the steps (N, T) of X (N, T, width), as rows of one matrix: gradients of rows are fast."""
    N, T, width = ops.shape(X)
    rows = ops.cast(steps, "int32") + T * ops.arange(N, dtype="int32")[:, None]
    taken = ops.take(ops.reshape(X, (-1, X.shape[-1])), ops.reshape(rows, (-1,)), axis=0)
    return ops.reshape(taken, (N, T, width))
