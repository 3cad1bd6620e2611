"""The base of recurrent modules: options, parameters and calls of the kernel; and the single step.

`Recurrent._known` finds a call like an earlier one (`_programs.py`), and runs its program. `_run_kernel` runs
all other calls: by `run_recurrent`, as the functions do, and `apply` (`_autograd.py`).
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

import xpgrad
from xpgrad._operators.kernel_description import ORDERED
from xpgrad._operators.units import UNITS
from xpgrad.engine.process.remembered import remembered
from xpgrad_torch._autocast import autocasts, lowered
from xpgrad_torch._autograd import TorchKernel, apply, apply_packed, call_again, is_followed
from xpgrad_torch._expanded import has_expanded, run_expanded
from xpgrad_torch._fx import Proxy, Unscripted, as_node
from xpgrad_torch._kernel import is_single, type_of
from xpgrad_torch._lengths import LENGTHS, lengths_in_memory, lengths_tensor, name_lengths, with_resets
from xpgrad_torch._library import registered
from xpgrad_torch._memory import apply_in_segments, check_save
from xpgrad_torch._opacus import Sampled, hold, holder
from xpgrad_torch._overrides import are_replaceable, as_plain, handed_over
from xpgrad_torch._packing import PackedRows
from xpgrad_torch._private import base_of, parameters_of, set_versions, version_of
from xpgrad_torch._programs import Head, find, head_of
from xpgrad_torch._stacked import flattened, joined, stacked

KERNELS = {
    name: registered(TorchKernel(name, planned=True, ordered=unit.name in ORDERED))
    for unit in UNITS.values()
    for name in unit.kernels
}
"""The declared recurrent operators by name."""


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
    if are_replaceable(operands):
        rest = {**given, **grad_only}

        def again(*operands: Any) -> Any:
            named = dict(zip(kernel.operands, operands, strict=True))
            return run_recurrent(name, {**named, **rest}, wanted_outputs, head)

        return handed_over(name, again, operands)
    save = given.pop("save", "all")
    check_save(name, save)
    if not isinstance(save, str):
        return apply_in_segments(kernel, operands, given, save, grad_only)[:wanted_outputs]
    options: dict[str, Any] = {"wanted_outputs": wanted_outputs, "head": head, **grad_only}
    return apply(kernel, operands, given, again=save == "states", **options)


def run_packed(
    name: str, given: dict[str, Any], packing: PackedRows, wanted_outputs: int
) -> Sequence[Tensor]:
    """Return the results for rows of a packed sequence in X's place; H_all has rows too."""
    kernel = KERNELS[name]
    operands, grad_only = _taken_out(kernel, given)
    attributes = {name: value for name, value in given.items() if name != "save"}
    return apply_packed(kernel, operands, attributes, packing, wanted_outputs, **grad_only)


def turned(result: Tensor, change: str, *axes: int) -> Tensor:
    """Return a kernel's result with other axes, as no view.

    A view loses its hooks, also FSDP's, if somebody writes to it, and in a block without gradients PyTorch
    forbids such a write. The change keeps the result's version: it is no write of the caller's (`_kept`).
    """
    if is_followed() or base_of(result) is not result:
        return getattr(result, change)(*axes)
    version = version_of(result)
    getattr(result, f"{change}_")(*axes)
    if version is not None:
        set_versions((result,), (version,))
    return result


def over_time(sequence: Tensor) -> Tensor:
    """Return a kernel's sequence (T, D, N, width) as PyTorch's (T, N, D·width), as no view."""
    if sequence.shape[1] == 1:
        return turned(sequence, "squeeze", 1)
    joined = sequence.transpose(1, 2).flatten(2)
    return joined if is_followed() or base_of(joined) is joined else joined.clone()


