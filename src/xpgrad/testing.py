"""Tools to check gradient kernels: finite differences, naive references, comparisons.

Nothing here is fast and nothing here shares code with the kernels: each function is the shortest
transcription of a definition that was found, so that it can be believed by reading it.

- `check_vjp` holds a gradient rule against central differences.
- `lstm_reference` and `lstm_grad_reference` are the LSTM and its backward, one sample and one step at a time;
  `gru_reference` and `gru_grad_reference` the GRU and its own.
- `conv_reference` and `conv_grad_reference` are the direct sums of a convolution, position by position;
  with X and dY exchanged they are those of a transposed one, too.
- `vectors` makes cases for the tests of other people's kernels.
- `cell_reference` runs the plain formula of a `xpgrad.Cell`, and `check_cell` holds the cell against it.
- `assert_close` and `relative_error` compare arrays of any namespace.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array

from xpgrad.conv import ConvGrads
from xpgrad.gru import GRUForward, GRUGrads
from xpgrad.lstm import LSTMForward, LSTMGrads
from xpgrad.rnn import RNNForward, RNNGrads

if TYPE_CHECKING:
    from xpgrad._vectors import Vector
    from xpgrad.cells import Cell

__all__ = [
    "assert_close",
    "cell_reference",
    "check_cell",
    "check_vjp",
    "conv_grad_reference",
    "conv_reference",
    "gru_grad_reference",
    "gru_reference",
    "layer_norm_gru_reference",
    "layer_norm_lstm_reference",
    "lstm_grad_reference",
    "lstm_reference",
    "numerical_jacobian",
    "relative_error",
    "rnn_grad_reference",
    "rnn_reference",
    "to_numpy",
    "vectors",
]

Array = Any

_RTOL = {"float64": 1e-10, "float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}
"""Relative tolerance of `assert_close` by dtype."""

_RTOL_DIFFERENCES = {"float64": 1e-6, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""Relative tolerance of `check_vjp` by dtype: central differences are good for about nine digits."""


# ----------------------------------------------------------------------------------------------------------
# Vectors
# ----------------------------------------------------------------------------------------------------------


def vectors(
    operator: str, cases: int | None = None, seed: int = 0, *, option: str | None = None
) -> Iterator[Vector]:
    """Inputs, saved arrays, cotangents and gradients of an operator, to test another kernel with.

    Each case is computed in float64, and its gradients are held against central differences while it is
    made. Inputs and cotangents are multiples of 1/64 below 8, of so few digits that every floating-point type
    down to bfloat16 holds them exactly.

    Parameters
    ----------
    operator : str
        A forward of this package that has a gradient, such as ``"lstm"``.
    cases : int, optional
        How many; they go through the operator's options in turn. By default one of each option.
    seed : int
        Of the numbers; the same seed gives the same cases.
    option : str, optional
        The only option to take, such as ``"lengths, bidirectional"``; all by default. They are those that
        ``python -m xpgrad check`` prints.

    Yields
    ------
    Vector
        A case. Its arrays are NumPy arrays by their argument's name.

    Raises
    ------
    ValueError
        For an unknown operator or option, or a number below its range.
    ArithmeticError
        If a gradient does not agree with the differences: then this package is wrong on this machine.

    Examples
    --------
    >>> from xpgrad.testing import vectors
    >>> [case] = vectors("lstm", option="peepholes, full")
    >>> case.attributes, case.gradients["dP"].shape, case.error < 1e-6
    ({}, (1, 12), True)
    """
    from xpgrad._vectors import make  # the cases are those of the command line's check

    return make(operator, cases, seed, option)


# ----------------------------------------------------------------------------------------------------------
# Comparing arrays
# ----------------------------------------------------------------------------------------------------------


def to_numpy(array: Array) -> np.ndarray:
    """Copy an array of any namespace and device into a NumPy array.

    Floating-point values come as float64, so that half precision types that NumPy lacks arrive too.

    Parameters
    ----------
    array : array
        Array of any namespace.

    Returns
    -------
    numpy.ndarray
        A new array of the same shape; float64 if `array` holds floating-point numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import to_numpy
    >>> to_numpy(np.asarray([1.5, 2.0], dtype=np.float32)).dtype
    dtype('float64')
    """
    xp = array_namespace(array)
    if xp.isdtype(array.dtype, "real floating"):
        array = xp.astype(array, xp.float64)
    if is_torch_array(array):
        array = array.detach().cpu().numpy()
    return np.array(array)


def relative_error(actual: Array, desired: Array) -> float:
    """Largest absolute difference, relative to the largest magnitude in `desired`.

    Parameters
    ----------
    actual, desired : array
        Arrays of the same shape, of any namespace and dtype.

    Returns
    -------
    float
        ``max|actual - desired| / max|desired|``, computed in float64; the absolute difference where `desired`
        is zero throughout, 0 for empty arrays, and infinity where one holds NaN (or an infinity) and the
        other does not.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import relative_error
    >>> relative_error(np.asarray([1.0, 4.5]), np.asarray([1.0, 4.0]))
    0.125
    """
    differences, scale = _differences(to_numpy(actual), to_numpy(desired))
    return float(np.max(differences, initial=0.0)) / (scale or 1.0)


def assert_close(
    actual: Array,
    desired: Array,
    *,
    like: Array | None = None,
    rtol: float | None = None,
    atol: float = 0.0,
    label: str = "array",
) -> None:
    """Assert that two arrays are of one kind and agree.

    Namespace, dtype, shape and device are compared before the numbers; the numbers by the largest difference
    relative to the largest magnitude of `desired`.

    Parameters
    ----------
    actual : array
        The array under test.
    desired : array
        What it should be.
    like : array, optional
        The array whose namespace, dtype and device `actual` must have. Default: `desired`. Give it where
        `desired` was computed in another namespace or precision.
    rtol : float, optional
        Allowed difference relative to the largest magnitude of `desired`. Default: by the dtype of `actual`,
        1e-10 in float64, 1e-5 in float32, 5e-3 in float16, 4e-2 in bfloat16.
    atol : float
        Allowed difference beyond that.
    label : str
        Name of the array for the message.

    Raises
    ------
    AssertionError
        If something differs; the message says what, where, and both values.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import assert_close
    >>> assert_close(np.asarray([1.0, 2.0]), np.asarray([1.0, 2.0 + 1e-12]))
    """
    _assert_same_kind(actual, desired if like is None else like, tuple(desired.shape), label)
    if rtol is None:
        rtol = _RTOL[dtype_name(actual.dtype)] if _is_floating(actual) else 0.0
    a, b = to_numpy(actual), to_numpy(desired)
    differences, scale = _differences(a, b)
    allowed = rtol * scale + atol
    if differences.size and not differences.max() <= allowed:
        worst = _worst(differences)
        raise AssertionError(
            f"{label} differs at index {worst}: {a[worst]!s}, expected {b[worst]!s} "
            f"(difference {differences[worst]:.3g}, allowed {allowed:.3g})"
        )


def dtype_name(dtype: Any) -> str:
    """Short name of a dtype of any namespace: ``"float32"`` for ``torch.float32`` and ``numpy.float32``.

    Parameters
    ----------
    dtype : dtype
        Data type of any namespace.

    Returns
    -------
    str
        The name, without the namespace.
    """
    if isinstance(dtype, np.dtype) or (isinstance(dtype, type) and issubclass(dtype, np.generic)):
        return np.dtype(dtype).name
    return str(dtype).rsplit(".", 1)[-1].strip("'>")


def _is_floating(array: Array) -> bool:
    return bool(array_namespace(array).isdtype(array.dtype, "real floating"))


def _differences(actual: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, float]:
    """Elementwise absolute differences (infinite where only one is finite) and the scale of `desired`."""
    if actual.shape != desired.shape:
        raise AssertionError(f"shape {actual.shape}, expected {desired.shape}")
    if desired.dtype == bool:
        actual, desired = actual.astype(int), desired.astype(int)
    finite = np.isfinite(desired)
    same = np.where(np.isnan(desired), np.isnan(actual), actual == desired)
    comparable = finite & np.isfinite(actual)
    gaps = np.abs(np.where(comparable, actual, 0) - np.where(comparable, desired, 0))
    differences = np.where(comparable, gaps, np.where(same, 0.0, np.inf))
    return differences, float(np.max(np.abs(np.where(finite, desired, 0)), initial=0.0))


def _worst(differences: np.ndarray) -> tuple[int, ...]:
    return tuple(int(k) for k in np.unravel_index(np.argmax(differences), differences.shape))


def _assert_same_kind(actual: Array, like: Array, shape: tuple[int, ...], label: str) -> None:
    """Namespace, dtype and device of `like`, and the given shape."""
    if actual is None:
        raise AssertionError(f"{label} is None, expected an array of shape {shape}")
    if not hasattr(actual, "shape"):
        raise AssertionError(f"{label} is a {type(actual).__name__}, expected an array of shape {shape}")
    got, expected = array_namespace(actual).__name__, array_namespace(like).__name__
    if got != expected:
        raise AssertionError(f"{label} belongs to {got}, expected {expected}")
    if actual.dtype != like.dtype:
        got, expected = dtype_name(actual.dtype), dtype_name(like.dtype)
        raise AssertionError(f"{label} has dtype {got}, expected {expected}")
    if tuple(actual.shape) != shape:
        raise AssertionError(f"{label} has shape {tuple(actual.shape)}, expected {shape}")
    if device(actual) != device(like):
        raise AssertionError(f"{label} is on device {device(actual)}, expected {device(like)}")


# ----------------------------------------------------------------------------------------------------------
# Finite differences
# ----------------------------------------------------------------------------------------------------------


