"""JAX itself: LSTM and GRU as a lax.scan under jit and value_and_grad, and XLA's convolutions, on the CPU.

The input's product is outside the scan. Scans that unroll 2, 5 or 10 steps were tried, and were slower.
"""

from collections.abc import Callable
from typing import Any

from .. import convolutions, recurrent
from . import need


def _lstm_step(jax: Any, R: Any, B: Any, carry: Any, x: Any) -> Any:
    h, c = carry
    i, o, f, g = jax.numpy.split(x + h @ R.T, 4, axis=-1)
    sigmoid, tanh = jax.nn.sigmoid, jax.numpy.tanh
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    h = sigmoid(o) * tanh(c)
    return (h, c), h


def _gru_step(jax: Any, R: Any, B: Any, carry: Any, x: Any) -> Any:
    """With the reset after the product; x includes only the input biases."""
    (h,) = carry
    x_z, x_r, x_n = jax.numpy.split(x, 3, axis=-1)
    h_z, h_r, h_n = jax.numpy.split(h @ R.T + B, 3, axis=-1)
    z, r = jax.nn.sigmoid(x_z + h_z), jax.nn.sigmoid(x_r + h_r)
    n = jax.numpy.tanh(x_n + r * h_n)
    h = n + z * (h - n)
    return (h,), h


STEPS = {"lstm": _lstm_step, "gru": _gru_step}


class RecurrentRun:
    """The value and the gradients of all parameters, the input and the states, as one compiled function."""

    def __init__(self, work: recurrent.Recurrent) -> None:
        jax = need("jax")
        if work.operator not in STEPS or work.lengths is not None:
            raise NotImplementedError(f"not measured in JAX: {work.label}")
        jax.config.update("jax_enable_x64", work.dtype == "float64")
        parameters, arrays = recurrent.data(work)
        values = parameters | arrays | {"cotangent": arrays["grad_H_all"][:, 0]}
        names = ["W", "R", "B", "X", "cotangent", *recurrent.OPERATORS[work.operator].states]
        self._operands = [jax.numpy.asarray(values[name]) for name in names]
        wanted = tuple(k for k, name in enumerate(names) if name != "cotangent")
        self._run = jax.jit(jax.value_and_grad(self.objective(jax, work.operator), argnums=wanted))
        self._jax = jax

    def objective(self, jax: Any, operator: str) -> Callable[..., Any]:
        """A number, from W, R, B, X, the outputs' cotangent and the states."""
        step = STEPS[operator]
        together = operator == "lstm"  # its two biases only occur as a sum

        def function(W: Any, R: Any, B: Any, X: Any, cotangent: Any, *states: Any) -> Any:
            inputs, recurrence = jax.numpy.split(B[0], 2)
            x = X @ W[0].T + (inputs + recurrence if together else inputs)
            carry = tuple(state[0] for state in states)
            _, H_all = jax.lax.scan(lambda c, x: step(jax, R[0], recurrence, c, x), carry, x)
            return (H_all * cotangent).sum()

        return function

    def step(self) -> Any:
        """Forward and backward."""
        return self._jax.block_until_ready(self._run(*self._operands))[1]


class ConvolutionRun:
    """A convolution and its gradients of the input and both parameters, as one compiled function."""

    def __init__(self, work: convolutions.Convolution, function: Any) -> None:
        jax = need("jax")
        jax.config.update("jax_enable_x64", work.dtype == "float64")
        self._operands = [
            jax.numpy.asarray(a) for a in (convolutions.cotangent(work), *convolutions.data(work))
        ]
        self._run = jax.jit(lambda dY, *operands: jax.vjp(function, *operands)[1](dY))
        self._jax = jax

    def step(self) -> Any:
        """Forward, where the gradients need it, and backward."""
        return self._jax.block_until_ready(self._run(*self._operands))


def _convolution(work: convolutions.Convolution) -> ConvolutionRun:
    jax, rank = need("jax"), len(work.size)
    if work.transposed:
        raise NotImplementedError(f"not measured in JAX: {work.label}")

    def function(X: Any, W: Any, B: Any) -> Any:
        Y = jax.lax.conv_general_dilated(
            X,
            W,
            (work.stride,) * rank,
            [(work.pad, work.pad)] * rank,
            rhs_dilation=(work.dilation,) * rank,
            feature_group_count=work.group,
        )
        return Y + B.reshape(-1, *[1] * rank)

    return ConvolutionRun(work, function)


RUNS: dict[str, Any] = {"Recurrent": RecurrentRun, "Convolution": _convolution}


def describe() -> str:
    """The version and the path."""
    jax = need("jax")
    return f"JAX {jax.__version__} on {jax.default_backend()}: jit(value_and_grad) over lax.scan, XLA"
