"""`vjp`: a forward kernel and its gradient in one call."""

from __future__ import annotations

import copy
import ctypes
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeAlias, overload

import numpy as np
from array_api_compat import array_namespace, is_array_api_obj, is_torch_array

from xpgrad import activations, losses, softmax
from xpgrad._operators.arguments import check_array, check_cotangents, is_list
from xpgrad._operators.gradient_rules import RULES, GradientRule
from xpgrad._operators.types import A, Array, MaybeNone, Wanted
from xpgrad.activations import PReLUGrads
from xpgrad.augru import AUGRUForward, AUGRUGrads
from xpgrad.cells import Cell
from xpgrad.conv import ConvGrads, ConvTransposeGrads, conv, conv_grad, conv_transpose, conv_transpose_grad
from xpgrad.gru import GRUCellForward, GRUCellGrads, GRUForward, GRUGrads
from xpgrad.gru_d import GRUDForward, GRUDGrads, gru_d, gru_d_grad
from xpgrad.layer_norm import (
    LayerNormGRUForward,
    LayerNormGRUGrads,
    LayerNormLSTMForward,
    LayerNormLSTMGrads,
)
from xpgrad.lstm import LSTMCellForward, LSTMCellGrads, LSTMForward, LSTMGrads
from xpgrad.rnn import RNNCellForward, RNNCellGrads, RNNForward, RNNGrads
from xpgrad.slstm import SLSTMForward, SLSTMGrads


def _rules_of(module: Any) -> dict[Callable, GradientRule]:
    """The rules of a module's functions with one output Y, which the gradient may take."""
    pairs = {name: gradient for name, gradient in vars(module).items() if name.endswith("_grad")}
    return {
        getattr(module, name.removesuffix("_grad")): GradientRule(
            gradient, ("Y",) if "Y" in gradient.__annotations__ else ()
        )
        for name, gradient in pairs.items()
    }


_OTHERS: dict[Callable, GradientRule] = {  # recurrent operators declare their own rules
    conv: GradientRule(conv_grad),
    conv_transpose: GradientRule(conv_transpose_grad),
    gru_d: GradientRule(
        gru_d_grad,
        ("H_all", "filled", "last", "saved_x", "saved"),
        {"H_all": "grad_H_all", "H_t": "grad_H_t"},
    ),
    **_rules_of(activations),
    **_rules_of(softmax),
    **_rules_of(losses),
}
RULES.update(_OTHERS)


class _Arguments(NamedTuple):
    """The arguments of a kernel and of its gradient."""

    signature: inspect.Signature
    """The kernel's signature."""
    shared: frozenset[str]
    """The arguments of both, without `out`: a gradient that overwrote it would make a pullback valid once."""
    gradient_only: frozenset[str]
    """The gradient's other arguments, except cotangents and the kernel's saved outputs."""


_ADAPTERS = {
    "xpgrad_jax": "jax.vjp differentiates this one",
    "xpgrad_torch": "PyTorch's autograd differentiates this one",
}
"""What to use instead of `vjp` for an adapter's function."""


def rule_of(fn: Any) -> GradientRule:
    if not callable(fn):  # arrays and results have no hash for a lookup
        raise TypeError(
            f"vjp: fn is a {type(fn).__name__}, expected a function, and its arguments behind it: "
            "vjp(lstm, X, W, R)"
        )
    rule = GradientRule(fn.grad, tuple(fn.saved), fn.cotangents) if isinstance(fn, Cell) else RULES.get(fn)
    if rule is None:
        package = getattr(fn, "__module__", None) or ""
        for adapter, instead in _ADAPTERS.items():
            if package.partition(".")[0] == adapter:
                name = getattr(fn, "__name__", fn)
                raise TypeError(f"vjp: fn is {adapter}'s {name}, expected a function of xpgrad: {instead}")
        known = ", ".join(sorted(known.__name__ for known in RULES))
        raise TypeError(f"vjp: fn is {getattr(fn, '__name__', fn)!r}, expected a Cell or one of {known}")
    return rule