def numerical_jacobian(
    function: Callable[..., Array | tuple[Array, ...]],
    arguments: Mapping[str, Array],
    name: str,
    *,
    step: float = 1e-5,
) -> list[np.ndarray]:
    r"""Jacobians of every output with respect to one argument, by central differences.

    .. math:: \partial y_k / \partial x_j \approx (y_k(x + h e_j) - y_k(x - h e_j)) / 2h

    Parameters
    ----------
    function : callable
        Called as ``function(**arguments)``; returns an array or a tuple of arrays.
    arguments : mapping of str to array
        Arguments of `function`.
    name : str
        The argument to vary.
    step : float
        The step h, relative to the element's magnitude where that is above 1.

    Returns
    -------
    list of numpy.ndarray
        For each output an array of shape ``output.shape + argument.shape``, float64.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import numerical_jacobian
    >>> [J] = numerical_jacobian(lambda x: x**2, {"x": np.asarray([1.0, 3.0])}, "x")
    >>> J.round(6)
    array([[2., 0.],
           [0., 6.]])
    """
    point = arguments[name]
    xp = array_namespace(point)
    values = to_numpy(point)

    def outputs_at(index: int, shift: float) -> list[np.ndarray]:
        moved = values.copy()
        moved.reshape(-1)[index] += shift
        there = xp.asarray(moved, dtype=point.dtype, device=device(point))
        return [to_numpy(y) for y in _as_tuple(function(**{**arguments, name: there}))]

    columns = []
    for index in range(values.size):
        h = step * max(1.0, abs(float(values.reshape(-1)[index]))) if values.size else step
        ahead, behind = outputs_at(index, h), outputs_at(index, -h)
        columns.append([(a - b) / (2 * h) for a, b in zip(ahead, behind, strict=True)])
    if not columns:
        here = [to_numpy(y) for y in _as_tuple(function(**arguments))]
        return [np.zeros(y.shape + values.shape) for y in here]
    return [
        np.stack(per_output, axis=-1).reshape(per_output[0].shape + values.shape)
        for per_output in zip(*columns, strict=True)
    ]


def check_vjp(
    forward: Callable[..., Array | tuple[Array, ...]],
    gradient: Callable[..., Array | Sequence[Array] | Mapping[str, Array]],
    arguments: Mapping[str, Array],
    *,
    operator: str | None = None,
    outputs: Sequence[str] | None = None,
    cotangents_optional: bool | None = None,
    rtol: float | None = None,
    atol: float = 1e-9,
    step: float = 1e-5,
    seed: int = 0,
) -> None:
    r"""Check a gradient rule against central differences in float64.

    For outputs :math:`y_k = f_k(x_1, x_2, \dots)` and random cotangents :math:`\bar y_k` the rule must return
    :math:`\bar x_j = \sum_k (\partial y_k / \partial x_j)^T \bar y_k` for every argument. Each argument is
    varied on its own, one element at a time. Where cotangents may be left out, every combination of given and
    left out is checked, also none at all, which must give zeros. Each result must have its argument's shape,
    dtype, device and namespace, and nobody may write to arguments or cotangents.

    Parameters
    ----------
    forward : callable
        The operator, called as ``forward(**arguments)``; returns an array or a tuple of arrays. It must
        accept float64, in which the differences are taken. Bind attributes and integer inputs beforehand,
        with a lambda or ``functools.partial``.
    gradient : callable
        The rule, called as ``gradient(*cotangents, **arguments)``, with one cotangent per output, None where
        it is left out. Returns the gradients as a mapping by argument name, or as a sequence in the order of
        `arguments`, or as the array itself for a single argument.
    arguments : mapping of str to array
        The floating-point arguments, of one namespace, dtype and device. The rule is given them as they are,
        so that it is checked in its own precision.
    operator : str, optional
        Name for the messages. Default: the name of `forward`.
    outputs : sequence of str, optional
        Names of the outputs, for the messages. Default: ``output 0``, ``output 1``, ...
    cotangents_optional : bool, optional
        Whether cotangents may be None. Default: whether there is more than one output.
    rtol : float, optional
        Allowed difference relative to the largest magnitude of the gradient. Default: 1e-6 in float64, 1e-4
        in float32, 2e-2 in float16, 1e-1 in bfloat16.
    atol : float
        Allowed difference beyond that; covers the rounding of the differences of a gradient that is zero.
    step : float
        Step of the differences. Keep kinks of `forward` further away than that.
    seed : int
        Seed of the random cotangents.

    Raises
    ------
    AssertionError
        At the first gradient that is not right, naming operator, argument, the index of the worst element and
        both values.
    TypeError
        Where the namespace makes something else of float64, as JAX does without ``jax_enable_x64``.

    Notes
    -----
    The differences cost two evaluations of `forward` per element: keep the arguments small, but not square,
    and every axis longer than 1.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import check_vjp
    >>> def scale(X, s):
    ...     return s * np.tanh(X)
    >>> def scale_grad(dY, X, s):
    ...     return s * dY * (1 - np.tanh(X) ** 2), np.sum(dY * np.tanh(X), keepdims=True)
    >>> X = np.linspace(-2, 3, 6).reshape(2, 3)
    >>> check_vjp(scale, scale_grad, {"X": X, "s": np.asarray([[0.7]])})

    A wrong rule is named:

    >>> def wrong(dY, X, s):
    ...     return s * dY * (1 - np.tanh(X) ** 2), 1.001 * np.sum(dY * np.tanh(X), keepdims=True)
    >>> check_vjp(scale, wrong, {"X": X, "s": np.asarray([[0.7]])})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    AssertionError: scale: the gradient of s is wrong at index (0, 0): ...
    """
    operator = _name_of(forward) if operator is None else operator
    first = next(iter(arguments.values()))
    in_float64 = {name: _cast(array, "float64") for name, array in arguments.items()}
    for name, array in in_float64.items():
        if (became := dtype_name(array.dtype)) != "float64":
            raise TypeError(
                f"{operator}: {name} became {became} where float64 was asked for, expected arrays that can "
                "be float64; JAX needs jax_enable_x64"
            )
    shapes = [tuple(y.shape) for y in _as_tuple(forward(**in_float64))]
    names = [f"output {k}" for k in range(len(shapes))] if outputs is None else list(outputs)
    if len(names) != len(shapes):
        raise AssertionError(f"{operator}: returned {len(shapes)} outputs, expected {len(names)}: {names}")
    if cotangents_optional is None:
        cotangents_optional = len(names) > 1
    if rtol is None:
        rtol = _RTOL_DIFFERENCES[dtype_name(first.dtype)]

    rng = np.random.default_rng(seed)
    cotangents = [_from_numpy(rng.standard_normal(shape), first) for shape in shapes]
    jacobians = {name: numerical_jacobian(forward, in_float64, name, step=step) for name in arguments}
    before = [to_numpy(a) for a in (*arguments.values(), *cotangents)]

    values = before[len(arguments) :]
    labels = [*arguments, *(f"the cotangent of {n}" for n in names)]

    for given in _combinations(len(names), cotangents_optional):
        used = [c if g else None for c, g in zip(cotangents, given, strict=True)]
        results = _by_name(gradient(*used, **arguments), list(arguments), operator)
        said = ", ".join(n for n, g in zip(names, given, strict=True) if g) or "no output"
        after = [to_numpy(a) for a in (*arguments.values(), *cotangents)]
        for label, old, new in zip(labels, before, after, strict=True):
            if not np.array_equal(old, new, equal_nan=True):
                raise AssertionError(f"{operator}: wrote to its input {label} (cotangents for {said})")
        known = [v if g else None for v, g in zip(values, given, strict=True)]
        for name, argument in arguments.items():
            desired = _pull_back(jacobians[name], known, tuple(argument.shape))
            _assert_gradient(results[name], desired, argument, operator, name, said, rtol, atol)


def _assert_gradient(
    result: Array,
    desired: np.ndarray,
    like: Array,
    operator: str,
    name: str,
    said: str,
    rtol: float,
    atol: float,
) -> None:
    _assert_same_kind(result, like, tuple(like.shape), f"{operator}: the gradient of {name}")
    actual = to_numpy(result)
    differences, scale = _differences(actual, desired)
    allowed = rtol * scale + atol
    if differences.size and not differences.max() <= allowed:
        worst = _worst(differences)
        raise AssertionError(
            f"{operator}: the gradient of {name} is wrong at index {worst}: {actual[worst]!s} by the rule, "
            f"{desired[worst]!s} by central differences (difference {differences[worst]:.3g}, "
            f"allowed {allowed:.3g}; cotangents for {said})"
        )


def _pull_back(
    jacobians: Sequence[np.ndarray], cotangents: Sequence[np.ndarray | None], shape: tuple[int, ...]
) -> np.ndarray:
    total = np.zeros(shape)
    for jacobian, cotangent in zip(jacobians, cotangents, strict=True):
        if cotangent is not None:
            total = total + np.tensordot(cotangent, jacobian, axes=cotangent.ndim)
    return total


def _combinations(count: int, optional: bool) -> Iterator[tuple[bool, ...]]:
    """All given first: the most telling combination fails first."""
    return itertools.product((True, False), repeat=count) if optional else iter([(True,) * count])


def _by_name(results: Any, names: list[str], operator: str) -> Mapping[str, Array]:
    if isinstance(results, Mapping):
        missing = [name for name in names if name not in results]
        if missing:
            raise AssertionError(f"{operator}: the rule returned no gradient of {', '.join(missing)}")
        return results
    values = _as_tuple(results)
    if len(values) != len(names):
        raise AssertionError(
            f"{operator}: the rule returned {len(values)} gradients, "
            f"expected {len(names)}: {', '.join(names)}"
        )
    return dict(zip(names, values, strict=True))


def _as_tuple(values: Any) -> tuple[Any, ...]:
    return tuple(values) if isinstance(values, tuple | list) else (values,)


def _name_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _cast(array: Array, dtype: str) -> Array:
    xp = array_namespace(array)
    return xp.astype(array, getattr(xp, dtype))


def _from_numpy(values: np.ndarray, like: Array) -> Array:
    xp = array_namespace(like)
    return xp.asarray(values, dtype=like.dtype, device=device(like))


# ----------------------------------------------------------------------------------------------------------
# The activations of ONNX's recurrent operators
# ----------------------------------------------------------------------------------------------------------


class _Activation(NamedTuple):
    name: str
    alpha: float
    beta: float


