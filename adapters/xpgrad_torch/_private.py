"""What PyTorch does not promise: its private names, all of them, one function or name here for each.

They are looked up when the adapter is imported. Where this version of PyTorch lacks one, there is a plain way
without it, or an ImportError that names it and the version.
"""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils import _pytree


def _found(path: str) -> Any:
    """Return what a dotted path below `torch` names, None where there is nothing."""
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _needed(path: str) -> Any:
    found = _found(path)
    if found is None:
        raise ImportError(
            f"xpgrad_torch: PyTorch {torch.__version__} has no torch.{path}, expected a version that has it: "
            "2.13 does"
        )
    return found


def _imported(module: str, name: str) -> Any:
    """Return a name of a module that `import torch` does not load, None where there is nothing."""
    try:
        return getattr(importlib.import_module(f"torch.{module}"), name, None)
    except ImportError:
        return None


# --- the file of PyTorch's own library, in which its BLAS and its threads are found
LIBRARY: str = _needed("_C.__file__")

# --- who watches operators
count_dispatch_modes: Callable[[], int] = _needed("_C._len_torch_dispatch_stack")
are_transforms_active: Callable[[], bool] = _needed("_C._are_functorch_transforms_active")
_needed("autograd.forward_ad._current_level")


def is_forward_mode() -> bool:
    """Tell whether a level of forward mode is open."""
    return forward_ad._current_level >= 0


# --- kinds of tensors
is_wrapped: Callable[[Tensor], bool] = _needed("_C._functorch.is_functorch_wrapped_tensor")
is_functional: Callable[[Tensor], bool] = _found("_is_functional_tensor") or (lambda x: False)


def is_zero(x: Tensor) -> bool:
    """Tell whether a tensor is one of zeros that has no memory."""
    return hasattr(x, "_is_zerotensor") and x._is_zerotensor()


def base_of(x: Tensor) -> Tensor:
    """Return the tensor that x is a view of, or x."""
    return x if x._base is None else x._base


# --- the older vmap, of is_grads_batched=True; no tensor is one of its own where it is gone
is_of_older_vmap: Callable[[Any], bool] = _found("_C._functorch.is_legacy_batchedtensor") or (lambda x: False)


def older_vmap_level() -> int:
    """Return the level of the innermost older vmap."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    return level


def remove_older_batch(x: Tensor, level: int) -> Tensor:
    """Return a tensor of an older vmap with what it maps over as axis 0."""
    return torch._remove_batch_dim(x, level, 0, 0)


def add_older_batch(x: Tensor, axis: int, level: int) -> Tensor:
    """Return a tensor whose axis an older vmap maps over."""
    return torch._add_batch_dim(x, axis, level)


# --- classes to build on
ConvNd: Any = _needed("nn.modules.conv._ConvNd")
ConvTransposeNd: Any = _needed("nn.modules.conv._ConvTransposeNd")
# What a function has whose forward takes the context: PyTorch compares by identity.
no_setup_context: Any = _needed("autograd.function._SingleLevelFunction.setup_context")


def applied_alone(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return an autograd function's `apply` for where no transformation of `torch.func` is at work.

    PyTorch's own looks through all arguments for tensors that a transformation has left behind, which takes
    as long as a small kernel; it is called where there is one.
    """
    plain = super(torch.autograd.Function, function).apply  # type: ignore[misc]

    def apply(*args: Any) -> Any:
        for x in args:
            if isinstance(x, Tensor) and is_wrapped(x):
                return function.apply(*args)
        return plain(*args)

    return apply


# --- trees of arguments
tree_map: Callable[..., Any] = _pytree.tree_map
tree_leaves: Callable[..., list[Any]] = _pytree.tree_leaves

# --- per-sample gradients; where they are gone no weight is an expanded one
_EXPANDED = "nn.utils._expanded_weights.expanded_weights"
ExpandedWeight: Any = _imported(f"{_EXPANDED}_impl", "ExpandedWeight") or type("ExpandedWeight", (), {})
set_grad_sample: Callable[..., None] = _imported(f"{_EXPANDED}_utils", "set_grad_sample_if_exists")