@functools.lru_cache(maxsize=256)  # a signature is computed at each request
def _arguments_of(fn: Callable) -> _Arguments:
    rule, signature = rule_of(fn), inspect.signature(fn)
    forward, taken = set(signature.parameters), set(inspect.signature(rule.gradient).parameters)
    given = {*rule.saved, *rule.cotangents.values()}
    return _Arguments(signature, frozenset(taken & forward - {"out"}), frozenset(taken - forward - given))


class _One(NamedTuple):
    """The outputs of a forward with one output."""

    Y: Any


def _as_they_are(name: str, value: Any) -> Any:
    """A copy of what the caller may change, or use up, before a pullback runs; the value for an operand."""
    if name == "wrt" and isinstance(value, Iterable) and not isinstance(value, str):
        return tuple(value)
    if name in ("sequence_lens", "reset") and is_array_api_obj(value):
        return array_namespace(value).asarray(value, copy=True)
    if is_list(value) and not isinstance(value, list | tuple):
        return tuple(value)
    return copy.copy(value) if isinstance(value, list) else value


def _share_memory(out: Any, x: Any) -> bool:
    """Whether two arrays are one, or two of NumPy or PyTorch may share elements."""
    if out is x:
        return True
    a, b = _in_numpy(out), _in_numpy(x)
    return a is not None and b is not None and np.may_share_memory(a, b, max_work=10_000)  # type: ignore[arg-type]


def _in_numpy(array: Any) -> np.ndarray | None:
    """An array's elements as NumPy's, whatever their dtype; None for other memory."""
    if isinstance(array, np.ndarray):
        return array
    if not is_torch_array(array) or array.device.type != "cpu" or str(array.layout) != "torch.strided":
        return None
    size, strides = array.element_size(), array.stride()
    count = sum((n - 1) * stride for n, stride in zip(array.shape, strides, strict=True)) + 1
    memory: Any = (ctypes.c_char * (size * count if array.numel() else 0)).from_address(array.data_ptr())
    return np.ndarray(tuple(array.shape), f"V{size}", memory, 0, tuple(size * stride for stride in strides))


# --- for type checkers: a kernel's result, or its parameters, identify it -----------------------------------

_Wrt: TypeAlias = Wanted[MaybeNone] | None
"""The type of `wrt`."""


class _E(Protocol):
    """A type of arrays: protocols with `Any` would match every kernel."""

    @property
    def shape(self) -> int: ...
    @property
    def dtype(self) -> int: ...
    def __getitem__(self, key: object, /) -> _E: ...


class _Prelu(Protocol):
    def __call__(self, X: _E, slope: _E) -> _E: ...


class _ConvTranspose(Protocol):
    def __call__(self, X: _E, W: _E, *, output_padding: int) -> _E: ...


class _Conv(Protocol):
    def __call__(self, X: _E, W: _E) -> _E: ...


class _ClassLoss(Protocol):
    def __call__(self, X: _E, labels: _E) -> _E: ...


class _BinaryLoss(Protocol):
    def __call__(self, X: _E, targets: _E) -> _E: ...


