"""Private training by Opacus: each sample's gradients of a module's parameters, or their norms.

Opacus registers two hooks on every module with parameters. They see only the first input, the first output
and its cotangent, but final states have cotangents too, and lengths are another input. So our modules do not
register these hooks. The backward of the kernel does their work instead:

- While such a module runs, `collecting` holds a `Samples`. Each kernel that the module calls notes the
  parameters among its operands, and counts their uses as Opacus does.
- In the backward the kernel's gradient computes each sample's gradients. If Opacus only needs their norms
  ("ghost clipping"), it computes these, and no array is as large as N times the parameters.
"""

from __future__ import annotations

import functools
import sys
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from xpgrad_torch._stacked import Stacked

if TYPE_CHECKING:
    from xpgrad_torch._kernel import TorchKernel

collecting: ContextVar[Samples | None] = ContextVar("xpgrad_samples", default=None)
"""The samples' gradients that the running module needs; None without Opacus."""
_around: ContextVar[tuple[Samples | None, ...]] = ContextVar("xpgrad_samples_around", default=())
"""The same for the modules around it, the outermost first. A token would be an error in another thread."""


def holder(option: str) -> str:
    """Return the name of the module's attribute that holds an option: Opacus has its own `activations`."""
    return f"_{option}" if option.startswith("activation") else option


def hold(module: nn.Module, options: Mapping[str, Any]) -> None:
    """Keep options as attributes of a module, lists as copies; the kernel refuses text and single numbers."""
    for name, value in options.items():
        listed = name.startswith("activation") and isinstance(value, Iterable)
        held = list(value) if listed and not isinstance(value, str | bytes) else value
        setattr(module, holder(name), held)


class Sampled:
    """A module whose parameters are all operands of kernels; a base before `nn.Module`."""

    def register_forward_hook(self, hook: Any, **options: Any) -> Any:
        """Register a hook; instead of Opacus' hook, our kernels compute samples' gradients."""
        owner = self._served_owner(hook)
        if owner is None:
            return super().register_forward_hook(hook, **options)  # type: ignore[misc]
        return _OpacusWatch(self, owner)

    def register_full_backward_hook(self, hook: Any, *args: Any, **options: Any) -> Any:
        """Register a hook, but not Opacus'."""
        if self._served_owner(hook) is None:
            return super().register_full_backward_hook(hook, *args, **options)  # type: ignore[misc]
        return RemovableHandle(OrderedDict())

    def _served_owner(self, hook: Any) -> Any:
        """Return Opacus' object of a hook if kernels take all parameters: a subclass may have added some."""
        base = sys.modules.get("opacus.grad_sample.gsm_base")
        function = hook.func if isinstance(hook, functools.partial) else hook
        owner: Any = getattr(function, "__self__", None)
        if base is None or not isinstance(owner, base.AbstractGradSampleHooks):
            return None
        own = {id(p) for p in self._kernel_parameters()}
        return owner if all(id(p) in own for p in self.parameters()) else None  # type: ignore[attr-defined]

    @abstractmethod
    def _kernel_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are operands of kernels."""


class _OpacusWatch(RemovableHandle):
    """The hooks around each call of a module under Opacus."""

    def __init__(self, module: Any, owner: Any) -> None:
        super().__init__(OrderedDict())
        self._owner = owner
        self._handles = [
            nn.Module.register_forward_pre_hook(module, self._begin),
            nn.Module.register_forward_hook(module, self._end, always_call=True),
        ]

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()

    def _begin(self, module: nn.Module, inputs: Any) -> None:
        trained = [p for p in module.parameters() if p.requires_grad]
        wanted = trained and module.training and torch.is_grad_enabled() and self._owner.hooks_enabled
        samples = Samples(type(module).__name__, self._owner, trained) if wanted else None
        _around.set((*_around.get(), collecting.get()))
        collecting.set(samples)

    def _end(self, module: nn.Module, inputs: Any, output: Any) -> None:
        samples = collecting.get()
        *around, before = _around.get()
        _around.set(tuple(around))
        collecting.set(before)
        if samples is not None and output is not None:
            samples.check()


class Samples:
    """The parameters whose samples' gradients a call of a module needs.

    `name` is the module's name, `owner` is Opacus' object with the hooks, and `parameters` are trained.
    `order` is the place of each of the caller's samples among the kernels', None for the same order.
    """

    def __init__(self, name: str, owner: Any, parameters: Sequence[nn.Parameter]) -> None:
        self._name, self.owner = name, owner
        self._trained = {id(p): p for p in parameters}
        self._seen: set[int] = set()
        self.order: Tensor | None = None

    def of_kernel(self, operands: Mapping[str, Any]) -> KernelSamples | None:
        """Note a kernel's operands; None if none of them is trained."""
        found: dict[str, tuple[Sequence[Any], int]] = {}
        for name, operand in operands.items():
            parts, directions = (
                (operand.parameters, operand.directions) if type(operand) is Stacked else ((operand,), -1)
            )
            if any(id(part) in self._trained for part in parts):
                found[name] = parts, directions
        if not found:
            return None
        trained = [p for parts, _ in found.values() for p in parts if id(p) in self._trained]
        self._seen |= {id(p) for p in trained}
        for parameter in trained:
            parameter._forward_counter += 1
        return KernelSamples(found, self)

    def check(self) -> None:
        """Raise RuntimeError if a trained parameter is no kernel's operand."""
        missing = [p for k, p in self._trained.items() if k not in self._seen]
        if missing:
            raise RuntimeError(
                f"{self._name}: {len(missing)} of {len(self._trained)} parameters, the first of shape "
                f"{tuple(missing[0].shape)}, came to no kernel as they are, expected all: under autocast, a "
                "compiler or with save=k there are no gradients of samples for Opacus"
            )


