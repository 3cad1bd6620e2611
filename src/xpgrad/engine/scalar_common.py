"""What the scalar functions for float32 and float64 share: selections, where no rounding happens."""

from numba import njit, types
from numba.extending import intrinsic

inline = njit(forceinline=True, error_model="numpy", fastmath={"contract"})


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


@intrinsic
def wide_vectors(context):
    """Have the function that calls it compiled for vector registers of 512 bits, where the processor has them.

    LLVM takes those of 256 bits otherwise, half as fast in loops that compute more than they load.
    """

    def generate(context, builder, signature, arguments):
        # llvmlite passes on what is in this set, but adds to it only the attributes that it knows
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        builder.function.attributes.add("noinline")  # a caller that took it in would not have the attribute
        return context.get_dummy_value()

    return types.none(), generate
