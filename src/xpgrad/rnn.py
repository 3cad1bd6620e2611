r"""The plain recurrent network (Elman's) over sequences, `rnn`, its gradient `rnn_grad`, and the single step.

The docstrings of `rnn` and `rnn_grad` have the equations. z is the pre-activation, bounded by `clip`, x the
step's input, h' the state before it, b the sum of both biases. In the backward pass dx is the cotangent of x,
and so on. W x is one product before the forward loop. In the gradient dX = dZ W, dW = dZ^T X, dR = dZ^T H'
and db, the sum of dZ, follow after each chunk of the backward loop.

References
----------
ONNX operator RNN (opset 14 and later). Elman, "Finding structure in time" (1990).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple

from xpgrad._calls.adapter_calls import PLAIN, Foreign, public
from xpgrad._calls.plans import planned_call
from xpgrad._elementwise.activation_formulas import activate, activate_pullback
from xpgrad._operators.types import A, AnyArray, Array, Lengths, MaybeNone, Wanted
from xpgrad._operators.units import Unit
from xpgrad._operators.words import PerSample, TimeDirection
from xpgrad._recurrent.backward import rebuilt_products
from xpgrad._recurrent.call import RecurrentCall
from xpgrad._recurrent.checked_call import Direction
from xpgrad._recurrent.operator import LoopOperator
from xpgrad._recurrent.plan import BackwardPlan, Buffer, ForwardPlan, Group, InputPart, stage
from xpgrad.engine import Formula, Operand

_RNN = Unit("rnn", "The ONNX RNN", "h", "the operator RNN of the ONNX specification, version 14", step="h")


class RNNForward(NamedTuple, Generic[AnyArray]):
    """The results of `rnn`. `rnn_grad` needs the first."""

    H_all: AnyArray
    H_t: AnyArray


class RNNGrads(NamedTuple, Generic[AnyArray]):
    """The gradients of `rnn_grad`; None for gradients that were not asked for."""

    dX: AnyArray
    dW: AnyArray
    dR: AnyArray
    dB: AnyArray
    dH0: AnyArray


# --- the formulas of one step ------------------------------------------------------------------------


def _pre_activation(xp: Any, z: Any, b: Any) -> Any:
    """The pre-activation from its products z, before `clip`."""
    return z if b is None else z + b


def _rnn_step(xp: Any, z: Any, r: Any, b: Any, *, f: Any, clip: Any) -> tuple:
    """The state; z is the input's product, r the recurrent one, f the activation."""
    return (activate(xp, f, _pre_activation(xp, z + r, b), clip),)


def _rnn_step_pullback(xp: Any, dy: Any, dh: Any, h: Any, z: Any, b: Any, *, f: Any, clip: Any) -> tuple:
    """Cotangent of the pre-activation.

    dy is the cotangent of the output, dh comes from the step after. z is the sum of both products, rebuilt if
    clip or the activation needs it; otherwise the output determines the slope.
    """
    if dy is not None:
        dh = dh + dy
    x = h if z is None else _pre_activation(xp, z, b)
    return (activate_pullback(xp, f, dh, x, h, clip),)


# --- its loops ---------------------------------------------------------------------------------------

_GROUPS = (Group(0, (0,)),)


def _forward(call: RecurrentCall, direction: Direction) -> ForwardPlan:
    (f,) = direction.activations
    return ForwardPlan(
        tuple(_RNN.states),
        [stage(Formula(_rnn_step, {"f": f, "clip": call.clip}), "x product0 b", "output")],
        _GROUPS,
        operands={"b": call.bias_operand(direction)},
        is_in_place=True,
    )


def _backward(call: RecurrentCall, direction: Direction, wanted: frozenset[str]) -> BackwardPlan:
    (f,) = direction.activations
    rebuild = call.needs_pre_activations([f])
    return BackwardPlan(
        tuple(_RNN.states),
        _GROUPS,
        [stage(Formula(_rnn_step_pullback, {"f": f, "clip": call.clip}), "dy dh after0 z b", "columns")],
        Buffer("columns", 1, "local"),
        products=[(range(1), 0)],
        direct=[False],
        inputs=[InputPart(range(1))],
        vectors=[0, 0],  # both biases are added, so their gradients are equal
        operands={"z": Operand(None), "b": call.bias_operand(direction, rebuild)},
        rebuild=rebuilt_products if rebuild else None,
    )


_OPERATOR = LoopOperator(_RNN, RNNForward, RNNGrads, _forward, _backward, ("Tanh",))

# --- forward -----------------------------------------------------------------------------------------


