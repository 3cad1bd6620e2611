"""Modules of torchrl and SB3-contrib that run a layer over rows of episodes, for `swap`.

They split and pad the rows, or run single steps; ours pass resets to the layer. Both packages check for the
type `torch.nn.LSTM`, so if their module stays, its layer must stay too.
"""

import copy
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from xpgrad_torch._layers import Layers
from xpgrad_torch.modules import GRU, LSTM, RNN

_TORCHRL = "torchrl.modules.tensordict_module.rnn"
_SB3 = "sb3_contrib.common.recurrent.policies"
_INNER = {"LSTMModule": "lstm", "GRUModule": "gru"}  # the attribute with the layer
_POLICIES = (
    "RecurrentActorCriticPolicy", "RecurrentActorCriticCnnPolicy", "RecurrentMultiInputActorCriticPolicy"
)  # fmt: skip
_OF_PYTORCH: dict[type[nn.Module], type[nn.Module]] = {LSTM: nn.LSTM, GRU: nn.GRU, RNN: nn.RNN}
_made: dict[type[nn.Module], type[nn.Module]] = {}


def replacements() -> dict[type[nn.Module], type[nn.Module]]:
    """Return the types that replace types of the imported packages."""
    found = {}
    for module, names, make in ((_TORCHRL, _INNER, _of_torchrl), (_SB3, _POLICIES, _of_sb3)):
        for name in names:
            theirs = getattr(sys.modules.get(module), name, None)
            if theirs is None:
                continue
            if theirs not in _made:
                _made[theirs] = make(theirs, name)
            found[theirs] = _made[theirs]
    return found


def __getattr__(name: str) -> type[nn.Module]:
    """Return the type of that name, for pickles."""
    module = _TORCHRL if name in _INNER else _SB3 if name in _POLICIES else None
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    theirs = getattr(importlib.import_module(module), name)  # first: the package may not be imported yet
    return replacements()[theirs]


def changes_in_place(kind: type[nn.Module]) -> bool:
    """Tell whether a module changes its type in place to or from this type: other objects hold it."""
    return kind in _made or kind in _made.values()


def why_not(module: nn.Module) -> str | None:
    """Return why a module of the two packages stays."""
    kind = type(module)
    known = replacements()
    if kind not in known:
        base = next((base for base in kind.__mro__[1:] if base in known), None)
        if base is None or kind in known.values():
            return None
        return f"it is a subclass of {base.__name__}, which may compute something else"
    if kind.__name__ not in _INNER:
        return None
    layer: Any = getattr(module, _INNER[kind.__name__])
    if type(layer) not in (*_OF_PYTORCH, *_OF_PYTORCH.values()):
        return f"its layer is a {type(layer).__module__}.{type(layer).__name__}, expected one of torch.nn"
    if isinstance(layer, Layers) and layer._own_options():
        return f"its layer has {', '.join(layer._own_options())}, expected what torch.nn's has"
    if layer.bidirectional:
        return "its layer is bidirectional, expected one direction"
    backend = getattr(module, "recurrent_backend", "pad")
    if backend not in ("pad", "auto"):
        return f"its recurrent_backend is {backend!r}, expected 'pad' or 'auto'"
    return None


