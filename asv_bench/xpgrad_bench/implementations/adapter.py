"""xpgrad_torch: our modules and functions on PyTorch's tensors."""

from typing import Any

from .. import elementwise, recurrent
from . import arrays, need, tensors


def _recurrent(work: recurrent.Recurrent) -> Any:
    operator = recurrent.OPERATORS[work.operator]
    kind = getattr(need("xpgrad_torch"), operator.module, None)
    if kind is None:
        raise NotImplementedError(f"this xpgrad_torch has no {operator.module}")
    call = {} if work.lengths is None else {"lengths": need("torch").from_numpy(work.sequence_lens())}
    return tensors.RecurrentRun(work, kind(*work.shape[2:], **operator.options), **call)


def _backward(work: elementwise.Elementwise) -> Any:
    """The core's gradient on tensors, as a function."""
    return arrays.ElementwiseRun(work, need("torch").from_numpy).backward


RUNS: dict[str, Any] = {
    "Recurrent": _recurrent,
    "Convolution": lambda work: tensors.ConvolutionRun(work, need("xpgrad_torch").functional),
    "Elementwise": lambda work: tensors.ElementwiseRun(work, _backward, need("xpgrad_torch")),
    "Loss": lambda work: tensors.LossRun(work, need("xpgrad_torch")),
}


def describe() -> str:
    """The version of PyTorch, and its engine here."""
    return f"{tensors.threads()}; {tensors.xpgrad_engine('torch')}"
