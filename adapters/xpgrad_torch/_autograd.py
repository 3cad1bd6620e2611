"""xpgrad's kernels under autograd and `torch.func`.

`_PlannedKernel` runs kernels with programs, `_XpgradKernel` other kernels and all under transformations, and
`_XpgradGradient` a gradient that is itself differentiated or mapped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import xpgrad
from xpgrad.engine.process.remembered import Remembered
from xpgrad_torch._batching import vmap_forward, vmap_gradient
from xpgrad_torch._expanded import has_expanded, run_expanded
from xpgrad_torch._kept import keep, was_written_to, without_views
from xpgrad_torch._kernel import TorchKernel
from xpgrad_torch._lengths import LENGTHS, LengthsMemory
from xpgrad_torch._opacus import collecting
from xpgrad_torch._overrides import as_plain
from xpgrad_torch._private import (
    add_older_batch,
    applied_unwatched,
    are_transforms_active,
    count_dispatch_modes,
    is_differentiated,
    is_forward_mode,
    is_functionalized,
    is_jit_tracing,
    is_of_older_vmap,
    older_vmap_level,
    remove_older_batch,
)
from xpgrad_torch._programs import Head, Ready, find, head_of, without
from xpgrad_torch._stacked import ABSENT, PLAIN, Layout, Stacked, flattened, grouped, joined
from xpgrad_torch.engine import is_plain

if TYPE_CHECKING:
    from xpgrad_torch._packing import PackedRows

__all__ = ["TorchKernel", "apply", "apply_packed", "call_again", "is_followed", "map_older_batch"]


class _XpgradKernel(torch.autograd.Function):
    """A kernel with its gradient as the backward.

    Its arguments are a `TorchKernel`, the operands, the attributes, attributes of only the gradient
    (`grad_only`), and whether the gradient runs the kernel `again` instead of saving its outputs.
    """

    @staticmethod
    def forward(*args: Any) -> Any:
        kernel, *operands, attributes, _, _ = args
        return tuple(kernel.forward(*operands, **attributes))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        kernel, *operands, attributes, grad_only, again = inputs
        by_name = dict(zip(kernel.operands, operands, strict=True))
        saved = [] if again else kernel.saved_of(output)
        ctx.save_for_backward(*(by_name[name] for name in kernel.taken), *saved)
        ctx.mark_non_differentiable(*output[len(kernel.cotangents) :])
        ctx.set_materialize_grads(False)
        ctx.kernel, ctx.attributes, ctx.grad_only, ctx.again = kernel, attributes, grad_only, again
        samples = collecting.get()
        ctx.samples = None if samples is None else samples.of_kernel(by_name)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        needs = ctx.needs_input_grad[1 : len(ctx.kernel.operands) + 1]
        if all(cotangent is None for cotangent in cotangents):
            return (None,) * len(ctx.needs_input_grad)
        grads = _XpgradKernel._gradients(ctx, needs, list(ctx.saved_tensors), cotangents)
        return None, *grads, None, None, None

    @staticmethod
    def _gradients(
        ctx: Any, needs: Sequence[bool], arrays: list[Tensor | None], cotangents: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Return the gradients of the operands that need a gradient, from the saved arrays."""
        kernel = ctx.kernel
        wrt = tuple(name for name, need in zip(kernel.operands, needs, strict=True) if need)
        # In a graph or in a transformation of torch.func this gradient needs rules of its own.
        followed = torch.is_grad_enabled() or are_transforms_active()
        if ctx.again and kernel.saved:
            arrays += kernel.saved_of(_XpgradKernel._again(ctx, kernel.operands_of(arrays), followed))
        arrays += cotangents[: len(kernel.cotangents)]
        if ctx.samples is not None and ctx.samples.is_wanted:
            found = ctx.samples.gradients(kernel, arrays, wrt, ctx.attributes | ctx.grad_only)
            return [found.get(name) for name in kernel.operands]
        if is_recorded():
            grads = _recorded_gradient(kernel, arrays, wrt, {**ctx.attributes, **ctx.grad_only})
        elif any(c is not None and is_of_older_vmap(c) for c in cotangents):
            grads = map_older_batch(kernel, arrays, wrt, ctx.attributes, ctx.grad_only)
        elif followed:
            grads = _XpgradGradient.apply(kernel, *arrays, wrt, ctx.attributes, ctx.grad_only, False)
        else:
            grads = kernel.gradient(arrays, wrt, ctx.attributes | ctx.grad_only)
        by_name = dict(zip(wrt, grads, strict=True))
        return [by_name.get(name) for name in kernel.operands]

    @staticmethod
    def _again(ctx: Any, operands: Sequence[Tensor | None], followed: bool) -> Sequence[Tensor]:
        """Return the kernel's outputs from a second run."""
        if is_recorded():
            return _as_operator(ctx.kernel, operands, {**ctx.attributes, **ctx.grad_only}, False)
        if followed:
            return _XpgradKernel.apply(ctx.kernel, *operands, ctx.attributes, ctx.grad_only, True)
        return ctx.kernel.forward(*operands, **ctx.attributes)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        kernel, *operands, attributes, grad_only, again = args

        def run(joined: Any, changed: Any) -> Any:
            return _XpgradKernel.apply(kernel, *joined, changed, grad_only, again)

        return vmap_forward(kernel, run, in_dims[1:-3], operands, attributes)


