r"""The plain recurrent network (Elman's) over sequences: `rnn` and, beside it, its gradient `rnn_grad`.

One step, with f the activation (by default tanh)::

    z = W x + R h' + b        h = f(z)

x is the step's input, h' the state before it, b the sum of both biases; `clip` bounds z. In the backward pass
dx is the cotangent of x, and so on::

    dh += the cotangent from the step after        dz = f'(z) dh        dh' = R^T dz

The rest needs no recurrence: W x is computed before the loop, and after it dX = dZ W, dW = dZ^T X, dR = dZ^T
H', db = the sum of dZ, for all steps at once.

References
----------
ONNX operator RNN (opset 14 and later). Elman, "Finding structure in time" (1990).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple

from xpgrad._calls.operation import PLAIN, Foreign, planned_call, public
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
    """What `rnn` returns. `rnn_grad` needs the first.

    Parameters
    ----------
    H_all : array, shape (T, D, N, H)
        Every step's output.
    H_t : array, shape (D, N, H)
        The state at each sequence's end.
    """

    H_all: AnyArray
    H_t: AnyArray


class RNNGrads(NamedTuple, Generic[AnyArray]):
    """What `rnn_grad` returns: one gradient each, None if it was not asked for.

    Parameters
    ----------
    dX : array, shape (T, N, I)
        0 past a sequence's end.
    dW, dR, dB : array, shapes (D, H, I), (D, H, H), (D, 2H)
        With ``per_sample=True`` they have a batch axis in front, (N, D, ...); with ``"norm"`` they are norms,
        (N, D).
    dH0 : array, shape (D, N, H)
        Of the initial state.
    """

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
    r"""Plain recurrent network over sequences; its result is all that its gradient needs.

    .. math:: h_t = f(W x_t + R h_{t-1} + b)

    Parameters
    ----------
    X : array, shape (T, N, I)
        Input: time, batch, features. float32 or float64; float16 and bfloat16 if the namespace has them, with
        states and sums in float32. All arrays share namespace, dtype and device.
    W : array, shape (D, H, I)
        Input weights. D is 2 for ``direction="bidirectional"``, else 1.
    R : array, shape (D, H, H)
        Recurrence weights.
    B : array, shape (D, 2H), optional
        Input biases, then recurrence biases; b is their sum.
    sequence_lens : sequence of int or integer array, shape (N,), optional
        The length of each sequence, 0 to T. Past its end the outputs are 0, and the input has no effect, not
        even NaN. A reverse direction starts at each sequence's own end.
    initial_h : array, shape (D, N, H), optional
        State before the first step; zeros by default.
    direction : {"forward", "reverse", "bidirectional"}
        The direction of time.
    activations : list of str, optional
        ONNX's name of f for each direction; ``["Tanh"]`` by default.
    activation_alpha, activation_beta : list of float, optional
        Parameters of the activations that take them, in order; missing ones have ONNX's defaults.
    clip : float, optional
        Bounds the pre-activations to -clip .. clip.
    layout : {0, 1}
        1: the batch axis comes first, X (N, T, I), states (N, D, H), sequences (N, T, D, H).
    reset : array of booleans, shape (T, N), optional
        Where a new piece begins: the state starts at zero before these steps, in both directions. The initial
        state belongs to the piece with which the direction starts, the final state to the one with which it
        ends. In layout 1 it is (N, T).

    Returns
    -------
    RNNForward
        ``(H_all, H_t)``. `rnn_grad` takes H_all: H numbers per step and sequence.

    Raises
    ------
    ValueError
        For an invalid shape, length or attribute.
    TypeError
        For arguments that are not arrays, or arrays that do not share namespace, dtype and device.

    See Also
    --------
    rnn_grad : The gradient.
    vjp : Forward and gradient in one call.

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
    X, W, R, B, sequence_lens, initial_h
        The arguments of `rnn`.
    H_all : array, shape (T, D, N, H)
        Result of `rnn` or of any other forward with ONNX's meaning. The gradient is a function of this array.
        The pre-activations are rebuilt from it only if the outputs do not determine the slopes: with `clip`,
        and for LeakyRelu, Elu and ThresholdedRelu with a negative alpha.
    grad_H_all : array, shape (T, D, N, H), optional
        Cotangent of H_all; zero by default, like the next. Ignored past a sequence's end.
    grad_H_t : array, shape (D, N, H), optional
        Cotangent of the final state.
    direction, activations, activation_alpha, activation_beta, clip, layout, reset
        The arguments of `rnn`.
    per_sample : bool or "norm"
        True gives the gradients of parameters for each sequence separately, with a batch axis in front.
        ``"norm"`` gives only their Euclidean norms, (N, D); its memory does not grow with N times the
        parameters.
    sample_weight : array, shape (N,), optional
        A factor for each sequence's gradients of the parameters, applied before these are summed, returned
        separately or normed. It has no effect on the other gradients.
    wrt : iterable of str, optional
        Arguments whose gradients to compute, among "X", "W", "R", "B", "initial_h"; all by default. The work
        for the others is skipped.

    Returns
    -------
    RNNGrads
        ``(dX, dW, dR, dB, dH0)``, None for those not asked for. Omitted arguments have a gradient too: dB is
        the gradient at a zero bias.

    Raises
    ------
    ValueError
        For an invalid shape, length, attribute or name.
    TypeError
        For arguments that are not arrays, or arrays that do not share namespace, dtype and device.

    See Also
    --------
    rnn : The forward.
    vjp : Forward and gradient in one call.

    Notes
    -----
    Slopes at kinks are PyTorch's; `clip` passes the cotangent at its bounds.

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
    """What `rnn_cell` returns.

    Parameters
    ----------
    H_next : array, shape (N, H)
        The state after the step.
    """

    H_next: AnyArray


