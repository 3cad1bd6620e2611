"""The engine for PyTorch's CPU tensors: the NumPy engine on zero-copy views, with torch's matrix product."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import array_api_compat
import numpy as np
import torch

from xpgrad.engine import NumpyEngine
from xpgrad.engine.blas import Blas, find_blas
from xpgrad.engine.team import OpenMPTeam, PoolTeam, find_openmp

_FSDP = "torch.distributed.fsdp"
# Below this many multiply-adds NumPy's product is the faster one: torch's has the longer way to BLAS.
_SMALL_PRODUCT = 1 << 16


class TorchEngine(NumpyEngine):
    """Kernels run on NumPy views of the tensors; large products go through torch.

    All products of one process then run in the threads of one pool, torch's, and use the BLAS that torch
    was built with.
    """

    name = "torch"

    @functools.cached_property
    def team(self) -> Any:
        """Torch's own threads, where they are OpenMP's."""
        return find_openmp(torch._C.__file__, torch.get_num_threads) or PoolTeam()

    @functools.cached_property
    def blas(self) -> Blas | None:
        """The BLAS that torch was built with; without OpenMP's threads NumPy's, which can be held to one."""
        return find_blas(torch._C.__file__) if isinstance(self.team, OpenMPTeam) else super().blas

    def takes(self, xp: Any, arrays: Sequence[Any]) -> bool:
        """Whether the arrays are plain CPU tensors that no transformation of torch is watching."""
        if not array_api_compat.is_torch_namespace(xp):
            return False
        grad = torch.is_grad_enabled()
        return all(_plain(array) and not (grad and array.requires_grad) for array in arrays)

    def lift(self, array: torch.Tensor) -> np.ndarray:
        """A view of the tensor's memory."""
        if _FSDP in sys.modules:
            # FSDP gives parameters' memory back by resizing it, which `numpy()` forbids for good.
            return np.from_dlpack(array.detach())
        return array.detach().numpy()

    def lower(self, array: np.ndarray) -> torch.Tensor:
        """A tensor over the array's memory."""
        return torch.from_numpy(array)

    def matmul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Matrix product by torch, unless it is small."""
        if a.shape[-2] * a.shape[-1] * b.shape[-1] < _SMALL_PRODUCT:
            return np.matmul(a, b)
        return torch.matmul(_tensor(a), _tensor(b)).numpy()

    def write_product(self, a: np.ndarray, b: np.ndarray, target: np.ndarray, first: int) -> None:
        """Matrix product, straight into the target's rows."""
        rows = target[first : first + a.shape[0]]
        if a.size * b.shape[1] < _SMALL_PRODUCT:
            np.matmul(a, b, out=rows)
        else:
            torch.mm(_tensor(a), _tensor(b), out=torch.from_numpy(rows))

    def add_product(self, total: np.ndarray | None, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Matrix product, added to the total by BLAS itself."""
        if total is None:
            return self.matmul(a, b)
        if total.ndim > 2:
            total += self.matmul(a, b)
            return total
        tensor = torch.from_numpy(total)
        torch.addmm(tensor, _tensor(a), _tensor(b), out=tensor)
        return total

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