@overload
def vjp(fn: Cell, *args: Any, **kwargs: Any) -> tuple[Any, Callable[..., Any]]: ...
@overload
def vjp(
    fn: _Prelu, X: Array[A], *args: Any, wrt: _Wrt[MaybeNone] = None, **kwargs: Any
) -> tuple[A, Callable[..., PReLUGrads[A | MaybeNone]]]: ...
@overload
def vjp(
    fn: _ConvTranspose, X: Array[A], *args: Any, wrt: _Wrt[MaybeNone] = None, **kwargs: Any
) -> tuple[A, Callable[..., ConvTransposeGrads[A | MaybeNone]]]: ...
@overload
def vjp(
    fn: _Conv, X: Array[A], *args: Any, wrt: _Wrt[MaybeNone] = None, **kwargs: Any
) -> tuple[A, Callable[..., ConvGrads[A | MaybeNone]]]: ...
@overload
def vjp(
    fn: Callable[[_E], _E] | _ClassLoss | _BinaryLoss, X: Array[A], *args: Any, **kwargs: Any
) -> tuple[A, Callable[..., A]]: ...
@overload
def vjp(
    fn: Callable[[_E, _E], _E],  # another activation with an operand
    X: Array[A],
    *args: Any,
    wrt: _Wrt[MaybeNone] = None,
    **kwargs: Any,
) -> tuple[A, Callable[..., Any]]: ...
@overload
def vjp(
    fn: Callable[..., LSTMForward[_E]], X: Array[A], *args: Any, wrt: _Wrt[MaybeNone] = None, **kwargs: Any
) -> tuple[LSTMForward[A], Callable[..., LSTMGrads[A | MaybeNone]]]: ...
@overload
def vjp(
    fn: Callable[..., GRUForward[_E]], X: Array[A], *args: Any, wrt: _Wrt[MaybeNone] = None, **kwargs: Any
) -> tuple[GRUForward[A], Callable[..., GRUGrads[A | MaybeNone]]]: ...
@overload
def vjp(
    fn: Callable[..., RNNForward[_E]], X: Array[A], *args: Any, wrt: _Wrt[MaybeNone] = None, **kwargs: Any
) -> tuple[RNNForward[A], Callable[..., RNNGrads[A | MaybeNone]]]: ...
@overload
def vjp(
    fn: Callable[..., LayerNormLSTMForward[_E]],
    X: Array[A],
    *args: Any,
    wrt: _Wrt[MaybeNone] = None,
    **kwargs: Any,
) -> tuple[LayerNormLSTMForward[A], Callable[..., LayerNormLSTMGrads[A | MaybeNone]]]: ...
@overload
def vjp(
    fn: Callable[..., LayerNormGRUForward[_E]],
    X: Array[A],
    *args: Any,
    wrt: _Wrt[MaybeNone] = None,
    **kwargs: Any,
) -> tuple[LayerNormGRUForward[A], Callable[..., LayerNormGRUGrads[A | MaybeNone]]]: ...
@overload
def vjp(
    fn: Callable[..., LSTMCellForward[_E]],
    X: Array[A],
    *args: Any,
    wrt: _Wrt[MaybeNone] = None,
    **kwargs: Any,
) -> tuple[LSTMCellForward[A], Callable[..., LSTMCellGrads[A | MaybeNone]]]: ...
@overload
def vjp(
    fn: Callable[..., GRUCellForward[_E]], X: Array[A], *args: Any, wrt: _Wrt[MaybeNone] = None, **kwargs: Any
) -> tuple[GRUCellForward[A], Callable[..., GRUCellGrads[A | MaybeNone]]]: ...
@overload
def vjp(
    fn: Callable[..., RNNCellForward[_E]], X: Array[A], *args: Any, wrt: _Wrt[MaybeNone] = None, **kwargs: Any
) -> tuple[RNNCellForward[A], Callable[..., RNNCellGrads[A | MaybeNone]]]: ...
@overload
def vjp(
    fn: Callable[..., SLSTMForward[_E]], X: Array[A], *args: Any, wrt: _Wrt[MaybeNone] = None, **kwargs: Any
) -> tuple[SLSTMForward[A], Callable[..., SLSTMGrads[A | MaybeNone]]]: ...
@overload
def vjp(
    fn: Callable[..., AUGRUForward[_E]], X: Array[A], *args: Any, wrt: _Wrt[MaybeNone] = None, **kwargs: Any
) -> tuple[AUGRUForward[A], Callable[..., AUGRUGrads[A | MaybeNone]]]: ...
@overload
def vjp(
    fn: Callable[..., GRUDForward[_E]], X: Array[A], *args: Any, wrt: _Wrt[MaybeNone] = None, **kwargs: Any
) -> tuple[GRUDForward[A], Callable[..., GRUDGrads[A | MaybeNone]]]: ...
def vjp(fn: Callable, *args: Any, **kwargs: Any) -> tuple[Any, Callable]:
    """Evaluate a kernel; return its outputs and the map from cotangents to gradients.

    Parameters
    ----------
    fn : callable
        A forward kernel of this package (a function with a partner in ``_grad``, but not `gate_inputs`), or a
        `Cell`.
    *args, **kwargs
        Its arguments, and arguments of only its gradient (`wrt`, `per_sample`, `peephole`).

    Returns
    -------
    outputs : NamedTuple or array
        The result of ``fn``.
    pullback : callable
        ``pullback(*cotangents)`` takes a cotangent for each differentiable output, by position or by the
        gradient's name for it. It returns the gradients of fn's array arguments, in the form of fn's own
        gradient. A cotangent that is omitted or None is zero; at least one must be given. It can be called
        any number of times.

    Raises
    ------
    TypeError
        If `fn` has no gradient here, for arguments that it does not take, or for too many cotangents.
    ValueError
        For a cotangent of an output that is only saved for the gradient, for no cotangent at all, or for an
        `out` that is an input.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import lstm, vjp
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = (rng.normal(size=s) for s in [(7, 2, 3), (1, 20, 3), (1, 20, 5)])
    >>> outputs, pullback = vjp(lstm, X, W, R)
    >>> grads = pullback(rng.normal(size=outputs.H_all.shape))
    >>> grads.dW.shape
    (1, 20, 3)
    """
    rule = rule_of(fn)
    signature, shared, gradient_only = _arguments_of(fn)
    options = {name: kwargs.pop(name) for name in list(kwargs) if name in gradient_only}
    try:
        arguments = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise TypeError(f"vjp: {fn.__name__}: {error}") from None
    out = arguments.get("out")
    if out is not None and any(_share_memory(out, x) for name, x in arguments.items() if name != "out"):
        raise ValueError(
            "vjp: out is an input, or shares its memory, expected another array: the gradient needs the old "
            "values of the input"
        )
    for name in ("sequence_lens", "reset"):
        if isinstance(arguments.get(name), np.ndarray):  # a copy of a masked array has no mask to complain of
            check_array(fn.__name__, name, arguments[name])
    for given in (arguments, options):
        given |= {name: _as_they_are(name, value) for name, value in given.items()}
    outputs = fn(**arguments)
    results = outputs if hasattr(outputs, "_fields") else _One(outputs)
    saved = {name: getattr(results, name) for name in rule.saved}
    arguments = {name: value for name, value in arguments.items() if name in shared}
    differentiable = list(rule.cotangents.values())

    def pullback(*cotangents: Any, **named: Any) -> Any:
        beyond = [c for c in cotangents[len(differentiable) :] if c is not None]
        if len(cotangents) > len(results):
            raise TypeError(
                f"vjp: pullback of {fn.__name__} got {len(cotangents)} cotangents, expected at most "
                f"{len(differentiable)}: {', '.join(differentiable)}"
            )
        if beyond:
            raise ValueError(
                f"vjp: pullback of {fn.__name__} got a cotangent for a saved output, expected cotangents "
                f"of {', '.join(rule.cotangents)} only"
            )
        by_name = dict(zip(differentiable, cotangents, strict=False))
        for name, cotangent in named.items():
            if name not in differentiable or name in by_name:
                problem = "twice" if name in by_name else f"that is no cotangent of {fn.__name__}"
                raise TypeError(
                    f"vjp: pullback of {fn.__name__} got {name!r} {problem}, expected each of "
                    f"{', '.join(differentiable)} at most once"
                )
            by_name[name] = cotangent
        check_cotangents(f"vjp: pullback of {fn.__name__}", dict.fromkeys(differentiable) | by_name)
        return rule.gradient(**arguments, **saved, **by_name, **options)

    return outputs, pullback
