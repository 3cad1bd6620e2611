"""xpgrad's kernels inside a compiled function of JAX's, through xpgrad_jax."""

from collections.abc import Callable
from typing import Any

from .. import convolutions
from . import jax_xla, need


class RecurrentRun(jax_xla.RecurrentRun):
    """The same by xpgrad's kernels."""

    def objective(self, jax: Any, operator: str) -> Callable[..., Any]:
        """See `jax_xla`."""
        kernel = getattr(need("xpgrad_jax"), operator)
        options = {"linear_before_reset": 1} if operator == "gru" else {}

        def function(W: Any, R: Any, B: Any, X: Any, cotangent: Any, *states: Any) -> Any:
            H_all = kernel(X, W, R, B, None, *states, **options)[0]
            return (H_all[:, 0] * cotangent).sum()

        return function


def _convolution(work: convolutions.Convolution) -> jax_xla.ConvolutionRun:
    kernel = need("xpgrad_jax").conv_transpose if work.transposed else need("xpgrad_jax").conv
    options = {"strides": work.stride, "pads": work.pad, "group": work.group, "dilations": work.dilation}
    return jax_xla.ConvolutionRun(work, lambda X, W, B: kernel(X, W, B, **options))


RUNS: dict[str, Any] = {"Recurrent": RecurrentRun, "Convolution": _convolution}


def describe() -> str:
    """The version and the path."""
    jax, ours = need("jax"), need("xpgrad_jax")
    reason = ours.why_plain()
    how = "programs in XLA's own calls" if reason is None else f"lax.scan ({reason})"
    return f"xpgrad_jax on JAX {jax.__version__}: jit(value_and_grad), {how}"