@dataclass(eq=False)
class CallTemplate:
    """The common data of calls of a planned kernel that differ only in their tensors; see `template_of`."""

    kernel: TorchKernel
    layout: Layout
    attributes: Mapping[str, Any]
    grad_only: Mapping[str, Any]
    again: bool
    count: int
    head: Head
    _are_written_to: bool = False

    def __post_init__(self) -> None:
        self.options = self.kernel.forward_options(self.attributes)

    @cached_property
    def _spans(self) -> dict[str, range]:
        """The places of each operand's parameters among all parameters."""
        ends = list(itertools.accumulate(size for size, _ in self.layout))
        spans = [range(end - size, end) for end, (size, _) in zip(ends, self.layout, strict=True)]
        return dict(zip(self.kernel.operands, spans, strict=True))

    @cached_property
    def _saved(self) -> list[int]:
        return [] if self.again else [self.kernel.outputs.index(name) for name in self.kernel.saved]

    @cached_property
    def taken(self) -> list[int]:
        """The places of the parameters that the gradient takes."""
        return [k for name in self.kernel.taken for k in self._spans[name]]

    @cached_property
    def unread(self) -> list[int]:
        """The places that the backward does not read: the caller may write to a bias that was only added."""
        sizes = zip(self._spans.values(), self.layout, strict=True)
        whole = {span[0] for span, size in sizes if size == PLAIN}
        return [] if self.again else sorted(whole.difference(self.taken))

    @cached_property
    def _layout_of_taken(self) -> Layout:
        sizes = dict(zip(self.kernel.operands, self.layout, strict=True))
        return tuple(sizes[name] for name in self.kernel.taken)

    @cached_property
    def _place_of_lengths(self) -> int | None:
        """The place of the lengths among the gradient's arrays."""
        given = [PLAIN] * (len(self.kernel.gradient_arrays) - len(self.kernel.taken))
        return self.kernel.planned[1].place_of_lengths((*self._layout_of_taken, *given))

    @cached_property
    def _places(self) -> list[int | None]:
        """For each parameter the place of its gradient among the results."""
        found: dict[int, int] = {}
        count = 0
        for name in self.kernel.graded:
            found |= zip(self._spans[name], range(count, count + len(self._spans[name])), strict=True)
            count += len(self._spans[name]) or 1  # None for an absent operand
        return [found.get(k) for k in range(sum(size for size, _ in self.layout))]

    def call(self, flat: Sequence[Tensor], packing: PackedRows | None = None) -> Sequence[Tensor]:
        """Return the kernel's outputs that have a cotangent; see `_PlannedKernel`."""
        rows = _rows(packing, flat)
        others, lengths = self.kernel.planned[0].apart(rows, self.layout, self.options)
        ready = find(self.head, others, lengths)
        if ready is not None:
            return call_again(ready, flat, packing)
        return _PlannedKernel.apply(self, lengths, packing, *flat)

    def forward(
        self, ready: Ready | LengthsMemory | None, flat: Sequence[Tensor], packing: PackedRows | None
    ) -> Sequence[Tensor]:
        """Return the kernel's outputs; with a packing, the first output has rows too."""
        if isinstance(ready, Ready):
            outputs: Sequence[Tensor] = ready.run()
        else:
            rows, function = _rows(packing, flat), self.kernel.planned[0]
            results = function.run_anew(self.head, rows, self.layout, self.options, ready, self)
            outputs = without_views(results)
        return outputs if packing is None else [packing.gathered(outputs[0]), *outputs[1:]]

    def kept(self, outputs: Sequence[Tensor], needed: Sequence[bool]) -> list[Tensor]:
        """Return the outputs that autograd saves; `needed` tells which operands require a gradient."""
        if True not in needed:
            return []
        returned, copies, count = self.kernel.returned, self._are_written_to, self.count
        return [keep(outputs[k], copies) if k < count and k in returned else outputs[k] for k in self._saved]

    def unchanged(self, kept: Sequence[Tensor], again: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """Return the saved outputs; if the caller has written to one, those from a second run, `again`.

        Such a caller writes in each step: later forwards save copies, which takes less time.
        """
        if not any(map(was_written_to, kept)):
            return kept
        self._are_written_to = True
        outputs = again()
        return [outputs[k] for k in self._saved]

    def gradient(
        self,
        arrays: Sequence[Tensor],
        given: tuple[bool, ...],
        needed: tuple[bool, ...],
        lengths: LengthsMemory | None,
    ) -> list[Tensor | None] | None:
        """Return the gradients of the needed parameters; None if the kernel's gradient lacks some of them.

        `given` tells which cotangents are given.
        """
        head = None if self.head is None else (self, needed, given)
        place = self._place_of_lengths
        ready = find(head, arrays if place is None else without(place, arrays), lengths)
        if ready is not None:
            results = ready.run()
        else:
            wrt = self.wanted(needed)
            sizes = zip(self.kernel.operands, self.layout, strict=True)
            stacked = {name for name, size in sizes if size[1] >= 0}
            # only operands that the gradient takes have gradients in pieces
            if not set(wrt) <= set(self.kernel.graded) or not stacked <= set(self.kernel.taken):
                return None
            options = {**self.attributes, **self.grad_only, "wrt": wrt}
            kept = [PLAIN] * len(self.kernel.saved)
            layout = *self._layout_of_taken, *kept, *[PLAIN if c else ABSENT for c in given]
            results = self.kernel.planned[1].run_anew(head, arrays, layout, options, lengths)
        return [None if place is None else results[place] for place in self._places]

    def wanted(self, needed: Sequence[bool]) -> tuple[str, ...]:
        """Return the names of the operands with a needed parameter."""
        return tuple(name for name, span in self._spans.items() if any(needed[k] for k in span))


_templates: Remembered[CallTemplate] = Remembered()


def template_of(
    kernel: TorchKernel,
    layout: Layout,
    attributes: Mapping[str, Any],
    grad_only: Mapping[str, Any],
    again: bool,
    count: int,
    head: Head = None,
) -> CallTemplate:
    """Return the template of such calls.

    `layout` is the operands' layout, some may be `Stacked`. `count` is the number of first outputs that the
    caller reads. `head` is the head of such calls' keys; by default it follows from the rest. For the other
    arguments see `apply`.
    """
    who = kernel, layout, again, count, *attributes, *grad_only
    whole = head_of(who, (*attributes.values(), *grad_only.values()))
    head = whole if head is None else head
    found = None if whole is None else _templates.get((whole, head))
    if found is None:
        found = CallTemplate(kernel, layout, attributes, grad_only, again, count, head)
        if whole is not None:
            _templates[whole, head] = found
    return found


def call_again(ready: Ready, flat: Sequence[Tensor], packing: PackedRows | None = None) -> Sequence[Tensor]:
    """Return a known call's outputs with a cotangent, in eager code outside of transformations."""
    template = ready.known.template
    if torch.is_grad_enabled():
        return _apply_unwatched(template, ready, packing, *flat)
    outputs = ready.run() if packing is None else template.forward(ready, flat, packing)
    return outputs[: template.count]


def _rows(packing: PackedRows | None, flat: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return operands as the kernel takes them: X, if it holds rows, as an array over time."""
    return flat if packing is None else [packing.spread(flat[0]), *flat[1:]]


def are_unseen(cotangents: Sequence[Tensor | None]) -> bool:
    """Tell whether the gradient is itself neither part of a graph nor of a transformation."""
    if torch.is_grad_enabled() or are_transforms_active():
        return False
    return not any(c is not None and is_of_older_vmap(c) for c in cotangents)


def with_none(saved: Sequence[Tensor], absent: Sequence[int]) -> Sequence[Any]:
    """Return saved tensors with None in its places. It is not saved: tools that draw graphs expect none."""
    if not absent:
        return saved
    filled: list[Tensor | None] = list(saved)
    for k in absent:
        filled.insert(k, None)
    return filled


class _PlannedKernel(torch.autograd.Function):
    """A kernel with programs, in eager code outside of transformations.

    Its arguments are a `CallTemplate`, the call if it is known, else its lengths, the packing whose rows X
    and H_all hold, and the operands' parameters: autograd needs no nodes that join them. It returns the
    outputs that the caller reads.
    """

    @staticmethod
    def forward(
        ctx: Any,
        template: CallTemplate,
        ready: Ready | LengthsMemory | None,
        packing: PackedRows | None,
        *flat: Tensor,
    ) -> Any:
        outputs = template.forward(ready, flat, packing)
        read = list(flat)
        for k in reversed(template.unread):
            del read[k]
        ctx.save_for_backward(*read, *template.kept(outputs, ctx.needs_input_grad))
        ctx.set_materialize_grads(False)
        ctx.template, ctx.packing, ctx.samples = template, packing, None
        ctx.lengths = ready.lengths if isinstance(ready, Ready) else ready
        if (samples := collecting.get()) is not None:
            operands = zip(template.kernel.operands, grouped(template.layout, flat), strict=True)
            ctx.samples = samples.of_kernel(dict(operands))
        return tuple(outputs[: template.count])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        template, needed, packing = ctx.template, ctx.needs_input_grad[3:], ctx.packing
        saved, count = with_none(ctx.saved_tensors, template.unread), len(needed)
        if all(cotangent is None for cotangent in cotangents):
            return (None,) * (count + 3)
        operands, kept = saved[:count], saved[count:]
        cotangents += (None,) * (len(template.kernel.cotangents) - template.count)
        recorded, grads = is_recorded(), None
        if not recorded:
            kept = template.unchanged(kept, lambda: template.forward(ctx.lengths, operands, packing))
        if ctx.samples is None and not (recorded or template.again) and are_unseen(cotangents):
            arrays = [*[saved[k] for k in template.taken], *kept]
            grads = _gradients(template, packing, arrays, cotangents, needed, ctx.lengths)
        if grads is None and packing is not None:
            grads = _followed_rows(template, packing, operands, cotangents, needed)
        if grads is None:
            grads = _followed(ctx, grouped(template.layout, operands), kept, cotangents, needed)
        return None, None, None, *grads


_apply_unwatched = applied_unwatched(_PlannedKernel)


def _gradients(
    template: CallTemplate,
    packing: PackedRows | None,
    arrays: list[Tensor],
    cotangents: Sequence[Tensor | None],
    needed: tuple[bool, ...],
    lengths: LengthsMemory | None,
) -> list[Tensor | None] | None:
    """Return the gradients by the kernel's gradient; None if it lacks some of them."""
    given = tuple([c is not None for c in cotangents])
    arrays += [c for c in cotangents if c is not None]
    if packing is None:
        return template.gradient(arrays, given, needed, lengths)
    if not all(c is None or is_plain(c) for c in cotangents):
        return None
    count = len(template.taken)
    rows = [0, count + template.kernel.saved.index("H_all")]  # X, H_all
    rows += [count + len(template.kernel.saved)] * given[0]  # its cotangent
    for k in rows:
        arrays[k] = packing.spread(arrays[k])
    grads = template.gradient(arrays, given, needed, lengths)
    if grads is not None and grads[0] is not None:
        grads[0] = packing.gathered(grads[0])
    return grads


def _followed(
    ctx: Any,
    operands: Sequence[Any],
    kept: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    needed: tuple[bool, ...],
) -> list[Tensor | None]:
    """Return gradients that are themselves followed, or are wanted for each sample."""
    template, kernel = ctx.template, ctx.template.kernel
    by_name = dict(zip(kernel.operands, joined(operands), strict=True))
    arrays = [by_name[name] for name in kernel.taken]
    ctx.kernel, ctx.attributes, ctx.grad_only = kernel, dict(template.attributes), template.grad_only
    has_rows = bool(ctx.attributes.pop("rows_of", ()))  # only programs read rows
    ctx.again = template.again or has_rows or any(map(was_written_to, kept))
    if not ctx.again:
        arrays += kept
    wrt = template.wanted(needed)
    grads = _XpgradKernel._gradients(ctx, [name in wrt for name in kernel.operands], arrays, cotangents)
    flat: list[Tensor | None] = []
    for operand, grad, (size, _) in zip(operands, grads, template.layout, strict=True):
        flat += operand.parts(grad) if type(operand) is Stacked else [grad] * size
    return flat


def _followed_rows(
    template: CallTemplate,
    packing: PackedRows,
    operands: Sequence[Tensor | None],
    cotangents: Sequence[Tensor | None],
    needed: tuple[bool, ...],
) -> list[Tensor | None]:
    """Return such gradients for rows of a packing: from a second run, over time and batch."""
    is_graph = torch.is_grad_enabled()
    attributes = {name: x for name, x in template.attributes.items() if name not in ("packed", "rows_of")}
    with torch.enable_grad():
        own = [None if x is None else x.view_as(x) for x in operands]
        wanted = [x.requires_grad_() for x, need in zip(own, needed, strict=True) if need and x is not None]
        given = grouped(template.layout, own)
        given[0] = packing.padded(given[0])
        H_all, *others = apply(template.kernel, given, attributes, again=True, **template.grad_only)
        outputs = [packing.rows(H_all.transpose(1, 2).flatten(2)), *others]
        pairs = [pair for pair in zip(outputs, cotangents, strict=True) if pair[1] is not None]
        found = torch.autograd.grad(
            [output for output, _ in pairs], wanted, [cotangent for _, cotangent in pairs],
            create_graph=is_graph, allow_unused=True,
        )  # fmt: skip
    each = iter(found)
    return [next(each) if need else None for need in needed]


class _XpgradGradient(torch.autograd.Function):
    """A kernel's gradient that is itself differentiated or mapped.

    Its arguments are a `TorchKernel`, the gradient's arrays, the names of the operands, the attributes, and
    whether each sample has its own gradient of the parameters.
    """

    @staticmethod
    def forward(*args: Any) -> Any:
        kernel, *arrays, wrt, attributes, grad_only, per_sample = args
        return kernel.gradient(arrays, wrt, attributes | grad_only, per_sample)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        kernel, *arrays, wrt, attributes, grad_only, per_sample = inputs
        ctx.save_for_backward(*arrays)
        ctx.kernel, ctx.wrt, ctx.attributes, ctx.per_sample = kernel, wrt, attributes | grad_only, per_sample

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        arrays, needs = ctx.saved_tensors, ctx.needs_input_grad[1:-4]
        pullback = ctx.kernel.gradient_pullback
        grads = pullback(arrays, ctx.wrt, ctx.attributes, ctx.per_sample, needs, cotangents)
        return None, *grads, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        kernel, *arrays, wrt, attributes, grad_only, per_sample = args
        run, dims = _runner(kernel, wrt, grad_only), in_dims[1:-4]
        return vmap_gradient(kernel, run, dims, arrays, attributes, wrt, per_sample)


def _runner(kernel: TorchKernel, wrt: Sequence[str], grad_only: dict[str, Any]) -> Any:
    """Return a function that runs a gradient for its rule of vmap."""
    return lambda joined, changed, each: _XpgradGradient.apply(kernel, *joined, wrt, changed, grad_only, each)


def map_older_batch(
    kernel: TorchKernel,
    arrays: Sequence[Tensor | None],
    wrt: Sequence[str],
    attributes: dict[str, Any],
    grad_only: dict[str, Any],
) -> tuple[Tensor, ...]:
    """Map the gradient for ``torch.autograd.grad(is_grads_batched=True)``, whose vmap has no rules."""
    level = older_vmap_level()
    mapped = [x is not None and is_of_older_vmap(x) for x in arrays]
    bare = [
        remove_older_batch(x, level) if x is not None and batched else x
        for x, batched in zip(arrays, mapped, strict=True)
    ]
    axes, run = [0 if batched else None for batched in mapped], _runner(kernel, wrt, grad_only)
    grads, dims = vmap_gradient(kernel, run, axes, bare, attributes, wrt, False)
    return tuple(add_older_batch(g, dim, level) for g, dim in zip(grads, dims, strict=True))


def check_call(kernel: TorchKernel, operands: Sequence[Any], grad_only: Mapping[str, Any]) -> None:
    """Raise for operands that are no tensors, and for wrong attributes of the gradient.

    The kernel's forward does not know these attributes, and in the backward an error comes late.
    """
    kernel.check(operands)
    if grad_only.get("peephole", "full") not in ("full", "truncated"):
        raise ValueError(
            f"{kernel.name}: peephole is {grad_only['peephole']!r}, expected 'full' or 'truncated'"
        )


def apply(
    kernel: TorchKernel,
    operands: Sequence[Tensor | None],
    attributes: Mapping[str, Any],
    *,
    again: bool = False,
    wanted_outputs: int | None = None,
    head: Head = None,
    **grad_only: Any,
) -> tuple[Tensor, ...]:
    """Return the kernel's outputs that have a cotangent, or only the first `wanted_outputs` of them.

    With `again` no outputs are saved: the gradient runs the kernel again, which takes less memory and more
    time. `head` is the head of the key under which the caller looks up calls of a planned kernel. `grad_only`
    are attributes of only the gradient.
    """
    followed = is_followed()
    if followed and Stacked in map(type, operands):
        operands = joined(operands)
    check_call(kernel, operands, grad_only)
    operands = _with_own_lengths(kernel, operands)
    outputs: Sequence[Tensor]
    if has_expanded(operands):
        return run_expanded(
            kernel.name, kernel, dict(zip(kernel.operands, operands, strict=True)), attributes,
            len(kernel.cotangents),
            lambda given: apply(kernel, list(given.values()), attributes, again=again, **grad_only),
        )[:wanted_outputs]  # fmt: skip
    try:
        if not followed and kernel.has_programs(operands):
            layout, parameters = flattened(operands)
            flat = as_plain(parameters)
            rows = () if again or collecting.get() is not None else kernel.rows_of(operands, wanted_outputs)
            own = {**attributes, "rows_of": rows} if rows else attributes
            count = len(kernel.cotangents) if wanted_outputs is None else wanted_outputs
            return tuple(template_of(kernel, layout, own, grad_only, again, count, head).call(flat))
        elif is_forward_mode() or _is_differentiation_recorded() or _lacks_operator(kernel, operands):
            outputs = _as_many_operators(kernel, operands, attributes, grad_only)
        elif is_recorded():
            outputs = _apart(kernel, _as_operator(kernel, operands, {**attributes, **grad_only}, again))
        else:
            plain = as_plain(operands)
            outputs = _apart(kernel, _XpgradKernel.apply(kernel, *plain, attributes, grad_only, again))
    except Exception:
        kernel.explain(operands)
        raise
    return tuple(outputs[: len(kernel.cotangents) if wanted_outputs is None else wanted_outputs])


def apply_packed(
    kernel: TorchKernel,
    operands: Sequence[Any],
    attributes: Mapping[str, Any],
    packing: PackedRows,
    wanted_outputs: int,
    **grad_only: Any,
) -> Sequence[Tensor]:
    """Return the first outputs for the rows of a packing in X's place; H_all holds rows too. See `apply`."""
    check_call(kernel, operands, grad_only)
    layout, flat = flattened(operands)
    own = {**attributes, "rows_of": kernel.rows_of(operands, wanted_outputs), "packed": True}
    return template_of(kernel, layout, own, grad_only, False, wanted_outputs).call(flat, packing)


def _with_own_lengths(kernel: TorchKernel, operands: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Return operands with a copy of the lengths, which the caller may change before the backward."""
    if LENGTHS not in kernel.operands:
        return operands
    place = kernel.operands.index(LENGTHS)
    lengths = operands[place]
    return operands if lengths is None else [*operands[:place], lengths.clone(), *operands[place + 1 :]]


def _apart(kernel: TorchKernel, outputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return outputs with copies of those that the gradient saves: recorders forbid writing to these.

    An exported or traced program runs eagerly and needs no copies (see `_kept`).
    """
    if not torch.is_grad_enabled() or torch.compiler.is_exporting() or torch.jit.is_tracing():
        return outputs
    return [output.clone() if k in kernel.returned else output for k, output in enumerate(outputs)]


def _as_operator(
    kernel: TorchKernel, operands: Sequence[Tensor | None], attributes: Mapping[str, Any], again: bool
) -> Sequence[Tensor]:
    """Run the kernel as one operator, for recorders.

    ONNX has such operators, but PyTorch's exporters only know PyTorch's; their error names a missing symbol.
    """
    if torch.onnx.is_in_onnx_export():
        raise RuntimeError(
            f"{kernel.name}: torch.onnx.export cannot translate xpgrad's operators, expected PyTorch's; "
            "export xpgrad_torch.unswap(model), of Keras xpgrad_keras.unswap(model), which computes the same"
        )
    names = attributes.get("activations")
    if names is not None and torch.jit.is_tracing():
        raise RuntimeError(
            f"{kernel.name}: torch.jit.trace cannot record a list of words, activations is {names} and "
            "expected None; torch.export records xpgrad's operators with all attributes"
        )

    def run(*operands: Tensor | None) -> Any:
        return kernel.operator(*operands, **attributes)

    if again:
        outputs = checkpoint(run, *operands, use_reentrant=False, preserve_rng_state=False)
    else:
        outputs = run(*operands)
    return outputs if isinstance(outputs, tuple | list) else (outputs,)


def _as_many_operators(
    kernel: TorchKernel,
    operands: Sequence[Tensor | None],
    attributes: Mapping[str, Any],
    grad_only: Mapping[str, Any],
) -> Sequence[Tensor]:
    """Run the kernel as many operators of PyTorch, which have all rules."""
    for name, value in grad_only.items():
        default = kernel.gradient_attributes[name].default
        if value != default:
            raise ValueError(
                f"{kernel.name}: {name} is {value!r}, expected {default!r} in forward mode, which follows "
                "the function itself"
            )
    with xpgrad.use_engine("standard"):
        return kernel.forward(*operands, **attributes)


def is_recorded() -> bool:
    """Tell whether a compiler, `torch.jit.trace`, a dispatch mode or `functionalize` records operators."""
    return bool(
        torch.compiler.is_compiling() or count_dispatch_modes() or is_jit_tracing() or is_functionalized()
    )


def _is_differentiation_recorded() -> bool:
    """Tell whether a recorder watches a derivative of `torch.func`, for which our operators have no rules.

    `torch.compile` records derivatives itself.
    """
    return is_recorded() and not torch.compiler.is_compiling() and is_differentiated()


def _lacks_operator(kernel: TorchKernel, operands: Sequence[Tensor | None]) -> bool:
    """Tell whether a recorder watches, and an operand needs a gradient that the kernel lacks.

    An operator then composes it by `torch.func`, which fails below a dispatch mode.
    """
    if torch.compiler.is_compiling() or not is_recorded():
        return False
    named = zip(kernel.operands, operands, strict=True)
    return any(x is not None and x.requires_grad and name not in kernel.graded for name, x in named)


def _recorded_gradient(
    kernel: TorchKernel, arrays: Sequence[Tensor | None], wrt: Sequence[str], attributes: Mapping[str, Any]
) -> Sequence[Tensor]:
    """Return the gradients of `wrt` for recorders, by one operator if it has all; see `_lacks_operator`."""
    if torch.compiler.is_compiling() or set(wrt) <= set(kernel.graded):
        return kernel.gradient_operator(*arrays, **attributes, wrt=wrt)
    return list(kernel.composed_gradient(arrays, wrt, attributes).values())


def is_followed() -> bool:
    """Tell whether a recorder, a transformation or forward mode watches every operator."""
    return bool(is_recorded() or are_transforms_active() or is_forward_mode())
