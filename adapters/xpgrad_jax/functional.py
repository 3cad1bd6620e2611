"""xpgrad's operators as differentiable functions of JAX arrays.

Each has the name and the arguments of the function of `xpgrad`. They work under `jax.grad`, `jax.jit`,
`jax.vmap`, `jax.jvp` and JAX's other transformations, in any order.
"""

# ruff: noqa: D103 - each function gets its docstring from its decorator

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import xpgrad
from xpgrad._operators.arguments import check_lengths
from xpgrad._operators.axes import axes_of_cell
from xpgrad._operators.kernel_description import ORDERED
from xpgrad._operators.recurrent_docs import Words, recurrent_docstring
from xpgrad._operators.resets import check_with_resets, has_resets, with_resets
from xpgrad._operators.units import UNITS, declared_unit
from xpgrad._operators.words import Approximate, AutoPad, ConvMethod, Peephole, Reduction, TimeDirection
from xpgrad_jax._kernel import AS_SAVED, Attributes, JaxKernel, as_array, as_attributes
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

ArrayLike: TypeAlias = jax.Array | NDArray[Any]
Lengths: TypeAlias = Sequence[int] | ArrayLike
_P = ParamSpec("_P")
_Result = TypeVar("_Result")


def _lengths(operator: str, lengths: Any, X: Any, layout: int, reset: Any = None) -> Any:
    """Lengths as an array, with resets if given; checked if their values are known."""
    if reset is not None:
        lengths = with_resets(operator, X, lengths, reset, layout)
    if lengths is None or isinstance(lengths, jax.core.Tracer):
        return lengths
    known = np.asarray(lengths)
    is_integer = known.dtype.kind in "iu"
    if getattr(X, "ndim", 0) == 3:
        T, N = (X.shape[1], X.shape[0]) if layout else X.shape[:2]
        if is_integer:
            (check_with_resets if has_resets(known) else check_lengths)(operator, known, N, T)
        elif isinstance(lengths, list | tuple):  # of integers of several types, or of none
            known = np.asarray(check_lengths(operator, lengths, N, T), dtype=np.int32)
            is_integer = True
    if not is_integer:
        raise TypeError(f"{operator}: sequence_lens has dtype {known.dtype}, expected an integer dtype")
    if isinstance(lengths, jax.Array):
        return lengths
    return jnp.asarray(known.astype(known.dtype.newbyteorder("=")))


def run_recurrent(name: str, given: dict[str, Any], wanted_outputs: int | None = None) -> Any:
    """The first outputs of the kernel of this name, by default all that its function returns.

    Arguments are given by name, and consumed; missing operands count as None. For other adapters, weights may
    have their layout.
    """
    if wanted_outputs is None:
        wanted_outputs = len(declared_unit(name).shown(name))
    return _run(_KERNELS[name], given, wanted_outputs)


# --- the core's own functions under a trace

_KERNELS = {
    name: JaxKernel(name, ordered=name in ORDERED) for unit in UNITS.values() for name in unit.kernels
}


_kernels_of_cells: dict[tuple[str, str], JaxKernel] = {}


def _kernel_of(cell: xpgrad.Cell) -> JaxKernel:
    """The kernel of a user's own cell, and of all equal cells."""
    key = cell.__name__, cell.digest
    made = _kernels_of_cells.get(key) or JaxKernel(cell.__name__, shapes=axes_of_cell(cell), cell=cell)
    return _kernels_of_cells.setdefault(key, made)


def traced_call(
    operator: str, arrays: Mapping[str, Any], options: Mapping[str, Any], cell: xpgrad.Cell | None = None
) -> Any:
    """See `xpgrad.engine.NumpyEngine.traced_kernel`; None for kernels that this adapter lacks."""
    kernel = _KERNELS.get(operator.removesuffix("_grad")) if cell is None else _kernel_of(cell)
    if kernel is None or set(options) & {"gate_order", "input_major", "keep_products"}:
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


# --- functions with xpgrad's arguments, without `out`, and the arguments of only the gradient


