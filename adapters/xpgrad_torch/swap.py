"""Putting xpgrad's modules into a model that was written with PyTorch's."""

import warnings
from collections.abc import Callable

from torch import nn

from xpgrad_torch import convolution, modules

__all__ = ["swap"]


def _same_state(replacement: type[nn.Module]) -> Callable[[nn.Module], nn.Module]:
    """Return a builder for a module that differs from the one it replaces in its methods only."""

    def build(module: nn.Module) -> nn.Module:
        new = replacement.__new__(replacement)
        new.__dict__.update(module.__dict__)
        # The same parameters, in tables of the new module's own, so that assigning one to the new module
        # leaves the old one alone; hooks stay in theirs, where their handles look for them.
        for name, value in module.__dict__.items():
            if name in ("_parameters", "_buffers", "_modules") or isinstance(value, list):
                new.__dict__[name] = value.copy()
        return new

    return build


def _lstm(module: nn.Module) -> nn.Module:
    if module.proj_size:
        warnings.warn(
            f"swap: an LSTM with proj_size = {module.proj_size} stays torch.nn.LSTM, expected proj_size = 0: "
            "xpgrad_torch.LSTM computes the same, but slower",
            stacklevel=4,
        )
        return module
    return _same_state(modules.LSTM)(module)


def _convolution(replacement: type[nn.Module]) -> Callable[[nn.Module], nn.Module]:
    """Return a builder for a module whose weight xpgrad's kernels take."""

    def build(module: nn.Module) -> nn.Module:
        dtype = module.weight.dtype
        if not dtype.is_floating_point:
            warnings.warn(
                f"swap: a {type(module).__name__} with weights of {dtype} stays torch.nn's, expected a real "
                "floating-point dtype",
                stacklevel=4,
            )
            return module
        return _same_state(replacement)(module)

    return build


# What is replaced, by exact type: a subclass may have changed what the module computes.
_BUILDERS: dict[type[nn.Module], Callable[[nn.Module], nn.Module]] = {
    nn.Conv1d: _convolution(convolution.Conv1d),
    nn.Conv2d: _convolution(convolution.Conv2d),
    nn.Conv3d: _convolution(convolution.Conv3d),
    nn.ConvTranspose1d: _convolution(convolution.ConvTranspose1d),
    nn.ConvTranspose2d: _convolution(convolution.ConvTranspose2d),
    nn.ConvTranspose3d: _convolution(convolution.ConvTranspose3d),
    nn.GRU: _same_state(modules.GRU),
    nn.GRUCell: _same_state(modules.GRUCell),
    nn.LSTM: _lstm,
    nn.LSTMCell: _same_state(modules.LSTMCell),
}


def swap(model: nn.Module) -> nn.Module:
    """Replace the modules in a model that xpgrad has a drop-in for.

    Replaced are modules whose type is exactly PyTorch's own LSTM, GRU, LSTMCell, GRUCell, Conv1d, Conv2d,
    Conv3d, ConvTranspose1d, ConvTranspose2d or ConvTranspose3d; subclasses stay as they are. So do, with a
    warning, an LSTM with a `proj_size`, which PyTorch does faster, and convolutions of complex numbers. A
    replacement has the very parameters of the module that it replaces, so optimizers keep working, and its
    training flag and hooks. A module that stands in several places has one replacement in all of them.

    Parameters
    ----------
    model : torch.nn.Module
        The model, which is changed, or a single module to replace, which is not.

    Returns
    -------
    torch.nn.Module
        The model, or the replacement of the single module.

    Raises
    ------
    TypeError
        Where `model` is no module.

    Examples
    --------
    >>> import torch
    >>> import xpgrad_torch
    >>> model = torch.nn.ModuleDict({"rnn": torch.nn.LSTM(3, 5), "out": torch.nn.Linear(5, 2)})
    >>> type(xpgrad_torch.swap(model)["rnn"]).__module__
    'xpgrad_torch.modules'
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"swap: model is {type(model).__name__}, expected torch.nn.Module")
    replacements: dict[nn.Module, nn.Module] = {}

    def replacement(module: nn.Module) -> nn.Module:
        if module not in replacements:
            replacements[module] = _BUILDERS[type(module)](module)
        return replacements[module]

    if type(model) in _BUILDERS:
        return replacement(model)
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and type(child) in _BUILDERS:
                parent._modules[name] = replacement(child)
    return model