class KernelSamples:
    """One kernel's call within a module's call, `samples`.

    `operands` are the operands that consist of parameters: the parameters and directions of a `Stacked`, or
    one parameter and -1.
    """

    def __init__(self, operands: Mapping[str, tuple[Sequence[Any], int]], samples: Samples) -> None:
        self._operands, self._samples, self._owner = operands, samples, samples.owner

    @property
    def is_wanted(self) -> bool:
        """Whether Opacus needs them: not in the second pass of ghost clipping."""
        return bool(self._owner.hooks_enabled)

    def gradients(
        self,
        kernel: TorchKernel,
        arrays: Sequence[Tensor | None],
        wrt: Sequence[str],
        attributes: Mapping[str, Any],
    ) -> dict[str, Tensor | None]:
        """Return the operands' gradients by name, and store samples' gradients in the parameters."""
        with_norms = hasattr(self._owner, "use_ghost_clipping")
        own = [name for name in wrt if name in self._operands]
        parameters = [p for name in own for p in self._operands[name][0] if p.requires_grad]
        several = any(p._forward_counter > 1 or hasattr(p, "_current_grad_sample") for p in parameters)
        norms_alone = with_norms and self._owner.use_ghost_clipping and not several
        apart = [name for name in own if norms_alone and _are_partly_trained(*self._operands[name])]
        together = [name for name in wrt if name not in apart]
        grads: dict[str, Tensor | None] = {}
        for names, per_sample in ((together, "norm" if norms_alone else True), (apart, True)):
            if names:
                found = kernel.gradient(arrays, names, attributes, per_sample)
                grads |= zip(names, found, strict=True)
        for name in own:
            parts, directions = self._operands[name]
            each: Any = grads[name]
            as_norms = norms_alone and name not in apart
            # the second pass of ghost clipping computes the gradient
            grads[name] = None if with_norms else each.sum(0)
            each = self._scaled(each)
            pieces = _norms(each, len(parts), directions) if as_norms else _parts(each, parts, directions)
            for parameter, piece in zip(parts, pieces, strict=True):
                if parameter.requires_grad and as_norms:
                    parameter._norm_sample = piece
                    parameter._forward_counter -= 1
                elif parameter.requires_grad:
                    self._leave(parameter, piece, with_norms)
        return grads

    def _scaled(self, each: Tensor) -> Tensor:
        """Return samples' gradients of the sum of the losses, in the caller's order."""
        if self._samples.order is not None:
            each = each.index_select(0, self._samples.order)
        return each * each.shape[0] if self._owner.loss_reduction == "mean" else each

    def _leave(self, parameter: Any, each: Tensor, with_norms: bool) -> None:
        """Store a parameter's gradients, as Opacus' hook does."""
        from opacus.grad_sample.grad_sample_module import (
            create_or_accumulate_grad_sample,
            promote_current_grad_sample,
        )
        from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import create_norm_sample

        count = each.shape[0]
        create_or_accumulate_grad_sample(param=parameter, grad_sample=each, max_batch_len=count)
        parameter._forward_counter -= 1
        if parameter._forward_counter:
            return
        promote_current_grad_sample(parameter)
        if with_norms:
            create_norm_sample(param=parameter, grad_sample=parameter.grad_sample, max_batch_len=count)
            parameter.grad_sample = None
        elif not self._owner.grad_accumulation_allowed and isinstance(parameter.grad_sample, list):
            raise ValueError(
                "Poisson sampling does not go with gradients of several batches: expected optimizer.step() "
                "after each backward, or Opacus' BatchMemoryManager"
            )


def _parts(each: Tensor, parts: Sequence[Tensor], directions: int) -> Sequence[Tensor]:
    """Return each parameter's part of an operand's gradients; axis 0 is the samples'."""
    if directions < 0:
        return (each,)
    flat = each.flatten(1, 2) if directions else each
    return (flat,) if len(parts) == 1 else flat.split([part.shape[0] for part in parts], 1)


def _are_partly_trained(parts: Sequence[Tensor], directions: int) -> bool:
    """Tell whether a direction's parameters are trained and frozen ones, which have no joint norm."""
    joined = len(parts) // max(directions, 1)
    trained = [part.requires_grad for part in parts]
    return any(len(set(trained[k : k + joined])) > 1 for k in range(0, len(parts), joined))


def _norms(each: Tensor, count: int, directions: int) -> Sequence[Tensor]:
    """Return each parameter's norms from an operand's, (N, D) or (N,).

    Parameters that share an operand and a direction, a layer's two biases, share its norm equally: Opacus
    only uses the norm of all parameters together.
    """
    if each.dim() == 1:
        each = each.unsqueeze(1)
    if directions < 0:
        return (each.norm(dim=1),)
    joined = count // each.shape[1]
    return [column / joined**0.5 for column in each.unbind(1) for _ in range(joined)]
