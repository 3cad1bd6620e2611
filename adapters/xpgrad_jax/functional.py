"""xpgrad's operators as differentiable functions of JAX arrays.

Each has the name and the arguments of the function of `xpgrad`. They work under `jax.grad`, `jax.jit`,
`jax.vmap`, `jax.jvp` and what else JAX has, in any order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import xpgrad
from xpgrad._recurrent import check_lengths, sequence_attributes
from xpgrad_jax._kernel import AS_SAVED, Attributes, Kernel, as_array, as_attributes
from xpgrad_jax._primitives import forward, gradient

__all__ = [
    "binary_cross_entropy_with_logits",
    "celu",
    "conv",
    "conv_transpose",
    "elu",
    "gelu",
    "gru",
    "gru_cell",
    "hard_sigmoid",
    "hard_swish",
    "hard_tanh",
    "leaky_relu",
    "log_sigmoid",
    "log_softmax",
    "lstm",
    "lstm_cell",
    "mish",
    "prelu",
    "quick_gelu",
    "relu",
    "rnn",
    "rnn_cell",
    "scaled_tanh",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softmax_cross_entropy",
    "softplus",
    "softsign",
    "tanh",
    "thresholded_relu",
]

_LSTM = Kernel("lstm")
_GRU = Kernel("gru", products=True)
_RNN = Kernel("rnn")
_LSTM_CELL = Kernel("lstm_cell")
_GRU_CELL = Kernel("gru_cell")
_RNN_CELL = Kernel("rnn_cell")


def apply(kernel: Kernel, operands: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """The kernel's outputs that callers see.

    Parameters
    ----------
    kernel : Kernel
        What to run.
    operands : sequence of array or None
        In its order; None for those left out.
    attributes : mapping of str to object
        Of the kernel and of its gradient.

    Raises
    ------
    TypeError
        For an operand that is no array.
    """
    given = dict(zip(kernel.operands, operands, strict=True))
    for name in kernel.required:
        if given[name] is None:
            raise TypeError(f"{kernel.name}: {name} is None, expected an array")
    arrays = {name: as_array(kernel.name, name, x) for name, x in given.items() if x is not None}
    return tuple(forward(kernel, arrays, as_attributes(kernel.name, attributes))[: len(kernel.cotangents)])


def _lengths(operator: str, lengths: Any, X: Any, layout: int) -> Any:
    """Lengths as an array; checked, where their numbers are known."""
    if lengths is None or isinstance(lengths, jax.core.Tracer):
        return lengths
    known = np.asarray(lengths)
    if known.dtype.kind not in "iu":
        raise TypeError(f"{operator}: sequence_lens has dtype {known.dtype}, expected an integer dtype")
    if getattr(X, "ndim", 0) == 3:
        T, N = (X.shape[1], X.shape[0]) if layout else X.shape[:2]
        check_lengths(operator, known, N, T)
    return jnp.asarray(lengths)


# --- the core's own functions under a trace

_KERNELS = {kernel.name: kernel for kernel in (_LSTM, _GRU, _RNN, _LSTM_CELL, _GRU_CELL, _RNN_CELL)}


def traced_call(operator: str, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """See `xpgrad.engine.NumpyEngine.traced_call`; None for what the kernels here do not have."""
    kernel = _KERNELS.get(operator.removesuffix("_grad"))
    if kernel is None or set(options) & {"gate_order", "keep_products"}:
        return None
    given = {name: x for name, x in arrays.items() if x is not None}
    if any(not isinstance(x, jax.Array) for name, x in given.items() if name != "sequence_lens"):
        return None
    is_gradient = operator.endswith("_grad")
    known = (*kernel.gradient_arrays, "sequence_lens") if is_gradient else kernel.operands
    needed = {*kernel.required, *(kernel.saved if is_gradient else ())} - {"products"}
    if not needed <= set(given) <= {*known}:
        return None
    if "sequence_lens" in given:
        layout = options.get("layout", 0)
        given["sequence_lens"] = _lengths(operator, given["sequence_lens"], given["X"], layout)
    given = {name: given[name] for name in known if name in given}
    own = {name: x for name, x in options.items() if name not in ("wanted", "per_sample")}
    attributes = as_attributes(operator, own)
    if not is_gradient:
        return kernel.result(*forward(kernel, given, attributes)[: len(kernel.result._fields)])
    per_sample = options.get("per_sample", False)
    if per_sample not in (False, True):
        return None
    wrt = tuple(name for name in kernel.graded if name in options["wanted"])
    attributes = Attributes({**attributes, AS_SAVED: True})
    made = gradient(kernel, given, wrt, attributes, bool(per_sample)) if wrt else []
    by_name = dict(zip(wrt, made, strict=True))
    return kernel.gradient_result(*(by_name.get(name) for name in kernel.graded))


def lstm(
    X: Any,
    W: Any,
    R: Any,
    B: Any = None,
    sequence_lens: Any = None,
    initial_h: Any = None,
    initial_c: Any = None,
    P: Any = None,
    *,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    layout: int = 0,
    S: Any = None,
    recurrent_mask: Any = None,
    zoneout_h: Any = None,
    zoneout_c: Any = None,
    peephole: str = "full",
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The ONNX LSTM as a differentiable function of JAX arrays.

    What it computes, and what each attribute does, is described in `xpgrad.lstm`; the gradient is
    `xpgrad.lstm_grad`, of those operands alone that JAX asks for.

    Parameters
    ----------
    X : array
        Input, (T, N, I); float16, bfloat16, float32, or float64.
    W, R : array
        Input weights (D, 4H, I) and recurrence weights (D, 4H, H), rows in order i o f c.
    B : array, optional
        Biases, (D, 8H): the input's, then the recurrence's.
    sequence_lens : sequence or array of int, optional
        Length of each sequence, (N,), from 0 to T. Under a trace, which does not know them, a length below 0
        counts as 0 and one above T as T.
    initial_h, initial_c : array, optional
        Initial states, (D, N, H); zero where left out.
    P : array, optional
        Peephole weights, (D, 3H), in order i o f.
    direction, activations, activation_alpha, activation_beta, clip, input_forget, layout
        The attributes of `xpgrad.lstm`.
    S : array, optional
        Projects the output, (D, proj, H): R is then (D, 4H, proj), and H_all, H_t and initial_h have proj
        columns.
    recurrent_mask, zoneout_h, zoneout_c : array, optional
        (D, N, H or proj), (T, D, N, H or proj) and (T, D, N, H): a factor for the state on its way into R,
        and the shares of the old states that are kept. Their gradients are those of a ``lax.scan``.
    peephole : {"full", "truncated"}
        The gradient through the peepholes: see `xpgrad.lstm_grad`. ``"truncated"`` has no forward mode.

    Returns
    -------
    H_all, H_t, C_t : jax.Array
        The hidden states (T, D, N, H), and the states at each sequence's end (D, N, H).

    Raises
    ------
    TypeError
        Where an operand is no array of JAX or NumPy, or the operands differ in dtype.
    ValueError
        Where a shape, a length or an attribute breaks ONNX's rules.

    Notes
    -----
    Source: the operator LSTM of the ONNX specification, version 14.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import xpgrad_jax
    >>> X, W, R = jnp.ones((7, 2, 3)), jnp.ones((1, 20, 3)), jnp.ones((1, 20, 5))
    >>> loss = lambda R: xpgrad_jax.lstm(X, W, R, clip=3.0)[1].sum()
    >>> jax.jit(jax.grad(loss))(R).shape
    (1, 20, 5)
    """
    attributes = sequence_attributes(direction, activations, activation_alpha, activation_beta, clip, layout)
    attributes |= {"input_forget": input_forget, "peephole": peephole}
    lengths = _lengths("lstm", sequence_lens, X, layout)
    masks = (recurrent_mask, zoneout_h, zoneout_c)
    H_all, H_t, C_t, _ = apply(_LSTM, (X, W, R, B, lengths, initial_h, initial_c, P, S, *masks), attributes)
    return H_all, H_t, C_t


