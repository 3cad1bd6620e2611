"""`swap` replaces the modules of a PyTorch model by xpgrad's, and `unswap` puts PyTorch's back."""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import MethodType
from typing import Any, NamedTuple, TypedDict, TypeVar, Unpack, overload

import torch
from torch import Tensor, nn

from xpgrad._operators.arguments import check_number
from xpgrad._operators.report_table import ReportRow, report_text
from xpgrad_torch import _episodes, _xlstm, convolution, losses, modules
from xpgrad_torch import activations as _activations
from xpgrad_torch._gains import GAINS
from xpgrad_torch._kernel import type_of
from xpgrad_torch._layers import is_sharded
from xpgrad_torch._private import STATE_TABLES, children_of, rebind_hooks, tree_leaves, tree_map
from xpgrad_torch._recurrent import Recurrent
from xpgrad_torch._timed_layers import first_inputs, slower_than

__all__ = ["SwapReport", "swap", "swap_report", "unswap"]


_Model = TypeVar("_Model", bound=nn.Module)
_Table = Mapping[type[nn.Module], type[nn.Module]]


def _drop_ins(*families: Any) -> _Table:
    """Return the modules of families with names of PyTorch's, by the type that they replace.

    A subclass of this type may compute something else.
    """
    names = [(family, name) for family in families for name in family.__all__ if hasattr(nn, name)]
    return {getattr(nn, name): getattr(family, name) for family, name in names}


_ALL = _drop_ins(convolution, modules, _activations, losses)
_ACTIVATIONS = _drop_ins(_activations, losses)
_CELLS: _Table = {theirs: ours for theirs, ours in _ALL.items() if issubclass(theirs, nn.RNNCellBase)}
_CONVOLUTIONS = _drop_ins(convolution)
# Replaced by default.
_REPLACEMENTS = {theirs: ours for theirs, ours in _ALL.items() if theirs not in [*_ACTIVATIONS, *_CELLS]}
# Elsewhere PyTorch's are faster.
_OUR_DEVICES = ("cpu", "meta")
_OURS = {ours: theirs for theirs, ours in _ALL.items()}


def _why_not(model: nn.Module) -> dict[nn.Module, str]:
    """Return the modules of a model that stay, whatever their types, with the reasons."""
    reasons = _bound(model)
    for module in model.modules():
        for part in module.modules() if is_sharded(module) else ():
            why = "fully_shard has wrapped it or a module around it, expected a swap before"
            reasons.setdefault(part, f"a {type(part).__name__} stays: {why}")
        if (reason := _xlstm.why_not(module)) is not None:
            reasons.setdefault(module, f"a {type(module).__name__} of xlstm stays, {reason}")
        if (reason := _episodes.why_not(module)) is not None:
            reasons.setdefault(module, f"a {type(module).__name__} stays, {reason}")
        for parameter in module.parameters(recurse=False):
            if not parameter.dtype.is_floating_point:
                reasons.setdefault(
                    module,
                    f"a {type(module).__name__} with weights of {parameter.dtype} stays torch.nn's, expected "
                    "a real floating-point dtype",
                )
    for module, reason in list(reasons.items()):
        for layer in _episodes.layers_of(module):
            reasons.setdefault(layer, f"the {type(layer).__name__} in it stays too: {reason}")
    return reasons


def _faster_elsewhere(model: nn.Module, convolutions: bool | None) -> dict[nn.Module, str]:
    """Return the layers of a model on a GPU, with the reason why they stay unless they are asked for."""
    asked = {model, *_episodes.layers_of(model)}
    asked |= {module for module in model.modules() if convolutions and type(module) in _CONVOLUTIONS}
    kinds = {*_REPLACEMENTS, *_episodes.replacements()}
    found = {}
    for module in model.modules():
        device = _device_type(module)
        if type(module) in kinds and device not in _OUR_DEVICES and module not in asked:
            asking = "convolutions=True" if type(module) in _CONVOLUTIONS else "a call with this module alone"
            found[module] = f"PyTorch's is faster on {device}; {asking} replaces it"
    return found


def _device_type(module: nn.Module) -> str:
    return next((parameter.device.type for parameter in module.parameters()), "cpu")


