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
from xpgrad._arguments import check_lengths
from xpgrad._kernel_description import MASKS
from xpgrad._recurrent_docs import Words, recurrent_sections
from xpgrad._resets import check_with_resets, has_resets, with_resets
from xpgrad_jax._kernel import AS_SAVED, Attributes, Kernel, as_array, as_attributes
from xpgrad_jax._primitives import forward, gradient

__all__ = [
    "augru",
    "binary_cross_entropy_with_logits",
    "celu",
    "conv",
    "conv_transpose",
    "elu",
    "gelu",
    "gru",
    "gru_cell",
    "gru_d",
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
    "slstm",
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
_SLSTM = Kernel("slstm")
_AUGRU = Kernel("augru")


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


def _lengths(operator: str, lengths: Any, X: Any, layout: int, reset: Any = None) -> Any:
    """Lengths as an array, with resets where there are some; checked, where their numbers are known."""
    if reset is not None:
        lengths = with_resets(operator, X, lengths, reset, layout)
    if lengths is None or isinstance(lengths, jax.core.Tracer):
        return lengths
    known = np.asarray(lengths)
    if known.dtype.kind not in "iu":
        raise TypeError(f"{operator}: sequence_lens has dtype {known.dtype}, expected an integer dtype")
    if getattr(X, "ndim", 0) == 3:
        T, N = (X.shape[1], X.shape[0]) if layout else X.shape[:2]
        (check_with_resets if has_resets(known) else check_lengths)(operator, known, N, T)
    return jnp.asarray(lengths)


# --- the core's own functions under a trace

_KERNELS = {
    kernel.name: kernel for kernel in (_LSTM, _GRU, _RNN, _LSTM_CELL, _GRU_CELL, _RNN_CELL, _SLSTM, _AUGRU)
}


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


# --- functions whose arguments are those of xpgrad's, without `out`


def _signature(kernel: Kernel, returned: int) -> inspect.Signature:
    """The kernel's signature with the attributes of its gradient alone, for so many results."""
    source = inspect.signature(kernel.function(0))
    parameters = [p for p in source.parameters.values() if p.name != "out"]
    result = "jax.Array" if returned == 1 else f"tuple[{', '.join(['jax.Array'] * returned)}]"
    parameters += kernel.gradient_attributes.values()
    return source.replace(parameters=parameters, return_annotation=result)


def _function(kernel: Kernel, signature: inspect.Signature, text: str) -> Callable[..., Any]:
    """The function of a kernel with that docstring; it returns as many results as the signature says."""
    returned = signature.return_annotation.count("jax.Array")
    every = {name: p.default for name, p in signature.parameters.items()}
    positional = [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    needed = [name for name, default in every.items() if default is inspect.Parameter.empty]

    def function(*args: Any, **kwargs: Any) -> Any:
        given = {**every, **dict(zip(positional, args, strict=False)), **kwargs}
        # `bind` would take a fourth of a small call's time; it is left to say what is wrong
        if (
            len(args) > len(positional)
            or len(given) > len(every)
            or not kwargs.keys().isdisjoint(positional[: len(args)])
            or any(given[name] is inspect.Parameter.empty for name in needed)
        ):
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{kernel.name}: {error}") from None
        if "sequence_lens" in given:
            lengths = given["sequence_lens"], given["X"], given["layout"], given.pop("reset")
            given["sequence_lens"] = _lengths(kernel.name, *lengths)
        operands = [given.pop(name) for name in kernel.operands]
        outputs = apply(kernel, operands, given)[:returned]
        return outputs[0] if returned == 1 else outputs

    function.__name__ = function.__qualname__ = kernel.name
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__doc__ = text
    return function


_NO_ARRAY = "an operand is no array of JAX or NumPy, or the operands differ in dtype"
_ITS_GRADIENT = " Its gradient is that of a ``lax.scan``."
_IMPORTS = """\
>>> import jax
>>> import jax.numpy as jnp
>>> import xpgrad_jax
"""
_WORDS = Words(
    array="array",
    lengths="sequence or array of int",
    result="jax.Array",
    gradient="of those operands alone that JAX asks for.",
    refused=_NO_ARRAY,
    notes={
        "X": " float16, bfloat16, float32 or float64.",
        "sequence_lens": """ Under a trace, which does
    not know them, a length below 0 counts as 0 and one above T as T.""",
        **dict.fromkeys(MASKS, _ITS_GRADIENT),
        "peephole": ' ``"truncated"`` has no forward mode.',
    },
    options={},
    sequence=_IMPORTS
    + """\
>>> X, W, R = jnp.ones((7, 2, 3)), jnp.ones((1, {rows}, 3)), jnp.ones((1, {rows}, 5))
>>> loss = lambda R: xpgrad_jax.{name}({arguments})[1].sum()
>>> jax.jit(jax.grad(loss))(R).shape
(1, {rows}, 5)
""",
    step=_IMPORTS
    + """\
>>> X, W, R = jnp.ones((2, 3)), jnp.ones(({rows}, 3)), jnp.ones(({rows}, 5))
>>> {states} = jnp.zeros((2, 5))
>>> {results} = jax.jit(xpgrad_jax.{name})({arguments})
>>> H_next.shape
(2, 5)
""",
)


def _recurrent(kernel: Kernel, what: str, results: str, arguments: str) -> Callable[..., Any]:
    """A recurrent function: the first line of its docstring, its results, and arguments for an example."""
    signature = _signature(kernel, len(results.split(", ")))
    sections = recurrent_sections(kernel.name, signature, results, arguments, _WORDS)
    return _function(kernel, signature, what + sections)


_OF_JAX = "The ONNX {} as a differentiable function of JAX arrays."
_STEP = "One step of `{}`, for loops of one's own."
lstm = _recurrent(_LSTM, _OF_JAX.format("LSTM"), "H_all, H_t, C_t", "X, W, R, clip=3.0")
gru = _recurrent(_GRU, _OF_JAX.format("GRU"), "H_all, H_t", "X, W, R, linear_before_reset=1")
rnn = _recurrent(_RNN, _OF_JAX.format("RNN"), "H_all, H_t", 'X, W, R, activations=["Relu"]')
slstm = _recurrent(
    _SLSTM,
    "The sLSTM of xLSTM as a differentiable function of JAX arrays.",
    "H_all, H_t, C_t, N_t, M_t",
    "X, W, R",
)
augru = _recurrent(
    _AUGRU,
    "The GRU with an attentional update gate as a differentiable function of JAX arrays.",
    "H_all, H_t",
    "X, jnp.ones((7, 2, 1)), W, R",
)  # fmt: skip
lstm_cell = _recurrent(_LSTM_CELL, _STEP.format("lstm"), "H_next, C_next", "X, H, C, W, R")
gru_cell = _recurrent(_GRU_CELL, _STEP.format("gru"), "H_next", "X, H, W, R")
rnn_cell = _recurrent(_RNN_CELL, _STEP.format("rnn"), "H_next", "X, H, W, R")


def gru_d(
    X: Any,
    mask: Any,
    delta: Any,
    W: Any,
    R: Any,
    decay_x: Any,
    decay_h: Any,
    B: Any = None,
    mean: Any = None,
    sequence_lens: Any = None,
    initial_h: Any = None,
    *,
    direction: str = "forward",
    layout: int = 0,
    reset: Any = None,
) -> tuple[jax.Array, jax.Array]:
    """GRU-D as a differentiable function of JAX arrays: two loops of ``lax.scan``.

    Parameters
    ----------
    X, mask, delta, W, R, decay_x, decay_h, B, mean, sequence_lens, initial_h
        As `xpgrad.gru_d` takes them; arrays are JAX's or NumPy's.
    direction, layout, reset
        The attributes of `xpgrad.gru_d`.

    Returns
    -------
    H_all : jax.Array
        Hidden states, (T, D, N, H).
    H_t : jax.Array
        Hidden state at each sequence's end, (D, N, H).

    Raises
    ------
    TypeError
        Where an operand is no array of JAX or NumPy, or the operands differ in dtype.
    ValueError
        Where a shape or an attribute breaks the operator's rules.

    See Also
    --------
    xpgrad.gru_d : The equations and their source.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import xpgrad_jax
    >>> X, mask, delta = (jnp.ones((7, 2, 3)) for _ in range(3))
    >>> weights = jnp.ones((1, 12, 6)), jnp.ones((1, 12, 4)), jnp.ones((1, 2, 3)), jnp.ones((1, 4, 4))
    >>> xpgrad_jax.gru_d(X, mask, delta, *weights)[0].shape
    (7, 1, 2, 4)
    """
    operands = (X, mask, delta, W, R, decay_x, decay_h, B, mean)
    names = ("X", "mask", "delta", "W", "R", "decay_x", "decay_h", "B", "mean")
    arrays: list[Any] = [
        None if x is None else as_array("gru_d", name, x) for name, x in zip(names, operands, strict=True)
    ]
    initial: Any = None if initial_h is None else as_array("gru_d", "initial_h", initial_h)
    lengths = _lengths("gru_d", sequence_lens, X, layout)
    options: dict[str, Any] = {"direction": direction, "layout": layout, "reset": reset}
    run: Callable[..., Any] = xpgrad.gru_d
    out = run(*arrays, lengths, initial, **options)
    return out.H_all, out.H_t


_SECTIONS = """`xpgrad.{name}` as a differentiable function of JAX arrays.

Parameters
----------
{parameters}
    As `xpgrad.{name}` takes them; arrays are JAX's or NumPy's.

Returns
-------
jax.Array
    Y{returns}

Raises
------
TypeError
    Where {refused}.
ValueError
    Where a shape or an attribute is out of its rule.

See Also
--------
xpgrad.{name} : The equation and its source.
"""


def _of_whole_arrays(name: str, returns: str, **replaced: str) -> Callable[..., Any]:
    """A function of one result."""
    kernel = Kernel(name, replaced=replaced)
    signature = _signature(kernel, 1)
    parameters = ", ".join(signature.parameters)
    text = _SECTIONS.format(name=name, parameters=parameters, returns=returns, refused=_NO_ARRAY)
    return _function(kernel, signature, text)


def _elementwise(name: str, **replaced: str) -> Callable[..., Any]:
    return _of_whole_arrays(name, ", of X's shape and dtype.", **replaced)


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

_LOSS = ': a number, or one for each sample with ``reduction="none"``.'
softmax_cross_entropy = _of_whole_arrays("softmax_cross_entropy", _LOSS)
binary_cross_entropy_with_logits = _of_whole_arrays("binary_cross_entropy_with_logits", _LOSS)

_IMAGE = ", (N, O, *size)."
conv = _of_whole_arrays("conv", _IMAGE)
conv_transpose = _of_whole_arrays("conv_transpose", _IMAGE)