def gru(
    X: Any,
    W: Any,
    R: Any,
    B: Any = None,
    sequence_lens: Any = None,
    initial_h: Any = None,
    *,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
    layout: int = 0,
    recurrent_mask: Any = None,
    zoneout_h: Any = None,
) -> tuple[jax.Array, jax.Array]:
    """The ONNX GRU as a differentiable function of JAX arrays.

    What it computes, and what each attribute does, is described in `xpgrad.gru`; the gradient is
    `xpgrad.gru_grad`, of those operands alone that JAX asks for.

    Parameters
    ----------
    X : array
        Input, (T, N, I); float16, bfloat16, float32, or float64.
    W, R : array
        Input weights (D, 3H, I) and recurrence weights (D, 3H, H), rows in order z r h.
    B : array, optional
        Biases, (D, 6H): the input's, then the recurrence's.
    sequence_lens : sequence or array of int, optional
        As in `lstm`.
    initial_h : array, optional
        Initial state, (D, N, H); zero where left out.
    direction, activations, activation_alpha, activation_beta, clip, layout
        The attributes of `xpgrad.gru`.
    linear_before_reset : {0, 1}
        Where the reset gate multiplies: 1 behind the recurrent product; 0 in front of it, ONNX's default.
    recurrent_mask, zoneout_h : array, optional
        (D, N, H) and (T, D, N, H): as in `lstm`.

    Returns
    -------
    H_all, H_t : jax.Array
        The hidden states (T, D, N, H), and the one at each sequence's end (D, N, H).

    Raises
    ------
    TypeError
        Where an operand is no array of JAX or NumPy, or the operands differ in dtype.
    ValueError
        Where a shape, a length or an attribute breaks ONNX's rules.

    Notes
    -----
    Source: the operator GRU of the ONNX specification, version 14.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import xpgrad_jax
    >>> X, W, R = jnp.ones((7, 2, 3)), jnp.ones((1, 15, 3)), jnp.ones((1, 15, 5))
    >>> loss = lambda R: xpgrad_jax.gru(X, W, R, linear_before_reset=1)[1].sum()
    >>> jax.jit(jax.grad(loss))(R).shape
    (1, 15, 5)
    """
    attributes = sequence_attributes(direction, activations, activation_alpha, activation_beta, clip, layout)
    attributes |= {"linear_before_reset": linear_before_reset}
    lengths = _lengths("gru", sequence_lens, X, layout)
    operands = (X, W, R, B, lengths, initial_h, recurrent_mask, zoneout_h)
    H_all, H_t = apply(_GRU, operands, attributes)
    return H_all, H_t