def _bound(model: nn.Module) -> dict[nn.Module, str]:
    """Return modules that a function kept in the model runs, with the reason why they stay.

    The function would still run the replaced module. Wrappers keep such a function in `forward`,
    `module.compile()` and `torch.compile(module)` in attributes of their own.
    """
    found: dict[nn.Module, str] = {}
    for module in model.modules():
        for name, value in vars(module).items():
            held = getattr(value, "__self__", None) if isinstance(value, MethodType) else None
            if isinstance(held, nn.Module) and held is not module:
                found[held] = f"{type(module).__name__}.{name}"
            elif callable(value) and hasattr(type(module), name):  # it replaces a method
                found[module] = f"{type(module).__name__}.{name}"
    return {
        module: f"a wrapper or a compiler has set {where}, which runs this {type(module).__name__} whatever "
        "takes its place, expected no such function: swap or unswap first"
        for module, where in found.items()
    }


def _table(operator: str, activations: bool, cells: bool, convolutions: bool | None) -> _Table:
    for name, value in (("activations", activations), ("cells", cells), ("convolutions", convolutions)):
        if not isinstance(value, bool) and not (value is None and name == "convolutions"):
            words = "True, False or None" if name == "convolutions" else "True or False"
            raise TypeError(f"{operator}: {name} is {value!r}, expected {words}")
    more = {**(_CELLS if cells else {}), **(_ACTIVATIONS if activations else {})}
    table = {**_REPLACEMENTS, **_of_packages(), **more}
    return {
        kind: ours for kind, ours in table.items() if convolutions is not False or kind not in _CONVOLUTIONS
    }


def _of_packages() -> _Table:
    """Return the replacements for modules of other imported packages than PyTorch."""
    return {**_xlstm.replacements(), **_episodes.replacements()}


def _of_theirs() -> _Table:
    """Return the replaced types by the types of ours that replace them."""
    return {**_OURS, **{ours: theirs for theirs, ours in _of_packages().items()}}


def _same_state(module: nn.Module, kind: type[nn.Module], stays: bool) -> nn.Module:
    """Return a module of another type with the same state; a module around others changes its type.

    `stays` tells whether the replaced module stays in use.
    """
    if _episodes.changes_in_place(kind):
        module.__class__ = kind
        return module
    new = kind.__new__(kind)
    new.__dict__.update(module.__dict__)
    # The new module has its own tables of the same parameters: an assignment to it leaves the old module
    # unchanged. Hooks stay in the old tables, where their handles look for them, unless the old module stays.
    for name, value in module.__dict__.items():
        if name in STATE_TABLES or isinstance(value, list) or (stays and isinstance(value, dict | set)):
            new.__dict__[name] = value.copy()
    rebind_hooks(new)
    return new


def _replace(model: nn.Module, wanted: Callable[[nn.Module], type[nn.Module] | None]) -> nn.Module:
    """Replace each module for which `wanted` names another type; return the model or its replacement."""
    replaced: dict[nn.Module, nn.Module] = {}

    def replacement(module: nn.Module) -> nn.Module:
        if module not in replaced:
            kind = wanted(module)
            replaced[module] = module if kind is None else _same_state(module, kind, module is model)
        return replaced[module]

    if replacement(model) is not model:
        return replacement(model)
    for parent in list(model.modules()):
        for name, child in children_of(parent).items():
            if child is not None and replacement(child) is not child:
                setattr(parent, name, replacement(child))
    return model


class _Options(TypedDict, total=False):
    """The options of `swap`."""

    activations: bool
    cells: bool
    convolutions: bool | None
    verbose: bool
    verify: Any
    tolerance: float | None