def _public(function: Callable[_P, _Result], text: str) -> Callable[_P, _Result]:
    """A function with its docstring; if arguments do not fit, the error names the function."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except TypeError:
            try:
                inspect.signature(function).bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}: {error}") from None
            raise

    call.__doc__ = text
    return call


def _run(kernel: JaxKernel, given: dict[str, Any], returned: int) -> Any:
    """The first outputs of a kernel, for its function's arguments, which are consumed."""
    if "sequence_lens" in given:
        lengths = given["sequence_lens"], given["X"], given.get("layout", 0), given.pop("reset", None)
        given["sequence_lens"] = _lengths(kernel.name, *lengths)
    operands = {name: given.pop(name, None) for name in kernel.operands}
    for name in kernel.required:
        if operands[name] is None:
            raise TypeError(f"{kernel.name}: {name} is None, expected an array")
    arrays = {name: as_array(kernel.name, name, x) for name, x in operands.items() if x is not None}
    outputs = forward(kernel, arrays, as_attributes(kernel.name, given))[:returned]
    return outputs[0] if returned == 1 else tuple(outputs)


_NO_ARRAY = "an operand is not an array of JAX or NumPy, or operands differ in dtype"
_ITS_GRADIENT = " Its gradient comes from a ``lax.scan``."
_IMPORTS = """\
>>> import jax
>>> import jax.numpy as jnp
>>> import xpgrad_jax
"""
_WORDS = Words(
    array="array",
    lengths="sequence or array of int",
    result="jax.Array",
    gradient="computed only for the operands that JAX requires.",
    refused=_NO_ARRAY,
    constant=_ITS_GRADIENT,
    notes={
        "X": " float16, bfloat16, float32 or float64.",
        "sequence_lens": """ If they are
    traced, a length below 0 counts as 0, and a length above T as T.""",
        "peephole": ' ``"truncated"`` has no forward mode.',
    },
    options={},
    arrays="JAX arrays",
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


def _recurrent(
    arguments: str | None = None,
) -> Callable[[Callable[_P, _Result]], Callable[_P, _Result]]:
    """A recurrent function: its docstring comes from the declaration, and from arguments for an example."""

    def decorate(function: Callable[_P, _Result]) -> Callable[_P, _Result]:
        return _public(function, recurrent_docstring(function.__name__, function, _WORDS, arguments))

    return decorate


@_recurrent("X, W, R, clip=3.0")
def lstm(
    X: ArrayLike,
    W: ArrayLike,
    R: ArrayLike,
    B: ArrayLike | None = None,
    sequence_lens: Lengths | None = None,
    initial_h: ArrayLike | None = None,
    initial_c: ArrayLike | None = None,
    P: ArrayLike | None = None,
    *,
    direction: TimeDirection = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    layout: int = 0,
    reset: ArrayLike | None = None,
    S: ArrayLike | None = None,
    recurrent_mask: ArrayLike | None = None,
    zoneout_h: ArrayLike | None = None,
    zoneout_c: ArrayLike | None = None,
    peephole: Peephole = "full",
) -> tuple[jax.Array, jax.Array, jax.Array]:
    return run_recurrent("lstm", locals())


@_recurrent("X, W, R, linear_before_reset=1")
def gru(
    X: ArrayLike,
    W: ArrayLike,
    R: ArrayLike,
    B: ArrayLike | None = None,
    sequence_lens: Lengths | None = None,
    initial_h: ArrayLike | None = None,
    *,
    direction: TimeDirection = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
    layout: int = 0,
    reset: ArrayLike | None = None,
    recurrent_mask: ArrayLike | None = None,
    zoneout_h: ArrayLike | None = None,
) -> tuple[jax.Array, jax.Array]:
    return run_recurrent("gru", locals())


@_recurrent('X, W, R, activations=["Relu"]')
def rnn(
    X: ArrayLike,
    W: ArrayLike,
    R: ArrayLike,
    B: ArrayLike | None = None,
    sequence_lens: Lengths | None = None,
    initial_h: ArrayLike | None = None,
    *,
    direction: TimeDirection = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: ArrayLike | None = None,
) -> tuple[jax.Array, jax.Array]:
    return run_recurrent("rnn", locals())


@_recurrent()
def slstm(
    X: ArrayLike,
    W: ArrayLike,
    R: ArrayLike,
    B: ArrayLike | None = None,
    sequence_lens: Lengths | None = None,
    initial_h: ArrayLike | None = None,
    initial_c: ArrayLike | None = None,
    initial_n: ArrayLike | None = None,
    initial_m: ArrayLike | None = None,
    *,
    heads: int = 1,
    forget: str = "sigmoid",
    direction: TimeDirection = "forward",
    layout: int = 0,
    reset: ArrayLike | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    return run_recurrent("slstm", locals())


@_recurrent("X, jnp.ones((7, 2, 1)), W, R")
def augru(
    X: ArrayLike,
    attention: ArrayLike,
    W: ArrayLike,
    R: ArrayLike,
    B: ArrayLike | None = None,
    sequence_lens: Lengths | None = None,
    initial_h: ArrayLike | None = None,
    *,
    linear_before_reset: int = 0,
    direction: TimeDirection = "forward",
    layout: int = 0,
    reset: ArrayLike | None = None,
) -> tuple[jax.Array, jax.Array]:
    return run_recurrent("augru", locals())


@_recurrent()
def lstm_cell(
    X: ArrayLike,
    H: ArrayLike,
    C: ArrayLike,
    W: ArrayLike,
    R: ArrayLike,
    B: ArrayLike | None = None,
    P: ArrayLike | None = None,
    *,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    peephole: Peephole = "full",
) -> tuple[jax.Array, jax.Array]:
    return run_recurrent("lstm_cell", locals())


@_recurrent()
def gru_cell(
    X: ArrayLike,
    H: ArrayLike,
    W: ArrayLike,
    R: ArrayLike,
    B: ArrayLike | None = None,
    *,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
) -> jax.Array:
    return run_recurrent("gru_cell", locals())


@_recurrent()
def rnn_cell(
    X: ArrayLike,
    H: ArrayLike,
    W: ArrayLike,
    R: ArrayLike,
    B: ArrayLike | None = None,
    *,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
) -> jax.Array:
    return run_recurrent("rnn_cell", locals())


_SECTIONS = """`xpgrad.{name}` as a differentiable function of JAX arrays.

Parameters
----------
{parameters}
    As `xpgrad.{name}` takes them; arrays are JAX's or NumPy's.

Returns
-------
{returns}

Raises
------
TypeError
    If {refused}.
ValueError
    If a shape or an attribute breaks its rule.

See Also
--------
xpgrad.{name} : The equation and its source.
"""
_GRU_D_RETURNS = """H_all : jax.Array
    Hidden states, (T, D, N, H).
H_t : jax.Array
    Hidden state at each sequence's end, (D, N, H)."""


def _documented(function: Callable[_P, _Result], returns: str) -> Callable[_P, _Result]:
    name, parameters = function.__name__, ", ".join(inspect.signature(function).parameters)
    text = _SECTIONS.format(name=name, parameters=parameters, returns=returns, refused=_NO_ARRAY)
    return _public(function, text)


# it runs as two loops of `lax.scan`
@functools.partial(_documented, returns=_GRU_D_RETURNS)
def gru_d(
    X: ArrayLike,
    mask: ArrayLike,
    delta: ArrayLike,
    W: ArrayLike,
    R: ArrayLike,
    decay_x: ArrayLike,
    decay_h: ArrayLike,
    B: ArrayLike | None = None,
    mean: ArrayLike | None = None,
    sequence_lens: Lengths | None = None,
    initial_h: ArrayLike | None = None,
    *,
    direction: TimeDirection = "forward",
    layout: int = 0,
    reset: ArrayLike | None = None,
) -> tuple[jax.Array, jax.Array]:
    given: dict[str, Any] = dict(locals())
    operands = [name for name in given if name not in ("sequence_lens", "direction", "layout", "reset")]
    given |= {name: as_array("gru_d", name, x) for name in operands if (x := given[name]) is not None}
    given["sequence_lens"] = _lengths("gru_d", sequence_lens, X, layout)
    out = xpgrad.gru_d(**given)
    return out.H_all, out.H_t


_WHOLE: dict[str, JaxKernel] = {}
"""Kernels of one result on whole arrays."""


def _whole(returns: str) -> Callable[[Callable[_P, _Result]], Callable[_P, _Result]]:
    """A function of one result; `returns` describes it in the docstring."""

    def decorate(function: Callable[_P, _Result]) -> Callable[_P, _Result]:
        name = function.__name__
        # relu's output determines its slope, and JAX keeps the output for the next operator
        _WHOLE[name] = JaxKernel(name, replaced={"X": "Y"} if name == "relu" else {})
        return _documented(function, f"jax.Array\n    Y{returns}")

    return decorate


_elementwise = _whole(", of X's shape and dtype.")
_loss = _whole(': a number, or one for each sample with ``reduction="none"``.')
_image = _whole(", (N, O, *size).")


@_elementwise
def celu(X: ArrayLike, *, alpha: float = 1.0) -> jax.Array:
    return _run(_WHOLE["celu"], locals(), 1)


@_elementwise
def elu(X: ArrayLike, *, alpha: float = 1.0) -> jax.Array:
    return _run(_WHOLE["elu"], locals(), 1)


@_elementwise
def gelu(X: ArrayLike, *, approximate: Approximate = "none") -> jax.Array:
    return _run(_WHOLE["gelu"], locals(), 1)


@_elementwise
def hard_sigmoid(X: ArrayLike, *, alpha: float = 0.2, beta: float = 0.5) -> jax.Array:
    return _run(_WHOLE["hard_sigmoid"], locals(), 1)


@_elementwise
def hard_swish(X: ArrayLike) -> jax.Array:
    return _run(_WHOLE["hard_swish"], locals(), 1)


@_elementwise
def hard_tanh(X: ArrayLike, *, min_val: float = -1.0, max_val: float = 1.0) -> jax.Array:
    return _run(_WHOLE["hard_tanh"], locals(), 1)


@_elementwise
def leaky_relu(X: ArrayLike, *, alpha: float = 0.01) -> jax.Array:
    return _run(_WHOLE["leaky_relu"], locals(), 1)


@_elementwise
def log_sigmoid(X: ArrayLike) -> jax.Array:
    return _run(_WHOLE["log_sigmoid"], locals(), 1)


@_elementwise
def log_softmax(X: ArrayLike, *, axis: int = -1, flatten: bool = False) -> jax.Array:
    return _run(_WHOLE["log_softmax"], locals(), 1)


@_elementwise
def mish(X: ArrayLike) -> jax.Array:
    return _run(_WHOLE["mish"], locals(), 1)


@_elementwise
def prelu(X: ArrayLike, slope: ArrayLike) -> jax.Array:
    return _run(_WHOLE["prelu"], locals(), 1)


@_elementwise
def quick_gelu(X: ArrayLike, *, alpha: float = 1.702) -> jax.Array:
    return _run(_WHOLE["quick_gelu"], locals(), 1)


@_elementwise
def relu(X: ArrayLike) -> jax.Array:
    return _run(_WHOLE["relu"], locals(), 1)


@_elementwise
def scaled_tanh(X: ArrayLike, *, alpha: float = 1.0, beta: float = 1.0) -> jax.Array:
    return _run(_WHOLE["scaled_tanh"], locals(), 1)


@_elementwise
def selu(X: ArrayLike, *, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323) -> jax.Array:
    return _run(_WHOLE["selu"], locals(), 1)


@_elementwise
def sigmoid(X: ArrayLike) -> jax.Array:
    return _run(_WHOLE["sigmoid"], locals(), 1)


@_elementwise
def silu(X: ArrayLike) -> jax.Array:
    return _run(_WHOLE["silu"], locals(), 1)


@_elementwise
def softmax(X: ArrayLike, *, axis: int = -1, flatten: bool = False) -> jax.Array:
    return _run(_WHOLE["softmax"], locals(), 1)


@_elementwise
def softplus(X: ArrayLike, *, beta: float = 1.0, threshold: float | None = None) -> jax.Array:
    return _run(_WHOLE["softplus"], locals(), 1)


@_elementwise
def softsign(X: ArrayLike) -> jax.Array:
    return _run(_WHOLE["softsign"], locals(), 1)


@_elementwise
def tanh(X: ArrayLike) -> jax.Array:
    return _run(_WHOLE["tanh"], locals(), 1)


@_elementwise
def thresholded_relu(X: ArrayLike, *, alpha: float = 1.0) -> jax.Array:
    return _run(_WHOLE["thresholded_relu"], locals(), 1)


@_loss
def softmax_cross_entropy(
    X: ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
) -> jax.Array:
    return _run(_WHOLE["softmax_cross_entropy"], locals(), 1)


@_loss
def binary_cross_entropy_with_logits(
    X: ArrayLike,
    targets: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    pos_weight: ArrayLike | None = None,
    reduction: Reduction = "mean",
) -> jax.Array:
    return _run(_WHOLE["binary_cross_entropy_with_logits"], locals(), 1)


@_image
def conv(
    X: ArrayLike,
    W: ArrayLike,
    B: ArrayLike | None = None,
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: AutoPad = "NOTSET",
    method: ConvMethod = "auto",
) -> jax.Array:
    return _run(_WHOLE["conv"], locals(), 1)


@_image
def conv_transpose(
    X: ArrayLike,
    W: ArrayLike,
    B: ArrayLike | None = None,
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: AutoPad = "NOTSET",
    output_padding: int | Sequence[int] = 0,
    output_shape: Sequence[int] | None = None,
    method: ConvMethod = "auto",
) -> jax.Array:
    return _run(_WHOLE["conv_transpose"], locals(), 1)