def rnn(
    X: Any,
    W: Any,
    R: Any,
    B: Any = None,
    sequence_lens: Any = None,
    initial_h: Any = None,
    *,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
) -> tuple[jax.Array, jax.Array]:
    """The ONNX RNN as a differentiable function of JAX arrays.

    What it computes, and what each attribute does, is described in `xpgrad.rnn`; the gradient is
    `xpgrad.rnn_grad`, of those operands alone that JAX asks for.

    Parameters
    ----------
    X : array
        Input, (T, N, I); float16, bfloat16, float32, or float64.
    W, R : array
        Input weights (D, H, I) and recurrence weights (D, H, H).
    B : array, optional
        Biases, (D, 2H): the input's, then the recurrence's.
    sequence_lens : sequence or array of int, optional
        As in `lstm`.
    initial_h : array, optional
        Initial state, (D, N, H); zero where left out.
    direction, activations, activation_alpha, activation_beta, clip, layout
        The attributes of `xpgrad.rnn`.

    Returns
    -------
    H_all, H_t : jax.Array
        The hidden states (T, D, N, H), and the one at each sequence's end (D, N, H).

    Raises
    ------
    TypeError
        Where an operand is no array of JAX or NumPy, or the operands differ in dtype.
    ValueError
        Where a shape, a length or an attribute breaks ONNX's rules.

    Notes
    -----
    Source: the operator RNN of the ONNX specification, version 14.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import xpgrad_jax
    >>> X, W, R = jnp.ones((7, 2, 3)), jnp.ones((1, 5, 3)), jnp.ones((1, 5, 5))
    >>> loss = lambda R: xpgrad_jax.rnn(X, W, R, activations=["Relu"])[1].sum()
    >>> jax.jit(jax.grad(loss))(R).shape
    (1, 5, 5)
    """
    attributes = sequence_attributes(direction, activations, activation_alpha, activation_beta, clip, layout)
    lengths = _lengths("rnn", sequence_lens, X, layout)
    H_all, H_t = apply(_RNN, (X, W, R, B, lengths, initial_h), attributes)
    return H_all, H_t