_DEFAULT_ALPHA = {
    "affine": 1.0,
    "leakyrelu": 0.01,
    "thresholdedrelu": 1.0,
    "scaledtanh": 1.0,
    "hardsigmoid": 0.2,
    "elu": 1.0,
}
_DEFAULT_BETA = {"affine": 0.0, "scaledtanh": 1.0, "hardsigmoid": 0.5}


_ACTIVATIONS = {*_DEFAULT_ALPHA, "relu", "sigmoid", "softplus", "softsign", "tanh"}


def _read_activations(
    operator: str,
    names: Sequence[str] | None,
    alphas: Sequence[float] | None,
    betas: Sequence[float] | None,
    directions: int,
    defaults: Sequence[str],
) -> list[list[_Activation]]:
    """[[f, g, ...] of each direction]; alphas and betas stand only for the activations that take them."""
    names = list(defaults) * directions if names is None else names
    left_alphas, left_betas = list(alphas or []), list(betas or [])
    read = []
    for name in (n.lower() for n in names):
        if name not in _ACTIVATIONS:
            raise ValueError(f"{operator}: activation {name!r} is none of ONNX's eleven")
        alpha, beta = _DEFAULT_ALPHA.get(name, math.nan), _DEFAULT_BETA.get(name, math.nan)
        if name in _DEFAULT_ALPHA and left_alphas:
            alpha = float(left_alphas.pop(0))
        if name in _DEFAULT_BETA and left_betas:
            beta = float(left_betas.pop(0))
        read.append(_Activation(name, alpha, beta))
    return [read[len(defaults) * d : len(defaults) * (d + 1)] for d in range(directions)]


def _activate(xp: Any, activation: _Activation, x: Array) -> Array:
    """Value of an activation, written such that autograd's slopes at the kinks are the documented ones."""
    name, alpha, beta = activation
    zero = xp.zeros_like(x)
    if name == "sigmoid":
        return 0.5 * (1 + xp.tanh(0.5 * x))
    if name == "tanh":
        return xp.tanh(x)
    if name == "relu":
        return xp.where(x <= 0, zero, x)
    if name == "affine":
        return alpha * x + beta
    if name == "leakyrelu":
        return xp.where(x > 0, x, alpha * x)
    if name == "thresholdedrelu":
        return xp.where(x <= alpha, zero, x)
    if name == "scaledtanh":
        return alpha * xp.tanh(beta * x)
    if name == "hardsigmoid":
        y = alpha * x + beta
        return xp.where(y <= 0, zero, xp.where(y >= 1, zero + 1, y))
    if name == "elu":
        return xp.where(x > 0, x, alpha * xp.expm1(xp.where(x > 0, zero, x)))
    if name == "softsign":
        return x / (1 + xp.abs(x))
    return xp.logaddexp(x, zero)  # softplus


def _slope_at(activation: _Activation, x: np.ndarray) -> np.ndarray:
    """Derivative of an activation at x."""
    name, alpha, beta = activation
    if name == "sigmoid":
        y = 0.5 * (1 + np.tanh(0.5 * x))
        return y * (1 - y)
    if name == "tanh":
        return 1 - np.tanh(x) ** 2
    if name == "relu":
        return np.where(x > 0, 1.0, 0.0)
    if name == "affine":
        return np.full_like(x, alpha)
    if name == "leakyrelu":
        return np.where(x > 0, 1.0, alpha)
    if name == "thresholdedrelu":
        return np.where(x > alpha, 1.0, 0.0)
    if name == "scaledtanh":
        return alpha * beta * (1 - np.tanh(beta * x) ** 2)
    if name == "hardsigmoid":
        y = alpha * x + beta
        return np.where((y > 0) & (y < 1), alpha, 0.0)
    if name == "elu":
        return np.where(x > 0, 1.0, alpha * np.exp(np.minimum(x, 0)))
    if name == "softsign":
        return 1 / (1 + np.abs(x)) ** 2
    return 0.5 * (1 + np.tanh(0.5 * x))  # softplus