@overload
def swap(model: nn.LSTM, **options: Unpack[_Options]) -> modules.LSTM: ...
@overload
def swap(model: nn.GRU, **options: Unpack[_Options]) -> modules.GRU: ...
@overload
def swap(model: nn.RNN, **options: Unpack[_Options]) -> modules.RNN: ...
@overload
def swap(model: _Model, **options: Unpack[_Options]) -> _Model: ...
def swap(
    model: nn.Module,
    *,
    activations: bool = False,
    cells: bool = False,
    convolutions: bool | None = None,
    verbose: bool = False,
    verify: Any = None,
    tolerance: float | None = None,
) -> nn.Module:
    """Replace the modules in a model for which xpgrad has a drop-in.

    It replaces modules whose type is exactly PyTorch's LSTM, GRU, RNN, Conv1d, Conv2d, Conv3d,
    ConvTranspose1d, ConvTranspose2d or ConvTranspose3d, and the package xlstm's sLSTM cell with the plain
    ("vanilla") backend. torchrl's LSTMModule and GRUModule and SB3-contrib's recurrent policies stay the
    same objects, and run rows of many episodes with resets. Subclasses are not replaced, and neither are,
    with a warning, convolutions of complex numbers and modules to which a wrapper or a compiler has bound a
    function: swap first. In a model on a GPU, these layers stay PyTorch's, which are faster there. A
    replacement keeps the parameter objects, the hooks and the training flag, so optimizers keep working. A
    module that appears several times has one replacement.

    Parameters
    ----------
    model : torch.nn.Module
        The model, which is changed, or a single module to replace, which is not changed. A module of torchrl
        or a policy is a model.
    activations : bool
        Whether to also replace PyTorch's activations, Softmax, LogSoftmax, CrossEntropyLoss and
        BCEWithLogitsLoss.
    cells : bool
        Whether to also replace LSTMCell, GRUCell and RNNCell. Loops over our cells are about as fast as
        loops over PyTorch's.
    convolutions : bool, optional
        Whether to replace convolutions. By default `swap` replaces all of them, or, with an example input in
        `verify`, only those for which ours is faster: it times a few alternating steps of both, on the input
        that the layer gets.
    verbose : bool
        Print the table of `swap_report`, and how much faster the replacements were on measured machines;
        ``xpgrad bench`` measures it on this machine.
    verify : tensor, tuple or dict, optional
        An example input: the model's only argument, all of its arguments by position, or all by name. The
        model runs on it forward and backward, before and after, and a difference raises an error.
    tolerance : float, optional
        With `verify`: the largest allowed difference, relative to the largest number of the compared
        tensor, or to a hundredth of the largest number of all outputs or all gradients if that is more;
        by default 1e-9 for float64, 1e-4 for float32, 5e-2 for less.

    Returns
    -------
    torch.nn.Module
        The model, or the replacement of the single module.

    Raises
    ------
    TypeError
        If `model` is not a module, or `activations`, `cells` or `convolutions` has a wrong type.
    ValueError
        If `tolerance` is given without `verify`, or no output of the model has a gradient.
    RuntimeError
        If an output or a gradient differs by more than the tolerance. The model is then as before.

    See Also
    --------
    unswap : Puts PyTorch's modules back.
    swap_report : Tells what `swap` would replace.

    Examples
    --------
    >>> import torch
    >>> import xpgrad_torch
    >>> model = torch.nn.Sequential(torch.nn.Conv1d(3, 4, 3), torch.nn.ReLU(), torch.nn.Linear(6, 2))
    >>> model = xpgrad_torch.swap(model, convolutions=True, verbose=True, verify=torch.randn(2, 3, 8))
    module  type    now                  why
    0       Conv1d  xpgrad_torch.Conv1d
    2       Linear  unchanged            xpgrad has no Linear
    1 of 2 modules with parameters replaced
    Conv1d: ... times as fast as PyTorch's (... to ...) on ...: 'xpgrad bench' measures it here
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"swap: model is {type_of(model)}, expected torch.nn.Module")
    if isinstance(verify, bool):
        raise TypeError(
            f"swap: verify is {verify}, expected an example input of the model: a tensor, a tuple of its "
            "arguments or a dict of them by name"
        )
    if tolerance is not None and verify is None:
        raise ValueError(f"swap: tolerance is {tolerance}, expected verify to be given, it is None")
    if tolerance is not None:
        tolerance = check_number("swap", "tolerance", tolerance)
    table = _table("swap", activations, cells, convolutions)
    kept = _why_not(model)
    before: dict[str, Tensor] | None = None
    slower = _faster_elsewhere(model, convolutions)
    if verify is not None:
        before, timed = _timed(model, table, kept, verify, convolutions)
        slower |= timed
    found = _report(model, table, kept, slower)
    for reason in dict.fromkeys(row.why for row in found.rows if row.warns):
        warnings.warn(f"swap: {reason}", stacklevel=2)
    swapped = _replace(
        model, lambda module: None if module in kept or module in slower else table.get(type(module))
    )
    if before is not None:
        try:
            _compare(before, _results(swapped, verify), tolerance)
        except BaseException:
            unswap(swapped)
            raise
    if verbose:
        print("\n".join([str(found), *found.gains()]))
    return swapped


@overload
def unswap(model: modules.LSTM) -> nn.LSTM: ...
@overload
def unswap(model: modules.GRU) -> nn.GRU: ...
@overload
def unswap(model: modules.RNN) -> nn.RNN: ...
@overload
def unswap(model: _Model) -> _Model: ...
def unswap(model: nn.Module) -> nn.Module:
    """Replace xpgrad's modules by PyTorch's.

    The parameters stay the same objects. Modules with options that PyTorch's do not have stay, with a
    warning, and so do modules to which a wrapper or a compiler has bound a function.

    Parameters
    ----------
    model : torch.nn.Module
        The model, which is changed, or a single module, which is not changed.

    Returns
    -------
    torch.nn.Module
        The model, or PyTorch's module with the state of the single module.

    Raises
    ------
    TypeError
        If `model` is not a module.

    Examples
    --------
    >>> import torch
    >>> import xpgrad_torch
    >>> model = xpgrad_torch.swap(torch.nn.ModuleList([torch.nn.LSTM(3, 5)]))
    >>> type(xpgrad_torch.unswap(model)[0]).__module__
    'torch.nn.modules.rnn'
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"unswap: model is {type_of(model)}, expected torch.nn.Module")
    known = _of_theirs()
    kept = {module: why for module, why in _bound(model).items() if type(module) in known}
    for module in model.modules():
        if type(module) in _OURS and _own_options(module):
            kept[module] = (
                f"{module} stays xpgrad_torch's, expected no {', '.join(_own_options(module))}, which "
                f"torch.nn.{_OURS[type(module)].__name__} does not have"
            )
    for why in dict.fromkeys(kept.values()):
        warnings.warn(f"unswap: {why}", stacklevel=2)
    return _replace(model, lambda module: None if module in kept else known.get(type(module)))


