"""xpgrad's kernels as differentiable functions of JAX arrays.

On CPUs the recurrent ones run as compiled programs inside XLA's, with no Python at run time; where they do
not, `why_plain` tells why.
"""

from xpgrad_jax._ffi import why_not as why_plain
from xpgrad_jax.functional import *  # noqa: F403
from xpgrad_jax.functional import __all__ as _functions

__all__ = [*_functions, "why_plain"]
