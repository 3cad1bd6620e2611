"""A kernel and its gradient for PyTorch: their description, and how they run."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import xpgrad
from xpgrad._operators.for_adapters import run_foreign
from xpgrad._operators.kernel_description import KernelDescription
from xpgrad_torch._autocast import without_autocast
from xpgrad_torch._kept import without_views
from xpgrad_torch._layout import empty_images, is_channels_last, to_channels_last
from xpgrad_torch._lengths import LENGTHS
from xpgrad_torch._private import without_saved_hooks
from xpgrad_torch._profiling import shown
from xpgrad_torch._programs import PlannedFunction, find, head_of
from xpgrad_torch._stacked import Stacked, flattened

__all__ = ["TorchKernel", "check_dense", "check_flag", "is_single", "type_of"]

_OPERANDS = (Tensor, Stacked)


def _pulled_back(
    function: Callable[..., Any], arrays: Sequence[Tensor | None], cotangents: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """Return the gradients of a function of PyTorch's own operators."""
    with without_saved_hooks():
        return torch.func.vjp(function, *arrays)[1](tuple(cotangents))


def check_dense(operator: str, name: str, tensor: Tensor) -> None:
    """Raise TypeError for a tensor that is nested or has no strides."""
    if tensor.is_nested or tensor.layout is not torch.strided:
        kind = "a nested tensor" if tensor.is_nested else f"a tensor of layout {tensor.layout}"
        raise TypeError(f"{operator}: {name} is {kind}, expected a dense one of layout torch.strided")


def check_flag(operator: str, name: str, value: Any) -> None:
    """Raise TypeError unless the value is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{operator}: {name} is {value!r}, expected True or False")


def is_single(operator: str, input: Any, axes: int, expected: str = "torch.Tensor") -> bool:  # noqa: A002
    """Tell whether an input is one sequence, with `axes` axes, and not a batch, with one axis more."""
    if not isinstance(input, Tensor):
        raise TypeError(f"{operator}: input is {type_of(input)}, expected {expected}")
    check_dense(operator, "input", input)
    dims = input.dim()
    if dims not in (axes, axes + 1):
        raise ValueError(
            f"{operator}: input has {dims} dimensions, expected {axes} (one sequence) or {axes + 1} "
            "(a batch of them)"
        )
    return dims == axes


def type_of(value: Any) -> str:
    """Return a class's name or a value's type for messages; for a tuple or list with its length."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__