def _own_options(module: nn.Module) -> list[str]:
    """Return the names of a module's options in use that PyTorch's module does not have."""
    return list(module._own_options()) if isinstance(module, Recurrent) else []


# ---------------------------------------------------------------------------------------------- the report


class SwapReport(NamedTuple):
    """A row for each module that `swap` replaces or that has parameters of its own.

    Parameters
    ----------
    rows : tuple of ReportRow
        In the order of the model. `str()` gives a table.
    """

    rows: tuple[ReportRow, ...]

    def __str__(self) -> str:
        return report_text(self.rows, "module", "modules with parameters")

    def gains(self) -> list[str]:
        """Tell for each replaced type how much faster its training step was on measured machines.

        Returns
        -------
        list of str
            A sentence for each type: mean, lowest and highest over the benchmarks' shapes.
        """
        types = dict.fromkeys(row.type for row in self.rows if row.now != "unchanged")
        ratio = "{:.2g} times as fast as PyTorch's ({:.2g} to {:.2g}) on {}"
        found = {
            name: [ratio.format(*gains[name], machine) for machine, gains in GAINS.items() if name in gains]
            for name in types
        }
        return [f"{name}: {'; '.join(x)}: 'xpgrad bench' measures it here" for name, x in found.items() if x]


def swap_report(
    model: nn.Module,
    *,
    activations: bool = False,
    cells: bool = False,
    convolutions: bool | None = None,
    verify: Any = None,
) -> SwapReport:
    """Tell which modules `swap` would replace in a model, and why others stay, without changing it.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    activations, cells, convolutions
        As for `swap`.
    verify : tensor, tuple or dict, optional
        As for `swap`: convolutions are timed on it. Nothing is replaced or compared.

    Returns
    -------
    SwapReport
        A row for each module with parameters of its own; printed, a table.

    Raises
    ------
    TypeError
        If `model` is not a module.

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch import swap_report
    >>> print(swap_report(torch.nn.Sequential(torch.nn.GRU(2, 3), torch.nn.Linear(3, 3))))
    module  type    now               why
    0       GRU     xpgrad_torch.GRU
    1       Linear  unchanged         xpgrad has no Linear
    1 of 2 modules with parameters replaced
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"swap_report: model is {type_of(model)}, expected torch.nn.Module")
    table = _table("swap_report", activations, cells, convolutions)
    kept = _why_not(model)
    slower = _faster_elsewhere(model, convolutions)
    if verify is not None:
        slower |= _timed(model, table, kept, verify, convolutions)[1]
    return _report(model, table, kept, slower)


def _timed(
    model: nn.Module,
    table: _Table,
    kept: Mapping[nn.Module, str],
    example: Any,
    convolutions: bool | None,
) -> tuple[dict[str, Tensor], dict[nn.Module, str]]:
    """Return the model's results, and the convolutions that are faster than ours, with the reasons."""
    layers = [module for module in model.modules() if type(module) in _CONVOLUTIONS and type(module) in table]
    with first_inputs([] if convolutions else layers) as inputs:
        results = _results(model, example)
    timed = {layer: X for layer, X in inputs.items() if layer not in kept}
    slower = slower_than(timed, lambda layer: _same_state(layer, table[type(layer)], True))
    return results, {
        layer: f"PyTorch's is faster for {tuple(inputs[layer].shape)}: ours takes {ratio:.2f} times as long; "
        "convolutions=True replaces it"
        for layer, ratio in slower.items()
    }


