"""Packed sequences: their rows into time and batch, and back."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from xpgrad_torch._autograd import is_followed

__all__ = ["Packing"]


class Packing:
    """Where the rows of a packed sequence are in an array over time and batch.

    PyTorch's own functions copy a slice for each time step, and their gradients make an array of the whole
    size for each of them, which takes as long as a layer. Here all rows move at once. PyTorch's functions
    are for whoever watches operators, and for numbers that are no packing, of which they say so.

    Parameters
    ----------
    packed : PackedSequence
        Any with these batch sizes.

    Attributes
    ----------
    lengths : Tensor
        Of each sequence, (N,), from long to short.
    """

    def __init__(self, packed: PackedSequence) -> None:
        self._sizes = packed.batch_sizes
        self._places: Tensor | None = None
        if is_followed() or not _is_regular(packed):
            self.lengths = pad_packed_sequence(PackedSequence(packed.data, self._sizes))[1]
            return
        counts = self._sizes.numpy()
        is_there = np.arange(counts[0]) < counts[:, None]
        self.lengths = torch.from_numpy(is_there.sum(axis=0))
        self._places = torch.from_numpy(np.flatnonzero(is_there)).to(packed.data.device)

    def padded(self, data: Tensor) -> Tensor:
        """Return rows as an array (T, N, width), zero behind each sequence's end."""
        if self._places is None:
            return pad_packed_sequence(PackedSequence(data, self._sizes))[0]
        steps, batch = len(self._sizes), len(self.lengths)
        empty = data.new_zeros((steps * batch, data.shape[1]))
        return empty.index_copy(0, self._places, data).view(steps, batch, -1)

    def rows(self, X: Tensor) -> Tensor:
        """Return the rows of an array (T, N, width)."""
        if self._places is None:
            return pack_padded_sequence(X, self.lengths).data
        return X.flatten(0, 1).index_select(0, self._places)


def _is_regular(packed: PackedSequence) -> bool:
    """Tell whether the batch sizes fall, and count the rows."""
    sizes = packed.batch_sizes
    if sizes.dim() != 1 or not len(sizes) or sizes.dtype != torch.int64 or not sizes.is_cpu:
        return False
    counts = sizes.numpy()
    return bool(counts[-1] > 0 and (counts[1:] <= counts[:-1]).all() and counts.sum() == packed.data.shape[0])