def _slope_from_output(activation: _Activation, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Derivative of an activation where its value is y; x is used only where y does not tell the branch."""
    name, alpha, beta = activation
    if name == "sigmoid":
        return y * (1 - y)
    if name == "tanh":
        return 1 - y**2
    if name == "relu":
        return np.where(y > 0, 1.0, 0.0)
    if name == "affine":
        return np.full_like(y, alpha)
    if name == "leakyrelu":
        return np.where(x > 0 if alpha < 0 else y > 0, 1.0, alpha)
    if name == "thresholdedrelu":
        return np.where(x > alpha if alpha < 0 else y > alpha, 1.0, 0.0)
    if name == "scaledtanh":
        return beta * (alpha - y**2 / alpha) if alpha else np.zeros_like(y)
    if name == "hardsigmoid":
        return np.where((y > 0) & (y < 1), alpha, 0.0)
    if name == "elu":
        return np.where(x > 0 if alpha < 0 else y > 0, 1.0, y + alpha)
    if name == "softsign":
        return (1 - np.abs(y)) ** 2
    return -np.expm1(-y)  # softplus


# ----------------------------------------------------------------------------------------------------------
# Walking through a batch, one sample and one step at a time
# ----------------------------------------------------------------------------------------------------------

_BATCH_FIRST = {3: (1, 0, 2), 4: (2, 0, 1, 3)}
"""By rank, the order of axes that makes layout 0 (sequences, states) layout 1."""
_TIME_FIRST = {3: (1, 0, 2), 4: (1, 2, 0, 3)}
"""The way back."""


def _time_order(direction: str, d: int, length: int) -> range:
    """Steps of one sample in the order in which direction d visits them."""
    backwards = direction == "reverse" or d == 1
    return range(length - 1, -1, -1) if backwards else range(length)


def _lengths(sequence_lens: Array | None, steps: int, samples: int) -> list[int]:
    return [steps] * samples if sequence_lens is None else [int(sequence_lens[n]) for n in range(samples)]


def _walk(
    step: Callable[..., tuple[tuple[Array, ...], Array]],
    gates: int,
    X: Array,
    W: Array,
    R: Array,
    B: Array | None,
    sequence_lens: Array | None,
    initial: Sequence[Array | None],
    direction: str,
    layout: int,
    S: Array | None = None,
    recurrent_mask: Array | None = None,
    zoneout: Sequence[Array | None] = (None, None),
) -> tuple[list[Array], list[Array], Array]:
    """States over time, states at the sequences' ends, gates over time, in the layout and dtype of X.

    ``step(d, x, states, W, R, b)`` takes one sample's input and states, and the parameters of direction d, to
    the next states and the gates. S projects the first of these states, a share `zoneout` of the states
    before takes the place of theirs, and the mask is in the columns of R. Half precision is computed in
    float32.
    """
    xp, dtype = array_namespace(X), X.dtype
    work = dtype if dtype in (xp.float32, xp.float64) else xp.float32

    def prepare(array: Array | None, over_batch: bool = True) -> Array | None:
        if array is None:
            return None
        turned = layout == 1 and over_batch
        return xp.astype(xp.permute_dims(array, _TIME_FIRST[array.ndim]) if turned else array, work)

    W, R, B, S = (prepare(a, False) for a in (W, R, B, S))
    X, recurrent_mask, *initial = (prepare(a) for a in (X, recurrent_mask, *initial))
    kept = [prepare(a) for a in zoneout]
    T, N, D, H = X.shape[0], X.shape[1], W.shape[0], R.shape[1] // gates
    widths = [R.shape[2], H][: len(initial)]
    lengths = _lengths(sequence_lens, T, N)

    def zeros(*shape: int) -> Array:
        return xp.zeros(shape, dtype=work, device=device(X))

    steps = {}  # (t, d, n) -> states, gates
    ends = {}  # (d, n) -> states
    for d, n in itertools.product(range(D), range(N)):
        states = tuple(
            zeros(width) if state is None else state[d, n, :]
            for state, width in zip(initial, widths, strict=True)
        )
        b = None if B is None else B[d, :]
        r = R[d, :, :] if recurrent_mask is None else R[d, :, :] * recurrent_mask[d, n, :]
        for t in _time_order(direction, d, lengths[n]):
            made, values = step(d, X[t, n, :], states, W[d, :, :], r, b)
            if S is not None:
                made = xp.matmul(S[d, :, :], made[0]), *made[1:]
            states = tuple(
                new if share is None else share[t, d, n, :] * old + (1 - share[t, d, n, :]) * new
                for new, old, share in zip(made, states, kept, strict=False)
            )
            steps[t, d, n] = *states, values
        ends[d, n] = states

    def stack(rows: list[Array], *shape: int) -> Array:
        whole = xp.reshape(xp.stack(rows), shape) if rows and 0 not in shape else zeros(*shape)
        return xp.astype(xp.permute_dims(whole, _BATCH_FIRST[whole.ndim]) if layout == 1 else whole, dtype)

    padding = *map(zeros, widths), zeros(gates * H)
    cells = [steps.get(key, padding) for key in itertools.product(range(T), range(D), range(N))]
    last = [ends[key] for key in itertools.product(range(D), range(N))]
    return (
        [stack([cell[k] for cell in cells], T, D, N, width) for k, width in enumerate(widths)],
        [stack([end[k] for end in last], D, N, width) for k, width in enumerate(widths)],
        stack([cell[-1] for cell in cells], T, D, N, gates * H),
    )


class _Track(NamedTuple):
    """A state with its cotangents: over time, at the ends, in the beginning (None: zeros)."""

    over_time: Array
    grad_over_time: Array | None
    grad_end: Array | None
    initial: Array | None


def _walk_back(
    step: Callable[..., tuple[dict[str, np.ndarray], list[np.ndarray]]],
    X: Array,
    W: Array,
    R: Array,
    B: Array | None,
    sequence_lens: Array | None,
    tracks: Sequence[_Track],
    gates: Array,
    parameters: Mapping[str, int],
    direction: str,
    layout: int,
    per_sample: bool | str,
    sample_weight: Array | None,
    S: Array | None = None,
    recurrent_mask: Array | None = None,
    zoneout: Sequence[Array | None] = (None, None),
) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """Gradients of X and the parameters by name, and of the initial states, in the layout and dtype of X.

    ``step(d, x, before, after, gates, cotangents, W, R, b)`` takes one sample's step, with its states before
    and after it and the cotangents of the latter, to what it adds to the gradients, by name, and to the
    cotangents of the states before it. `parameters` holds the length of each vector of parameters; B is given
    to the step as zeros where it is None. S, the mask and zoneout are as for `_walk`; with S, "made" is what
    a step projects.
    """
    D = R.shape[0]
    widths = [track.over_time.shape[-1] for track in tracks]

    def prepare(array: Array | None, shape: tuple[int, ...] | None = None) -> np.ndarray:
        if array is None:
            return np.zeros(shape or ())
        array = np.asarray(array, dtype=np.float64)
        return np.transpose(array, _TIME_FIRST[array.ndim]) if layout == 1 else array

    w, r = np.asarray(W, dtype=np.float64), np.asarray(R, dtype=np.float64)
    b = np.zeros((D, parameters["B"])) if B is None else np.asarray(B, dtype=np.float64)
    x, values = prepare(X), prepare(gates)
    T, N = x.shape[:2]
    over_time = [prepare(track.over_time) for track in tracks]
    pairs = list(zip(tracks, widths, strict=True))
    grads_over_time = [prepare(track.grad_over_time, (T, D, N, width)) for track, width in pairs]
    grads_end = [prepare(track.grad_end, (D, N, width)) for track, width in pairs]
    initial = [prepare(track.initial, (D, N, width)) for track, width in pairs]
    lengths = _lengths(sequence_lens, T, N)
    projection = None if S is None else np.asarray(S, dtype=np.float64)
    mask = np.ones((D, N, r.shape[2])) if recurrent_mask is None else prepare(recurrent_mask)
    kept = [prepare(a, (T, D, N, width)) for a, width in zip(zoneout, widths, strict=False)]

    dX, d_initial = np.zeros(x.shape), [np.zeros((D, N, width)) for width in widths]
    sums = {"W": np.zeros((N, *w.shape)), "R": np.zeros((N, *r.shape))}
    sums |= {name: np.zeros((N, D, length)) for name, length in parameters.items()}
    if projection is not None:
        sums["S"] = np.zeros((N, *projection.shape))
    for d, n in itertools.product(range(D), range(N)):
        cotangents = [end[d, n] for end in grads_end]
        order = list(_time_order(direction, d, lengths[n]))
        for k in reversed(range(len(order))):
            t = order[k]
            sources = [a[order[k - 1]] for a in over_time] if k else initial
            before, after = [a[d, n] for a in sources], [a[t, d, n] for a in over_time]
            cotangents = [c + g[t, d, n] for c, g in zip(cotangents, grads_over_time, strict=True)]
            passed = [a[t, d, n] * c for a, c in zip(kept, cotangents, strict=True)]
            made = [(1 - a[t, d, n]) * c for a, c in zip(kept, cotangents, strict=True)]
            projected = made[0]
            if projection is not None:
                made[0] = projection[d].T @ projected
            masked = r[d] * mask[d, n]
            found, back = step(d, x[t, n], before, after, values[t, d, n], made, w[d], masked, b[d])
            found["R"] = found["R"] * mask[d, n]
            if projection is not None:
                found["S"] = np.outer(projected, found["made"])
            cotangents = [c + p for c, p in zip(back, passed, strict=True)]
            dX[t, n] += found["X"]
            for name, total in sums.items():
                total[n, d] += found[name]
        for total, cotangent in zip(d_initial, cotangents, strict=True):
            total[d, n] = cotangent

    if layout == 1:
        dX, *d_initial = (np.transpose(a, _BATCH_FIRST[3]) for a in (dX, *d_initial))
    grads = {"X": dX} | {
        name: _of_samples(a, per_sample, sample_weight, leading=2) for name, a in sums.items()
    }
    return {name: a.astype(X.dtype) for name, a in grads.items()}, [a.astype(X.dtype) for a in d_initial]


def _of_samples(
    grads: np.ndarray, per_sample: bool | str, sample_weight: Array | None, leading: int
) -> np.ndarray:
    """What a gradient gives, of a parameter's by samples, whose `leading` first axes are no part of it."""
    if sample_weight is not None:
        weight = np.asarray(to_numpy(sample_weight), dtype=np.float64)
        grads = grads * np.reshape(weight, (-1,) + (1,) * (grads.ndim - 1))
    if per_sample == "norm":
        return np.sqrt(np.sum(grads**2, axis=tuple(range(leading, grads.ndim))))
    return grads if per_sample else np.sum(grads, axis=0)


def _bounded(xp: Any, x: Array, clip: float | None) -> Array:
    if clip is None:
        return x
    top = xp.full_like(x, clip)
    return xp.where(x > clip, top, xp.where(x < -clip, -top, x))


def _gate_slope(activation: _Activation, y: np.ndarray, x: np.ndarray, clip: float | None) -> np.ndarray:
    """Derivative of a clipped activation whose value is y, at x."""
    slope = _slope_from_output(activation, y, x)
    return slope if clip is None else slope * (np.abs(x) <= clip)


# ----------------------------------------------------------------------------------------------------------
# The LSTM, one sample and one step at a time
# ----------------------------------------------------------------------------------------------------------


def lstm_reference(
    X: Array,
    W: Array,
    R: Array,
    B: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    P: Array | None = None,
    *,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    layout: int = 0,
    S: Array | None = None,
    recurrent_mask: Array | None = None,
    zoneout_h: Array | None = None,
    zoneout_c: Array | None = None,
    detach: Callable[[Array], Array] | None = None,
) -> LSTMForward:
    r"""Naive LSTM: `xpgrad.lstm` by the definition, one sample and one step at a time.

    .. math::

        i_t &= f(W_i x_t + R_i h_{t-1} + b_i + p_i \odot c_{t-1}) \\
        f_t &= f(W_f x_t + R_f h_{t-1} + b_f + p_f \odot c_{t-1}) \\
        g_t &= g(W_c x_t + R_c h_{t-1} + b_c) \\
        c_t &= f_t \odot c_{t-1} + i_t \odot g_t \\
        o_t &= f(W_o x_t + R_o h_{t-1} + b_o + p_o \odot c_t) \\
        h_t &= o_t \odot h(c_t)

    The biases are sums of B's two halves; with `input_forget` :math:`f_t = 1 - i_t`; with `clip` every
    argument of f and g is bounded to [-clip, clip]. With S the next step and the output have
    :math:`S h_t`, with zoneout :math:`z \odot s_{t-1} + (1 - z) \odot s_t` of each state s, and
    `recurrent_mask` multiplies :math:`h_{t-1}` where it meets R.

    Only plain operations of the array namespace, nothing written in place: with torch tensors that require
    gradients, PyTorch's autograd differentiates it, which makes it an oracle for every option.

    Parameters
    ----------
    X, W, R, B, sequence_lens, initial_h, initial_c, P : array
        As for `xpgrad.lstm`. They are taken to be valid.
    direction, activations, activation_alpha, activation_beta, clip, input_forget, layout
        As for `xpgrad.lstm`.
    S, recurrent_mask, zoneout_h, zoneout_c
        As for `xpgrad.lstm`.
    detach : callable, optional
        Applied to the cell state where it meets a peephole. ``torch.Tensor.detach`` makes autograd's result
        the truncated peephole gradient.

    Returns
    -------
    LSTMForward
        H_all, H_t, C_t, C_all, iofc, in the dtype of X; half precision is computed in float32.

    See Also
    --------
    xpgrad.lstm : the kernel.

    References
    ----------
    ONNX operator specification, LSTM (version 14).

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import lstm_reference
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = rng.normal(size=(5, 2, 3)), rng.normal(size=(1, 16, 3)), rng.normal(size=(1, 16, 4))
    >>> lstm_reference(X, W, R).H_all.shape
    (5, 1, 2, 4)
    """
    xp = array_namespace(X)
    acts = _read_activations(
        "lstm_reference", activations, activation_alpha, activation_beta, W.shape[0], _LSTM_ACTIVATIONS
    )

    def step(
        d: int, x: Array, states: tuple[Array, ...], W: Array, R: Array, b: Array | None
    ) -> tuple[tuple[Array, ...], Array]:
        h, c = states
        p = None if P is None else xp.astype(P[d, :], x.dtype)
        h, c, gates = _lstm_step(xp, x, h, c, W, R, b, p, acts[d], clip, input_forget, detach)
        return (h, c), gates

    initial = (initial_h, initial_c)
    (H_all, C_all), (H_t, C_t), iofc = _walk(
        step, 4, X, W, R, B, sequence_lens, initial, direction, layout, S, recurrent_mask,
        (zoneout_h, zoneout_c),
    )  # fmt: skip
    return LSTMForward(H_all=H_all, H_t=H_t, C_t=C_t, C_all=C_all, iofc=iofc)


_LSTM_ACTIVATIONS = ("Sigmoid", "Tanh", "Tanh")


def _lstm_step(
    xp: Any,
    x: Array,
    h: Array,
    c: Array,
    W: Array,
    R: Array,
    b: Array | None,
    p: Array | None,
    activations: Sequence[_Activation],
    clip: float | None,
    input_forget: bool,
    detach: Callable[[Array], Array] | None,
) -> tuple[Array, Array, Array]:
    """One step of one sample: x (I,), h (H,) or (proj,), c (H,), W (4H, I), R (4H, ...), b (8H,), p (3H,)."""
    H = c.shape[0]
    f_act, g_act, h_act = activations
    z = xp.matmul(W, x) + xp.matmul(R, h)
    if b is not None:
        z = z + b[: 4 * H] + b[4 * H :]
    z_i, z_o, z_f, z_c = z[:H], z[H : 2 * H], z[2 * H : 3 * H], z[3 * H :]

    def peep(gate: int, state: Array) -> Array | float:
        if p is None:
            return 0.0
        return p[gate * H : (gate + 1) * H] * (state if detach is None else detach(state))

    i = _activate(xp, f_act, _bounded(xp, z_i + peep(0, c), clip))
    f = 1 - i if input_forget else _activate(xp, f_act, _bounded(xp, z_f + peep(2, c), clip))
    g = _activate(xp, g_act, _bounded(xp, z_c, clip))
    c = f * c + i * g
    o = _activate(xp, f_act, _bounded(xp, z_o + peep(1, c), clip))
    return o * _activate(xp, h_act, c), c, xp.concat([i, o, f, g])


def lstm_grad_reference(
    X: np.ndarray,
    W: np.ndarray,
    R: np.ndarray,
    *,
    H_all: np.ndarray,
    C_all: np.ndarray,
    iofc: np.ndarray,
    grad_H_all: np.ndarray | None = None,
    grad_H_t: np.ndarray | None = None,
    grad_C_t: np.ndarray | None = None,
    grad_C_all: np.ndarray | None = None,
    B: np.ndarray | None = None,
    sequence_lens: np.ndarray | None = None,
    initial_h: np.ndarray | None = None,
    initial_c: np.ndarray | None = None,
    P: np.ndarray | None = None,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    layout: int = 0,
    S: np.ndarray | None = None,
    recurrent_mask: np.ndarray | None = None,
    zoneout_h: np.ndarray | None = None,
    zoneout_c: np.ndarray | None = None,
    peephole: str = "full",
    per_sample: bool | str = False,
    sample_weight: np.ndarray | None = None,
) -> LSTMGrads:
    r"""Naive LSTM backward in NumPy: `xpgrad.lstm_grad`, one sample and one step at a time.

    A step takes :math:`\bar h_t, \bar c_t` (what the later steps and the cotangents sent) to

    .. math::

        \bar z_o &= \bar h_t \odot h(c_t) \odot f'(z_o) \\
        \bar c_t &\mathrel{+}= \bar h_t \odot o_t \odot h'(c_t) + p_o \odot \bar z_o \\
        \bar z_i &= \bar c_t \odot g_t \odot f'(z_i), \quad \bar z_f = \bar c_t \odot c_{t-1} \odot f'(z_f),
            \quad \bar z_c = \bar c_t \odot i_t \odot g'(z_c) \\
        \bar c_{t-1} &= \bar c_t \odot f_t + p_i \odot \bar z_i + p_f \odot \bar z_f, \quad
            \bar h_{t-1} = R^T \bar z

    and the parameters' gradients sum over steps. With input_forget :math:`\bar z_i = \bar c_t \odot
    (g_t - c_{t-1}) \odot f'(z_i)` and :math:`\bar z_f = 0`. With ``peephole="truncated"`` the terms with
    :math:`p` in both :math:`\bar c` are left out.

    Zoneout passes its share of both cotangents to the states before, and the rest to the step. S takes
    :math:`\bar h_t` to :math:`S^T \bar h_t` in front of the step, and `recurrent_mask` stands in the columns
    of R.

    The slopes of the gates are read off the saved values. What these do not tell, which arguments of f and g
    were clipped and, for LeakyRelu, Elu and ThresholdedRelu with a negative alpha, their branch, comes from
    the arguments themselves, rebuilt from X, the saved states and the parameters.

    Parameters
    ----------
    X, W, R, H_all, C_all, iofc, grad_H_all, grad_H_t, grad_C_t, grad_C_all, B, sequence_lens, initial_h
        NumPy arrays, as for `xpgrad.lstm_grad`. They are taken to be valid.
    initial_c, P, S, recurrent_mask, zoneout_h, zoneout_c
        The same.
    direction, activations, activation_alpha, activation_beta, clip, input_forget, layout
        As for `xpgrad.lstm_grad`.
    peephole, per_sample, sample_weight
        As for `xpgrad.lstm_grad`.

    Returns
    -------
    LSTMGrads
        dX, dW, dR, dB, dH0, dC0, dP, dS, in the dtype of X; computed in float64. dP is None without P, dS
        without S.

    See Also
    --------
    xpgrad.lstm_grad : the kernel.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import lstm_grad_reference, lstm_reference
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = rng.normal(size=(5, 2, 3)), rng.normal(size=(1, 16, 3)), rng.normal(size=(1, 16, 4))
    >>> y = lstm_reference(X, W, R)
    >>> saved = {"H_all": y.H_all, "C_all": y.C_all, "iofc": y.iofc}
    >>> lstm_grad_reference(X, W, R, **saved, grad_H_t=rng.normal(size=(1, 2, 4))).dR.shape
    (1, 16, 4)
    """
    D, H = W.shape[0], R.shape[1] // 4
    peepholes = np.zeros((D, 3 * H)) if P is None else np.asarray(P, dtype=np.float64)
    into_state = 1.0 if peephole == "full" else 0.0
    acts = _read_activations(
        "lstm_grad_reference", activations, activation_alpha, activation_beta, D, _LSTM_ACTIVATIONS
    )

    def step(
        d: int,
        x: Array,
        before: list,
        after: list,
        gates: Array,
        cotangents: list,
        w: Array,
        r: Array,
        b: Array,
    ) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
        (h_prev, c_prev), (_, c), (dh, dc) = before, after, cotangents
        i, o, f, g = np.split(gates, 4)
        f_act, g_act, h_act = acts[d]
        if zoneout_c is not None:
            c = f * c_prev + i * g  # what the step made
        p_i, p_o, p_f = np.split(peepholes[d], 3)

        # slopes of the four gates with respect to their arguments z
        z = w @ x + r @ h_prev + b[: 4 * H] + b[4 * H :]
        z = z + np.concatenate([p_i * c_prev, p_o * c, p_f * c_prev, np.zeros(H)])
        s_i, s_o, s_f, s_g = (
            _gate_slope(act, value, pre, clip)
            for act, value, pre in zip(
                (f_act, f_act, f_act, g_act), (i, o, f, g), np.split(z, 4), strict=True
            )
        )

        dz_o = dh * _activate(np, h_act, c) * s_o
        dc = dc + dh * o * _slope_at(h_act, c) + into_state * p_o * dz_o
        if input_forget:
            dz_i, dz_f = dc * (g - c_prev) * s_i, np.zeros(H)
        else:
            dz_i, dz_f = dc * g * s_i, dc * c_prev * s_f
        dz = np.concatenate([dz_i, dz_o, dz_f, dc * i * s_g])

        found = {
            "X": w.T @ dz,
            "W": np.outer(dz, x),
            "R": np.outer(dz, h_prev),
            "B": np.concatenate([dz, dz]),
            "P": np.concatenate([dz_i * c_prev, dz_o * c, dz_f * c_prev]),
            "made": o * _activate(np, h_act, c),
        }
        return found, [r.T @ dz, dc * f + into_state * (p_i * dz_i + p_f * dz_f)]

    tracks = (_Track(H_all, grad_H_all, grad_H_t, initial_h), _Track(C_all, grad_C_all, grad_C_t, initial_c))
    vectors = {"B": 8 * H, "P": 3 * H}
    grads, (dH0, dC0) = _walk_back(
        step, X, W, R, B, sequence_lens, tracks, iofc, vectors, direction, layout, per_sample,
        sample_weight, S, recurrent_mask, (zoneout_h, zoneout_c),
    )  # fmt: skip
    dX, dW, dR, dB, dP = (grads[name] for name in ("X", "W", "R", "B", "P"))
    return LSTMGrads(dX, dW, dR, dB, dH0, dC0, None if P is None else dP, grads.get("S"))


# ----------------------------------------------------------------------------------------------------------
# The GRU, one sample and one step at a time
# ----------------------------------------------------------------------------------------------------------

_GRU_ACTIVATIONS = ("Sigmoid", "Tanh")


def gru_reference(
    X: Array,
    W: Array,
    R: Array,
    B: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
    layout: int = 0,
    recurrent_mask: Array | None = None,
    zoneout_h: Array | None = None,
) -> GRUForward:
    r"""Naive GRU: `xpgrad.gru` by the definition, one sample and one step at a time.

    .. math::

        z_t &= f(W_z x_t + w_z + R_z h_{t-1} + v_z) \\
        r_t &= f(W_r x_t + w_r + R_r h_{t-1} + v_r) \\
        n_t &= g(W_h x_t + w_h + R_h (r_t \odot h_{t-1}) + v_h)
            &\text{with linear_before_reset} = 0 \\
        n_t &= g(W_h x_t + w_h + r_t \odot (R_h h_{t-1} + v_h))
            &\text{with linear_before_reset} = 1 \\
        h_t &= (1 - z_t) \odot n_t + z_t \odot h_{t-1}

    w and v are B's halves, the input and the recurrence biases; with `clip` every argument of f and g is
    bounded to [-clip, clip]. With zoneout the state is :math:`k \odot h_{t-1} + (1 - k) \odot h_t`, and
    `recurrent_mask` multiplies :math:`h_{t-1}` where it meets R.

    Only plain operations of the array namespace, nothing written in place: with torch tensors that require
    gradients, PyTorch's autograd differentiates it, which makes it an oracle for every option.

    Parameters
    ----------
    X, W, R, B, sequence_lens, initial_h : array
        As for `xpgrad.gru`. They are taken to be valid.
    direction, activations, activation_alpha, activation_beta, clip, linear_before_reset, layout
        As for `xpgrad.gru`.
    recurrent_mask, zoneout_h
        As for `xpgrad.gru`.

    Returns
    -------
    GRUForward
        H_all, H_t, zrh, in the dtype of X; half precision is computed in float32.

    See Also
    --------
    xpgrad.gru : the kernel.

    References
    ----------
    ONNX operator specification, GRU (version 14).

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import gru_reference
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = rng.normal(size=(5, 2, 3)), rng.normal(size=(1, 12, 3)), rng.normal(size=(1, 12, 4))
    >>> gru_reference(X, W, R, linear_before_reset=1).H_all.shape
    (5, 1, 2, 4)
    """
    xp = array_namespace(X)
    acts = _read_activations(
        "gru_reference", activations, activation_alpha, activation_beta, W.shape[0], _GRU_ACTIVATIONS
    )

    def step(
        d: int, x: Array, states: tuple[Array, ...], W: Array, R: Array, b: Array | None
    ) -> tuple[tuple[Array, ...], Array]:
        h, gates = _gru_step(xp, x, states[0], W, R, b, acts[d], clip, linear_before_reset)
        return (h,), gates

    [H_all], [H_t], zrh = _walk(
        step, 3, X, W, R, B, sequence_lens, [initial_h], direction, layout, None, recurrent_mask, (zoneout_h,)
    )
    return GRUForward(H_all=H_all, H_t=H_t, zrh=zrh)


def _gru_step(
    xp: Any,
    x: Array,
    h: Array,
    W: Array,
    R: Array,
    b: Array | None,
    activations: Sequence[_Activation],
    clip: float | None,
    linear_before_reset: int,
) -> tuple[Array, Array]:
    """One step of one sample: x (I,), h (H,), W (3H, I), R (3H, H), b (6H,)."""
    H = h.shape[0]
    f_act, g_act = activations
    w, v = (xp.zeros_like(h),) * 3, (xp.zeros_like(h),) * 3
    if b is not None:
        w, v = (tuple(half[k * H : (k + 1) * H] for k in range(3)) for half in (b[: 3 * H], b[3 * H :]))
    W_z, W_r, W_h = (W[k * H : (k + 1) * H, :] for k in range(3))
    R_z, R_r, R_h = (R[k * H : (k + 1) * H, :] for k in range(3))

    z = _activate(xp, f_act, _bounded(xp, xp.matmul(W_z, x) + w[0] + xp.matmul(R_z, h) + v[0], clip))
    r = _activate(xp, f_act, _bounded(xp, xp.matmul(W_r, x) + w[1] + xp.matmul(R_r, h) + v[1], clip))
    after, before = r * (xp.matmul(R_h, h) + v[2]), xp.matmul(R_h, r * h) + v[2]
    recurrent = after if linear_before_reset else before
    n = _activate(xp, g_act, _bounded(xp, xp.matmul(W_h, x) + w[2] + recurrent, clip))
    return (1 - z) * n + z * h, xp.concat([z, r, n])


def gru_grad_reference(
    X: np.ndarray,
    W: np.ndarray,
    R: np.ndarray,
    *,
    H_all: np.ndarray,
    zrh: np.ndarray,
    grad_H_all: np.ndarray | None = None,
    grad_H_t: np.ndarray | None = None,
    B: np.ndarray | None = None,
    sequence_lens: np.ndarray | None = None,
    initial_h: np.ndarray | None = None,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
    layout: int = 0,
    recurrent_mask: np.ndarray | None = None,
    zoneout_h: np.ndarray | None = None,
    per_sample: bool | str = False,
    sample_weight: np.ndarray | None = None,
) -> GRUGrads:
    r"""Naive GRU backward in NumPy: `xpgrad.gru_grad`, one sample and one step at a time.

    A step takes :math:`\bar h_t` (what the later steps and the cotangents sent) to the cotangents of what z,
    n and r took through their activations

    .. math::

        \bar a_z &= \bar h_t \odot (h_{t-1} - n_t) \odot f'(a_z), \quad
            \bar a_n = \bar h_t \odot (1 - z_t) \odot g'(a_n) \\
        \bar a_r &= \bar r_t \odot f'(a_r)

    With ``linear_before_reset=1`` the recurrent product :math:`q = R_h h_{t-1} + v_h` has the cotangent
    :math:`\bar q = \bar a_n \odot r_t`, and :math:`\bar r_t = \bar a_n \odot q`. With 0 it is :math:`q =
    R_h s + v_h` of :math:`s = r_t \odot h_{t-1}`, with :math:`\bar q = \bar a_n, \bar s = R_h^T \bar q` and
    :math:`\bar r_t = \bar s \odot h_{t-1}`. The state before the step gets

    .. math::

        \bar h_{t-1} = \bar h_t \odot z_t + R_z^T \bar a_z + R_r^T \bar a_r
            + (R_h^T \bar q \quad\text{or}\quad \bar s \odot r_t)

    and the parameters' gradients sum over steps.

    The slopes of the gates are read off the saved values. What these do not tell, which arguments of f and g
    were clipped and, for LeakyRelu, Elu and ThresholdedRelu with a negative alpha, their branch, comes from
    the arguments themselves, rebuilt from X, the saved arrays and the parameters.

    Parameters
    ----------
    X, W, R, H_all, zrh, grad_H_all, grad_H_t, B, sequence_lens, initial_h, recurrent_mask, zoneout_h
        NumPy arrays, as for `xpgrad.gru_grad`. They are taken to be valid.
    direction, activations, activation_alpha, activation_beta, clip, linear_before_reset, layout
        As for `xpgrad.gru_grad`.
    per_sample, sample_weight
        As for `xpgrad.gru_grad`.

    Returns
    -------
    GRUGrads
        dX, dW, dR, dB, dH0, in the dtype of X; computed in float64.

    See Also
    --------
    xpgrad.gru_grad : the kernel.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import gru_grad_reference, gru_reference
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = rng.normal(size=(5, 2, 3)), rng.normal(size=(1, 12, 3)), rng.normal(size=(1, 12, 4))
    >>> y = gru_reference(X, W, R)
    >>> cotangent = rng.normal(size=(1, 2, 4))
    >>> gru_grad_reference(X, W, R, H_all=y.H_all, zrh=y.zrh, grad_H_t=cotangent).dR.shape
    (1, 12, 4)
    """
    D, H = W.shape[0], R.shape[2]
    acts = _read_activations(
        "gru_grad_reference", activations, activation_alpha, activation_beta, D, _GRU_ACTIVATIONS
    )

    def step(
        d: int,
        x: Array,
        before: list,
        after: list,
        gates: Array,
        cotangents: list,
        w: Array,
        r: Array,
        b: Array,
    ) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
        [h_prev], [dh] = before, cotangents
        z, reset, n = np.split(gates, 3)
        f_act, g_act = acts[d]
        R_z, R_r, R_h = np.split(r, 3)
        b_x, b_h = b[: 3 * H], b[3 * H :]

        # what the gates' activations took
        source = h_prev if linear_before_reset else reset * h_prev
        q = R_h @ source + b_h[2 * H :]
        inputs = w @ x + b_x
        a_z, a_r = np.split(inputs[: 2 * H] + r[: 2 * H] @ h_prev + b_h[: 2 * H], 2)
        a_n = inputs[2 * H :] + (reset * q if linear_before_reset else q)

        da_z = dh * (h_prev - n) * _gate_slope(f_act, z, a_z, clip)
        da_n = dh * (1 - z) * _gate_slope(g_act, n, a_n, clip)
        if linear_before_reset:
            dq = da_n * reset
            d_reset, d_state = da_n * q, R_h.T @ dq
        else:
            dq = da_n
            d_source = R_h.T @ dq
            d_reset, d_state = d_source * h_prev, d_source * reset
        da_r = d_reset * _gate_slope(f_act, reset, a_r, clip)

        from_input = np.concatenate([da_z, da_r, da_n])
        from_state = np.concatenate([da_z, da_r, dq])
        found = {
            "X": w.T @ from_input,
            "W": np.outer(from_input, x),
            "R": np.concatenate([np.outer(da_z, h_prev), np.outer(da_r, h_prev), np.outer(dq, source)]),
            "B": np.concatenate([from_input, from_state]),
        }
        return found, [dh * z + R_z.T @ da_z + R_r.T @ da_r + d_state]

    tracks = (_Track(H_all, grad_H_all, grad_H_t, initial_h),)
    grads, [dH0] = _walk_back(
        step, X, W, R, B, sequence_lens, tracks, zrh, {"B": 6 * H}, direction, layout, per_sample,
        sample_weight, None, recurrent_mask, (zoneout_h,),
    )  # fmt: skip
    return GRUGrads(grads["X"], grads["W"], grads["R"], grads["B"], dH0)


# ----------------------------------------------------------------------------------------------------------
# The plain recurrent network, one sample and one step at a time
# ----------------------------------------------------------------------------------------------------------

_RNN_ACTIVATIONS = ("Tanh",)


def rnn_reference(
    X: Array,
    W: Array,
    R: Array,
    B: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
) -> RNNForward:
    r"""Naive RNN: `xpgrad.rnn` by the definition, one sample and one step at a time.

    .. math:: h_t = f(W x_t + w + R h_{t-1} + v)

    w and v are B's halves, the input and the recurrence bias; with `clip` the argument of f is bounded to
    [-clip, clip].

    Only plain operations of the array namespace, nothing written in place: with torch tensors that require
    gradients, PyTorch's autograd differentiates it, which makes it an oracle for every option.

    Parameters
    ----------
    X, W, R, B, sequence_lens, initial_h : array
        As for `xpgrad.rnn`. They are taken to be valid.
    direction, activations, activation_alpha, activation_beta, clip, layout
        As for `xpgrad.rnn`.

    Returns
    -------
    RNNForward
        H_all, H_t, in the dtype of X; half precision is computed in float32.

    See Also
    --------
    xpgrad.rnn : the kernel.

    References
    ----------
    ONNX operator specification, RNN (version 14).

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import rnn_reference
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = rng.normal(size=(5, 2, 3)), rng.normal(size=(1, 4, 3)), rng.normal(size=(1, 4, 4))
    >>> rnn_reference(X, W, R).H_all.shape
    (5, 1, 2, 4)
    """
    xp = array_namespace(X)
    acts = _read_activations(
        "rnn_reference", activations, activation_alpha, activation_beta, W.shape[0], _RNN_ACTIVATIONS
    )

    def step(
        d: int, x: Array, states: tuple[Array, ...], W: Array, R: Array, b: Array | None
    ) -> tuple[tuple[Array, ...], Array]:
        z = xp.matmul(W, x) + xp.matmul(R, states[0])
        if b is not None:
            H = z.shape[0]
            z = z + b[:H] + b[H:]
        h = _activate(xp, acts[d][0], _bounded(xp, z, clip))
        return (h,), h

    [H_all], [H_t], _ = _walk(step, 1, X, W, R, B, sequence_lens, [initial_h], direction, layout)
    return RNNForward(H_all=H_all, H_t=H_t)


def rnn_grad_reference(
    X: np.ndarray,
    W: np.ndarray,
    R: np.ndarray,
    *,
    H_all: np.ndarray,
    grad_H_all: np.ndarray | None = None,
    grad_H_t: np.ndarray | None = None,
    B: np.ndarray | None = None,
    sequence_lens: np.ndarray | None = None,
    initial_h: np.ndarray | None = None,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    per_sample: bool | str = False,
    sample_weight: np.ndarray | None = None,
) -> RNNGrads:
    r"""Naive RNN backward in NumPy: `xpgrad.rnn_grad`, one sample and one step at a time.

    With :math:`a_t` the argument of f, a step takes :math:`\bar h_t` (what the later steps and the cotangents
    sent) to

    .. math:: \bar a_t = \bar h_t \odot f'(a_t), \quad \bar h_{t-1} = R^T \bar a_t

    and the parameters' gradients sum over steps. Slopes are read off the saved outputs; what these do not
    tell comes from :math:`a_t`, rebuilt from X, H_all and the parameters.

    Parameters
    ----------
    X, W, R, H_all, grad_H_all, grad_H_t, B, sequence_lens, initial_h
        NumPy arrays, as for `xpgrad.rnn_grad`. They are taken to be valid.
    direction, activations, activation_alpha, activation_beta, clip, layout
        As for `xpgrad.rnn_grad`.
    per_sample, sample_weight
        As for `xpgrad.rnn_grad`.

    Returns
    -------
    RNNGrads
        dX, dW, dR, dB, dH0, in the dtype of X; computed in float64.

    See Also
    --------
    xpgrad.rnn_grad : the kernel.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import rnn_grad_reference, rnn_reference
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = rng.normal(size=(5, 2, 3)), rng.normal(size=(1, 4, 3)), rng.normal(size=(1, 4, 4))
    >>> y = rnn_reference(X, W, R)
    >>> cotangent = rng.normal(size=(1, 2, 4))
    >>> rnn_grad_reference(X, W, R, H_all=y.H_all, grad_H_t=cotangent).dR.shape
    (1, 4, 4)
    """
    D, H = W.shape[0], R.shape[2]
    acts = _read_activations(
        "rnn_grad_reference", activations, activation_alpha, activation_beta, D, _RNN_ACTIVATIONS
    )

    def step(
        d: int,
        x: Array,
        before: list,
        after: list,
        gates: Array,
        cotangents: list,
        w: Array,
        r: Array,
        b: Array,
    ) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
        [h_prev], [h], [dh] = before, after, cotangents
        a = w @ x + r @ h_prev + b[:H] + b[H:]
        da = dh * _gate_slope(acts[d][0], h, a, clip)
        found = {
            "X": w.T @ da,
            "W": np.outer(da, x),
            "R": np.outer(da, h_prev),
            "B": np.concatenate([da, da]),
        }
        return found, [r.T @ da]

    tracks = (_Track(H_all, grad_H_all, grad_H_t, initial_h),)
    grads, [dH0] = _walk_back(
        step, X, W, R, B, sequence_lens, tracks, H_all, {"B": 2 * H}, direction, layout, per_sample,
        sample_weight,
    )  # fmt: skip
    return RNNGrads(grads["X"], grads["W"], grads["R"], grads["B"], dH0)


# ----------------------------------------------------------------------------------------------------------
# Layer normalization, one sample and one step at a time
# ----------------------------------------------------------------------------------------------------------


def _normalized(xp: Any, z: Array, scale: Array, shift: Array, epsilon: float) -> Array:
    centered = z - xp.mean(z)
    variance = xp.mean(centered * centered)
    return xp.astype(scale, z.dtype) * centered / xp.sqrt(variance + epsilon) + xp.astype(shift, z.dtype)


def _clipped(xp: Any, z: Array, clip: float | None) -> Array:
    if clip is None:
        return z
    bound = xp.zeros_like(z) + clip
    return xp.where(z > bound, bound, xp.where(z < -bound, -bound, z))


def layer_norm_lstm_reference(
    X: Array,
    W: Array,
    R: Array,
    B: Array | None,
    gamma: Array,
    beta: Array,
    gamma_c: Array,
    beta_c: Array,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    *,
    epsilon: float = 1e-5,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
) -> tuple[Array, ...]:
    r"""Naive LSTM with layer normalization: `xpgrad.layer_norm_lstm` by the definition.

    Only plain operations of the array namespace, nothing written in place: with torch tensors that require
    gradients, PyTorch's autograd differentiates it.

    Parameters
    ----------
    X, W, R, B, gamma, beta, gamma_c, beta_c, sequence_lens, initial_h, initial_c : array
        As for `xpgrad.layer_norm_lstm`. They are taken to be valid.
    epsilon, direction, activations, activation_alpha, activation_beta, clip, layout
        As for `xpgrad.layer_norm_lstm`.

    Returns
    -------
    tuple of array
        H_all, H_t, C_t, C_all.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import layer_norm_lstm_reference
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = rng.normal(size=(5, 2, 3)), rng.normal(size=(1, 16, 3)), rng.normal(size=(1, 16, 4))
    >>> gamma, beta = np.ones((1, 2, 16)), np.zeros((1, 2, 16))
    >>> layer_norm_lstm_reference(X, W, R, None, gamma, beta, np.ones((1, 4)), np.zeros((1, 4)))[0].shape
    (5, 1, 2, 4)
    """
    xp, H = array_namespace(X), R.shape[2]
    acts = _read_activations(
        "layer_norm_lstm_reference", activations, activation_alpha, activation_beta, W.shape[0],
        _LSTM_ACTIVATIONS,
    )  # fmt: skip

    def step(
        d: int, x: Array, states: tuple[Array, ...], W: Array, R: Array, b: Array | None
    ) -> tuple[tuple[Array, ...], Array]:
        f, g, h = acts[d]
        z = _normalized(xp, xp.matmul(W, x), gamma[d, 0, :], beta[d, 0, :], epsilon)
        z = z + _normalized(xp, xp.matmul(R, states[0]), gamma[d, 1, :], beta[d, 1, :], epsilon)
        if b is not None:
            z = z + b[: 4 * H] + b[4 * H :]
        z_i, z_o, z_f, z_c = (_clipped(xp, z[k * H : (k + 1) * H], clip) for k in range(4))
        c = _activate(xp, f, z_f) * states[1] + _activate(xp, f, z_i) * _activate(xp, g, z_c)
        normal = _normalized(xp, c, gamma_c[d, :], beta_c[d, :], epsilon)
        return (_activate(xp, f, z_o) * _activate(xp, h, normal), c), z

    initial = (initial_h, initial_c)
    (H_all, C_all), ends, _ = _walk(step, 4, X, W, R, B, sequence_lens, initial, direction, layout)
    return H_all, *ends, C_all


def layer_norm_gru_reference(
    X: Array,
    W: Array,
    R: Array,
    B: Array | None,
    gamma: Array,
    beta: Array,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    epsilon: float = 1e-5,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
) -> tuple[Array, ...]:
    r"""Naive GRU with layer normalization: `xpgrad.layer_norm_gru` by the definition.

    Only plain operations of the array namespace, nothing written in place: with torch tensors that require
    gradients, PyTorch's autograd differentiates it.

    Parameters
    ----------
    X, W, R, B, gamma, beta, sequence_lens, initial_h : array
        As for `xpgrad.layer_norm_gru`. They are taken to be valid.
    epsilon, direction, activations, activation_alpha, activation_beta, clip, layout
        As for `xpgrad.layer_norm_gru`.

    Returns
    -------
    tuple of array
        H_all, H_t.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import layer_norm_gru_reference
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = rng.normal(size=(5, 2, 3)), rng.normal(size=(1, 12, 3)), rng.normal(size=(1, 12, 4))
    >>> layer_norm_gru_reference(X, W, R, None, np.ones((1, 2, 12)), np.zeros((1, 2, 12)))[0].shape
    (5, 1, 2, 4)
    """
    xp, H = array_namespace(X), R.shape[2]
    acts = _read_activations(
        "layer_norm_gru_reference", activations, activation_alpha, activation_beta, W.shape[0],
        ("Sigmoid", "Tanh"),
    )  # fmt: skip

    def step(
        d: int, x: Array, states: tuple[Array, ...], W: Array, R: Array, b: Array | None
    ) -> tuple[tuple[Array, ...], Array]:
        (f, g), [h] = acts[d], states
        a = _normalized(xp, xp.matmul(W, x), gamma[d, 0, :], beta[d, 0, :], epsilon)
        p = _normalized(xp, xp.matmul(R, h), gamma[d, 1, :], beta[d, 1, :], epsilon)
        if b is not None:
            a, p = a + b[: 3 * H], p + b[3 * H :]
        z, r = (_activate(xp, f, _clipped(xp, (a + p)[k * H : (k + 1) * H], clip)) for k in range(2))
        n = _activate(xp, g, _clipped(xp, a[2 * H :] + r * p[2 * H :], clip))
        return ((1 - z) * n + z * h,), a

    over_time, ends, _ = _walk(step, 3, X, W, R, B, sequence_lens, [initial_h], direction, layout)
    return *over_time, *ends


# ----------------------------------------------------------------------------------------------------------
# Cells that a user wrote
# ----------------------------------------------------------------------------------------------------------


class _Blocks:
    """What stands for W, R or v in a step: by its name each block, as a product or as it is."""

    def __init__(self, array: Array, names: Sequence[str], multiplies: bool) -> None:
        height = array.shape[0] // len(names)
        for k, name in enumerate(names):
            block = array[k * height : (k + 1) * height, ...]
            setattr(self, name, _product_with(block) if multiplies else block)


def _product_with(block: Array) -> Callable[[Array], Array]:
    return lambda x: array_namespace(x).matmul(block, x)


def cell_reference(
    cell: Cell,
    X: Array,
    W: Array,
    R: Array | None = None,
    v: Array | None = None,
    sequence_lens: Array | None = None,
    initial: Mapping[str, Array] | None = None,
    *,
    direction: str = "forward",
) -> tuple[Array, ...]:
    r"""Naive `xpgrad.Cell`: its step as it was written, one sample and one step at a time.

    Only the step's own operations, nothing written in place: with torch tensors that require gradients,
    PyTorch's autograd differentiates it. Pullbacks that the step gives are not used.

    Parameters
    ----------
    cell : Cell
        The cell.
    X, W, R, v, sequence_lens : array
        As the cell takes them. They are taken to be valid.
    initial : mapping of str to array, optional
        Initial states (D, N, H) by the states' names; zeros where left out.
    direction : {"forward", "reverse", "bidirectional"}
        As the cell has it.

    Returns
    -------
    tuple of array
        Each state over time (T, D, N, H), then each final state (D, N, H).

    Examples
    --------
    >>> import numpy as np
    >>> import xpgrad
    >>> from xpgrad.testing import cell_reference
    >>> def elman(xp, x, h, W, R):
    ...     return xp.tanh(W.z(x) + R.z(h))
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = rng.normal(size=(5, 2, 3)), rng.normal(size=(1, 4, 3)), rng.normal(size=(1, 4, 4))
    >>> H_all, H_t = cell_reference(xpgrad.Cell(elman, W="z", R="z"), X, W, R)
    >>> H_all.shape
    (5, 1, 2, 4)
    """
    xp, (T, N, _), D = array_namespace(X), X.shape, W.shape[0]
    count, H = len(cell.states), W.shape[1] // len(cell.blocks["W"])
    lengths = _lengths(sequence_lens, T, N)
    zeros = xp.zeros((H,), dtype=X.dtype, device=device(X))
    over_time: dict[tuple[int, int, int, int], Array] = {}
    ends: dict[tuple[int, int, int], Array] = {}
    for d, n in itertools.product(range(D), range(N)):
        given = {"W": W, "R": R, "v": v}
        taken = {
            kind: _Blocks(given[kind][d, ...], names, multiplies=kind != "v")
            for kind, names in cell.blocks.items()
            if names
        }
        begin = initial or {}
        states = [begin[name][d, n, :] if name in begin else zeros for name in cell.states]
        for t in _time_order(direction, d, lengths[n]):
            named = dict(zip(cell.states, states, strict=True))
            after = cell.step(xp, X[t, n, :], **named, **taken)
            states = list(after) if isinstance(after, tuple | list) else [after]
            over_time |= {(k, t, d, n): state for k, state in enumerate(states)}
        ends |= {(k, d, n): state for k, state in enumerate(states)}

    def stack(found: Mapping[Any, Array], k: int, *shape: int) -> Array:
        keys = itertools.product([k], *map(range, shape))
        rows = [found.get(key, zeros) for key in keys]
        return xp.reshape(xp.stack(rows), (*shape, H)) if rows else xp.zeros((*shape, H), dtype=X.dtype)

    return (
        *(stack(over_time, k, T, D, N) for k in range(count)),
        *(stack(ends, k, D, N) for k in range(count)),
    )


def check_cell(cell: Cell, *, seed: int = 0) -> None:
    """Check a cell on small random arrays: against its plain formula, and against central differences.

    Parameters
    ----------
    cell : Cell
        The cell.
    seed : int
        Of the numbers.

    Raises
    ------
    AssertionError
        At the first result that is not right.

    Examples
    --------
    >>> import xpgrad
    >>> from xpgrad.testing import check_cell
    >>> check_cell(xpgrad.Cell(lambda xp, x, h, W, R: xp.tanh(W.z(x) + R.z(h)), W="z", R="z", name="elman"))
    """
    rng = np.random.default_rng(seed)
    T, N, inputs, H = 3, 2, 3, 4
    counts = {kind: len(names) for kind, names in cell.blocks.items() if names}
    for direction, lengths in (("forward", None), ("reverse", [2, 3]), ("bidirectional", [3, 1])):
        D = 2 if direction == "bidirectional" else 1
        tails = {"W": (inputs,), "R": (H,), "v": ()}
        arguments = {"X": rng.standard_normal((T, N, inputs))}
        for kind, count in counts.items():
            arguments[kind] = 0.7 * rng.standard_normal((D, count * H, *tails[kind]))
        arguments |= {f"initial_{name}": rng.standard_normal((D, N, H)) for name in cell.carried}
        options: dict[str, Any] = {"direction": direction, "sequence_lens": lengths}
        _check_cell_call(cell, arguments, options)


def _check_cell_call(cell: Cell, arguments: dict[str, np.ndarray], options: dict[str, Any]) -> None:
    differentiable = list(cell.cotangents)

    def forward(**arrays: Array) -> tuple[Array, ...]:
        out = cell(**arrays, **options)
        return tuple(getattr(out, name) for name in differentiable)

    def gradient(*cotangents: Array, **arrays: Array) -> Any:
        out = cell(**arrays, **options)
        saved = {name: getattr(out, name) for name in cell.saved}
        named = dict(zip(cell.cotangents.values(), cotangents, strict=True))
        return tuple(cell.grad(**arrays, **saved, **named, **options))

    initial = {name: arguments[f"initial_{name}"] for name in cell.carried}
    plain = cell_reference(
        cell, arguments["X"], arguments["W"], arguments.get("R"), arguments.get("v"),
        options["sequence_lens"], initial, direction=options["direction"],
    )  # fmt: skip
    for name, actual, desired in zip(differentiable, forward(**arguments), plain, strict=True):
        assert_close(actual, desired, label=f"{cell.__name__}: {name}")
    check_vjp(forward, gradient, arguments, operator=cell.__name__, outputs=differentiable)


# ----------------------------------------------------------------------------------------------------------
# Convolutions, element by element
# ----------------------------------------------------------------------------------------------------------


def _meetings(
    X_size: Sequence[int], kernel: Sequence[int], Y_size: Sequence[int], attributes: Mapping[str, Any]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """The spatial indices (of X, of W, of Y) that meet; what meets the padding is left out."""
    for j in itertools.product(*map(range, Y_size)):
        for k in itertools.product(*map(range, kernel)):
            i = tuple(
                j[axis] * attributes["strides"][axis]
                + k[axis] * attributes["dilations"][axis]
                - attributes["pads"][axis]
                for axis in range(len(j))
            )
            if all(0 <= i[axis] < X_size[axis] for axis in range(len(j))):
                yield i, k, j


def _spelled_out(n: int, strides: Any, pads: Any, dilations: Any) -> dict[str, list[int]]:
    """One number a dimension each, two of the pads."""

    def each(value: Any) -> list[int]:
        return [value] * n if isinstance(value, int) else list(value)

    ends = each(pads)
    return {
        "strides": each(strides),
        "dilations": each(dilations),
        "pads": ends if len(ends) == 2 * n else ends * 2,
    }


def conv_reference(
    X: Array,
    W: Array,
    B: Array | None = None,
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
) -> np.ndarray:
    """`xpgrad.conv`, as its direct sum in float64: one pair of positions after the other.

    Parameters
    ----------
    X, W, B, strides, pads, dilations, group
        As in `xpgrad.conv`.

    Returns
    -------
    numpy.ndarray, shape (N, O, *output_size)
        The output, float64.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import conv_reference
    >>> conv_reference(np.ones((1, 1, 4)), np.ones((1, 1, 3)), pads=1)
    array([[[2., 3., 3., 2.]]])
    """
    x, w = to_numpy(X), to_numpy(W)
    n, kernel = x.ndim - 2, w.shape[2:]
    at = _spelled_out(n, strides, pads, dilations)
    size = [
        (x.shape[2 + a] + at["pads"][a] + at["pads"][n + a] - (kernel[a] - 1) * at["dilations"][a] - 1)
        // at["strides"][a]
        + 1
        for a in range(n)
    ]
    y = np.zeros((x.shape[0], w.shape[0], *size))
    for i, k, j in _meetings(x.shape[2:], kernel, size, at):
        for sees, makes in _group_channels(x.shape[1], w.shape[0], group):
            _at(y, j)[:, makes] += _at(x, i)[:, sees] @ _at(w, k)[makes].T
    return y if B is None else y + to_numpy(B).reshape(-1, *[1] * n)


def _at(array: np.ndarray, position: tuple[int, ...]) -> np.ndarray:
    """A view of the matrix of an array's first two dimensions, at one position of the others."""
    index: tuple[Any, ...] = (slice(None), slice(None), *position)
    return array[index]


def _group_channels(channels: int, outputs: int, group: int) -> Iterator[tuple[slice, slice]]:
    """The channels that each group sees, and those that it makes."""
    c, o = channels // group, outputs // group
    return ((slice(g * c, (g + 1) * c), slice(g * o, (g + 1) * o)) for g in range(group))


def conv_grad_reference(
    dY: Array,
    X: Array,
    W: Array,
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    per_sample: bool | str = False,
    sample_weight: Array | None = None,
) -> ConvGrads:
    """`xpgrad.conv_grad`, as the direct sums in float64.

    Parameters
    ----------
    dY, X, W, strides, pads, dilations, group, per_sample, sample_weight
        As in `xpgrad.conv_grad`.

    Returns
    -------
    ConvGrads
        ``(dX, dW, dB)`` as NumPy arrays, float64.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import conv_grad_reference
    >>> conv_grad_reference(np.ones((1, 1, 2)), np.asarray([[[1.0, 2.0, 4.0]]]), np.ones((1, 1, 2))).dW
    array([[[3., 6.]]])
    """
    dy, x, w = to_numpy(dY), to_numpy(X), to_numpy(W)
    at = _spelled_out(x.ndim - 2, strides, pads, dilations)
    dx, dw = np.zeros(x.shape), np.zeros((x.shape[0], *w.shape))
    for i, k, j in _meetings(x.shape[2:], w.shape[2:], dy.shape[2:], at):
        for sees, makes in _group_channels(x.shape[1], w.shape[0], group):
            cotangent = _at(dy, j)[:, makes]
            _at(dx, i)[:, sees] += cotangent @ _at(w, k)[makes]
            for own, d, seen in zip(dw, cotangent, _at(x, i)[:, sees], strict=True):
                own[(..., *k)][makes] += np.outer(d, seen)
    db = dy.sum(axis=tuple(range(2, dy.ndim)))
    return ConvGrads(dx, *(_of_samples(a, per_sample, sample_weight, leading=1) for a in (dw, db)))