def _report(
    model: nn.Module, table: _Table, kept: Mapping[nn.Module, str], slower: Mapping[nn.Module, str]
) -> SwapReport:
    """Return the rows: modules in `kept` stay with a warning, modules in `slower` without."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    rows = []
    for module, where in names.items():
        if type(module) not in table and not any(True for _ in module.parameters(recurse=False)):
            continue
        known = type(module) in table
        warning = kept.get(module, "") if known else ""
        why = warning or slower.get(module, "") or ("" if known else _why_unknown(module, table))
        now = "unchanged" if why else f"xpgrad_torch.{table[type(module)].__name__}"
        rows.append(ReportRow(tuple(where), type(module).__name__, now, why, bool(warning)))
    return SwapReport(tuple(rows))


def _why_unknown(module: nn.Module, table: _Table) -> str:
    """Tell why a module's type is not in the table."""
    kind = type(module)
    if kind in _of_theirs():
        return "it is xpgrad's already"
    if hasattr(module, "parametrizations"):
        return "it is parametrized: swap first, then parametrize"
    if kind in _CELLS:
        return "a single step of PyTorch's can be faster; cells=True replaces it"
    if kind in _CONVOLUTIONS:
        return "convolutions is False"
    for base in kind.__mro__[1:]:
        if base in table:
            return f"it is a subclass of {base.__name__}, which may compute something else"
    return f"xpgrad has no {kind.__name__}"


# ------------------------------------------------------------------------------------------------ verifying

_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}


def _results(model: nn.Module, example: Any) -> dict[str, Tensor]:
    """Return outputs and gradients by name, of a forward and a backward that change nothing."""
    kwargs = dict(example) if isinstance(example, Mapping) else {}
    args = example if isinstance(example, tuple) else () if isinstance(example, Mapping) else (example,)
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), _unchanged_buffers(model):
        torch.manual_seed(0)
        leaves: dict[str, Tensor] = {
            f"gradient of {name}": p for name, p in model.named_parameters() if p.requires_grad
        }
        args, kwargs = tree_map(_leaf, (args, kwargs))
        given = tree_map(_copied, (args, kwargs))
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.requires_grad]
        leaves |= {f"gradient of input {k}": x for k, x in enumerate(inputs)}
        tensors = [y for y in tree_leaves(model(*given[0], **given[1])) if isinstance(y, Tensor)]
        found = {f"output {k}": y.detach() for k, y in enumerate(tensors)}
        followed = [y for y in tensors if y.requires_grad]
        if not followed:
            raise ValueError("swap: verify found no output with a gradient, expected at least one")
        cotangents = [torch.randn_like(y) for y in followed]
        grads = torch.autograd.grad(followed, list(leaves.values()), cotangents, allow_unused=True)
    return found | {name: g for name, g in zip(leaves, grads, strict=True) if g is not None}


@contextlib.contextmanager
def _unchanged_buffers(model: nn.Module) -> Iterator[None]:
    """Restore the model's buffers afterwards, also after an exception."""
    before = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in before and buffer.shape == before[name].shape:
                    buffer.copy_(before[name])


def _leaf(x: Any) -> Any:
    return x.detach().requires_grad_(x.is_floating_point()) if isinstance(x, Tensor) else x


def _copied(x: Any) -> Any:
    """Return a copy of a tensor, in the graph of a leaf: a model may write to its input."""
    return x.clone() if isinstance(x, Tensor) else x


def _compare(before: dict[str, Tensor], after: dict[str, Tensor], tolerance: float | None) -> None:
    """Raise RuntimeError for a tensor that is missing or differs."""
    if before.keys() != after.keys():
        odd = ", ".join(sorted(before.keys() ^ after.keys()))
        raise RuntimeError(f"swap: verify found {odd} only before or only after, expected the same")
    # The gradient of a bias before a normalization consists of rounding errors.
    least = {
        name: 1e-2 * max(float(x.abs().max()) for n, x in before.items() if n[:3] == name[:3] and x.numel())
        for name in before
    }
    for name, old in before.items():
        new = after[name]
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise RuntimeError(
                f"swap: verify found {name} of shape {tuple(new.shape)} and {new.dtype}, expected "
                f"{tuple(old.shape)} and {old.dtype}"
            )
        if not old.numel():
            continue
        allowed = _TOLERANCES.get(old.dtype, 5e-2) if tolerance is None else tolerance
        largest = max(float(old.abs().max()), least[name], torch.finfo(old.dtype).tiny)
        error = float((new - old).abs().max()) / largest
        if not error <= allowed:
            raise RuntimeError(f"swap: verify found {name} off by {error:.3g}, expected at most {allowed:g}")