class TorchKernel(KernelDescription):
    """A kernel and its gradient, as autograd, `torch.func` and `torch.library` see them.

    With `planned`, later calls of a known form run from a program. With `images`, X, W and Y are images or
    their weights, whose channels may be last in memory. `operator` is the name among PyTorch's operators, by
    default the kernel's; a kernel can have two descriptions. The rest is `KernelDescription`'s.

    `operator` and `gradient_operator` are PyTorch's operators, from `_library.registered`. `returned` are the
    places of saved outputs that the caller gets and may write to: the kernel can run again for them.
    """

    def __init__(
        self,
        name: str,
        *,
        planned: bool = False,
        images: bool = False,
        operator: str | None = None,
        **described: Any,
    ) -> None:
        super().__init__(name, **described)
        self._images, self.operator_name = images, operator or name
        # An elementwise result has its operand's strides; a result along an axis is contiguous.
        self._keeps_strides = self.elementwise and "axis" not in self.attributes
        self.planned: list[PlannedFunction] = []  # the kernel and its gradient, if they have programs
        if planned:
            sides = (self.operands, (None,) * len(self.outputs)), (self.arguments, self.graded)
            self.planned = [
                PlannedFunction(functools.partial(self.function, k), *side, self.has_programs)
                for k, side in enumerate(sides)
            ]
        own = range(len(self.cotangents)) if {*self.operands} <= {*self.taken} else ()
        self.returned = frozenset(k for k in own if self.outputs[k] in self.saved)
        self._may_keep_rows = "gate_order" in self.attributes and LENGTHS in self.operands
        self.operator: Any = None
        self.gradient_operator: Any = None

    def __repr__(self) -> str:
        return f"TorchKernel({self.name!r})"

    # --- running

    def forward(self, *operands: Any, **attributes: Any) -> tuple[Tensor, ...]:
        """Run the kernel in the dtype of its operands: a caller under autocast has converted them."""
        if self.has_programs(operands):
            options = self.forward_options(attributes)
            return without_views(self._run_planned(0, operands, options))
        named = dict(zip(self.operands, operands, strict=True))
        with without_autocast(operands[0]), shown(self.name):
            outputs = self.function(0)(**named, **attributes)
            if self._has_channels_last(named):
                outputs = to_channels_last(outputs)
        return without_views(outputs if isinstance(outputs, tuple) else (outputs,))

    def has_programs(self, arrays: Sequence[Any]) -> bool:
        """Tell whether calls on these arrays run from programs, whose results are contiguous."""
        if self._images and any(map(is_channels_last, arrays[:2])):  # X and W
            return False
        return bool(self.planned)

    def _run_planned(self, which: int, arrays: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
        """Run the kernel (0) or its gradient (1), from a program if the call has one."""
        layout, given = flattened(arrays)
        head, function = head_of((self, which, layout, *options), (*options.values(),)), self.planned[which]
        others, lengths = function.apart(given, layout, options)
        ready = find(head, others, lengths)
        return function.run_anew(head, given, layout, options, lengths) if ready is None else ready.run()

    def forward_options(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the kernel's arguments without operands, for these attributes."""
        return {**attributes, "keep_products": True} if self.keeps_products else dict(attributes)

    def rows_of(self, operands: Sequence[Any], wanted_outputs: int | None) -> tuple[str, ...]:
        """Return the names of saved outputs that may be rows of the time loop; see `run_foreign`.

        With lengths, these are the saved outputs after the `wanted_outputs` that the caller reads, by default
        all with a cotangent.
        """
        if not self._may_keep_rows or operands[self.operands.index(LENGTHS)] is None:
            return ()
        unseen = self.outputs[len(self.cotangents) if wanted_outputs is None else wanted_outputs :]
        return tuple(name for name in self.saved if name in unseen)

    def gradient(
        self,
        arrays: Sequence[Tensor | None],
        wrt: Sequence[str],
        attributes: Mapping[str, Any],
        per_sample: bool | str = False,
    ) -> tuple[Tensor, ...]:
        """Run the gradient on its arrays, and return the gradients of `wrt` in this order."""
        own = tuple(name for name in wrt if name in self.graded)
        grads: dict[str, Tensor] = {}
        # a backward may run under autocast too
        with without_autocast(next(array for array in arrays if array is not None)):
            if own:
                options = self.gradient_options(own, attributes, per_sample)
                if self.has_programs(arrays):
                    grads |= self.by_operand(self._run_planned(1, arrays, options))
                else:
                    named: dict[str, Any] = dict(zip(self.arguments, arrays, strict=True))
                    with shown(self.gradient_name):
                        grads |= self.by_operand(run_foreign(self.function(1), **named, **options))
                    if not per_sample and self._has_channels_last(named):
                        grads |= {name: to_channels_last(grads[name]) for name in own if name != "B"}
            if len(own) < len(wrt):
                others = [name for name in wrt if name not in own]
                grads |= self.composed_gradient(arrays, others, attributes)
        return tuple(grads[name] for name in wrt)

    def composed_gradient(
        self, arrays: Sequence[Tensor | None], wrt: Sequence[str], attributes: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """Return gradients of a loss's targets, which the kernel lacks, by PyTorch's own operators."""
        named = dict(zip(self.gradient_arrays, arrays, strict=True))
        operands = {name: named[name] for name in self.operands}

        def again(*values: Tensor) -> tuple[Tensor, ...]:
            with xpgrad.use_engine("standard"):
                given = operands | dict(zip(wrt, values, strict=True))
                return self.forward(*given.values(), **attributes)

        cotangents = [named[name] for name in self.cotangents]
        grads = _pulled_back(again, [operands[name] for name in wrt], cotangents)
        return dict(zip(wrt, grads, strict=True))

    def gradient_pullback(
        self,
        arrays: Sequence[Tensor | None],
        wrt: Sequence[str],
        attributes: Mapping[str, Any],
        per_sample: bool,
        needs: Sequence[bool],
        cotangents: Sequence[Tensor],
    ) -> list[Tensor | None]:
        """Return the gradients of `gradient` in its arrays that need a gradient.

        Saved outputs are functions of the operands and have no gradient of their own. The standard engine,
        whose operators are differentiable, computes them again.
        """
        begin = len(self.taken)
        end = begin + (len(self.saved) if self.taken else 0)
        free = [k for k, need in enumerate(needs) if need and not begin <= k < end]
        if not free:
            return [None] * len(arrays)

        def again(*values: Tensor) -> tuple[Tensor, ...]:
            mixed = list(arrays)
            for k, value in zip(free, values, strict=True):
                mixed[k] = value
            with xpgrad.use_engine("standard"):
                if begin < end:
                    operands = self.operands_of(mixed[:begin])
                    mixed[begin:end] = self.saved_of(self.forward(*operands, **self.own(attributes)))
                return self.gradient(mixed, wrt, attributes, per_sample)

        pulled = _pulled_back(again, [arrays[k] for k in free], cotangents)
        grads = dict(zip(free, pulled, strict=True))
        return [grads.get(k) for k in range(len(arrays))]

    def operands_of(self, taken: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the kernel's operands in order, None for those that its gradient does not take."""
        by_name = dict(zip(self.taken, taken, strict=True))
        return [by_name.get(name) for name in self.operands]

    # --- the layout of results in memory

    def _has_channels_last(self, arrays: Mapping[str, Any]) -> bool:
        """Tell whether the results have their channels last, as for PyTorch's convolutions."""
        return self._images and (is_channels_last(arrays["X"]) or is_channels_last(arrays["W"]))

    def empty_output(
        self, shape: Sequence[int], operands: Mapping[str, Any], attributes: Mapping[str, Any]
    ) -> Tensor:
        """Return memory for an output, in the layout that compilers expect."""
        X = operands[self.operands[0]]
        if self._keeps_strides and not self.reduces(attributes):
            return torch.empty_like(X)
        return self._empty(shape, X, operands)

    def empty_gradient(
        self, name: str, shape: Sequence[int], arrays: Mapping[str, Any], per_sample: bool
    ) -> Tensor:
        """Return memory for the gradient of an operand, in the layout that compilers expect."""
        like = arrays[self.gradient_arrays[0]]
        if self._keeps_strides and name == self.operands[0]:
            cotangent = arrays[self.cotangents[0]]
            return torch.empty_like(cotangent if cotangent.shape == like.shape else like)
        if per_sample or name == "B":
            return like.new_empty(tuple(shape))
        return self._empty(shape, like, arrays)

    def _empty(self, shape: Sequence[int], like: Tensor, arrays: Mapping[str, Any]) -> Tensor:
        if self._has_channels_last(arrays):
            return empty_images(shape, like)
        return like.new_empty(tuple(shape))

    # --- checking and describing

    def check(self, operands: Sequence[Any]) -> None:
        """Raise TypeError for an operand that is no tensor."""
        for name, operand in zip(self.operands, operands, strict=True):
            if not isinstance(operand, _OPERANDS) and (operand is not None or name in self.required):
                raise TypeError(f"{self.name}: {name} is {type(operand).__name__}, expected torch.Tensor")

    def explain(self, operands: Sequence[Any]) -> None:
        """Raise TypeError, after an error, if an operand is sparse or nested, which no kernel takes."""
        for name, operand in zip(self.operands, operands, strict=True):
            for tensor in getattr(operand, "parameters", (operand,)):
                if isinstance(tensor, Tensor):
                    check_dense(self.name, name, tensor)
