"""Packed sequences: their rows for kernels' programs, and their padded form (T, N, width)."""

import functools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from xpgrad._operators.for_adapters import largest_steps
from xpgrad_torch._autograd import is_followed
from xpgrad_torch.engine import is_plain

__all__ = ["PackedRows", "are_rows_taken"]


class PackedRows:
    """The places of a packed sequence's rows in an array over time and batch.

    PyTorch's functions copy a slice for each time step, and their gradients make a whole array for each
    slice, which takes as long as a layer. This class moves all rows at once. It uses PyTorch's functions if
    operators are watched, and for invalid batch sizes, for which they raise an error.

    `lengths` are the sequences' lengths, (N,), from long to short. `knows_places` is False if PyTorch's
    functions move the rows.
    """

    def __init__(self, packed: PackedSequence) -> None:
        self._sizes, self._count, device = packed.batch_sizes, packed.data.shape[0], packed.data.device
        self.knows_places = not is_followed() and _is_regular(packed)
        if not self.knows_places:
            self.lengths = pad_packed_sequence(PackedSequence(packed.data, self._sizes))[1].to(device)
            return
        counts = self._sizes.numpy()
        ends = counts - np.append(counts[1:], 0)  # how many sequences end with each step
        lengths = np.repeat(np.arange(1, len(counts) + 1), ends)[::-1]
        self.lengths = torch.from_numpy(lengths.copy()).to(device)

    @functools.cached_property
    def _places(self) -> Tensor:
        """Each row's place in the flat array over time and batch."""
        counts = self._sizes.numpy()
        is_there = np.arange(counts[0]) < counts[:, None]
        return torch.from_numpy(np.flatnonzero(is_there)).to(self.lengths.device)

    def padded(self, data: Tensor) -> Tensor:
        """Return rows as an array (T, N, width), with zeros after each sequence's end."""
        if not self.knows_places:
            return pad_packed_sequence(PackedSequence(data, self._sizes))[0]
        steps, batch = len(self._sizes), len(self.lengths)
        empty = data.new_zeros((steps * batch, data.shape[1]))
        return empty.index_copy(0, self._places, data).view(steps, batch, -1)

    def rows(self, X: Tensor) -> Tensor:
        """Return the rows of an array (T, N, width)."""
        if not self.knows_places:
            return pack_padded_sequence(X, self.lengths.cpu()).data
        return X.flatten(0, 1).index_select(0, self._places)

    # --- for programs, which know the number of rows

    def spread(self, data: Tensor) -> Tensor:
        """Return rows of a plain tensor in the form of an array (T, N, width), without a copy.

        The memory ends after the last row. A program's form does not include the number of rows, so that
        batches with other lengths share it; T is the largest number of steps with the same program.
        """
        flat = data.detach().contiguous().numpy()
        shape = (largest_steps(len(self._sizes)), len(self.lengths), flat.shape[1])
        row = flat.itemsize * shape[2]  # an axis of size 1 may have any stride
        strides = (row * shape[1], row, flat.itemsize)
        return torch.from_numpy(np.lib.stride_tricks.as_strided(flat, shape, strides))

    def gathered(self, array: Tensor) -> Tensor:
        """Return the rows that a program has written to the beginning of a new array (T, N, width).

        The result is no view: autograd forbids writing to a view from an autograd function.
        """
        return torch.from_numpy(array.numpy().reshape(-1, array.shape[2])[: self._count])


def are_rows_taken(packing: PackedRows, tensors: Sequence[Tensor]) -> bool:
    """Tell whether kernels take the rows without padding, together with these other operands."""
    return packing.knows_places and all(
        is_plain(x) and x.dtype in (torch.float32, torch.float64) and x.numel() for x in tensors
    )


def _is_regular(packed: PackedSequence) -> bool:
    """Tell whether the batch sizes decrease and their sum is the number of rows."""
    sizes = packed.batch_sizes
    if sizes.dim() != 1 or not len(sizes) or sizes.dtype != torch.int64 or not sizes.is_cpu:
        return False
    counts = sizes.numpy()
    return bool(counts[-1] > 0 and (counts[1:] <= counts[:-1]).all() and counts.sum() == packed.data.shape[0])
