"""Recurrent kernels on the rows of packed sequences, which are the order of the kernels' own rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from xpgrad_torch._autograd import CallTemplate, TorchKernel, apply, are_unseen, call_of, check_call
from xpgrad_torch._packing import PackedRows
from xpgrad_torch._private import applied_alone
from xpgrad_torch._stacked import flattened, grouped
from xpgrad_torch.engine import is_plain

__all__ = ["apply_packed", "are_rows_taken"]


def are_rows_taken(packing: PackedRows, tensors: Sequence[Tensor]) -> bool:
    """Tell whether kernels take the rows as they are, beside which these are the other operands."""
    return packing.knows_places and all(
        is_plain(x) and x.dtype in (torch.float32, torch.float64) and x.numel() for x in tensors
    )


class _PackedKernel(torch.autograd.Function):
    """A kernel with programs whose X and H_all are rows, in eager code outside of transformations.

    Its arguments are a `CallTemplate`, the packing, and the operands with the rows in X's place.
    """

    @staticmethod
    def forward(ctx: Any, call: CallTemplate, packing: PackedRows, *flat: Tensor | None) -> Any:
        outputs = _outputs(call, packing, flat)
        ctx.save_for_backward(*flat, *call.kept(outputs, ctx.needs_input_grad))
        ctx.set_materialize_grads(False)
        ctx.call, ctx.packing = call, packing
        return tuple(outputs[: len(call.kernel.cotangents)])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        call, saved, needed = ctx.call, ctx.saved_tensors, ctx.needs_input_grad[2:]
        if all(cotangent is None for cotangent in cotangents):
            return (None,) * (len(needed) + 2)
        operands = saved[: len(needed)]
        kept = call.unchanged(saved[len(needed) :], lambda: _outputs(call, ctx.packing, operands))
        grads = None
        if are_unseen(cotangents) and all(c is None or is_plain(c) for c in cotangents):
            grads = _gradients(call, ctx.packing, operands, kept, cotangents, needed)
        if grads is None:
            grads = _followed_gradients(call, ctx.packing, operands, cotangents, needed)
        return None, None, *grads


_apply = applied_alone(_PackedKernel)


def _spread(packing: PackedRows, rows: Tensor | None) -> Tensor | None:
    return None if rows is None else packing.spread(rows)


def _outputs(call: CallTemplate, packing: PackedRows, flat: Sequence[Tensor | None]) -> list[Tensor]:
    """Return the kernel's outputs, of which H_all holds rows."""
    X, *others = flat
    H_all, *more = call.forward([_spread(packing, X), *others])
    return [packing.gathered(H_all), *more]


def _gradients(
    call: CallTemplate,
    packing: PackedRows,
    operands: Sequence[Tensor | None],
    kept: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    needed: tuple[bool, ...],
) -> list[Tensor | None] | None:
    """Return the gradients by the kernel's own; None where it does not have them all."""
    arrays = [*[operands[k] for k in call.taken], *kept, *cotangents]
    H_all = len(call.taken) + call.kernel.saved.index("H_all")
    for k in (0, H_all, len(call.taken) + len(kept)):  # X, H_all and its cotangent
        arrays[k] = _spread(packing, arrays[k])
    grads = call.gradient(arrays, needed)
    if grads is not None and grads[0] is not None:
        grads[0] = packing.gathered(grads[0])
    return grads


def _followed_gradients(
    call: CallTemplate,
    packing: PackedRows,
    operands: Sequence[Tensor | None],
    cotangents: Sequence[Tensor | None],
    needed: tuple[bool, ...],
) -> list[Tensor | None]:
    """Return the same where somebody follows: by the kernel over time and batch, which runs again."""
    is_followed = torch.is_grad_enabled()
    attributes = {name: x for name, x in call.attributes.items() if name not in ("packed", "rows_of")}
    with torch.enable_grad():
        own = [None if x is None else x.view_as(x) for x in operands]
        wanted = [x.requires_grad_() for x, need in zip(own, needed, strict=True) if need and x is not None]
        given = grouped(call.layout, own)
        given[0] = packing.padded(given[0])
        H_all, *others = apply(call.kernel, given, attributes, again=True, **call.asked)
        outputs = [packing.rows(H_all.transpose(1, 2).flatten(2)), *others]
        pairs = [pair for pair in zip(outputs, cotangents, strict=True) if pair[1] is not None]
        found = torch.autograd.grad(
            [output for output, _ in pairs], wanted, [cotangent for _, cotangent in pairs],
            create_graph=is_followed, allow_unused=True,
        )  # fmt: skip
    each = iter(found)
    return [next(each) if need else None for need in needed]


def apply_packed(
    kernel: TorchKernel,
    operands: Sequence[Any],
    attributes: Mapping[str, Any],
    packing: PackedRows,
    wanted_outputs: int,
    **asked: Any,
) -> tuple[Tensor, ...]:
    """Return the outputs that a caller looks at, of which H_all holds rows, for operands with X's rows.

    For the rest see `apply`.
    """
    check_call(kernel, operands, asked)
    layout, flat = flattened(operands)
    own = {**attributes, "rows_of": kernel.rows_of(operands, wanted_outputs), "packed": True}
    outputs = _apply(call_of(kernel, layout, own, asked, False), packing, *flat)
    return tuple(outputs[:wanted_outputs])
