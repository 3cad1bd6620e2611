"""xpgrad_torch: our modules and functions on PyTorch's tensors."""

from typing import Any

from .. import convolutions, elementwise, recurrent
from . import arrays, need, tensors


def _recurrent(work: recurrent.Recurrent) -> Any:
    operator = recurrent.OPERATORS[work.operator]
    kind = getattr(need("xpgrad_torch"), operator.module, None)
    if kind is None:
        raise NotImplementedError(f"this xpgrad_torch has no {operator.module}")
    call = {} if work.lengths is None else {"lengths": need("torch").from_numpy(work.sequence_lens())}
    return tensors.RecurrentRun(work, kind(*work.shape[2:], **operator.options), **call)


def _convolution(work: convolutions.Convolution) -> Any:
    return tensors.ConvolutionRun(work, need("xpgrad_torch").functional)


class ElementwiseRun(arrays.ElementwiseRun):
    """The core's gradient on tensors; a step by the module."""

    def __init__(self, work: elementwise.Elementwise) -> None:
        super().__init__(work, need("torch").from_numpy)
        self._work = work
        self._step: Any = None

    def step(self) -> Any:
        """A module's forward and backward."""
        if self._step is None:
            self._step = tensors.elementwise_step(self._work, need("xpgrad_torch"))
        return self._step()


def _loss(work: elementwise.Loss) -> Any:
    return tensors.LossRun(work, need("xpgrad_torch"))


RUNS: dict[str, Any] = {
    "Recurrent": _recurrent,
    "Convolution": _convolution,
    "Elementwise": ElementwiseRun,
    "Loss": _loss,
}


def make(work: Any) -> Any:
    """A work on tensors."""
    need("torch")
    need("xpgrad_torch")
    return RUNS[type(work).__name__](work)


def describe() -> str:
    """The version of PyTorch and how its engine works here."""
    return f"{tensors.threads()}; {tensors.xpgrad_engine('torch')}"
