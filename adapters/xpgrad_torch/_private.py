"""All private names of PyTorch that the adapter uses.

PyTorch may drop or rename a private name in any version. So this module looks up each name when it is
imported, and gives it a public name of ours. If PyTorch lacks it, a plain way with public names replaces it.
Without a plain way, the call that needs it raises a RuntimeError with the name and PyTorch's version.
"""

import contextlib
import copy
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad


def _found(path: str) -> Any:
    """Return the object at a dotted path below `torch`, None if there is none."""
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _imported(module: str, name: str) -> Any:
    """Return an object of a module that `import torch` does not load, None if there is none."""
    try:
        return getattr(importlib.import_module(f"torch.{module}"), name, None)
    except ImportError:
        return None


def _missing(path: str) -> Callable[..., NoReturn]:
    """Return a function that replaces a missing one without a plain way: it raises RuntimeError."""

    def call(*args: Any, **options: Any) -> NoReturn:
        raise RuntimeError(
            f"xpgrad_torch: PyTorch {torch.__version__} has no torch.{path}, expected a version that has it: "
            "2.13 does"
        )

    return call


# --- the file of PyTorch's library, with its threads. The plain way is a file without threads: then the
# engine has its own.
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


# Whether a transformation of `torch.func` is active. The plain way assumes it: then kernels run as functions
# whose gradients have rules for all transformations.
are_transforms_active: Callable[[], bool] = _found("_C._are_functorch_transforms_active") or (lambda: True)
_transforms: Callable[[], Any] = _found("_C._functorch.get_interpreter_stack") or (lambda: None)


def _is_active(*kinds: str) -> bool:
    keys = [str(transform.key()) for transform in _transforms() or ()]
    return any(kind in key for kind in kinds for key in keys)


def is_differentiated() -> bool:
    """Tell whether `torch.func` differentiates. The plain way says no."""
    return _is_active("Grad", "Jvp")


def is_functionalized() -> bool:
    """Tell whether `torch.func.functionalize` is active. The plain way says no."""
    return are_transforms_active() and _is_active("Functionalize")


def _any_mode() -> int:
    return int(not are_transforms_active() and not is_forward_mode())


# The number of dispatch modes. The plain way assumes one: then kernels run as registered operators, which
# every mode sees. Transformations need other rules than an operator's.
count_dispatch_modes: Callable[[], int] = _found("_C._len_torch_dispatch_stack") or _any_mode

# Whether `torch.jit.trace` records: what `torch.jit.is_tracing` asks after two calls in Python. Compilers
# cannot read it.
is_jit_tracing: Callable[[], bool] = _found("_C._is_tracing") or torch.jit.is_tracing

# --- autograd's saved tensors. The plain way assumes that hooks move them.
_saved_tensors_hooks: Callable[[bool], Any] = _found("_C._autograd._top_saved_tensors_default_hooks") or (
    lambda ignore_is_tracing: True
)


def has_saved_tensors_hooks() -> bool:
    """Tell whether hooks of `torch.autograd.graph.saved_tensors_hooks`, or checkpointing, are in use."""
    return _saved_tensors_hooks(True) is not None


# Without these names hooks stay, and `torch.func` raises its error about them.
_pop_hooks, _push_hooks = (
    _found(f"_C._autograd._{what}_saved_tensors_default_hooks") for what in ("pop", "push")
)


@contextlib.contextmanager
def without_saved_hooks() -> Iterator[None]:
    """Set hooks of saved tensors aside for a while."""
    aside = []
    try:
        while _pop_hooks and _push_hooks and isinstance(hooks := _saved_tensors_hooks(True), tuple):
            aside.append(hooks)
            _pop_hooks()
        yield
    finally:
        for hooks in reversed(aside):
            _push_hooks(*hooks)


# --- registered operators under autograd
_autograd_rule = _imported("_library.autograd", "make_autograd_impl")
_AutogradRule = _imported("_library.autograd", "Info")


def register_autograd(
    library: torch.library.Library,
    operator: Any,
    backward: Callable[..., Any],
    setup_context: Callable[..., None],
) -> None:
    """Give an operator its backward, as `torch.library.register_autograd` does.

    PyTorch makes classes for each operator, which takes a millisecond; here the operator's first call makes
    them. The plain way makes them at once.
    """
    if _autograd_rule is None or _AutogradRule is None:
        torch.library.register_autograd(operator, backward, setup_context=setup_context, lib=library)
        return

    @functools.cache
    def rule() -> Callable[..., Any]:
        return _autograd_rule(operator, _AutogradRule(backward, setup_context))

    def call(keyset: Any, *arguments: Any, **attributes: Any) -> Any:
        return rule()(keyset, *arguments, **attributes)

    library.impl(operator, call, "Autograd", with_keyset=True)


# --- kinds of tensors


def _lacks_storage(x: Tensor) -> bool:
    try:
        x.data_ptr()
    except RuntimeError:
        return True
    return False


# Whether a tensor belongs to a transformation of `torch.func`. In the plain way: whether it has no storage.
is_wrapped: Callable[[Tensor], bool] = _found("_C._functorch.is_functorch_wrapped_tensor") or _lacks_storage