# --- functions whose arguments are those of xpgrad's, without `out`


def _function(kernel: Kernel, returns: str) -> Callable[..., Any]:
    """The function of a kernel; it also takes the attributes of the gradient alone."""
    source = inspect.signature(getattr(xpgrad, kernel.name))
    parameters = [p for p in source.parameters.values() if p.name != "out"]
    parameters += kernel.gradient_attributes.values()
    arrays = ["jax.Array"] * len(kernel.cotangents)
    result = arrays[0] if len(arrays) == 1 else f"tuple[{', '.join(arrays)}]"
    signature = source.replace(parameters=parameters, return_annotation=result)

    def function(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{kernel.name}: {error}") from None
        bound.apply_defaults()
        operands = [bound.arguments[name] for name in kernel.operands]
        attributes = {name: x for name, x in bound.arguments.items() if name not in kernel.operands}
        outputs = apply(kernel, operands, attributes)
        return outputs[0] if len(outputs) == 1 else outputs

    function.__name__ = function.__qualname__ = kernel.name
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__doc__ = f"""`xpgrad.{kernel.name}` as a differentiable function of JAX arrays.

    Parameters
    ----------
    {", ".join(signature.parameters)}
        As `xpgrad.{kernel.name}` takes them; arrays are JAX's or NumPy's.

    Returns
    -------
    {returns}

    Raises
    ------
    TypeError
        Where an operand is no array of JAX or NumPy, or the operands differ in dtype.
    ValueError
        Where a shape or an attribute is out of its rule.

    See Also
    --------
    xpgrad.{kernel.name} : The equation and its source.
    """
    return function


lstm_cell = _function(_LSTM_CELL, "H_next, C_next : jax.Array\n        The states after the step.")
gru_cell = _function(_GRU_CELL, "H_next : jax.Array\n        The state after the step.")
rnn_cell = _function(_RNN_CELL, "H_next : jax.Array\n        The state after the step.")


def _elementwise(name: str, **replaced: str) -> Callable[..., Any]:
    return _function(Kernel(name, replaced=replaced), "jax.Array\n        Y, of X's shape and dtype.")


celu = _elementwise("celu")
elu = _elementwise("elu")
gelu = _elementwise("gelu")
hard_sigmoid = _elementwise("hard_sigmoid")
hard_swish = _elementwise("hard_swish")
hard_tanh = _elementwise("hard_tanh")
leaky_relu = _elementwise("leaky_relu")
log_sigmoid = _elementwise("log_sigmoid")
log_softmax = _elementwise("log_softmax")
mish = _elementwise("mish")
prelu = _elementwise("prelu")
quick_gelu = _elementwise("quick_gelu")
relu = _elementwise("relu", X="Y")
scaled_tanh = _elementwise("scaled_tanh")
selu = _elementwise("selu")
sigmoid = _elementwise("sigmoid")
silu = _elementwise("silu")
softmax = _elementwise("softmax")
softplus = _elementwise("softplus")
softsign = _elementwise("softsign")
tanh = _elementwise("tanh")
thresholded_relu = _elementwise("thresholded_relu")

_LOSS = 'jax.Array\n        Y: a number, or one for each sample with ``reduction="none"``.'
softmax_cross_entropy = _function(Kernel("softmax_cross_entropy"), _LOSS)
binary_cross_entropy_with_logits = _function(Kernel("binary_cross_entropy_with_logits"), _LOSS)

_IMAGE = "jax.Array\n        Y, (N, O, *size)."
conv = _function(Kernel("conv"), _IMAGE)
conv_transpose = _function(Kernel("conv_transpose"), _IMAGE)
