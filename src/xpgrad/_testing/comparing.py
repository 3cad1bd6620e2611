"""Comparing arrays of any namespace."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_cupy_array, is_jax_array, is_torch_array

Array = Any


_RTOL = {"float64": 1e-10, "float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}
"""Relative tolerance of `assert_close` by dtype."""


def to_numpy(array: Array) -> np.ndarray:
    """Copy an array of any namespace and device into a NumPy array.

    Floating-point values become float64, because NumPy lacks some types of half precision.

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
    if is_jax_array(array):  # NumPy can read its dtypes; JAX has no float64 by default
        kind = np.float64 if xp.isdtype(array.dtype, "real floating") else None
        return np.array(array).astype(kind or array.dtype)
    if xp.isdtype(array.dtype, "real floating"):
        array = xp.astype(array, xp.float64)
    if is_torch_array(array):
        array = array.detach().cpu().numpy()
    if is_cupy_array(array):  # it refuses to become NumPy's by itself
        array = array.get()
    if hasattr(array, "unwrap_numpy"):  # the only way to the values of ndonnx's arrays
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
        ``max|actual - desired| / max|desired|``, computed in float64. The absolute difference if `desired` is
        all zeros; 0 for empty arrays; infinity if only one array has NaN or an infinity at some place.

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

    Namespace, dtype, shape and device are compared first. Then the largest difference of the numbers is
    compared with the largest magnitude of `desired`.

    Parameters
    ----------
    actual : array
        The array under test.
    desired : array
        The expected array.
    like : array, optional
        The array whose namespace, dtype and device `actual` must have. Default: `desired`. Give it if
        `desired` has another namespace or precision.
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
        If something differs. The message names the place and both values.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import assert_close
    >>> assert_close(np.asarray([1.0, 2.0]), np.asarray([1.0, 2.0 + 1e-12]))
    """
    assert_same_kind(actual, desired if like is None else like, tuple(desired.shape), label)
    if rtol is None:
        rtol = _RTOL.get(dtype_name(actual.dtype), 0.0)
    a, b = to_numpy(actual), to_numpy(desired)
    if wrong := worst_difference(a, b, rtol, atol):
        index, size = wrong
        raise AssertionError(
            f"{label} differs at index {index}: {a[index]!s}, expected {b[index]!s} ({size})"
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


def differences_of(actual: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, float]:
    """Absolute differences, infinite where only one value is finite; the largest magnitude of `desired`."""
    if actual.shape != desired.shape:
        raise AssertionError(f"shape {actual.shape}, expected {desired.shape}")
    if desired.dtype.kind in "biu":  # differences of small integers wrap around
        actual, desired = actual.astype(np.float64), desired.astype(np.float64)
    finite = np.isfinite(desired)
    same = np.where(np.isnan(desired), np.isnan(actual), actual == desired)
    comparable = finite & np.isfinite(actual)
    gaps = np.abs(np.where(comparable, actual, 0) - np.where(comparable, desired, 0))
    differences = np.where(comparable, gaps, np.where(same, 0.0, np.inf))
    return differences, float(np.max(np.abs(np.where(finite, desired, 0)), initial=0.0))


def worst_difference(
    actual: np.ndarray, desired: np.ndarray, rtol: float, atol: float
) -> tuple[tuple[int, ...], str] | None:
    """The index of the largest difference, and its size in words; None if it is allowed."""
    differences, scale = differences_of(actual, desired)
    allowed = rtol * scale + atol
    if differences.size == 0 or differences.max() <= allowed:
        return None
    worst = tuple(int(k) for k in np.unravel_index(np.argmax(differences), differences.shape))
    return worst, f"difference {differences[worst]:.3g}, allowed {allowed:.3g}"


def assert_same_kind(actual: Array, like: Array, shape: tuple[int, ...], label: str) -> None:
    """Assert that an array has the namespace, dtype and device of `like`, and the given shape."""
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
