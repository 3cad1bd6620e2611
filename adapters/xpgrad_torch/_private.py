"""PyTorch's private names: all that the adapter uses, in this one module.

PyTorch may drop or rename a private name in any version. So each one is looked up here, when the adapter is
imported, and has a function or constant with a name of ours. Where PyTorch lacks it, a plain way with public
names takes its place; where there is no plain way, the call that needs it raises a RuntimeError that says the
missing name and PyTorch's version.
"""

import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad


def _found(path: str) -> Any:
    """Return what a dotted path below `torch` names, None where there is nothing."""
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _imported(module: str, name: str) -> Any:
    """Return a name of a module that `import torch` does not load, None where there is nothing."""
    try:
        return getattr(importlib.import_module(f"torch.{module}"), name, None)
    except ImportError:
        return None


def _missing(path: str) -> Callable[..., NoReturn]:
    """Return what stands in for a function that has no plain way: a call of it is an error."""

    def call(*args: Any, **options: Any) -> NoReturn:
        raise RuntimeError(
            f"xpgrad_torch: PyTorch {torch.__version__} has no torch.{path}, expected a version that has it: "
            "2.13 does"
        )

    return call


def _needed(path: str) -> Any:
    """Return what a path below `torch` names, or what raises an error when it is called."""
    return _found(path) or _missing(path)


# --- the file of PyTorch's own library, in which its threads are found. The plain way is a file without them:
# the engine then has threads of its own.
LIBRARY: str = _found("_C.__file__") or torch.__file__

# --- who watches operators


def _is_dual_level_open() -> bool:
    try:
        forward_ad.make_dual(torch.zeros(()), torch.zeros(()))
    except RuntimeError:
        return False
    return True


def is_forward_mode() -> bool:
    """Tell whether a level of forward mode is open. The plain way is to try to make a dual number."""
    level = getattr(forward_ad, "_current_level", None)
    return _is_dual_level_open() if level is None else level >= 0


# Whether a transformation of `torch.func` is at work. The plain way takes it that one is: then functions are
# called whose gradients have rules for all transformations.
are_transforms_active: Callable[[], bool] = _found("_C._are_functorch_transforms_active") or (lambda: True)


def _any_mode() -> int:
    return int(not are_transforms_active() and not is_forward_mode())


# The number of dispatch modes. The plain way takes it that there is one: then a registered operator is
# called, which every mode can see. Transformations need functions with other rules than an operator's.
count_dispatch_modes: Callable[[], int] = _found("_C._len_torch_dispatch_stack") or _any_mode

# --- what autograd does with saved tensors. The plain way takes it that somebody's hooks move them.
_saved_tensors_hooks: Callable[[bool], Any] = _found("_C._autograd._top_saved_tensors_default_hooks") or (
    lambda ignore_is_tracing: True
)


def has_saved_tensors_hooks() -> bool:
    """Tell whether hooks of `torch.autograd.graph.saved_tensors_hooks` are in use, checkpointing's too."""
    return _saved_tensors_hooks(True) is not None


# --- kinds of tensors


def _lacks_storage(x: Tensor) -> bool:
    try:
        x.data_ptr()
    except RuntimeError:
        return True
    return False


# Whether a tensor is one of a transformation of `torch.func`. The plain way knows that these have no storage.
is_wrapped: Callable[[Tensor], bool] = _found("_C._functorch.is_functorch_wrapped_tensor") or _lacks_storage


def version_of(x: Tensor) -> int | None:
    """Return a number that changes when PyTorch writes to the tensor; None where there is none.

    A tensor of inference mode has none. In the plain way no tensor has one.
    """
    return None if x.is_inference() else getattr(x, "_version", None)


def base_of(x: Tensor) -> Tensor:
    """Return the tensor that x is a view of, or x. The plain way takes it for x itself."""
    base = getattr(x, "_base", None)
    return x if base is None else base


# The classes that are no more than memory. Any other one may do something else in the place of operations.
PLAIN_KINDS = frozenset({Tensor, nn.Parameter})

# --- the older vmap, of is_grads_batched=True; no tensor is one of its own where it is gone
is_of_older_vmap: Callable[[Any], bool] = _found("_C._functorch.is_legacy_batchedtensor") or (lambda x: False)
_enter_older_vmap: Callable[[], int] = _needed("_C._vmapmode_increment_nesting")
_leave_older_vmap: Callable[[], int] = _needed("_C._vmapmode_decrement_nesting")
_remove_batch_dim: Callable[..., Tensor] = _needed("_remove_batch_dim")
_add_batch_dim: Callable[..., Tensor] = _needed("_add_batch_dim")


def older_vmap_level() -> int:
    """Return the level of the innermost older vmap."""
    level = _enter_older_vmap() - 1
    _leave_older_vmap()
    return level


def remove_older_batch(x: Tensor, level: int) -> Tensor:
    """Return a tensor of an older vmap with what it maps over as axis 0."""
    return _remove_batch_dim(x, level, 0, 0)


