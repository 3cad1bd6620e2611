"""The engine for PyTorch's CPU tensors: the NumPy engine on views, with torch's matrix products."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from math import prod
from operator import attrgetter
from typing import Any

import array_api_compat
import numpy as np
import torch

from xpgrad.engine import Formula, NumpyEngine, RowFormula, array_loops
from xpgrad.engine.process import guard
from xpgrad.engine.process.memory import LARGE, result_array
from xpgrad.engine.process.settings import jit_enabled
from xpgrad.engine.process.team import PoolTeam, find_openmp
from xpgrad.engine.programs.program import Look
from xpgrad_torch._private import (
    LIBRARY,
    PLAIN_KINDS,
    are_transforms_active,
    count_dispatch_modes,
    is_wrapped,
)

_FSDP = "torch.distributed.fsdp"
# Below this many multiply-adds NumPy's product is faster: torch's calls of BLAS take longer.
_SMALL_PRODUCT = 1 << 16
_COMPUTED: dict[torch.dtype, np.dtype] = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
}
_TENSORS: dict[Any, Any] = dict(zip(_COMPUTED.values(), (torch.FloatTensor, torch.DoubleTensor), strict=True))


def _transform(name: str) -> Callable[..., np.ndarray]:
    """A method that transforms an axis by torch."""
    by_torch = getattr(torch.fft, name)
    return lambda engine, array, n, axis: by_torch(_tensor(array), n=n, dim=axis).numpy()


class TorchEngine(NumpyEngine):
    """Kernels run on NumPy views of the tensors, in torch's threads.

    Large products that are not compiled go through torch, so that the process has one pool of threads.
    """

    name = "torch"
    array_types = (torch.Tensor, torch.nn.Parameter)

    def __init__(self) -> None:
        super().__init__()
        self.host = self
        # torch's own threads, if they are OpenMP's
        self._own_team = find_openmp(LIBRARY, torch.get_num_threads) or PoolTeam()

    def takes(self, xp: Any, arrays: Sequence[Any]) -> bool:
        """Tell whether the arrays are plain CPU tensors that no transformation of torch watches."""
        if not array_api_compat.is_torch_namespace(xp):
            return False
        if _are_results_wrapped():
            return False
        grad = torch.is_grad_enabled()
        if all(is_plain(array) and not (grad and array.requires_grad) for array in arrays):
            return True
        for array in arrays:
            _check_memory(array)
        return False

    def agrees(self, arrays: Sequence[Any]) -> bool:
        """See StandardEngine.agrees."""
        dtype, shape = arrays[0].dtype, arrays[0].shape
        if dtype not in _COMPUTED or _are_results_wrapped():
            return False
        for array in arrays:
            if not is_plain(array) or array.dtype is not dtype or array.shape != shape:
                return False
            if array.requires_grad and torch.is_grad_enabled():
                return False
        return True

    def look(self, arrays: Collection[torch.Tensor]) -> Look | None:
        """See `Adapter`."""
        seen = None if _are_results_wrapped() else look_at(list(arrays))
        if seen is None or (torch.is_grad_enabled() and any(array.requires_grad for array in arrays)):
            return None
        forms, each, addresses = seen
        dtype, is_cpu, _ = forms[0]
        computed = _COMPUTED.get(dtype)
        if computed is None or not is_cpu or any(form[:2] != (dtype, True) for form in forms):
            return None
        layouts = [(tuple(form[2]), strides) for form, strides in zip(forms, each, strict=True)]
        return self._seen(computed, layouts, addresses, new_result)

    def integers(self, array: Any) -> np.ndarray | None:
        """See `Adapter`. Lengths with resets are an array of NumPy."""
        return super().integers(array.numpy() if is_plain(array) else array)

    def quick_elementwise(
        self, formula: Formula, arrays: Sequence[torch.Tensor], numbers: Sequence[float], out: Any = None
    ) -> Any:
        """See `Adapter`."""
        if _loops_take(arrays) and (out is None or out.is_contiguous()):
            result = _new_like(arrays[0]) if out is None else out
            addresses = [*map(torch.Tensor.data_ptr, (*arrays, result))]
            dtype = _COMPUTED[result.dtype]
            if array_loops.over_elements(self, formula, addresses, result.numel(), dtype, numbers):
                return result
        if out is not None:
            return None
        return torch.from_numpy(super().quick_elementwise(formula, [x.numpy() for x in arrays], numbers))

    def quick_rows(
        self, formula: RowFormula, arrays: Sequence[torch.Tensor], axis: int
    ) -> torch.Tensor | None:
        """See `Adapter`."""
        if not _loops_take(arrays) or not arrays[0].numel():
            result = super().quick_rows(formula, [array.numpy() for array in arrays], axis)
            return None if result is None else self.lower(result)
        out = _new_like(arrays[0])
        addresses = [*map(torch.Tensor.data_ptr, (*arrays, out))]
        array_loops.along_axis(self, formula, addresses, out.shape, axis, _COMPUTED[out.dtype])
        return out

    def lift(self, array: torch.Tensor) -> np.ndarray:
        """A view of the tensor's memory."""
        if _FSDP in sys.modules:
            # FSDP frees parameters' memory by resizing it, which `numpy()` would forbid from now on.
            return np.from_dlpack(array.detach())
        return array.detach().numpy()

    def lower(self, array: np.ndarray) -> torch.Tensor:
        """A tensor over the array's memory."""
        return torch.from_numpy(array)

    def _write_library_product(self, a: np.ndarray, b: np.ndarray, target: np.ndarray) -> None:
        """By torch, unless the product is small."""
        if a.shape[-2] * a.shape[-1] * b.shape[-1] < _SMALL_PRODUCT:
            np.matmul(a, b, out=target)
        else:
            result, left, right = (_one_batch(array, target.shape[:-2]) for array in (target, a, b))
            (torch.mm if result.ndim == 2 else torch.bmm)(left, right, out=result)

    def _add_library_product(self, total: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        """By torch, added by BLAS itself."""
        sums, left, right = (_one_batch(array, total.shape[:-2]) for array in (total, a, b))
        (torch.addmm if sums.ndim == 2 else torch.baddbmm)(sums, left, right, out=sums)

    rfft, irfft, fft, ifft = map(_transform, ("rfft", "irfft", "fft", "ifft"))

    def describe(self) -> str:
        """See `Adapter`."""
        return (
            f"PyTorch {torch.__version__} CPU tensors: the numpy engine on views, in torch's "
            f"{torch.get_num_threads()} threads"
        )


Seen = tuple[tuple[tuple[Any, ...], ...], tuple[tuple[int, ...], ...], list[int]]
"""The forms of tensors (dtype, whether on the CPU, shape), their strides and their addresses."""
_form_of = attrgetter("dtype", "is_cpu", "shape")


def look_at(tensors: Sequence[torch.Tensor]) -> Seen | None:
    """Return the forms, strides and addresses of plain tensors (see `is_plain`); None if one is not plain.

    The loops run in C: calls in Python would take longer than many kernels.
    """
    if not PLAIN_KINDS.issuperset(map(type, tensors)):
        return None
    try:
        forms, strides = tuple(map(_form_of, tensors)), tuple(map(torch.Tensor.stride, tensors))
        addresses = list(map(torch.Tensor.data_ptr, tensors))
    except RuntimeError:  # one is nested, or sparse, or wrapped by a transformation
        return None
    if 0 in addresses or True in map(torch.Tensor.is_neg, tensors):  # no elements, or no memory
        return None
    return forms, strides, addresses


def new_result(shape: tuple[int, ...], dtype: np.dtype) -> tuple[torch.Tensor, int]:
    """A tensor for a result, and its address.

    For small ones PyTorch's own memory takes less time, also to free it, and `torch.FloatTensor` half as long
    as `torch.empty`. A step of a small convolution or cell takes 0.92 to 0.96 of the time.
    """
    if guard.on or prod(shape) * dtype.itemsize >= LARGE:
        tensor = torch.from_numpy(result_array(shape, dtype))
    else:
        tensor = _TENSORS[dtype](*shape)
    return tensor, tensor.data_ptr()


def _loops_take(tensors: Sequence[torch.Tensor]) -> bool:
    """Tell whether compiled loops take tensors by their addresses.

    Without a view in NumPy for each of them a kernel on large tensors, which leave nothing else in the
    caches, takes 20 to 40 microseconds less, and on small ones half as long.
    """
    for tensor in tensors:
        if not tensor.is_contiguous():
            return False
    return jit_enabled() and not guard.on


def _new_like(tensor: torch.Tensor) -> torch.Tensor:
    """A new tensor like a contiguous one, in the memory of earlier results if it is large."""
    if tensor.numel() * tensor.element_size() < LARGE:
        return torch.empty_like(tensor)
    return torch.from_numpy(result_array(tuple(tensor.shape), _COMPUTED[tensor.dtype]))


def _are_results_wrapped() -> bool:
    """Tell whether new tensors have no memory, as under `torch.func.grad` and fake tensors."""
    followed = are_transforms_active() or count_dispatch_modes()
    return bool(followed) and not is_plain(torch.empty(1, device="cpu"))


def is_plain(tensor: Any) -> bool:
    """Tell whether the tensor is on the CPU and its memory can be read."""
    return _on_cpu(tensor) and not tensor.is_neg() and not _lacks_memory(tensor)


def _on_cpu(tensor: Any) -> bool:
    """Tell whether the tensor is on the CPU, strided, and wrapped by nothing."""
    plain = type(tensor) in PLAIN_KINDS and tensor.is_cpu and tensor.layout is torch.strided
    return plain and not is_wrapped(tensor)


def _lacks_memory(tensor: torch.Tensor) -> bool:
    """Tell whether a CPU tensor has elements but no memory, as a zero or functional tensor."""
    return tensor.data_ptr() == 0 and tensor.numel() > 0


def _check_memory(tensor: Any) -> None:
    """Raise RuntimeError for a tensor whose storage was freed: PyTorch's operators would read there."""
    # the storage of a zero tensor or of a functional tensor has a size
    if _on_cpu(tensor) and _lacks_memory(tensor) and not tensor.untyped_storage().size():
        raise RuntimeError(
            f"a tensor of shape {tuple(tensor.shape)} has a storage of 0 bytes, expected "
            f"{tensor.numel() * tensor.element_size()}"
        )


def _one_batch(array: np.ndarray, batch: tuple[int, ...]) -> torch.Tensor:
    """A stack of matrices for torch's products: one axis for the batch, none for a single matrix."""
    rows, columns = array.shape[-2:]
    if prod(batch) == 1:
        return _tensor(array).reshape(rows, columns)
    return _tensor(array).expand(*batch, rows, columns).reshape(-1, rows, columns)


def _tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor over the array's memory, to be read only."""
    if not array.flags.writeable:
        array = array.copy()  # torch warns about tensors that could write to it
    return torch.from_numpy(array)
