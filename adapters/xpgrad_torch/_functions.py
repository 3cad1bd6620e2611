"""PyTorch's elementary functions as traced formulas call them: see `xpgrad.engine.blocks.host_tape`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from xpgrad.engine.formulas.tape import NUMPY_FUNCTIONS
from xpgrad_torch._private import are_functions_watched

_SAMPLE = 2048
_LOG2_E = 1.4426950408889634
_EXP_LEAST = {dtype: math.log(torch.finfo(dtype).tiny) for dtype in (torch.float32, torch.float64)}
_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def are_plain() -> bool:
    """Whether functions do what they say here: no mode and no transformation watches them."""
    return not are_functions_watched()


class Functions:
    """The functions, by the core's names, and what makes their arguments."""

    absolute = staticmethod(torch.abs)
    add = add_scaled = staticmethod(torch.add)
    add_product = staticmethod(torch.addcmul)
    clip = staticmethod(torch.clamp)
    divide = staticmethod(torch.div)
    equal = staticmethod(torch.eq)
    erfc = staticmethod(torch.erfc)
    exp = staticmethod(torch.exp)
    expm1 = staticmethod(torch.expm1)
    greater = staticmethod(torch.gt)
    greater_equal = staticmethod(torch.ge)
    less = staticmethod(torch.lt)
    less_equal = staticmethod(torch.le)
    log = staticmethod(torch.log)
    log1p = staticmethod(torch.log1p)
    maximum = staticmethod(torch.maximum)
    minimum = staticmethod(torch.minimum)
    multiply = staticmethod(torch.mul)
    negative = staticmethod(torch.neg)
    not_equal = staticmethod(torch.ne)
    reciprocal = staticmethod(torch.reciprocal)
    right_shift = staticmethod(torch.bitwise_right_shift)
    sigmoid = staticmethod(torch.sigmoid)
    subtract = staticmethod(torch.sub)
    tanh = staticmethod(torch.tanh)

    @staticmethod
    def exp_of_any(x: torch.Tensor, out: torch.Tensor) -> None:
        """exp, which takes fifty times as long for numbers where it underflows; powers of 2 do not.

        Whether there are such, as in masked logits, the first ones tell: it is a matter of time alone.
        """
        if x.numpy().reshape(-1)[:_SAMPLE].min() > _EXP_LEAST[x.dtype]:
            torch.exp(x, out=out)
        else:
            torch.exp2(torch.mul(x, _LOG2_E, out=out), out=out)

    @staticmethod
    def positive(x: torch.Tensor, out: torch.Tensor) -> None:
        """`x` itself."""
        out.copy_(x)

    @staticmethod
    def sum(x: torch.Tensor, out: torch.Tensor) -> None:
        """Of each row."""
        torch.sum(x, 1, True, out=out)

    @staticmethod
    def empty_rows(logits: torch.Tensor, out: np.ndarray) -> None:
        """Whether a row is -inf throughout."""
        NUMPY_FUNCTIONS.empty_rows(logits.numpy(), out)

    @staticmethod
    def clear_rows(flags: np.ndarray, x: torch.Tensor, out: torch.Tensor) -> None:
        """`x`, but 0 in rows with a flag."""
        if x is not out:
            out.copy_(x)
        if flags.any():
            out.numpy()[flags[:, 0]] = 0

    @staticmethod
    def wrap(array: np.ndarray) -> torch.Tensor:
        """A tensor over the array's memory."""
        return torch.from_numpy(array)

    @staticmethod
    def integers(tensor: torch.Tensor) -> torch.Tensor:
        """The bits."""
        return tensor.view(_BITS[tensor.dtype])

    @staticmethod
    def buffer(shape: tuple[int, ...], dtype: np.dtype) -> torch.Tensor:
        """Memory for results, in any mode."""
        with torch.inference_mode(False):
            return torch.from_numpy(np.empty(shape, dtype))

    @staticmethod
    def split(tensor: torch.Tensor, size: int) -> Any:
        """Views of so many rows or elements each, and of the rest."""
        return tensor.split(size)

    @staticmethod
    def threads() -> int:
        """How many threads share a call."""
        return torch.get_num_threads()
