"""The declared recurrent operators as kernels by name, and their calls."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from xpgrad._operators.kernel_description import ORDERED
from xpgrad._operators.units import UNITS
from xpgrad_torch._autograd import TorchKernel, apply, apply_packed
from xpgrad_torch._lengths import lengths_tensor, with_resets
from xpgrad_torch._library import registered
from xpgrad_torch._memory import apply_sequence
from xpgrad_torch._packing import PackedRows
from xpgrad_torch._programs import Head

KERNELS = {
    name: registered(TorchKernel(name, planned=True, ordered=unit.name in ORDERED))
    for unit in UNITS.values()
    for name in unit.kernels
}


def run_recurrent(
    name: str, given: dict[str, Any], wanted_outputs: int | None = None, head: Head = None
) -> Any:
    """Return the results of the kernel for arguments by name, which it removes from `given`.

    Operands are tensors, `Stacked` or None. For `wanted_outputs` and `head` see `apply`.
    """
    kernel = KERNELS[name]
    if (lengths := given.get("sequence_lens")) is not None:
        given["sequence_lens"] = lengths_tensor(name, "sequence_lens", lengths)
    if (reset := given.pop("reset", None)) is not None:
        layout = given.get("layout", 0)
        given["sequence_lens"] = with_resets(name, given["X"], given["sequence_lens"], reset, layout)
    for mask in kernel.masks:
        if isinstance(x := given.get(mask), Tensor) and x.requires_grad:
            raise ValueError(f"{name}: {mask} requires a gradient, expected a mask, which has none")
    operands, grad_only = _taken_out(kernel, given)
    options: dict[str, Any] = {"wanted_outputs": wanted_outputs, "head": head, **grad_only}
    if "save" in given:
        return apply_sequence(kernel, operands, given, given.pop("save"), **options)
    return apply(kernel, operands, given, **options)


def run_packed(
    name: str, given: dict[str, Any], packing: PackedRows, wanted_outputs: int
) -> Sequence[Tensor]:
    """Return the results for rows of a packed sequence in X's place; H_all has rows too."""
    kernel = KERNELS[name]
    operands, grad_only = _taken_out(kernel, given)
    attributes = {name: value for name, value in given.items() if name != "save"}
    return apply_packed(kernel, operands, attributes, packing, wanted_outputs, **grad_only)


def _taken_out(kernel: TorchKernel, given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Remove the operands, in the kernel's order, and the gradient's own attributes, and return them."""
    operands = [given.pop(operand, None) for operand in kernel.operands]
    own = kernel.gradient_attributes
    return operands, {name: given.pop(name, parameter.default) for name, parameter in own.items()}
