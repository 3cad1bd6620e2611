"""The layout of results in memory, as for PyTorch's operators."""

from collections.abc import Sequence

import torch
from torch import Tensor

# The axes of images from the largest stride to the smallest, channels last.
_ORDERS = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}
_BACK = {4: (0, 3, 1, 2), 5: (0, 4, 1, 2, 3)}
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_channels_last(x: Tensor) -> bool:
    """Tell whether images, (N, C, H, W) or (N, C, D, H, W), have their channels last in memory.

    The strides of axes of size 1 decide cases that could be either, as in PyTorch's operators.
    """
    order = _ORDERS.get(x.dim())
    if order is None:
        return False
    shape, strides = x.shape, x.stride()
    if not strides[1] or (strides[1] != 1 and x.is_contiguous()):
        return False
    least = 0
    for axis in reversed(order):
        if not shape[axis] or strides[axis] < least:
            return False
        if not axis and least == strides[1]:  # one pixel of one channel
            return False
        least = strides[axis] * (shape[axis] if shape[axis] > 1 else 1)
    return True


def to_channels_last(y: Tensor) -> Tensor:
    """Return images with their channels last in memory, by operators with all rules."""
    return y.permute(_ORDERS[y.dim()]).contiguous().permute(_BACK[y.dim()])


def empty_images(shape: Sequence[int], like: Tensor) -> Tensor:
    """Return memory for images with their channels last; dtype and device are those of `like`."""
    form = _FORMATS[len(shape)]
    return torch.empty(tuple(shape), dtype=like.dtype, device=like.device, memory_format=form)


def placed_as(y: Tensor, template: Tensor) -> Tensor:
    """Return y, or a copy, with the strides of another tensor of its shape."""
    if y.stride() == template.stride():
        return y
    return y.new_empty_strided(template.shape, template.stride()).copy_(y)
