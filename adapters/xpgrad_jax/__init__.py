"""xpgrad's kernels as differentiable functions of JAX arrays.

On CPUs kernels run as compiled programs inside XLA's, without Python at run time; if they do not, `why_plain`
says why.
"""

from xpgrad_jax._ffi import why_not as why_plain
from xpgrad_jax.functional import *  # noqa: F403
from xpgrad_jax.functional import __all__ as _functions

__all__ = [*_functions, "why_plain"]
