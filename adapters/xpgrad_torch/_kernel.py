"""What PyTorch has to know of a kernel of xpgrad and of its gradient: one description for all of its uses."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import xpgrad
from xpgrad._recurrent import run_foreign
from xpgrad_torch._library import register

_GATE_ORDER = inspect.Parameter(
    "gate_order", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="Sequence[int] | None"
)


_FOREIGN = {"gate_order", "keep_products", "products"}


def _run(name: str, *operands: Any, **keywords: Any) -> Any:
    function = getattr(xpgrad, name)
    if _FOREIGN.isdisjoint(keywords):
        return function(*operands, **keywords)
    return run_foreign(function, *operands, **keywords)


class Kernel:
    """A kernel and its gradient, as autograd, `torch.func` and `torch.library` see them.

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
    shapes : mapping of str to str, optional
        The axes of operands and outputs by name, such as ``"T D N 4H"``; N is the batch, and ``"N ..."``
        leaves open what follows it. Arrays without N are parameters, of whose gradient the kernel has a
        ``per_sample`` form. Without shapes, `torch.func.vmap` goes through the kernel's own operators.
    ordered : bool
        Whether the gates of weights may stand in another order than ONNX's, by one more attribute.
    products : bool
        Whether the kernel can keep its products for the gradient, as one more output.
    """

    def __init__(
        self,
        name: str,
        outputs: tuple[str, ...],
        cotangents: tuple[str, ...],
        saved: tuple[str, ...] = (),
        *,
        shapes: Mapping[str, str] | None = None,
        ordered: bool = False,
        products: bool = False,
    ) -> None:
        parameters = [*inspect.signature(getattr(xpgrad, name)).parameters.values()]
        parameters += [_GATE_ORDER] if ordered else []
        operands = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self.name = name
        self.operands = tuple(p.name for p in operands)
        self.required = {p.name for p in operands if p.default is p.empty}
        # Memory for the result is autograd's to choose.
        self.attributes = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "out"]
        # What has a gradient, in the order in which the gradient returns them.
        self.differentiable = tuple(name for name in self.operands if name != "sequence_lens")
        # What the gradient depends on: not a bias that was only added.
        taken = inspect.signature(getattr(xpgrad, f"{name}_grad")).parameters
        self.taken = tuple(name for name in self.operands if name in taken)
        self._keeps_products = products
        more = ("products",) if products else ()
        self.outputs, self.cotangents, self.saved = (*outputs, *more), cotangents, (*saved, *more)
        # The arrays that the gradient takes, and the attributes that it has on top.
        self.gradient_arrays = (*self.taken, *self.saved, *cotangents)
        known = {*self.gradient_arrays, *(p.name for p in self.attributes), "per_sample", "wrt", "out"}
        self.gradient_attributes = [p for p in taken.values() if p.name not in known]
        self.shapes = None if shapes is None else dict(shapes) | self._cotangent_shapes(shapes)
        self.operator, self.gradient_operator = register(self)

    def _cotangent_shapes(self, shapes: Mapping[str, str]) -> dict[str, str]:
        return {c: shapes[y] for c, y in zip(self.cotangents, self.outputs, strict=False)}

    def __repr__(self) -> str:
        return f"Kernel({self.name!r})"

    # --- running

    def forward(self, *operands: Any, **attributes: Any) -> tuple[Tensor, ...]:
        """Run the kernel."""
        if self._keeps_products:
            attributes["keep_products"] = True
        outputs = _run(self.name, *operands, **attributes)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def saved_of(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Return those of the kernel's outputs that the gradient takes."""
        by_name = dict(zip(self.outputs, outputs, strict=True))
        return [by_name[name] for name in self.saved]

    def gradient(
        self,
        arrays: Sequence[Tensor | None],
        wrt: Sequence[str],
        attributes: Mapping[str, Any],
        per_sample: bool = False,
    ) -> tuple[Tensor, ...]:
        """Run the gradient on its arrays, and return what is asked for in the order of `wrt`."""
        more = {"per_sample": True} if per_sample else {}
        named = dict(zip(self.gradient_arrays, arrays, strict=True))
        grads = _run(f"{self.name}_grad", **named, **attributes, **more, wrt=tuple(wrt))
        by_name = dict(zip(self.differentiable, grads, strict=True))
        return tuple(by_name[name] for name in wrt)

    def gradient_pullback(
        self,
        arrays: Sequence[Tensor | None],
        wrt: Sequence[str],
        attributes: Mapping[str, Any],
        per_sample: bool,
        needs: Sequence[bool],
        cotangents: Sequence[Tensor],
    ) -> list[Tensor | None]:
        """Return the gradients of `gradient` in those of its arrays that need one.

        The saved arrays are taken for what they are, functions of the operands: they have no gradient of
        their own. Everything is made anew on the standard engine, which consists of differentiable operators.
        """
        begin = len(self.taken)
        end = begin + len(self.saved)
        free = [k for k, need in enumerate(needs) if need and not begin <= k < end]
        if not free:
            return [None] * len(arrays)
        ours = {p.name for p in self.attributes}
        forward_attributes = {name: value for name, value in attributes.items() if name in ours}

        def again(*values: Tensor) -> tuple[Tensor, ...]:
            mixed = list(arrays)
            for k, value in zip(free, values, strict=True):
                mixed[k] = value
            with xpgrad.use_engine("standard"):
                if self.saved:
                    operands = dict(zip(self.taken, mixed[:begin], strict=True))
                    mixed[begin:end] = self.saved_of(self.forward(**operands, **forward_attributes))
                return self.gradient(mixed, wrt, attributes, per_sample)

        pullback = torch.func.vjp(again, *(arrays[k] for k in free))[1]
        grads = dict(zip(free, pullback(tuple(cotangents)), strict=True))
        return [grads.get(k) for k in range(len(arrays))]

    # --- checking and describing

    def check(self, operands: Sequence[Any]) -> None:
        """Raise TypeError for an operand that is no tensor."""
        for name, operand in zip(self.operands, operands, strict=True):
            if not isinstance(operand, Tensor) and (operand is not None or name in self.required):
                raise TypeError(f"{self.name}: {name} is {type(operand).__name__}, expected torch.Tensor")

    def axes(self, name: str, attributes: Mapping[str, Any]) -> list[str]:
        """Return the axes of an operand or output as the attributes lay them out."""
        axes = (self.shapes or {})[name].split()
        if attributes.get("layout") and "N" in axes:
            axes.remove("N")
            axes.insert(0, "N")
        return axes

    def batch_axis(self, name: str, attributes: Mapping[str, Any]) -> int | None:
        """Return which axis of an operand or output is the batch; None for a parameter."""
        axes = self.axes(name, attributes)
        return axes.index("N") if "N" in axes else None