def _taken_out(kernel: TorchKernel, given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Remove the operands, in the kernel's order, and the gradient's own attributes, and return them."""
    operands = [given.pop(operand, None) for operand in kernel.operands]
    own = kernel.gradient_attributes
    return operands, {name: given.pop(name, parameter.default) for name, parameter in own.items()}


States = tuple[Tensor, ...]
_State = TypeVar("_State")

_UNBIASED = {"W": ("weight_ih",), "R": ("weight_hh",)}
_DRAWN = ("zoneout", "recurrent_dropout", "return_cell_states")
_BIASED = {**_UNBIASED, "B": ("bias_ih", "bias_hh")}
_OF_PARAMETERS = frozenset({*_BIASED, "P", "S"})


@remembered
def _ordered_names(
    order: tuple[str, ...], parts: tuple[tuple[str, tuple[str, ...]], ...], suffixes: tuple[str, ...]
) -> tuple[tuple[str, ...], int]:
    """Return a layer's parameters' names in the kernel's order, and how many precede states and lengths.

    `order` names the operands, and `parts` the parameters of some of them, without suffixes.
    """
    named = {operand: [name + end for end in suffixes for name in names] for operand, names in parts}
    names: list[str] = []
    place = 0
    for operand in order:
        names += named.get(operand, ())
        if operand not in _OF_PARAMETERS:
            place = len(names)
    return tuple(names), place


class Read(NamedTuple):
    """A layer's parameters as one call has read them: a parametrization computes a parameter at each reading.

    The first `place` precede states and lengths in the kernel's order.
    """

    names: tuple[str, ...]
    tensors: Sequence[Tensor]
    place: int


class Recurrent(Unscripted, Sampled, nn.Module):
    """A recurrent module on one of xpgrad's kernels, with the kernel's attributes as options.

    `_OPTIONS` names the options. The defaults, in class attributes, make the module equal to PyTorch's;
    a module from `swap` has no other values.
    """

    _KERNEL: ClassVar[str]  # the name in xpgrad and in functional
    _NAME: ClassVar[str]  # for messages
    _GATE_ORDER: ClassVar[tuple[int, ...]]  # for each of ONNX's gates, its place among PyTorch's
    _STATES: ClassVar[tuple[str, ...]]  # the names of the states: one is a tensor, two are a tuple
    _STATE_OPERANDS: ClassVar[tuple[str, ...]] = ()  # the kernel's names for an LSTM's states
    _ORDER: ClassVar[tuple[str, ...]]  # the kernel's operands, without X and masks
    _LOWERED: ClassVar[bool] = False  # whether PyTorch's results have autocast's dtype on a CPU too
    _OPTIONS: ClassVar[tuple[str, ...]] = ("activations", "activation_alpha", "activation_beta")
    _MORE_OPTIONS: ClassVar[tuple[str, ...]] = ()  # PyTorch's options that set attributes of the kernel
    _read_options: ClassVar[Callable[[Any], tuple[Any, ...]]]  # reads the options without `_DRAWN`

    bias: bool
    hidden_size: int
    input_size: int
    clip: float | None = None
    # Private: other libraries keep a layer's inputs in an attribute `activations` of the module.
    _activations: list[str] | None = None
    _activation_alpha: list[float] | None = None
    _activation_beta: list[float] | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        more = [name for base in cls.__mro__ for name in vars(base).get("_MORE_OPTIONS", ())]
        names = [holder(name) for name in cls._OPTIONS if name not in _DRAWN]
        known = _OF_PARAMETERS | {LENGTHS, *cls._STATE_OPERANDS}
        operands = KERNELS[cls._KERNEL].operands if hasattr(cls, "_KERNEL") else ()
        cls._ORDER = tuple([name for name in operands if name in known])
        cls._read_options = attrgetter("input_size", "hidden_size", "bias", *more, *names)

    def extra_repr(self) -> str:
        """Return the constructor's arguments that are not the defaults."""
        extras = [f"{name}={value!r}" for name, value in self._own_options().items()]
        return ", ".join([super().extra_repr(), *extras])

    def _own_options(self) -> dict[str, Any]:
        """Return the options that differ from the defaults."""
        options = {}
        for name in self._OPTIONS:
            value = getattr(self, holder(name))
            if value != getattr(type(self), holder(name)):
                options[name] = value
        return options

    def _set_options(self, given: Mapping[str, Any]) -> None:
        """Keep a constructor's options, and raise the kernel's errors for them now."""
        hold(self, {name: given[name] for name in self._OPTIONS})
        if self._own_options():
            with xpgrad.use_engine("standard"):
                getattr(xpgrad, self._KERNEL)(*self._smallest_operands(), **self._attributes())

    @abstractmethod
    def _directions(self) -> int:
        """Return the number of directions; 0 for a single step, whose operands have no such axis."""

    @abstractmethod
    def _suffixes(self) -> list[str]:
        """Return the endings of the parameters' names, one for each layer and direction."""

    def _operand_parts(self) -> Mapping[str, tuple[str, ...]]:
        """Return the names of the parameters of each ONNX operand, without a suffix."""
        return _BIASED if self.bias else _UNBIASED

    def _read(self, suffixes: Sequence[str], head: Head = None) -> Read:
        """Read the parameters with these suffixes; in the kernel's order for calls with a head."""
        parts = self._operand_parts()
        if head is None:  # also while PyTorch compiles: it cannot read the table of orders
            names = tuple([name + end for own in parts.values() for end in suffixes for name in own])
            return Read(names, parameters_of(self, names), 0)
        names, place = _ordered_names(self._ORDER, tuple(parts.items()), tuple(suffixes))
        return Read(names, parameters_of(self, names), place)

    def _weights(self, suffixes: Sequence[str], read: Read) -> dict[str, Any]:
        """Return the parameters with these suffixes by ONNX's names, and stacked as ONNX stacks them."""
        directions, found = self._directions(), dict(zip(read.names, read.tensors, strict=True))
        return {
            operand: stacked([found[p + end] for end in suffixes for p in parts], directions)
            for operand, parts in self._operand_parts().items()
        }

    def _kernel_parameters(self) -> list[nn.Parameter]:
        suffixes = self._suffixes()
        return flattened(self._weights(suffixes, self._read(suffixes)).values())[1]  # type: ignore[return-value]

    @abstractmethod
    def _smallest_operands(self) -> list[np.ndarray]:
        """Return operands of size 1 that the kernel takes."""

    def _attributes(self) -> dict[str, Any]:
        """Return the kernel's attributes."""
        return {
            "activations": self._activations,
            "activation_alpha": self._activation_alpha,
            "activation_beta": self._activation_beta,
            "clip": self.clip,
        }

    def _gradient_attributes(self) -> dict[str, Any]:
        """Return the attributes that only the gradient has."""
        return {}

    def _options(self) -> dict[str, Any]:
        """Return the attributes of the kernel and of its gradient."""
        return {**self._attributes(), **self._gradient_attributes(), "gate_order": self._GATE_ORDER}

    def _run_kernel(
        self, operands: Mapping[str, Any], wanted_outputs: int | None = None, head: Head = None
    ) -> States:
        """Return the kernel's outputs for operands by ONNX's names."""
        if has_expanded(flattened(operands.values())[1]):
            outputs = wanted_outputs or len(self._STATES)
            return run_expanded(
                self._NAME, KERNELS[self._KERNEL], operands, self._attributes(), outputs,
                lambda given: self._run_kernel(given, wanted_outputs),
            )  # fmt: skip
        if autocasts(operands["X"]):
            operands = self._autocast(dict(zip(operands, joined(operands.values()), strict=True)))
        try:
            return run_recurrent(self._KERNEL, {**operands, **self._options()}, wanted_outputs, head)
        except (TypeError, ValueError) as error:
            name_lengths(error, self._NAME)
            raise

    def _is_plain(self) -> bool:
        """Tell whether a call depends only on its tensors and on the options in its key."""
        return True

    def _head(self, has_states: bool, has_lengths: bool) -> Head:
        """Return the head of the keys of such calls; None if each call needs its checks.

        With lengths, even full ones, a call saves its arrays in another layout for the gradient.
        """
        if is_followed() or torch.is_autocast_enabled("cpu") or not self._is_plain():
            return None
        return head_of((type(self), has_states, has_lengths), type(self)._read_options(self))

    def _known(
        self,
        head: Head,
        read: Read,
        X: Tensor,
        states: Sequence[Tensor],
        lengths: Tensor | None = None,
    ) -> Sequence[Tensor] | None:
        """Return the kernel's results for a known call; None for a new one.

        The caller may change `lengths` before the backward.
        """
        if head is None or are_replaceable((*states, *read.tensors)):
            return None
        parameters, (X, *states) = as_plain(read.tensors), as_plain((X, *states))
        given = states if lengths is None else (lengths, *states)
        flat = [X, *parameters[: read.place], *given, *parameters[read.place :]]
        if lengths is None:
            ready = find(head, flat)
            return None if ready is None else call_again(ready, flat)
        ready = find(head, [x for x in flat if x is not lengths], lengths_in_memory(X, lengths, {}))
        if ready is None:
            return None
        return call_again(ready, [x.clone() if x is lengths else x for x in flat])

    def _autocast(self, operands: Mapping[str, Any]) -> dict[str, Any]:
        """Convert under autocast to the dtype of PyTorch's results: the states' or autocast's dtype."""
        device = operands["X"].device.type
        lowers = self._LOWERED or device != "cpu"
        dtype = [operands[name].dtype for name in ("X", *self._STATE_OPERANDS) if name in operands][-1]
        return {
            name: x if x is None or name == LENGTHS else lowered(x, device) if lowers else x.to(dtype)
            for name, x in operands.items()
        }

    def _check_input(self, X: Tensor, read: Read | None = None) -> None:
        """Raise unless the input has the width and the dtype of the first layer's weight."""
        name = "weight_ih" + self._suffixes()[0]
        (weight,) = parameters_of(self, [name]) if read is None else [read.tensors[read.names.index(name)]]
        if X.shape[-1] != self.input_size:
            raise RuntimeError(
                f"{self._NAME}: input.size(-1) is {X.shape[-1]}, expected input_size = {self.input_size}"
            )
        if X.dtype != weight.dtype and not autocasts(X):
            other = f" or model.to({X.dtype})" if X.is_floating_point() else ""
            raise ValueError(
                f"{self._NAME}: input has dtype {X.dtype}, expected that of the weights, {weight.dtype}; "
                f"convert {'one: ' if other else ''}input.to({weight.dtype}){other}"
            )

    def _split(self, hx: Any, shapes: Sequence[tuple[int, ...]], dtype: Any) -> States:
        """Return hx as a tuple of states; raise unless they have these shapes and the dtype."""
        states = (hx,) if len(self._STATES) == 1 else hx
        if not isinstance(states, tuple | list) or len(states) != len(self._STATES):
            raise TypeError(f"{self._NAME}: hx is {type_of(hx)}, expected ({', '.join(self._STATES)})")
        for name, state, expected in zip(self._STATES, states, shapes, strict=True):
            if not isinstance(state, Tensor):
                raise TypeError(f"{self._NAME}: {name} is {type_of(state)}, expected torch.Tensor")
            if state.shape != expected:
                raise RuntimeError(
                    f"{self._NAME}: {name} has shape {tuple(state.shape)}, expected {tuple(expected)}"
                )
            if state.dtype != dtype and not autocasts(state):
                raise RuntimeError(
                    f"{self._NAME}: {name} has dtype {state.dtype}, expected that of input, {dtype}"
                )
        return tuple(states)

    def _join(self, states: Sequence[Tensor]) -> Any:
        """Return states as PyTorch's module does: a single state without a tuple."""
        return tuple(states) if len(self._STATES) > 1 else states[0]


class CellModule(Recurrent, nn.RNNCellBase, Generic[_State]):
    """A single step, with the interface of `torch.nn.RNNCellBase`."""

    _STATE_OPERANDS = ("H", "C")

    if TYPE_CHECKING:  # torch.nn.Module says that a call returns Any

        def __call__(self, input: Tensor, hx: Any = None) -> _State: ...  # noqa: A002

    def forward(self, input: Tensor, hx: Any = None) -> Any:  # noqa: A002, PyTorch's name for it
        """Run one step.

        Parameters
        ----------
        input : Tensor
            (N, I), or (I,) for a single sequence.
        hx : Tensor or tuple of two tensors, optional
            State before the step, for an LSTM the pair (h_0, c_0); (N, H), without N for a single sequence;
            default zeros.

        Returns
        -------
        Tensor or tuple of two tensors
            State after the step, like `hx`.
        """
        if isinstance(input, Proxy):
            return as_node(self, input, hx)
        if are_replaceable((input,)):
            return handed_over(self._KERNEL, lambda X: self.forward(X, hx), (input,))
        head = self._head(True, False)
        read = self._read([""], head)
        results = self._known_step(head, read, input, hx)
        return self._join(self._checked_step(head, read, input, hx) if results is None else results)

    def _known_step(self, head: Head, read: Read, input: Tensor, hx: Any) -> Sequence[Tensor] | None:  # noqa: A002
        """Return the states after a known call on a batch, which needs no checks; None for other calls."""
        states = (hx,) if len(self._STATES) == 1 else hx
        if type(states) is not tuple or len(states) != len(self._STATES):
            return None
        is_batch = isinstance(input, Tensor) and input.dim() == 2
        return self._known(head, read, input, states) if is_batch else None

    def _checked_step(self, head: Head, read: Read, input: Tensor, hx: Any) -> Sequence[Tensor]:  # noqa: A002
        """Return the states after any call, also of a single sequence or without states."""
        single = is_single(self._NAME, input, 1)
        shape = (*input.shape[:-1], self.hidden_size)
        if hx is None:
            states = tuple([input.new_zeros(shape) for _ in self._STATES])
        else:
            self._check_input(input, read)
            states = self._split(hx, [shape] * len(self._STATES), input.dtype)
        rows = [x.unsqueeze(0) if single else x for x in (input, *states)]
        results = self._known(head, read, rows[0], rows[1:])
        if results is None:
            self._check_input(input, read)
            named = dict(zip(("X", *self._STATE_OPERANDS), rows, strict=False))
            results = self._run_kernel({**named, **self._weights([""], read)}, head=head)
        return [turned(x, "squeeze", 0) for x in results] if single else results

    def _directions(self) -> int:
        return 0

    def _suffixes(self) -> list[str]:
        return [""]

    def _smallest_operands(self) -> list[np.ndarray]:
        weights = np.zeros((len(self._GATE_ORDER), 1))
        return [np.zeros((1, 1))] * (1 + len(self._STATES)) + [weights, weights]
