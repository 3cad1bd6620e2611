"""The engine for PyTorch's CPU tensors: the NumPy engine on zero-copy views, with torch's matrix product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import array_api_compat
import numpy as np
import torch

from xpgrad.engine import NumpyEngine

# Below this many multiply-adds NumPy's product is the faster one: torch's has the longer way to BLAS.
_SMALL_PRODUCT = 1 << 16
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class TorchEngine(NumpyEngine):
    """Kernels run on NumPy views of the tensors; large products go through torch.

    All products of one process then run in the threads of one pool, torch's, and use the BLAS that torch
    was built with.
    """

    name = "torch"

    def takes(self, xp: Any, arrays: Sequence[Any]) -> bool:
        """Whether the arrays are plain CPU tensors that no transformation of torch is watching."""
        if not array_api_compat.is_torch_namespace(xp):
            return False
        grad = torch.is_grad_enabled()
        return all(_plain(array) and not (grad and array.requires_grad) for array in arrays)

    def lift(self, array: torch.Tensor) -> np.ndarray:
        """A view of the tensor's memory."""
        return array.detach().numpy()

    def lower(self, array: np.ndarray) -> torch.Tensor:
        """A tensor over the array's memory."""
        return torch.from_numpy(array)

    def matmul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Matrix product by torch, unless it is small."""
        if a.shape[-2] * a.shape[-1] * b.shape[-1] < _SMALL_PRODUCT:
            return np.matmul(a, b)
        return torch.matmul(_tensor(a), _tensor(b)).numpy()

    def multiply_rows(
        self, source: np.ndarray, first: int, count: int, weight: np.ndarray, target: np.ndarray
    ) -> None:
        """One product, straight into the target's rows."""
        if count * weight.size < _SMALL_PRODUCT:
            np.matmul(source[first : first + count], weight, out=target[:count])
        else:
            torch.mm(
                torch.from_numpy(source[first : first + count]),
                torch.from_numpy(weight),
                out=torch.from_numpy(target[:count]),
            )

    def column_sums(self, array: np.ndarray) -> np.ndarray:
        """The sum over the rows, by torch: NumPy's product would wake the threads of its own BLAS."""
        return torch.sum(_tensor(array), dim=0).numpy()

    def describe(self) -> str:
        """In a line."""
        return (
            f"PyTorch {torch.__version__} CPU tensors: the numpy engine on views, products by torch in "
            f"{torch.get_num_threads()} threads"
        )


def _plain(tensor: Any) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not tensor.is_neg()
    )


def _tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor over the array's memory, which is read only."""
    if not array.flags.writeable:
        array = array.copy()  # torch warns about tensors that could write to it
    return torch.from_numpy(array)
