"""xpgrad's kernels inside a compiled function of JAX's, through xpgrad_jax."""

from typing import Any

from .. import convolutions, recurrent
from . import jax_xla, need


class RecurrentRun:
    """The value and the gradients of all parameters, the input and the states, as one compiled function."""

    def __init__(self, work: recurrent.Recurrent) -> None:
        jax, ours = need("jax"), need("xpgrad_jax")
        if work.operator not in ("lstm", "gru") or work.lengths is not None:
            raise NotImplementedError(f"not measured in JAX: {work.label}")
        jax.config.update("jax_enable_x64", work.dtype == "float64")
        parameters, arrays = recurrent.data(work)
        operator = recurrent.OPERATORS[work.operator]
        kernel = getattr(ours, work.operator)
        options = {"linear_before_reset": 1} if work.operator == "gru" else {}

        def objective(W: Any, R: Any, B: Any, X: Any, cotangent: Any, *states: Any) -> Any:
            H_all = kernel(X, W, R, B, None, *states, **options)[0]
            return (H_all[:, 0] * cotangent).sum()

        values = parameters | arrays | {"cotangent": arrays["grad_H_all"][:, 0]}
        names = ["W", "R", "B", "X", "cotangent", *operator.states]
        self._operands = [jax.numpy.asarray(values[name]) for name in names]
        wanted = tuple(k for k, name in enumerate(names) if name != "cotangent")
        self._run = jax.jit(jax.value_and_grad(objective, argnums=wanted))
        self._jax = jax

    def step(self) -> Any:
        """Forward and backward."""
        return self._jax.block_until_ready(self._run(*self._operands))[1]


def _convolution(work: convolutions.Convolution) -> jax_xla.ConvolutionRun:
    kernel = need("xpgrad_jax").conv_transpose if work.transposed else need("xpgrad_jax").conv
    options = {"strides": work.stride, "pads": work.pad, "group": work.group}
    return jax_xla.ConvolutionRun(work, lambda X, W, B: kernel(X, W, B, **options))


def make(work: Any) -> Any:
    """A recurrent work or a convolution in JAX."""
    return jax_xla.make_by_kind(work, RecurrentRun, _convolution, "not measured in JAX:")


def describe() -> str:
    """The version and the path."""
    jax, ours = need("jax"), need("xpgrad_jax")
    reason = ours.why_plain()
    how = "programs in XLA's own calls" if reason is None else f"lax.scan ({reason})"
    return f"xpgrad_jax on JAX {jax.__version__}: jit(value_and_grad), {how}"
