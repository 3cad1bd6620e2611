"""xpgrad's kernels under autograd: one autograd function for all of them."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import xpgrad


class Kernel:
    """What autograd has to know of a kernel of xpgrad and of its gradient.

    Parameters
    ----------
    name : str
        The kernel's name; with ``_grad`` behind it, the gradient's.
    outputs : tuple of str
        The names of the kernel's outputs, those first that have a cotangent.
    cotangents : tuple of str
        The gradient's names for the cotangents of the first outputs.
    saved : tuple of str
        The outputs that the gradient takes.
    """

    def __init__(
        self, name: str, outputs: tuple[str, ...], cotangents: tuple[str, ...], saved: tuple[str, ...] = ()
    ) -> None:
        parameters = inspect.signature(getattr(xpgrad, name)).parameters.values()
        operands = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self.name = name
        self.operands = tuple(p.name for p in operands)
        self.required = {p.name for p in operands if p.default is p.empty}
        # What has a gradient, in the order in which the gradient returns them.
        self.differentiable = tuple(name for name in self.operands if name != "sequence_lens")
        # What the gradient depends on: not a bias that was only added.
        taken = inspect.signature(getattr(xpgrad, f"{name}_grad")).parameters
        self.taken = tuple(name for name in self.operands if name in taken)
        self.outputs, self.cotangents, self.saved = outputs, cotangents, saved

    def forward(self, *operands: Any, **attributes: Any) -> tuple[Tensor, ...]:
        """Run the kernel."""
        outputs = getattr(xpgrad, self.name)(*operands, **attributes)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def gradient(self, **arguments: Any) -> dict[str, Tensor | None]:
        """Run the gradient, and name what it returns after the operands."""
        grads = getattr(xpgrad, f"{self.name}_grad")(**arguments)
        return dict(zip(self.differentiable, grads, strict=True))

    def check(self, operands: Sequence[Any]) -> None:
        """Raise TypeError for an operand that is no tensor."""
        for name, operand in zip(self.operands, operands, strict=True):
            if not isinstance(operand, Tensor) and (operand is not None or name in self.required):
                raise TypeError(f"{self.name}: {name} is {type(operand).__name__}, expected torch.Tensor")


class _XpgradKernel(torch.autograd.Function):
    """A kernel with its gradient as the backward.

    Its arguments are a `Kernel`, the operands, the attributes of both, and those of the gradient alone. What
    is saved are outputs, not attributes of the context, so that autograd owns and frees them.
    """

    @staticmethod
    def forward(*args: Any) -> Any:
        kernel, *operands, attributes, _ = args
        return tuple(kernel.forward(*operands, **attributes))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        kernel, *operands, attributes, asked = inputs
        inputs_by_name = dict(zip(kernel.operands, operands, strict=True))
        outputs = dict(zip(kernel.outputs, output, strict=True))
        ctx.save_for_backward(
            *(inputs_by_name[name] for name in kernel.taken), *(outputs[name] for name in kernel.saved)
        )
        ctx.mark_non_differentiable(*output[len(kernel.cotangents) :])
        ctx.set_materialize_grads(False)
        ctx.kernel, ctx.attributes, ctx.asked = kernel, attributes, asked

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        kernel = ctx.kernel
        needs = ctx.needs_input_grad[1 : len(kernel.operands) + 1]
        if all(cotangent is None for cotangent in cotangents):
            return (None,) * len(ctx.needs_input_grad)
        tensors = dict(zip((*kernel.taken, *kernel.saved), ctx.saved_tensors, strict=True))
        operands = {name: tensors[name] for name in kernel.taken}
        saved = {name: tensors[name] for name in kernel.saved}
        asked = {
            **ctx.attributes,
            **ctx.asked,
            **dict(zip(kernel.cotangents, cotangents, strict=False)),
            "wrt": tuple(name for name, need in zip(kernel.operands, needs, strict=True) if need),
        }
        if not torch.is_grad_enabled():
            grads = kernel.gradient(**operands, **saved, **asked)
        else:
            # create_graph=True: the gradients must carry a graph themselves. The standard engine consists of
            # differentiable operators; the saved arrays are functions of the operands, so make them anew.
            with xpgrad.use_engine("standard"):
                if saved:
                    again = kernel.forward(**operands, **ctx.attributes)
                    outputs = dict(zip(kernel.outputs, again, strict=True))
                    saved = {name: outputs[name] for name in kernel.saved}
                grads = kernel.gradient(**operands, **saved, **asked)
        return None, *(grads.get(name) for name in kernel.operands), None, None


def apply(
    kernel: Kernel, operands: Sequence[Tensor | None], attributes: dict[str, Any], **asked: Any
) -> tuple[Tensor, ...]:
    """Return the kernel's outputs that have a cotangent; `asked` are attributes of the gradient alone."""
    kernel.check(operands)
    # The kernel's forward does not know this attribute, and the backward is late for an error.
    if asked.get("peephole", "full") not in ("full", "truncated"):
        raise ValueError(f"{kernel.name}: peephole is {asked['peephole']!r}, expected 'full' or 'truncated'")
    outputs = _XpgradKernel.apply(kernel, *operands, attributes, asked)
    return tuple(outputs[: len(kernel.cotangents)])


def autocasts(x: Tensor) -> bool:
    """Tell whether autocast is on where x is."""
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
