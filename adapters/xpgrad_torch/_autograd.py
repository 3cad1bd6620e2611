"""xpgrad's kernels under autograd and `torch.func`: one autograd function for all of them."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import xpgrad
from xpgrad.engine.process.remembered import Remembered
from xpgrad_torch._batching import vmap_forward, vmap_gradient
from xpgrad_torch._expanded import has_expanded, run_expanded
from xpgrad_torch._kept import keep, was_written_to, without_views
from xpgrad_torch._kernel import TorchKernel
from xpgrad_torch._lengths import LENGTHS
from xpgrad_torch._opacus import KernelSamples, collecting
from xpgrad_torch._private import (
    add_older_batch,
    applied_alone,
    applied_unwatched,
    are_transforms_active,
    count_dispatch_modes,
    is_forward_mode,
    is_of_older_vmap,
    older_vmap_level,
    remove_older_batch,
)
from xpgrad_torch._programs import Ready, TensorCallCache, key_of
from xpgrad_torch._stacked import PLAIN, Layout, Stacked, flattened, grouped, joined

__all__ = [
    "CallTemplate",
    "TorchKernel",
    "apply",
    "are_unseen",
    "call_of",
    "check_call",
    "is_followed",
    "map_older_batch",
]


class _XpgradKernel(torch.autograd.Function):
    """A kernel with its gradient as the backward.

    Its arguments are a `TorchKernel`, the operands, the attributes of both, the attributes of only the
    gradient, and whether the gradient runs the kernel again instead of saving its outputs. Operands and
    outputs are saved through autograd, which frees them, and not as attributes of the context.
    """

    @staticmethod
    def forward(*args: Any) -> Any:
        kernel, *operands, attributes, _, _ = args
        return tuple(kernel.forward(*operands, **attributes))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        kernel, *operands, attributes, asked, again = inputs
        by_name = dict(zip(kernel.operands, operands, strict=True))
        saved = [] if again else kernel.saved_of(output)
        ctx.save_for_backward(*(by_name[name] for name in kernel.taken), *saved)
        ctx.mark_non_differentiable(*output[len(kernel.cotangents) :])
        ctx.set_materialize_grads(False)
        ctx.kernel, ctx.attributes, ctx.asked, ctx.again = kernel, attributes, asked, again
        ctx.samples = _samples_of(kernel, by_name)

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
        """Return the gradients of those operands that need one, from what the forward saved."""
        kernel = ctx.kernel
        wrt = tuple(name for name, need in zip(kernel.operands, needs, strict=True) if need)
        # If this gradient is part of a graph or of a transformation of torch.func, it needs rules too.
        followed = torch.is_grad_enabled() or are_transforms_active()
        if ctx.again and kernel.saved:
            operands = _all_operands(kernel, arrays)
            outputs = (
                _XpgradKernel.apply(kernel, *operands, ctx.attributes, ctx.asked, True)
                if followed
                else kernel.forward(*operands, **ctx.attributes)
            )
            arrays += kernel.saved_of(outputs)
        arrays += cotangents[: len(kernel.cotangents)]
        if ctx.samples is not None and ctx.samples.is_wanted:
            found = ctx.samples.gradients(kernel, arrays, wrt, ctx.attributes | ctx.asked)
            return [found.get(name) for name in kernel.operands]
        if any(c is not None and is_of_older_vmap(c) for c in cotangents):
            grads = map_older_batch(kernel, arrays, wrt, ctx.attributes, ctx.asked)
        elif followed:
            grads = _XpgradGradient.apply(kernel, *arrays, wrt, ctx.attributes, ctx.asked, False)
        else:
            grads = kernel.gradient(arrays, wrt, ctx.attributes | ctx.asked)
        by_name = dict(zip(wrt, grads, strict=True))
        return [by_name.get(name) for name in kernel.operands]

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        kernel, *operands, attributes, asked, again = args

        def run(joined: Any, changed: Any) -> Any:
            return _XpgradKernel.apply(kernel, *joined, changed, asked, again)

        return vmap_forward(kernel, run, in_dims[1:-3], operands, attributes)


class _EagerKernel(_XpgradKernel):
    """The same function, for calls outside of the transformations of `torch.func`.

    PyTorch then calls one function instead of two, and does not look up the forward's signature each time.
    """

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        outputs = _XpgradKernel.forward(*args)
        _XpgradKernel.setup_context(ctx, args, outputs)
        return outputs

    # PyTorch knows by this very function that the forward takes the context.
    setup_context = staticmethod(torch.autograd.Function.setup_context)


@dataclass(eq=False)
class CallTemplate:
    """The data that calls of a planned kernel share if they differ in their tensors alone.

    Parameters
    ----------
    kernel : TorchKernel
        The kernel.
    layout : Layout
        The layout of its operands; some may be `Stacked`.
    attributes, asked, again
        See `apply`.
    """

    kernel: TorchKernel
    layout: Layout
    attributes: Mapping[str, Any]
    asked: Mapping[str, Any]
    again: bool

    def __post_init__(self) -> None:
        kernel, layout = self.kernel, self.layout
        self._options = kernel.forward_options(self.attributes)
        self._known = kernel.programs[0].known(self._options, layout)
        self._gradients: dict[tuple[bool, ...], tuple[dict[str, Any], TensorCallCache | None] | None] = {}
        self.saved = [] if self.again else [kernel.outputs.index(name) for name in kernel.saved]
        self._are_written_to = False
        spans = dict(zip(kernel.operands, _spans(layout), strict=True))
        self.taken = [k for name in kernel.taken for k in spans[name]]
        whole = {spans[name][0] for name, size in zip(kernel.operands, layout, strict=True) if size == PLAIN}
        # a bias that was only added may be written to before the backward
        self.unread = [] if self.again else sorted(whole.difference(self.taken))
        sizes = dict(zip(kernel.operands, layout, strict=True))
        given = len(kernel.gradient_arrays) - len(kernel.taken)
        self._gradient_layout = (*(sizes[name] for name in kernel.taken), *[PLAIN] * given)
        graded = [k for name in kernel.graded for k in spans[name]]
        self._places = [graded.index(k) if k in graded else None for k in range(sum(n for n, _ in layout))]

    def repeated(self, flat: Sequence[Tensor | None]) -> tuple[Tensor, ...] | None:
        """Return the kernel's outputs that have a cotangent, if a call like this one came before; else None.

        Whatever was checked then is right again. It is for eager code outside of transformations.
        """
        ready = self.kernel.programs[0].ready(flat, self.layout, self._options, self._known)
        if ready is None:
            return None
        if torch.is_grad_enabled():
            return _apply_unwatched(self, ready, *flat)
        return tuple(ready.run()[: len(self.kernel.cotangents)])

    def forward(self, flat: Sequence[Tensor | None]) -> Sequence[Tensor]:
        """Return the kernel's outputs."""
        return without_views(self.kernel.programs[0].run(flat, self.layout, self._options, self._known))

    def kept(self, outputs: Sequence[Tensor], needed: Sequence[bool]) -> list[Tensor]:
        """Return what autograd saves of the outputs; `needed` tells which operands require a gradient."""
        if True not in needed:
            return []
        returned, copies = self.kernel.returned, self._are_written_to
        return [keep(outputs[k], copies) if k in returned else outputs[k] for k in self.saved]

    def unchanged(self, kept: Sequence[Tensor], again: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """Return the outputs that were saved; if somebody has written to them, what `again` returns of all.

        Whoever writes does so in each step: later forwards copy what is saved, which takes less time.
        """
        if not any(map(was_written_to, kept)):
            return kept
        self._are_written_to = True
        outputs = again()
        return [outputs[k] for k in self.saved]

    def gradient(
        self, arrays: Sequence[Tensor | None], needed: tuple[bool, ...]
    ) -> list[Tensor | None] | None:
        """Return the gradients of the operands' parameters, of which some are needed.

        None where the kernel's gradient does not have them all.
        """
        if needed not in self._gradients:
            self._gradients[needed] = self._find(needed)
        found = self._gradients[needed]
        if found is None:
            return None
        results = self.kernel.programs[1].run(arrays, self._gradient_layout, *found)
        return [None if place is None else results[place] for place in self._places]

    def _find(self, needed: tuple[bool, ...]) -> tuple[dict[str, Any], TensorCallCache | None] | None:
        wrt = _wanted(self.kernel, self.layout, needed)
        sizes = zip(self.kernel.operands, self.layout, strict=True)
        stacked = {name for name, size in sizes if size != PLAIN}
        # the pieces of a gradient are those of an operand that the gradient takes
        if not set(wrt) <= set(self.kernel.graded) or not stacked <= set(self.kernel.taken):
            return None
        options = {**self.attributes, **self.asked, "wrt": wrt}
        return options, self.kernel.programs[1].known(options, self._gradient_layout)


def _spans(layout: Layout) -> list[range]:
    """Return where each operand's parameters stand among all."""
    ends = list(itertools.accumulate(size for size, _ in layout))
    return [range(end - size, end) for end, (size, _) in zip(ends, layout, strict=True)]


def _wanted(kernel: TorchKernel, layout: Layout, needed: Sequence[bool]) -> tuple[str, ...]:
    """Return the names of those operands of which a parameter is needed."""
    spans = zip(kernel.operands, _spans(layout), strict=True)
    return tuple(name for name, span in spans if any(needed[k] for k in span))


_calls: Remembered[CallTemplate] = Remembered()


def call_of(
    kernel: TorchKernel, layout: Layout, attributes: Mapping[str, Any], asked: Mapping[str, Any], again: bool
) -> CallTemplate:
    """Return the data of such calls."""
    fixed = key_of((*attributes.values(), *asked.values()))
    if fixed is None:
        return CallTemplate(kernel, layout, attributes, asked, again)
    key = kernel, layout, again, tuple(attributes), tuple(asked), fixed
    call = _calls.get(key)
    if call is None:
        call = _calls[key] = CallTemplate(kernel, layout, attributes, asked, again)
    return call


def are_unseen(cotangents: Sequence[Tensor | None]) -> bool:
    """Tell whether a gradient of these is no part of a graph or of a transformation itself."""
    if torch.is_grad_enabled() or are_transforms_active():
        return False
    return not any(c is not None and is_of_older_vmap(c) for c in cotangents)


class _PlannedKernel(torch.autograd.Function):
    """A kernel with programs, in eager code outside of transformations.

    Its arguments are a `CallTemplate`, its program if that is known, and the operands. An operand of several
    parameters comes as these, so autograd needs no nodes to join them. It returns the outputs that have a
    cotangent.
    """

    @staticmethod
    def forward(ctx: Any, call: CallTemplate, ready: Ready | None, *flat: Tensor | None) -> Any:
        outputs, kernel = call.forward(flat) if ready is None else ready.run(), call.kernel
        kept = list(flat)
        for k in call.unread:
            kept[k] = None
        ctx.save_for_backward(*kept, *call.kept(outputs, ctx.needs_input_grad))
        ctx.set_materialize_grads(False)
        ctx.call, ctx.samples = call, None
        if collecting.get() is not None:
            operands = dict(zip(kernel.operands, grouped(call.layout, flat), strict=True))
            ctx.samples = _samples_of(kernel, operands)
        return tuple(outputs[: len(kernel.cotangents)])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        call, saved, needed = ctx.call, ctx.saved_tensors, ctx.needs_input_grad[2:]
        kernel, count = call.kernel, len(needed)
        if all(cotangent is None for cotangent in cotangents):
            return (None,) * (count + 2)
        kept = call.unchanged(saved[count:], lambda: call.forward(saved[:count]))
        if ctx.samples is None and not call.again and are_unseen(cotangents):
            arrays = [*[saved[k] for k in call.taken], *kept, *cotangents]
            grads = call.gradient(arrays, needed)
            if grads is not None:
                return None, None, *grads
        operands = grouped(call.layout, saved[:count])
        by_name = dict(zip(kernel.operands, joined(operands), strict=True))
        arrays = [by_name[name] for name in kernel.taken]
        ctx.kernel, ctx.attributes, ctx.asked, ctx.again = (
            kernel,
            dict(call.attributes),
            call.asked,
            call.again,
        )
        if ctx.attributes.pop("rows_of", ()):  # only programs read rows
            ctx.again = True
        else:
            arrays += kept
        wrt = _wanted(kernel, call.layout, needed)
        grads = _XpgradKernel._gradients(ctx, [name in wrt for name in kernel.operands], arrays, cotangents)
        flat: list[Tensor | None] = []
        for operand, grad in zip(operands, grads, strict=True):
            flat += operand.parts(grad) if type(operand) is Stacked else (grad,)
        return None, None, *flat


_apply_planned = applied_alone(_PlannedKernel)
_apply_unwatched = applied_unwatched(_PlannedKernel)


def _samples_of(kernel: TorchKernel, operands: Mapping[str, Any]) -> KernelSamples | None:
    """Return what the backward computes for each sample, if the running module was asked for it."""
    samples = collecting.get()
    return None if samples is None else samples.of_kernel(operands)


class _XpgradGradient(torch.autograd.Function):
    """A kernel's gradient that is differentiated or mapped itself.

    Its arguments are a `TorchKernel`, the gradient's arrays, the operands to differentiate in, the
    attributes, and whether the parameters' gradients are wanted for every sample.
    """

    @staticmethod
    def forward(*args: Any) -> Any:
        kernel, *arrays, wrt, attributes, asked, per_sample = args
        return kernel.gradient(arrays, wrt, attributes | asked, per_sample)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        kernel, *arrays, wrt, attributes, asked, per_sample = inputs
        ctx.save_for_backward(*arrays)
        ctx.kernel, ctx.wrt, ctx.attributes, ctx.per_sample = kernel, wrt, attributes | asked, per_sample

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        arrays, needs = ctx.saved_tensors, ctx.needs_input_grad[1:-4]
        pullback = ctx.kernel.gradient_pullback
        grads = pullback(arrays, ctx.wrt, ctx.attributes, ctx.per_sample, needs, cotangents)
        return None, *grads, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        kernel, *arrays, wrt, attributes, asked, per_sample = args
        run, dims = _runner(kernel, wrt, asked), in_dims[1:-4]
        return vmap_gradient(kernel, run, dims, arrays, attributes, wrt, per_sample)


def _runner(kernel: TorchKernel, wrt: Sequence[str], asked: dict[str, Any]) -> Any:
    """Return what runs a gradient for its rule of vmap."""
    return lambda joined, changed, each: _XpgradGradient.apply(kernel, *joined, wrt, changed, asked, each)


def map_older_batch(
    kernel: TorchKernel,
    arrays: Sequence[Tensor | None],
    wrt: Sequence[str],
    attributes: dict[str, Any],
    asked: dict[str, Any],
) -> tuple[Tensor, ...]:
    """Map the gradient for ``torch.autograd.grad(is_grads_batched=True)``, whose vmap knows no rules."""
    level = older_vmap_level()
    mapped = [x is not None and is_of_older_vmap(x) for x in arrays]
    bare = [
        remove_older_batch(x, level) if x is not None and batched else x
        for x, batched in zip(arrays, mapped, strict=True)
    ]
    axes, run = [0 if batched else None for batched in mapped], _runner(kernel, wrt, asked)
    grads, dims = vmap_gradient(kernel, run, axes, bare, attributes, wrt, False)
    return tuple(add_older_batch(g, dim, level) for g, dim in zip(grads, dims, strict=True))


def _all_operands(kernel: TorchKernel, taken: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return the kernel's operands in their order, from those that its gradient takes."""
    by_name = dict(zip(kernel.taken, taken, strict=True))
    return [by_name.get(name) for name in kernel.operands]


def check_call(kernel: TorchKernel, operands: Sequence[Any], asked: Mapping[str, Any]) -> None:
    """Raise for operands that are no tensors, and for attributes of the gradient alone.

    The kernel's forward does not know these attributes, and the backward is late for an error.
    """
    kernel.check(operands)
    if asked.get("peephole", "full") not in ("full", "truncated"):
        raise ValueError(f"{kernel.name}: peephole is {asked['peephole']!r}, expected 'full' or 'truncated'")


def apply(
    kernel: TorchKernel,
    operands: Sequence[Tensor | None],
    attributes: Mapping[str, Any],
    *,
    again: bool = False,
    wanted_outputs: int | None = None,
    **asked: Any,
) -> tuple[Tensor, ...]:
    """Return the kernel's outputs that have a cotangent.

    Parameters
    ----------
    kernel, operands, attributes
        What to run, on what, and how.
    again : bool
        Keep no outputs for the gradient, which then runs the kernel again: less memory for more time.
    wanted_outputs : int, optional
        How many outputs the caller looks at, the first ones; all by default.
    **asked
        Attributes of the gradient alone.
    """
    followed = is_followed()
    if followed and Stacked in map(type, operands):
        operands = joined(operands)
    check_call(kernel, operands, asked)
    operands = _with_own_lengths(kernel, operands)
    outputs: Sequence[Tensor]
    if has_expanded(operands):
        return _run_expanded(kernel, operands, attributes, again, asked)[:wanted_outputs]
    try:
        if not followed and kernel.has_programs(operands):
            layout, flat = flattened(operands)
            rows = () if again or collecting.get() is not None else kernel.rows_of(operands, wanted_outputs)
            own = {**attributes, "rows_of": rows} if rows else attributes
            outputs = _apply_planned(call_of(kernel, layout, own, asked, again), None, *flat)
        elif is_recorded():
            outputs = _apart(kernel, _as_operator(kernel, operands, {**attributes, **asked}, again))
        elif is_forward_mode():
            outputs = _as_many_operators(kernel, operands, attributes, asked)
        else:
            function = _XpgradKernel if are_transforms_active() else _EagerKernel
            outputs = _apart(kernel, function.apply(kernel, *operands, attributes, asked, again))
    except Exception:
        kernel.explain(operands)
        raise
    return tuple(outputs[: len(kernel.cotangents) if wanted_outputs is None else wanted_outputs])


def _with_own_lengths(kernel: TorchKernel, operands: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Return operands with a copy of lengths, which the caller may change before the backward."""
    if LENGTHS not in kernel.operands:
        return operands
    place = kernel.operands.index(LENGTHS)
    lengths = operands[place]
    return operands if lengths is None else [*operands[:place], lengths.clone(), *operands[place + 1 :]]


def _apart(kernel: TorchKernel, outputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return copies of outputs that the gradient needs, where somebody follows who refuses writing to them.

    An exported or traced program needs none: it runs eagerly (see `_kept`).
    """
    if not torch.is_grad_enabled() or torch.compiler.is_exporting() or torch.jit.is_tracing():
        return outputs
    return [output.clone() if k in kernel.returned else output for k, output in enumerate(outputs)]


def _run_expanded(
    kernel: TorchKernel,
    operands: Sequence[Tensor | None],
    attributes: Mapping[str, Any],
    again: bool,
    asked: Mapping[str, Any],
) -> tuple[Tensor, ...]:
    """Run the kernel on operands; some of them are expanded weights."""
    names = kernel.outputs[: len(kernel.cotangents)]
    return run_expanded(
        kernel.name,
        lambda *given: apply(kernel, given, attributes, again=again, **asked),
        operands,
        [kernel.batch_axis(name, attributes) for name in kernel.operands],
        [kernel.batch_axis(name, attributes) or 0 for name in names],
    )


def _as_operator(
    kernel: TorchKernel, operands: Sequence[Tensor | None], attributes: Mapping[str, Any], again: bool
) -> Sequence[Tensor]:
    """Run the kernel as one operator, for recorders.

    ONNX has the operators, but PyTorch's exporters know only PyTorch's. They would speak of a missing symbol.
    """
    if torch.onnx.is_in_onnx_export():
        raise RuntimeError(
            f"{kernel.name}: torch.onnx.export cannot translate xpgrad's operators, expected PyTorch's; "
            "export xpgrad_torch.unswap(model), which computes the same"
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
    asked: Mapping[str, Any],
) -> Sequence[Tensor]:
    """Run the kernel step by step, as PyTorch's own operators, which have all rules."""
    for name, value in asked.items():
        default = kernel.gradient_attributes[name].default
        if value != default:
            raise ValueError(
                f"{kernel.name}: {name} is {value!r}, expected {default!r} in forward mode, which follows "
                "the function itself"
            )
    with xpgrad.use_engine("standard"):
        return kernel.forward(*operands, **attributes)


def is_recorded() -> bool:
    """Tell whether a compiler, `torch.jit.trace` or a dispatch mode records operators."""
    return bool(torch.compiler.is_compiling() or count_dispatch_modes() or torch.jit.is_tracing())


def is_followed() -> bool:
    """Tell whether a recorder, a transformation or forward mode looks at every operator."""
    return bool(is_recorded() or are_transforms_active() or is_forward_mode())