def add_older_batch(x: Tensor, axis: int, level: int) -> Tensor:
    """Return a tensor whose axis an older vmap maps over."""
    return _add_batch_dim(x, axis, level)


# --- classes to build on: what PyTorch's convolutions build on
ConvNd: Any = _found("nn.modules.conv._ConvNd") or nn.Conv1d.__base__
ConvTransposeNd: Any = _found("nn.modules.conv._ConvTransposeNd") or nn.ConvTranspose1d.__base__


def applied_unwatched(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return an autograd function's `apply` for tensors that no transformation of `torch.func` watches.

    PyTorch's own looks through all arguments for such tensors, which takes as long as a small kernel. The
    plain way is to call it always.
    """
    return getattr(super(torch.autograd.Function, function), "apply", function.apply)


# --- the tables of a module that hold what is its own, by their names in its `__dict__`
STATE_TABLES = ("_parameters", "_buffers", "_modules")


def rebind_hooks(module: nn.Module, own: bool) -> None:
    """Let the hooks before `load_state_dict` of the module that this one was made from see this one.

    PyTorch keeps the module beside each of them that takes it; all other hooks get the module that runs. With
    `own`, they are copied into a table of this module, and the other one keeps its own. Where PyTorch keeps
    no such table, there is nothing to do.
    """
    hooks = vars(module).get("_load_state_dict_pre_hooks", {})
    if not any(getattr(hook, "with_module", False) for hook in hooks.values()):
        return
    if own:
        hooks = hooks.copy()
        vars(module)["_load_state_dict_pre_hooks"] = hooks
    for key, hook in hooks.items():
        if getattr(hook, "with_module", False):
            hooks[key] = type(hook)(hook.hook, module)


def children_of(module: nn.Module) -> dict[str, nn.Module | None]:
    """Return a module's own children by name, each as often as it has names, and None where one is left out.

    The plain way leaves out what is None, and all but the first name of a child.
    """
    found = getattr(module, "_modules", None)
    return dict(module.named_children() if found is None else found)


def parameters_of(module: nn.Module, names: Sequence[str]) -> list[Tensor]:
    """Return parameters, or what has taken their place; the plain way, a module's own, is a longer one."""
    found = getattr(module, "_parameters", {})
    try:
        return [found[name] for name in names]
    except KeyError:
        return [getattr(module, name) for name in names]


def parameters_in(module: nn.Module) -> Iterable[Tensor | None]:
    """Return a module's own parameters, or what has taken their place; the plain way knows the parameters."""
    found = getattr(module, "_parameters", None)
    return module.parameters(recurse=False) if found is None else found.values()


# --- what convolution modules compute from their options


def padding_ends(module: Any) -> Sequence[int]:
    """Return how much a module pads both ends of each dimension, the last dimension first.

    The plain way computes it from the options, as they are now.
    """
    ends = getattr(module, "_reversed_padding_repeated_twice", None)
    if ends is not None:
        return ends
    pairs: list[tuple[int, int]] = []
    for k, (width, dilation) in enumerate(zip(module.kernel_size, module.dilation, strict=True)):
        if isinstance(module.padding, str):
            total = dilation * (width - 1) if module.padding == "same" else 0
            pairs.append((total // 2, total - total // 2))
        else:
            pairs.append((module.padding[k],) * 2)
    return [end for pair in reversed(pairs) for end in pair]


def output_padding_of(module: Any, X: Tensor, output_size: Sequence[int] | None) -> Sequence[int]:
    """Return the output padding that leads to a size; the plain way knows only the module's own."""
    if output_size is None:
        return module.output_padding
    compute = getattr(module, "_output_padding", None) or _missing("nn.ConvTranspose1d._output_padding")
    spread = (list(x) for x in (output_size, module.stride, module.padding, module.kernel_size))
    return compute(X, *spread, len(module.kernel_size), list(module.dilation))


# --- trees of arguments: the plain way knows tuples, lists and dicts


def _map_nested(function: Callable[[Any], Any], tree: Any) -> Any:
    if type(tree) in (tuple, list):
        return type(tree)(_map_nested(function, x) for x in tree)
    if type(tree) is dict:
        return {name: _map_nested(function, x) for name, x in tree.items()}
    return function(tree)


def _nested_leaves(tree: Any) -> list[Any]:
    leaves: list[Any] = []
    _map_nested(leaves.append, tree)
    return leaves


tree_map: Callable[..., Any] = _imported("utils._pytree", "tree_map") or _map_nested
tree_leaves: Callable[..., list[Any]] = _imported("utils._pytree", "tree_leaves") or _nested_leaves

# --- per-sample gradients; where they are gone no weight is an expanded one
_EXPANDED = "nn.utils._expanded_weights.expanded_weights"
ExpandedWeight: Any = _imported(f"{_EXPANDED}_impl", "ExpandedWeight") or type("ExpandedWeight", (), {})
set_grad_sample: Callable[..., None] = _imported(
    f"{_EXPANDED}_utils", "set_grad_sample_if_exists"
) or _missing(f"{_EXPANDED}_utils.set_grad_sample_if_exists")