def layers_of(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers in a module of the two packages: they stay if the module stays."""
    if any(base in replacements() for base in type(module).__mro__):
        yield from (child for child in module.children() if isinstance(child, nn.RNNBase))


# ------------------------------------------------------------------------------------------------- torchrl


def _of_torchrl(theirs: Any, name: str) -> type[nn.Module]:
    inner = _INNER[name]
    dispatch = sys.modules["tensordict.nn"].dispatch

    def forward(self: Any, tensordict: Any) -> Any:
        """Run the layer, over rows of episodes with resets."""
        layer = getattr(self, inner)
        rows = _rows(self, tensordict) if isinstance(layer, Layers) else None
        if rows is None:
            return theirs.forward(self, tensordict)
        value, is_init, hidden = rows
        if not _begin_at_zero(is_init, hidden):
            return _as_pytorch(self, inner, partial(theirs.forward, self, tensordict))
        reset = is_init.clone()
        reset[:, 0] = False  # the state at the first step is given
        begin = tuple(each[:, 0].transpose(0, 1) for each in hidden if each is not None)
        output, states = layer._run_with_states(value, begin, reset)
        results = output, *(_at_ends(each, is_init) for each in states)
        for key, result in zip(self.out_keys, results, strict=True):
            tensordict.set(key, result.reshape(*tensordict.shape, *result.shape[2:]))
        return tensordict

    members = {"forward": dispatch(forward), "__module__": __name__, "__doc__": theirs.__doc__}
    return type(theirs.__name__, (theirs,), members)


def _rows(module: Any, tensordict: Any) -> tuple[Tensor, Tensor, list[Tensor | None]] | None:
    """Return values, marks and states (N, T, ...) of rows with several episodes; else None."""
    if not module.recurrent_mode or not tensordict.ndim:
        return None
    shape = tensordict.shape
    is_init = tensordict["is_init"].reshape(-1, shape[-1])
    if not is_init[:, 1:].any():
        return None
    found: Any = [tensordict.get(key, None) for key in module.in_keys[: len(module.out_keys)]]
    if found[0] is None or len({each is None for each in found[1:]}) > 1:
        return None  # wrong: their forward raises the error
    value, *hidden = found
    states = [each if each is None else each.reshape(*is_init.shape, *each.shape[-2:]) for each in hidden]
    return value.reshape(*is_init.shape, value.shape[-1]), is_init, states


def _begin_at_zero(is_init: Tensor, hidden: list[Tensor | None]) -> bool:
    """Tell whether the states given for later episodes are zeros without a gradient."""
    later = is_init[:, 1:]
    given = [each for each in hidden if each is not None]
    return not any(each.requires_grad or bool(each[:, 1:][later].any()) for each in given)


def _as_pytorch(module: Any, inner: str, run: Any) -> Any:
    """Run with PyTorch's layer instead of ours."""
    ours = getattr(module, inner)
    setattr(module, inner, _of_pytorch(ours))
    try:
        return run()
    finally:
        setattr(module, inner, ours)


def _of_pytorch(layer: Layers) -> nn.Module:
    """Return PyTorch's layer with the parameters of ours."""
    theirs: Any = copy.copy(layer)
    theirs.__class__ = _OF_PYTORCH[type(layer)]
    return theirs


def _at_ends(states: Sequence[Tensor], is_init: Tensor) -> Tensor:
    """Return layers' states (T, N, H) at the last steps of episodes, else zeros: (N, T, layers, H)."""
    ends = is_init.roll(-1, 1)
    ends[:, -1] = True
    rows, steps = ends.nonzero(as_tuple=True)
    found = torch.stack([state[steps, rows] for state in states], dim=1)
    result = found.new_zeros(*is_init.shape, *found.shape[1:])
    result[rows, steps] = found
    return result


# ---------------------------------------------------------------------------------------------- SB3-contrib


def _of_sb3(theirs: Any, name: str) -> type[nn.Module]:
    def process(features: Tensor, lstm_states: Any, episode_starts: Tensor, lstm: Any) -> tuple[Tensor, Any]:
        """Run the layer over rows of episodes with resets."""
        if not isinstance(lstm, Layers):
            return theirs._process_sequence(features, lstm_states, episode_starts, lstm)
        rows = (lstm_states[0] if isinstance(lstm_states, tuple | list) else lstm_states).shape[1]
        # a single step, as in a rollout: PyTorch's is faster
        if len(features) == rows and not lstm._own_options():
            return theirs._process_sequence(features, lstm_states, episode_starts, _of_pytorch(lstm))
        begins = episode_starts != 0
        if not torch.equal(begins.to(episode_starts.dtype), episode_starts):
            raise ValueError(f"{name}: episode_starts has other numbers than 0 and 1, expected only these")
        X = features.reshape(rows, -1, lstm.input_size).swapaxes(0, 1)
        output, states = lstm(X, lstm_states, reset=begins.reshape(rows, -1).swapaxes(0, 1))
        return output.transpose(0, 1).flatten(0, 1), states

    members: Mapping[str, Any] = {
        "_process_sequence": staticmethod(process),
        "__module__": __name__,
        "__doc__": theirs.__doc__,
    }
    return type(theirs.__name__, (theirs,), dict(members))