@_RNN.function
@public
def rnn(
    X: Array[A],
    W: Array[A],
    R: Array[A],
    B: Array[A] | None = None,
    sequence_lens: Lengths | None = None,
    initial_h: Array[A] | None = None,
    *,
    direction: TimeDirection = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: Array[Any] | None = None,
    _foreign: Foreign = PLAIN,
) -> RNNForward[A]:
    r"""Plain recurrent network over sequences; its gradient needs only these results.

    .. math:: h_t = f(W x_t + R h_{t-1} + b)

    b is the sum of both biases.

    Parameters
    ----------
    activations : list of str, optional
        ONNX's name of f for each direction; ``["Tanh"]`` by default.

    Notes
    -----
    The operator is ONNX's RNN.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import rnn
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = (rng.normal(size=s) for s in [(7, 2, 3), (1, 5, 3), (1, 5, 5)])
    >>> out = rnn(X, W, R, sequence_lens=np.asarray([7, 4]))
    >>> out.H_all.shape, out.H_t.shape
    ((7, 1, 2, 5), (1, 2, 5))
    >>> bool(np.all(out.H_all[4:, 0, 1] == 0))
    True
    """
    return planned_call(_OPERATOR.forward, locals())


# --- backward ----------------------------------------------------------------------------------------


@_RNN.function
@public
def rnn_grad(
    X: Array[A],
    W: Array[A],
    R: Array[A],
    *,
    H_all: Array[A],
    grad_H_all: Array[A] | None = None,
    grad_H_t: Array[A] | None = None,
    B: Array[A] | None = None,
    sequence_lens: Lengths | None = None,
    initial_h: Array[A] | None = None,
    direction: TimeDirection = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: Array[Any] | None = None,
    per_sample: PerSample = False,
    sample_weight: Array[A] | None = None,
    wrt: Wanted[MaybeNone] | None = None,
    _foreign: Foreign = PLAIN,
) -> RNNGrads[A | MaybeNone]:
    r"""Gradient of `rnn`: from cotangents of its outputs to gradients of its arguments.

    .. math::

        dz_t &= f'(z_t) \odot (dh_t + R^T dz_{t+1}) \\
        dX &= dZ\,W, \quad dW = dZ^T X, \quad dR = dZ^T H_{-1}, \quad db = \textstyle\sum dZ

    Parameters
    ----------
    H_all : array, shape (T, D, N, H)
        Result of `rnn` or of any other forward with ONNX's meaning. The gradient is a function of this array.
        The pre-activations are rebuilt from it only if the outputs do not determine the slopes: with `clip`,
        and for LeakyRelu, Elu and ThresholdedRelu with a negative alpha.

    Notes
    -----
    Omitted arguments have a gradient too: dB is the gradient at a zero bias. Slopes at kinks are PyTorch's;
    `clip` passes the cotangent at its bounds.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import rnn, rnn_grad
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = (rng.normal(size=s) for s in [(7, 2, 3), (1, 5, 3), (1, 5, 5)])
    >>> out = rnn(X, W, R)
    >>> grads = rnn_grad(X, W, R, H_all=out.H_all, grad_H_t=rng.normal(size=out.H_t.shape), wrt=("X", "R"))
    >>> grads.dX.shape, grads.dR.shape, grads.dW is None
    ((7, 2, 3), (1, 5, 5), True)
    """
    return planned_call(_OPERATOR.backward, locals())


# --- one step ----------------------------------------------------------------------------------------


class RNNCellForward(NamedTuple, Generic[AnyArray]):
    """The results of `rnn_cell`."""

    H_next: AnyArray


class RNNCellGrads(NamedTuple, Generic[AnyArray]):
    """The gradients of `rnn_cell_grad`; None for gradients that were not asked for."""

    dX: AnyArray
    dH: AnyArray
    dW: AnyArray
    dR: AnyArray
    dB: AnyArray


@_RNN.function
@public
def rnn_cell(
    X: Array[A],
    H: Array[A],
    W: Array[A],
    R: Array[A],
    B: Array[A] | None = None,
    *,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    _foreign: Foreign = PLAIN,
) -> RNNCellForward[A]:
    """One step of `rnn`, for your own loops.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import rnn_cell
    >>> rng = np.random.default_rng(0)
    >>> X, H, W, R = (rng.normal(size=s) for s in [(2, 3), (2, 5), (5, 3), (5, 5)])
    >>> rnn_cell(X, H, W, R).H_next.shape
    (2, 5)
    """
    return planned_call(_CELL, locals())


@_RNN.function
@public
def rnn_cell_grad(
    X: Array[A],
    H: Array[A],
    W: Array[A],
    R: Array[A],
    *,
    H_next: Array[A],
    grad_H: Array[A] | None = None,
    B: Array[A] | None = None,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    per_sample: PerSample = False,
    sample_weight: Array[A] | None = None,
    wrt: Wanted[MaybeNone] | None = None,
    _foreign: Foreign = PLAIN,
) -> RNNCellGrads[A | MaybeNone]:
    """Gradient of `rnn_cell`, with the equations of `rnn_grad`.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import rnn_cell, rnn_cell_grad
    >>> rng = np.random.default_rng(0)
    >>> X, H, W, R = (rng.normal(size=s) for s in [(2, 3), (2, 5), (5, 3), (5, 5)])
    >>> H_next = rnn_cell(X, H, W, R).H_next
    >>> rnn_cell_grad(X, H, W, R, H_next=H_next, grad_H=rng.normal(size=(2, 5))).dW.shape
    (5, 3)
    """
    return planned_call(_CELL_GRADIENT, locals())


_CELL, _CELL_GRADIENT = _OPERATOR.step(RNNCellForward, RNNCellGrads)
