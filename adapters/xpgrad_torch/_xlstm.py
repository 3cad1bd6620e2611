"""The sLSTM cell of the package `xlstm` with its plain backend, for `swap`."""

import importlib
import sys
from typing import Any

import torch
from torch import Tensor, nn

from xpgrad import convert
from xpgrad._operators.for_adapters import slstm_of_gates
from xpgrad_torch.cells import run_cell

_MODULE, _CELL = "xlstm.blocks.slstm.cell", "sLSTMCell_vanilla"
_made: dict[type[nn.Module], type[nn.Module]] = {}


def replacements() -> dict[type[nn.Module], type[nn.Module]]:
    """Return the type that replaces `xlstm`'s cell, if the package is imported."""
    theirs = getattr(sys.modules.get(_MODULE), _CELL, None)
    if theirs is None:
        return {}
    if theirs not in _made:
        _made[theirs] = _type_for(theirs)
    return {theirs: _made[theirs]}


def __getattr__(name: str) -> type[nn.Module]:
    """Return the type of that name, for pickles."""
    if name != _CELL:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    theirs = getattr(importlib.import_module(_MODULE), _CELL)  # first: the package may not be imported yet
    return replacements()[theirs]


def why_not(module: nn.Module) -> str | None:
    """Return why a cell of `xlstm` stays: it computes something else than the sLSTM."""
    if type(module) in replacements() and module.config.function != "slstm":  # type: ignore[union-attr]
        return f"its function is {module.config.function!r}, expected 'slstm'"  # type: ignore[union-attr]
    return None


def _type_for(theirs: Any) -> type[nn.Module]:
    def forward(
        self: Any,
        input: Tensor,  # noqa: A002, their name for it
        state: Tensor | None = None,
        lengths: Any = None,
    ) -> tuple[Tensor, Tensor]:
        """Run the cell over pre-activations; `lengths` has no effect, as in `xlstm`."""
        self._check_input(input)
        gates, kernel = self._permute_input(input), self._recurrent_kernel_
        weights = {"_recurrent_kernel_": kernel, "_bias_": self._bias_.to(kernel.dtype)}
        own = convert("slstm", weights, "xlstm", "onnx")
        x = gates.to(kernel.dtype)
        begin = None if state is None else [each[None].to(kernel.dtype) for each in self._get_state(x, state)]
        cell, R, B = slstm_of_gates(self.config.num_heads), own["R"][None], own["B"][None]
        outputs = run_cell(cell, x, None, R, B, initial=begin, gates=x)
        output, finals = self._permute_output(outputs[0][:, 0]), torch.cat(outputs[4:])
        if torch.is_autocast_enabled():
            return output, finals
        return output.to(input.dtype), finals.to(input.dtype)

    return type(
        theirs.__name__, (theirs,), {"forward": forward, "__module__": __name__, "__doc__": theirs.__doc__}
    )
