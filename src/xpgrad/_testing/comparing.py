"""Comparing arrays of any namespace."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_jax_array, is_torch_array

Array = Any


_RTOL = {"float64": 1e-10, "float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}
"""Relative tolerance of `assert_close` by dtype."""


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
    if is_jax_array(array):  # NumPy knows its dtypes, and it has no float64 unless it is told to
        kind = np.float64 if xp.isdtype(array.dtype, "real floating") else None
        return np.array(array).astype(kind or array.dtype)
    if xp.isdtype(array.dtype, "real floating"):
        array = xp.astype(array, xp.float64)
    if is_torch_array(array):
        array = array.detach().cpu().numpy()
    if hasattr(array, "unwrap_numpy"):  # ndonnx's arrays have their values in this way only
        array = array.unwrap_numpy()
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
    differences, scale = differences_of(to_numpy(actual), to_numpy(desired))
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
        The expected array.
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
    assert_same_kind(actual, desired if like is None else like, tuple(desired.shape), label)
    if rtol is None:
        rtol = _RTOL[dtype_name(actual.dtype)] if _is_floating(actual) else 0.0
    a, b = to_numpy(actual), to_numpy(desired)
    differences, scale = differences_of(a, b)
    allowed = rtol * scale + atol
    if differences.size and not differences.max() <= allowed:
        worst = worst_index(differences)
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


def differences_of(actual: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, float]:
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


def worst_index(differences: np.ndarray) -> tuple[int, ...]:
    return tuple(int(k) for k in np.unravel_index(np.argmax(differences), differences.shape))


def assert_same_kind(actual: Array, like: Array, shape: tuple[int, ...], label: str) -> None:
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