def version_of(x: Tensor) -> int | None:
    """Return a number that changes when PyTorch writes to the tensor; None in inference mode.

    In the plain way it is None for every tensor.
    """
    return None if x.is_inference() else getattr(x, "_version", None)


# Set tensors' versions. The plain way leaves them: then `_kept` takes a change of shape for a write.
set_versions: Callable[[Sequence[Tensor], Sequence[int]], Any] = _found(
    "_C._autograd._unsafe_set_version_counter"
) or (lambda tensors, versions: None)


def base_of(x: Tensor) -> Tensor:
    """Return the tensor that x is a view of, or x. The plain way returns x."""
    base = getattr(x, "_base", None)
    return x if base is None else base


# --- the profiler. Without this name it shows no kernels.
_profiler = torch.autograd.profiler


def is_profiling() -> bool:
    """Tell whether PyTorch's profiler is on."""
    return getattr(_profiler, "_is_profiler_enabled", False)


# The classes of tensors that are plain memory. Others may replace operations.
PLAIN_KINDS = frozenset({Tensor, nn.Parameter})

# --- the older vmap, of is_grads_batched=True; without it, no tensor belongs to it
is_of_older_vmap: Callable[[Any], bool] = _found("_C._functorch.is_legacy_batchedtensor") or (lambda x: False)
_enter_older_vmap, _leave_older_vmap, _remove_batch_dim, _add_batch_dim = (
    _found(path) or _missing(path)
    for path in (
        "_C._vmapmode_increment_nesting", "_C._vmapmode_decrement_nesting",
        "_remove_batch_dim", "_add_batch_dim",
    )
)  # fmt: skip


def older_vmap_level() -> int:
    """Return the level of the innermost older vmap."""
    level = _enter_older_vmap() - 1
    _leave_older_vmap()
    return level


def remove_older_batch(x: Tensor, level: int) -> Tensor:
    """Return a tensor of an older vmap as a plain one whose axis 0 is mapped over."""
    return _remove_batch_dim(x, level, 0, 0)


def add_older_batch(x: Tensor, axis: int, level: int) -> Tensor:
    """Return a tensor with an axis that an older vmap maps over."""
    return _add_batch_dim(x, axis, level)


def applied_unwatched(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return an autograd function's `apply` for tensors that no transformation of `torch.func` watches.

    PyTorch's `apply` searches all arguments for such tensors, which takes as long as a small kernel. It is
    the plain way.
    """
    return getattr(super(torch.autograd.Function, function), "apply", function.apply)


# --- the tables of a module's own parameters, buffers and children, by their names in its `__dict__`
STATE_TABLES = ("_parameters", "_buffers", "_modules")


def with_other_tensors(module: nn.Module, change: Callable[[Tensor], Tensor]) -> nn.Module:
    """Return a copy of a module whose own tensors, parameters or not, are changed ones."""
    twin = copy.copy(module)
    own = vars(twin)
    own.update({name: change(x) for name, x in own.items() if isinstance(x, Tensor)})
    table = STATE_TABLES[0]
    own[table] = {name: x if x is None else change(x) for name, x in own[table].items()}
    return twin


def rebind_hooks(module: nn.Module) -> None:
    """Bind hooks before `load_state_dict` to this module instead of the module from which it was made.

    PyTorch stores the module with each hook that takes it; all other hooks get the module that runs. Without
    such a table, nothing happens.
    """
    hooks = vars(module).get("_load_state_dict_pre_hooks", {})
    for key, hook in hooks.items():
        if getattr(hook, "with_module", False):
            hooks[key] = type(hook)(hook.hook, module)


def children_of(module: nn.Module) -> dict[str, nn.Module | None]:
    """Return a module's own children by all their names; a child may be None.

    The plain way omits None, and all names of a child except the first.
    """
    found = getattr(module, "_modules", None)
    return dict(module.named_children() if found is None else found)


def parameters_of(module: nn.Module, names: Sequence[str]) -> list[Tensor]:
    """Return parameters or the tensors that replace them; the plain way, by attributes, takes longer."""
    found = getattr(module, "_parameters", {})
    try:
        return [found[name] for name in names]
    except KeyError:
        return [getattr(module, name) for name in names]


def parameters_in(module: nn.Module) -> Iterable[Tensor | None]:
    """Return a module's own parameters or their replacements; the plain way knows only parameters."""
    found = getattr(module, "_parameters", None)
    return module.parameters(recurse=False) if found is None else found.values()


# --- values that convolution modules compute from their options


def padding_ends(module: Any) -> Sequence[int]:
    """Return the padding at both ends of each dimension, the last dimension first.

    The plain way computes it from the module's options.
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
    """Return the output padding for a size; the plain way knows only the module's own output padding."""
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

# --- per-sample gradients; without them no weight is expanded
_EXPANDED = "nn.utils._expanded_weights.expanded_weights"
ExpandedWeight: Any = _imported(f"{_EXPANDED}_impl", "ExpandedWeight") or type("ExpandedWeight", (), {})
set_grad_sample: Callable[..., None] = _imported(
    f"{_EXPANDED}_utils", "set_grad_sample_if_exists"
) or _missing(f"{_EXPANDED}_utils.set_grad_sample_if_exists")