class RNNCellGrads(NamedTuple, Generic[AnyArray]):
    """What `rnn_cell_grad` returns: one gradient each, None if it was not asked for.

    Parameters
    ----------
    dX, dH : array, shapes (N, I), (N, H)
        Of the input and of the state before the step.
    dW, dR, dB : array, shapes (H, I), (H, H), (2H,)
        Of the parameters.
    """

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

    Parameters
    ----------
    X : array, shape (N, I)
        The step's input.
    H : array, shape (N, H)
        The state before the step.
    W, R : array, shapes (H, I), (H, H)
        Weights.
    B : array, shape (2H,), optional
        Input biases, then recurrence biases.
    activations, activation_alpha, activation_beta, clip
        As for one direction of `rnn`, with its equation.

    Returns
    -------
    RNNCellForward
        ``(H_next,)``; `rnn_cell_grad` takes it.

    Raises
    ------
    ValueError
        For an invalid shape or attribute.
    TypeError
        For arguments that are not arrays, or arrays that do not share namespace, dtype and device.

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
    """Gradient of `rnn_cell`.

    Parameters
    ----------
    X, H, W, R, B
        The arguments of `rnn_cell`.
    H_next : array, shape (N, H)
        Result of `rnn_cell`.
    grad_H : array, shape (N, H), optional
        Cotangent of H_next; zero by default.
    activations, activation_alpha, activation_beta, clip
        The arguments of `rnn_cell`.
    per_sample : bool or "norm"
        True gives the gradients of parameters for each sample separately, with a batch axis in front.
        ``"norm"`` gives only their Euclidean norms, (N,); its memory does not grow with N times the
        parameters.
    sample_weight : array, shape (N,), optional
        A factor for each sample's gradients of the parameters, applied before these are summed, returned
        separately or normed. It has no effect on the other gradients.
    wrt : iterable of str, optional
        Arguments whose gradients to compute, among "X", "H", "W", "R", "B"; all by default. The work for the
        others is skipped.

    Returns
    -------
    RNNCellGrads
        ``(dX, dH, dW, dR, dB)``, None for those not asked for; the equations are those of `rnn_grad`.

    Raises
    ------
    ValueError
        For an invalid shape, attribute or name.
    TypeError
        For arguments that are not arrays, or arrays that do not share namespace, dtype and device.

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
