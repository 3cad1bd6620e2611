"""Central differences, and gradient rules compared with them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from xpgrad._testing.comparing import assert_same_kind, dtype_name, to_numpy, worst_difference

Array = Any


_RTOL_DIFFERENCES = {"float64": 1e-6, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""Relative tolerance of `check_vjp` by dtype: central differences give about nine correct digits."""


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
        The step h; it is multiplied by the element's magnitude if that is above 1.

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
        h = step * max(1.0, abs(float(values.reshape(-1)[index])))
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
    :math:`\bar x_j = \sum_k (\partial y_k / \partial x_j)^T \bar y_k` for every argument. The
    differences vary one element of one argument at a time. If cotangents may be left out, every combination
    with at least one cotangent is checked. Each result must have its argument's shape, dtype, device and
    namespace. The rule must not write to arguments or cotangents.

    Parameters
    ----------
    forward : callable
        The operator, called as ``forward(**arguments)``; returns an array or a tuple of arrays. It must
        accept float64: the differences are computed in it. Bind attributes and integer inputs beforehand,
        with a lambda or ``functools.partial``.
    gradient : callable
        The rule, called as ``gradient(*cotangents, **arguments)``, with one cotangent per output; a cotangent
        that is left out is None. Returns the gradients as a mapping by argument name, or as a sequence in the
        order of `arguments`, or as the array itself for a single argument.
    arguments : mapping of str to array
        The floating-point arguments, of one namespace, dtype and device. The rule gets them unchanged and is
        checked in their precision.
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
        Allowed difference beyond that; it covers rounding where the gradient is zero.
    step : float
        Step of the differences. Keep kinks of `forward` further away than that.
    seed : int
        Seed of the random cotangents.

    Raises
    ------
    AssertionError
        At the first wrong gradient. The message names operator, argument, the index of the worst element and
        both values.
    ValueError
        If there is no argument or no output: nothing could be checked.
    TypeError
        If an argument is not of a floating-point dtype; if the namespace has no float64, such as JAX without
        ``jax_enable_x64``.

    Notes
    -----
    The differences cost two evaluations of `forward` per element. Keep the arguments small, and all axes of
    different lengths above 1.

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
    >>> check_vjp(scale, wrong, {"X": X, "s": np.asarray([[0.7]])})
    Traceback (most recent call last):
        ...
    AssertionError: scale: the gradient of s is wrong at index (0, 0): ...
    """
    operator = _name_of(forward) if operator is None else operator
    if not arguments:
        raise ValueError(f"{operator}: arguments is empty, expected one or more arrays to vary")
    first = next(iter(arguments.values()))
    xp = array_namespace(first)
    for name, array in arguments.items():
        if (dtype := dtype_name(array.dtype)) not in _RTOL_DIFFERENCES:
            raise TypeError(
                f"{operator}: {name} has dtype {dtype}, expected {', '.join(_RTOL_DIFFERENCES)}; bind other "
                "arguments to the function"
            )
    in_float64 = {name: xp.astype(array, xp.float64) for name, array in arguments.items()}
    for name, array in in_float64.items():
        if (became := dtype_name(array.dtype)) != "float64":
            raise TypeError(
                f"{operator}: {name} became {became} where float64 was asked for, expected arrays that can "
                "be float64; JAX needs jax_enable_x64"
            )
    shapes = [tuple(y.shape) for y in _as_tuple(forward(**in_float64))]
    if not shapes:
        raise ValueError(f"{operator}: returned no outputs, expected one or more")
    names = [f"output {k}" for k in range(len(shapes))] if outputs is None else list(outputs)
    if len(names) != len(shapes):
        raise AssertionError(f"{operator}: returned {len(shapes)} outputs, expected {len(names)}: {names}")
    if cotangents_optional is None:
        cotangents_optional = len(names) > 1
    if rtol is None:
        rtol = _RTOL_DIFFERENCES[dtype_name(first.dtype)]

    rng = np.random.default_rng(seed)
    cotangents = [
        xp.asarray(rng.standard_normal(shape), dtype=first.dtype, device=device(first)) for shape in shapes
    ]
    jacobians = {name: numerical_jacobian(forward, in_float64, name, step=step) for name in arguments}
    before = [to_numpy(a) for a in (*arguments.values(), *cotangents)]
    values = before[len(arguments) :]
    labels = [*arguments, *(f"the cotangent of {n}" for n in names)]
    # all cotangents first: that combination is the most likely to fail
    choices = (True, False) if cotangents_optional else (True,)
    for given in filter(any, itertools.product(choices, repeat=len(names))):
        used = [c if g else None for c, g in zip(cotangents, given, strict=True)]
        results = _by_name(gradient(*used, **arguments), list(arguments), operator)
        said = ", ".join(n for n, g in zip(names, given, strict=True) if g)
        after = [to_numpy(a) for a in (*arguments.values(), *cotangents)]
        for label, old, new in zip(labels, before, after, strict=True):
            if not np.array_equal(old, new, equal_nan=True):
                raise AssertionError(f"{operator}: wrote to its input {label} (cotangents for {said})")
        known = [v if g else None for v, g in zip(values, given, strict=True)]
        for name, argument in arguments.items():
            desired = pull_back(jacobians[name], known, tuple(argument.shape))
            label = f"{operator}: the gradient of {name}"
            assert_same_kind(results[name], argument, tuple(argument.shape), label)
            actual = to_numpy(results[name])
            if wrong := worst_difference(actual, desired, rtol, atol):
                index, size = wrong
                raise AssertionError(
                    f"{label} is wrong at index {index}: {actual[index]!s} by the rule, {desired[index]!s} "
                    f"by central differences ({size}; cotangents for {said})"
                )


def pull_back(
    jacobians: Sequence[np.ndarray], cotangents: Iterable[np.ndarray | None], shape: tuple[int, ...]
) -> np.ndarray:
    """The gradient of an argument of that shape, from its Jacobians and the cotangents of the outputs."""
    total = np.zeros(shape)
    for jacobian, cotangent in zip(jacobians, cotangents, strict=True):
        if cotangent is not None:
            total = total + np.tensordot(cotangent, jacobian, axes=cotangent.ndim)
    return total


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
