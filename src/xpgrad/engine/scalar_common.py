"""What the scalar functions for float32 and float64 share: selections, where no rounding happens."""

from numba import njit

inline = njit(forceinline=True, error_model="numpy")


@inline
def abs(x):  # noqa: A001 - the standard's name
    """Absolute value."""
    return -x if x < 0 else x


@inline
def where(condition, x, y):
    """`x` where the condition holds, else `y`."""
    return x if condition else y


@njit(forceinline=True, fastmath={"reassoc", "nsz"})
def add_up(total, x):
    """One more summand, in any order: only then are sums made by vector instructions."""
    return total + x
