r"""The GRU over sequences: `gru` and, beside it, its gradient `gru_grad`.

One step, with two activations (by default sigmoid and tanh); v and w are the recurrence and the input bias::

    z = gate(W_z x + R_z h' + v_z + w_z)                         the update gate
    r = gate(W_r x + R_r h' + v_r + w_r)                         the reset gate
    n = candidate(W_n x + w_n + r (R_n h' + v_n))                reset after: linear_before_reset = 1
    n = candidate(W_n x + w_n + R_n (r h') + v_n)                reset before: linear_before_reset = 0
    h = (1 - z) n + z h'

ONNX calls the activations f and g, and the candidate's block h: the operators' order is z r h. x is the
step's input, h' the state before it; `clip` bounds the pre-activations. In the backward pass dh is the
cotangent of h, and so on; a, b, c are the cotangents of the pre-activations of z, r and n::

    a = gate'(z) dh (h' - n)    c = candidate'(n) dh (1 - z)
    reset after:    b = gate'(r) c (R_n h' + v_n)     dh' = dh z + R_z^T a + R_r^T b + R_n^T (c r)
    reset before:   b = gate'(r) h' (R_n^T c)         dh' = dh z + R_z^T a + R_r^T b + r (R_n^T c)

So the loop has one product with reset after (of a, b and c r at once), and two with reset before. The
cotangent of the reset gate needs R_n h', which is rebuilt for all steps at once before the loop. After the
loop dX, dW, dR and db are single products: the input side takes a, b, c; the recurrent side takes a, b and c
r (reset after), or a, b, and c with the input r h' (reset before).

References
----------
ONNX operator GRU (opset 14 and later). Cho et al., "Learning phrase representations using RNN encoder-decoder
for statistical machine translation" (2014).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple

from xpgrad._calls.operation import PLAIN, Foreign, Operation, planned_call, public
from xpgrad._calls.plans import Asked
from xpgrad._elementwise.activation_formulas import activate, activate_pullback
from xpgrad._operators.arguments import check_choice
from xpgrad._operators.types import A, AnyArray, Array, Lengths, MaybeNone, Wanted
from xpgrad._operators.units import Unit
from xpgrad._operators.words import PerSample, TimeDirection
from xpgrad._recurrent.call import Direction, RecurrentCall
from xpgrad._recurrent.gradient_sums import GradientSums
from xpgrad._recurrent.hidden_state import StateForward, masks, state_backward
from xpgrad._recurrent.one_step import one_step
from xpgrad._recurrent.timeline import Chunk
from xpgrad.engine import Elementwise, Formula, Operand, Product

_DEFAULTS = ("Sigmoid", "Tanh")
_GRU = Unit(
    "gru",
    "The ONNX GRU",
    "z r h",
    "the operator GRU of the ONNX specification, version 14",
    parameters=masks(),
    kept={"zrh": 3},
    step="",
    keeps_products=True,
)


class GRUForward(NamedTuple, Generic[AnyArray]):
    """What `gru` returns. `gru_grad` also needs the last one.

    Parameters
    ----------
    H_all : array, shape (T, D, N, H)
        Every step's output.
    H_t : array, shape (D, N, H)
        The state at each sequence's end.
    zrh : array, shape (T, D, N, 3H)
        Every step's gates z, r and candidate n, after their activations.
    """

    H_all: AnyArray
    H_t: AnyArray
    zrh: AnyArray


class KeptGRUForward(NamedTuple, Generic[AnyArray]):
    """GRUForward and the candidate's recurrent products (T, D, N, H); see `run_foreign`."""

    H_all: AnyArray
    H_t: AnyArray
    zrh: AnyArray
    products: AnyArray


class GRUGrads(NamedTuple, Generic[AnyArray]):
    """What `gru_grad` returns: one gradient each, None if it was not asked for.

    Parameters
    ----------
    dX : array, shape (T, N, I)
        0 past a sequence's end.
    dW, dR, dB : array, shapes (D, 3H, I), (D, 3H, H), (D, 6H)
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
# Operands with several blocks are tuples: the gates, their input products x and recurrent products p, in the
# order z r n; and the biases v_z + w_z, v_r + w_r, w_n, v_n.


def _biased(xp: Any, x: Any, b: Any) -> Any:
    return x if b is None else x + b


def _candidate_input(xp: Any, xn: Any, pn: Any, r: Any, bw: Any, bv: Any, after: Any) -> Any:
    """The candidate's pre-activation; xn and pn are its input and recurrent products."""
    recurrent = _biased(xp, pn, bv)
    if after:
        recurrent = r * recurrent
    return _biased(xp, xn, bw) + recurrent


def _gru_step_after(
    xp: Any, x: Any, p: Any, bias: Any, h_prev: Any, *, gate: Any, candidate: Any, clip: Any
) -> tuple:
    """Gates z and r and the candidate, output, pn, with reset after."""
    (xz, xr, xn), (pz, pr, pn), (bz, br, bw, bv) = x, p, bias
    z = activate(xp, gate, _biased(xp, xz + pz, bz), clip)
    r = activate(xp, gate, _biased(xp, xr + pr, br), clip)
    n = activate(xp, candidate, _candidate_input(xp, xn, pn, r, bw, bv, True), clip)
    return (z, r, n), n + z * (h_prev - n), pn


def _gru_gates_before(xp: Any, x: Any, p: Any, bias: Any, taken: Any, *, gate: Any, clip: Any) -> tuple:
    """Gates z and r, the candidate's unchanged input product, and r h'; `taken` is h' as R multiplies it."""
    (xz, xr, xn), (pz, pr), (bz, br, _, _) = x, p, bias
    z = activate(xp, gate, _biased(xp, xz + pz, bz), clip)
    r = activate(xp, gate, _biased(xp, xr + pr, br), clip)
    return (z, r, xn), r * taken


def _gru_output_before(
    xp: Any, gates: Any, pn: Any, bias: Any, h_prev: Any, *, candidate: Any, clip: Any
) -> tuple:
    """The unchanged gates with the candidate for its input product, output, and pn = R_n (r h')."""
    (z, r, xn), (_, _, bw, bv) = gates, bias
    n = activate(xp, candidate, _candidate_input(xp, xn, pn, r, bw, bv, False), clip)
    return (z, r, n), n + z * (h_prev - n), pn


def _known(xp: Any, rebuilt: Any, b: Any, y: Any) -> Any:
    """The rebuilt pre-activation, or else the gate's output, which determines the slope."""
    return y if rebuilt is None else _biased(xp, rebuilt, b)


def _update_and_candidate(
    xp: Any, dy: Any, dh: Any, dp: Any, gates: Any, h_prev: Any, pn: Any, x: Any, bias: Any,
    gate: Any, candidate: Any, clip: Any, after: Any,
) -> tuple:  # fmt: skip
    """The cotangents a and c (see the module) in both conventions, and dh."""
    (z, r, n), (xz, _, xn), (bz, _, bw, bv) = gates, x, bias
    if dp is not None:
        dh = dh + dp
    if dy is not None:
        dh = dh + dy
    a = activate_pullback(xp, gate, dh * (h_prev - n), _known(xp, xz, bz, z), z, clip)
    known = n if xn is None else _candidate_input(xp, xn, pn, r, bw, bv, after)
    return a, activate_pullback(xp, candidate, dh * (1 - z), known, n, clip), dh


def _gru_pullback_after(
    xp: Any, dy: Any, dh: Any, dp: Any, gates: Any, h_prev: Any, pn: Any, x: Any, bias: Any,
    *, gate: Any, candidate: Any, clip: Any,
) -> tuple:  # fmt: skip
    """Cotangents c, a, b, c r (see the module) with reset after, and dh z; pn is R_n h'."""
    (z, r, _), (_, xr, _), (_, br, _, bv) = gates, x, bias
    a, c, dh = _update_and_candidate(xp, dy, dh, dp, gates, h_prev, pn, x, bias, gate, candidate, clip, True)
    b = activate_pullback(xp, gate, c * _biased(xp, pn, bv), _known(xp, xr, br, r), r, clip)
    return (c, a, b, c * r), dh * z


def _gru_candidate_pullback_before(
    xp: Any, dy: Any, dh: Any, dp: Any, gates: Any, h_prev: Any, pn: Any, x: Any, bias: Any,
    *, gate: Any, candidate: Any, clip: Any,
) -> tuple:  # fmt: skip
    """Cotangents a, a zero for b, c, with reset before, and dh z; pn is R_n (r h')."""
    a, c, dh = _update_and_candidate(xp, dy, dh, dp, gates, h_prev, pn, x, bias, gate, candidate, clip, False)
    z, _, _ = gates
    return (a, xp.zeros_like(a), c), dh * z


def _gru_reset_pullback_before(
    xp: Any, d: Any, s: Any, mask: Any, dh: Any, gates: Any, h_prev: Any, x: Any, bias: Any,
    *, gate: Any, clip: Any,
) -> tuple:  # fmt: skip
    """The second part: unchanged a and c, b, and the cotangent of h' without a product; s is R_n^T c."""
    (a, _, c), (_, r, _), (_, xr, _), (_, br, _, _) = d, gates, x, bias
    if mask is not None:
        s = s * mask
    b = activate_pullback(xp, gate, s * h_prev, _known(xp, xr, br, r), r, clip)
    return (a, b, c), dh + s * r


# --- forward -----------------------------------------------------------------------------------------


@_GRU.function
@public
def gru(
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
    linear_before_reset: int = 0,
    layout: int = 0,
    reset: Array[Any] | None = None,
    recurrent_mask: Array[A] | None = None,
    zoneout_h: Array[A] | None = None,
    _foreign: Foreign = PLAIN,
) -> GRUForward[A]:
    r"""Gated recurrent unit over sequences; it also returns what its gradient needs.

    .. math::

        z &= f(W_z x_t + R_z h_{t-1} + b_z) \\
        r &= f(W_r x_t + R_r h_{t-1} + b_r) \\
        n &= g(W_n x_t + w_n + r \odot (R_n h_{t-1} + v_n))
            \quad\text{or}\quad g(W_n x_t + w_n + R_n (r \odot h_{t-1}) + v_n) \\
        h_t &= (1 - z) \odot n + z \odot h_{t-1}

    f and g are the activations; n, the candidate, is the last of ONNX's gates z r h. With zoneout each step
    keeps a share k of the old state, k ⊙ h_{t-1} + (1 - k) ⊙ h_t. With a mask m, R multiplies m ⊙ h_{t-1};
    with the reset before the product, r ⊙ m ⊙ h_{t-1}.

    Parameters
    ----------
    X : array, shape (T, N, I)
        Input: time, batch, features. float32 or float64; float16 and bfloat16 if the namespace has them, with
        states and sums in float32. All arrays share namespace, dtype and device.
    W : array, shape (D, 3H, I)
        Input weights, gates in the order z r h. D is 2 for ``direction="bidirectional"``, else 1.
    R : array, shape (D, 3H, H)
        Recurrence weights.
    B : array, shape (D, 6H), optional
        Input biases, then recurrence biases.
    sequence_lens : sequence of int or integer array, shape (N,), optional
        The length of each sequence, 0 to T; an array may be of any namespace. Past its end the outputs are 0,
        and the input has no effect, not even NaN. A reverse direction starts at each sequence's own end.
    initial_h : array, shape (D, N, H), optional
        State before the first step; zeros by default.
    direction : {"forward", "reverse", "bidirectional"}
        The direction of time.
    activations : list of str, optional
        ONNX's names of f and g for each direction; ``["Sigmoid", "Tanh"]`` by default.
    activation_alpha, activation_beta : list of float, optional
        Parameters of the activations that take them, in order; missing ones have ONNX's defaults.
    clip : float, optional
        Bounds the pre-activations to -clip .. clip.
    linear_before_reset : {0, 1}
        1: the reset gate multiplies the candidate's recurrent product (PyTorch, cuDNN); 0: it multiplies the
        state before that product (ONNX's default, Keras with ``reset_after=False``).
    layout : {0, 1}
        1: the batch axis comes first, X (N, T, I), states (N, D, H), sequences (N, T, D, ...).
    reset : array of booleans, shape (T, N), optional
        Where a new piece begins: the state starts at zero before these steps, in both directions. The initial
        state belongs to the piece with which the direction starts, the final state to the one with which it
        ends. In layout 1 it is (N, T).
    recurrent_mask : array, shape (D, N, H), optional
        Multiplies the state before the product with R, the same at every step: recurrent dropout. The caller
        scales it. It has no gradient; nor does the next.
    zoneout_h : array, shape (T, D, N, H), optional
        Share of the old state that each step keeps, 0 to 1: a random mask of 0 and 1 in training, its
        expectation otherwise.

    Returns
    -------
    GRUForward
        ``(H_all, H_t, zrh)``. `gru_grad` takes H_all and zrh; zrh holds 3H numbers per step and
        sequence.

    Raises
    ------
    ValueError
        For an invalid shape, length or attribute.
    TypeError
        For arguments that are not arrays, or arrays that do not share namespace, dtype and device.

    See Also
    --------
    gru_grad : The gradient.
    vjp : Forward and gradient in one call.

    Notes
    -----
    The operator is ONNX's GRU; zrh is that of ONNX Runtime's GRUTraining.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import gru
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = (rng.normal(size=s) for s in [(7, 2, 3), (1, 15, 3), (1, 15, 5)])
    >>> out = gru(X, W, R, sequence_lens=np.asarray([7, 4]), linear_before_reset=1)
    >>> out.H_all.shape, out.H_t.shape, out.zrh.shape
    ((7, 1, 2, 5), (1, 2, 5), (7, 1, 2, 15))
    """
    return planned_call(_FORWARD, locals())


def _compute_forward(
    asked: Asked,
    *,
    linear_before_reset: int,
    keep_products: bool = False,
    **attributes: Any,
) -> GRUForward | KeptGRUForward:
    """Check and compute, or record."""
    check_choice(asked.operator, "linear_before_reset", linear_before_reset, (0, 1, False, True))
    call = RecurrentCall(asked, 3, states=_GRU.initial, defaults=_DEFAULTS, **attributes)
    one_direction = _forward_after if linear_before_reset else _forward_before
    with call.engine.quiet():
        parts = call.by_direction(lambda d: one_direction(call, d, keep_products))
        H_all, H_t, zrh, products = (list(part) for part in zip(*parts, strict=True))
        out = GRUForward(call.saved("H_all", H_all), call.states(H_t), call.saved("zrh", zrh))
        return KeptGRUForward(*out, call.saved("products", products)) if keep_products else out


_FORWARD = Operation("gru", _compute_forward, _GRU.operands)


def _forward_after(call: RecurrentCall, direction: Direction, keep_products: bool) -> tuple:
    """Rows of H, final H, rows of the gates and of kept products, with reset after."""
    engine, timeline, H = call.engine, direction.timeline, call.H
    gate, candidate = direction.activations
    formula = Formula(_gru_step_after, {"gate": gate, "candidate": candidate, "clip": call.clip})
    h0, gates, h_rows, products, bias = _start(call, direction, keep_products)
    R_T = engine.loop_weight(call.part("R", direction).T, call.T)
    recurrent = engine.carry(timeline.zeros(3 * H))
    state = StateForward(call, direction, h_rows)

    def stages(source: Any) -> list:
        h_prev = Operand(source, 1, "before")
        masked, taken = state.into_product(h_prev)
        all_gates = Operand(gates, 3, "now", call.order)
        inputs = [all_gates, Operand(recurrent, 3, "first", call.order), bias, h_prev]
        return [
            *masked,
            Product(taken, R_T, recurrent),
            Elementwise(formula, inputs, [all_gates, state.output, Operand(products)]),
            *state.hand_on(h_prev),
        ]

    first, later = timeline.forward()
    engine.scan(stages(engine.wrap(h0)), first)
    engine.scan(stages(h_rows), later)
    H_rows = engine.array(h_rows)
    return H_rows, timeline.last(H_rows, h0), engine.array(gates), _kept(call, products)


def _forward_before(call: RecurrentCall, direction: Direction, keep_products: bool) -> tuple:
    """Rows of H, final H, rows of the gates and of kept products, with reset before."""
    engine, timeline, H = call.engine, direction.timeline, call.H
    gate, candidate = direction.activations
    gates_formula = Formula(_gru_gates_before, {"gate": gate, "clip": call.clip})
    output_formula = Formula(_gru_output_before, {"candidate": candidate, "clip": call.clip})
    h0, gates, h_rows, products, bias = _start(call, direction, keep_products)
    R_T = call.part("R", direction).T
    R_gates_T, R_candidate_T = (
        engine.loop_weight(part, call.T) for part in (R_T[:, : 2 * H], R_T[:, 2 * H :])
    )
    recurrent, product, reset = (engine.carry(timeline.zeros(k * H)) for k in (2, 1, 1))
    state = StateForward(call, direction, h_rows)

    def stages(source: Any) -> list:
        h_prev, all_gates = Operand(source, 1, "before"), Operand(gates, 3, "now", call.order)
        masked, taken = state.into_product(h_prev)
        through_reset = Operand(reset, 1, "first")
        return [
            *masked,
            Product(taken, R_gates_T, recurrent),
            Elementwise(
                gates_formula,
                [all_gates, Operand(recurrent, 2, "first", call.order[:2]), bias, taken],
                [all_gates, through_reset],
            ),
            Product(through_reset, R_candidate_T, product),
            Elementwise(
                output_formula,
                [all_gates, Operand(product, 1, "first"), bias, h_prev],
                [all_gates, state.output, Operand(products)],
            ),
            *state.hand_on(h_prev),
        ]

    first, later = timeline.forward()
    engine.scan(stages(engine.wrap(h0)), first)
    engine.scan(stages(h_rows), later)
    H_rows = engine.array(h_rows)
    return H_rows, timeline.last(H_rows, h0), engine.array(gates), _kept(call, products)


def _start(call: RecurrentCall, direction: Direction, keep_products: bool) -> tuple:
    """The beginning of both conventions: the state, rows for gates, output and kept products, the bias."""
    h0 = call.initial("initial_h", direction)
    gates = call.engine.product_rows(call.rows("X", direction), call.part("W", direction).T)
    rows = call.engine.rows(direction.timeline.rows, call.H, like=h0)
    products = call.engine.rows(direction.timeline.rows, call.H, like=h0) if keep_products else None
    return h0, gates, rows, products, _bias(call, direction)


def _kept(call: RecurrentCall, products: Any) -> Any:
    return None if products is None else call.engine.array(products)


def _bias(call: RecurrentCall, direction: Direction) -> Operand:
    """The biases of z and r, and the candidate's input and recurrence bias, as one row."""
    B, H = call.part("B", direction), call.H
    if B is None:
        return Operand(None, 4)
    order = (*call.order, 3)
    row = call.xp.concat([B[: 2 * H] + B[3 * H : 5 * H], B[2 * H : 3 * H], B[5 * H :]])
    return Operand(call.engine.wrap(call.xp.reshape(row, (1, 4 * H))), 4, "every", order)


# --- backward ----------------------------------------------------------------------------------------


@_GRU.function
@public
def gru_grad(
    X: Array[A],
    W: Array[A],
    R: Array[A],
    *,
    H_all: Array[A],
    zrh: Array[A],
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
    linear_before_reset: int = 0,
    layout: int = 0,
    reset: Array[Any] | None = None,
    recurrent_mask: Array[A] | None = None,
    zoneout_h: Array[A] | None = None,
    per_sample: PerSample = False,
    sample_weight: Array[A] | None = None,
    wrt: Wanted[MaybeNone] | None = None,
    _foreign: Foreign = PLAIN,
) -> GRUGrads[A | MaybeNone]:
    r"""Gradient of `gru`: from cotangents of its outputs to gradients of its arguments.

    .. math::

        a &= f'(z) \odot dh_t \odot (h_{t-1} - n), \quad c = g'(n) \odot dh_t \odot (1 - z) \\
        b &= f'(r) \odot c \odot (R_n h_{t-1} + v_n)
            \quad\text{or}\quad f'(r) \odot h_{t-1} \odot R_n^T c \\
        dh_{t-1} &= dh_t \odot z + R_z^T a + R_r^T b + R_n^T (c \odot r)
            \quad\text{or}\quad \dots + r \odot R_n^T c

    Zoneout passes k ⊙ dh to the previous state, and the rest to the step. A mask multiplies the cotangent of
    the previous state that comes through R, and that state as a factor of dR.

    Parameters
    ----------
    X, W, R, B, sequence_lens, initial_h, recurrent_mask, zoneout_h
        The arguments of `gru`. B matters for the gradient with ``linear_before_reset=1`` and with `clip`.
    H_all, zrh : array, shapes (T, D, N, H), (T, D, N, 3H)
        Results of `gru` or of any other forward with ONNX's meaning. The gradient is a function of these
        arrays.
    grad_H_all : array, shape (T, D, N, H), optional
        Cotangent of H_all; zero by default, like the next one. Ignored past a sequence's end.
    grad_H_t : array, shape (D, N, H), optional
        Cotangent of the final state.
    direction, activations, activation_alpha, activation_beta, clip, linear_before_reset, layout, reset
        The arguments of `gru`.
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
    GRUGrads
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
    gru : The forward.
    vjp : Forward and gradient in one call.

    Notes
    -----
    The contract is ONNX Runtime's GRUGrad, completed. Slopes at kinks are PyTorch's; `clip` passes
    the cotangent at its bounds.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import gru, gru_grad
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = (rng.normal(size=s) for s in [(7, 2, 3), (1, 15, 3), (1, 15, 5)])
    >>> out = gru(X, W, R)
    >>> grads = gru_grad(X, W, R, H_all=out.H_all, zrh=out.zrh,
    ...                  grad_H_t=rng.normal(size=out.H_t.shape), wrt=("X", "R"))
    >>> grads.dX.shape, grads.dR.shape, grads.dW is None
    ((7, 2, 3), (1, 15, 5), True)
    """
    return planned_call(_GRADIENT, locals())


def _compute_backward(
    asked: Asked, *, linear_before_reset: int,
    per_sample: bool | str, wanted: frozenset[str], **attributes: Any,
) -> GRUGrads:  # fmt: skip
    """Check and compute, or record."""
    check_choice(asked.operator, "linear_before_reset", linear_before_reset, (0, 1, False, True))
    saved = _GRU.saved | ({"products": 1} if "products" in asked.arrays else {})
    call = RecurrentCall(
        asked, 3, states=_GRU.initial, saved=saved, cotangents=_GRU.end_cotangents, defaults=_DEFAULTS,
        **attributes,
    )  # fmt: skip
    backward = _BackwardResetAfter if linear_before_reset else _BackwardResetBefore
    with call.engine.quiet():
        return GRUGrads(*call.gradients(
            lambda call, d: backward(call, d, wanted, per_sample).gradients() if wanted else {},
            _GRU.graded, per_sample=per_sample,
        ))  # fmt: skip


_GRADIENT = Operation("gru_grad", _compute_backward, _GRU.gradient_arrays, _GRU.graded)


class _GRUPullbackOperands(NamedTuple):
    """The operands of the formulas that begin a step's pullback.

    Parameters
    ----------
    dy, dh, dp : Operand
        Cotangents of the state: as an output, from the step after directly, and through its product. dh is
        the sum of both where dp is absent.
    gates, h_prev : Operand
        What the step had: z r n, and the state before it.
    pn : Operand
        The candidate's recurrent product.
    x : Operand
        The products of z and r, and the candidate's input product; rebuilt if clip or an activation needs
        them.
    bias : Operand
        The biases: of z, of r, the candidate's two.
    """

    dy: Operand
    dh: Operand
    dp: Operand
    gates: Operand
    h_prev: Operand
    pn: Operand
    x: Operand
    bias: Operand


class _GRUBackward(ABC):
    """The backward loop of one direction: the part that both conventions share.

    A subclass, one for each convention, says which cotangents a step has (`blocks`), which stages compute
    them, and how they become gradients of parameters.

    Parameters
    ----------
    call, direction, wanted, per_sample
        The call, one direction of it, and the wanted gradients.
    """

    blocks: int
    """How many blocks of H columns the cotangents of a step have."""

    def __init__(
        self, call: RecurrentCall, direction: Direction, wanted: frozenset[str], per_sample: bool | str
    ) -> None:
        engine, timeline = call.engine, direction.timeline
        self.call, self.direction, self.engine, self.wanted = call, direction, engine, wanted
        gate, candidate = direction.activations
        self.rebuild = call.needs_pre_activations((gate, candidate))
        self.constants = {"gate": gate, "candidate": candidate, "clip": call.clip}
        self.sums = GradientSums(call, direction, wanted, per_sample)
        self.x: Any = call.rows("X", direction) if self.rebuild or "W" in wanted else None
        self.h_rows = call.rows("H_all", direction)
        self.h0, self.zrh = call.initial("initial_h", direction), call.rows("zrh", direction)
        self.h_wrapped, self.h_start = engine.wrap(self.h_rows), engine.wrap(self.h0)
        self.kept = call.rows("products", direction)
        self.state = state_backward(call, direction, self.sums)
        self.taken: Any = None  # of a chunk; the rows that R multiplied, if a mask makes them differ from h'
        if self.state is None:
            self.dh = engine.carry(call.initial("grad_H_t", direction))
            self.product = engine.carry(timeline.zeros(call.H))
            dy, dh = Operand(call.wrapped("grad_H_all", direction)), Operand(self.dh, 1, "first")
            dp = Operand(self.product, 1, "first")
        else:
            self.dh, self.product = engine.carry(timeline.zeros(call.H)), self.state.product
            dy, dh, dp = Operand(None), self.state.output, Operand(None)
        self.direct = Operand(self.dh, 1, "first")  # the cotangent of h' without a product
        self.fixed = _GRUPullbackOperands(
            dy=dy,
            dh=dh,
            dp=dp,
            gates=Operand(engine.wrap(self.zrh), 3, "now", call.order),
            h_prev=Operand(None),  # of each scan
            pn=Operand(None),  # of each chunk
            x=Operand(None, 3),  # of each chunk
            bias=_bias(call, direction),
        )

    # What each convention defines.

    @abstractmethod
    def stages(self, operands: _GRUPullbackOperands, d: Any) -> list:
        """A step's stages without its last product: from the operands to the cotangents d."""

    @abstractmethod
    def to_state(self, d: Any) -> Product:
        """A step's last product: from its cotangents to that of the previous state."""

    @abstractmethod
    def candidate_input(self, chunk: Chunk) -> Any:
        """The input of the candidate's recurrent product: rows of h', or of r h'."""

    @abstractmethod
    def add(self, chunk: Chunk, rows: Any) -> None:
        """Add the chunk's share, from its cotangents, to the gradients of input and parameters."""

    @abstractmethod
    def parameter_gradients(self) -> dict[str, Any]:
        """The wanted gradients of W, R and B, after the last chunk."""

    # What both share.

    def gradients(self) -> dict[str, Any]:
        """The wanted gradients of this direction, by argument name."""
        for chunk, d in self.sums.chunks(self.blocks * self.call.H, like=self.h0):
            self.loop(chunk, d)
            self.add(chunk, self.engine.array(d)[: chunk.rows, :])
        grads = self.parameter_gradients()
        if "X" in self.wanted:
            grads["X"] = self.sums.input_rows()
        if "initial_h" in self.wanted:
            grads["initial_h"] = self.direction.timeline.unsort(self.initial_gradient())
        return grads

    def initial_gradient(self) -> Any:
        """The cotangents carried back to the initial state."""
        if self.state is not None:
            return self.state.initial_gradient()
        return self.engine.array(self.dh) + self.engine.array(self.product)

    def loop(self, chunk: Chunk, d: Any) -> None:
        """Run the chunk's steps; the first step needs its last product only for dH0."""
        operands, to_state = self.operands(chunk), self.to_state(d)
        before = [] if self.state is None else self.state.stages(self.direct)
        self.engine.scan([*before, *self.stages(operands(self.h_wrapped), d), to_state], chunk.later)
        last: list = [to_state] if "initial_h" in self.wanted else []
        if last and self.state is not None:
            last = [to_state, self.state.to_initial(self.direct)]
        self.engine.scan([*before, *self.stages(operands(self.h_start), d), *last], chunk.first)

    def operands(self, chunk: Chunk) -> Callable[[Any], _GRUPullbackOperands]:
        """A function from the rows of h' to a chunk's operands."""
        call, engine, H = self.call, self.engine, self.call.H
        if self.state is not None:
            self.taken = self.state.masked_before(chunk, self.h_wrapped, self.h_start)
        R_T = call.part("R", self.direction).T
        recurrent, products = self.recurrent_product(chunk, R_T[:, 2 * H :]), None
        if self.rebuild:
            inputs = engine.matmul(self.x[chunk.part, :], call.part("W", self.direction).T)
            gates = inputs[:, : 2 * H] + engine.matmul(self.taken_before(chunk), R_T[:, : 2 * H])
            products = engine.wrap(call.xp.concat([gates, inputs[:, 2 * H :]], axis=1))
        here = self.fixed._replace(pn=recurrent, x=Operand(products, 3, "local", call.order))
        return lambda rows: here._replace(h_prev=Operand(rows, 1, "before"))

    def recurrent_product(self, chunk: Chunk, R_candidate_T: Any) -> Operand:
        """The candidate's recurrent product: kept by the forward, or rebuilt if a slope needs it."""
        if self.kept is not None:
            return Operand(self.engine.wrap(self.kept))
        if not self.reads_recurrent_product():
            return Operand(None)
        rows = self.engine.matmul(self.candidate_input(chunk), R_candidate_T)
        return Operand(self.engine.wrap(rows), 1, "local")

    def reads_recurrent_product(self) -> bool:
        """Whether a step's pullback reads the candidate's recurrent product."""
        return self.rebuild

    def taken_before(self, chunk: Chunk) -> Any:
        """For each row of the chunk, the previous state as R multiplied it."""
        if self.taken is not None:
            return self.taken
        return self.direction.timeline.previous(self.h_rows, self.h0, chunk)

    def add_recurrent_weight(self, name: str, d: Any, chunk: Chunk) -> None:
        """Add the chunk's share to the gradient of a weight that multiplies h'."""
        if self.taken is not None:
            self.sums.add_weight(name, d, self.taken)
            return
        initial = self.call.part("initial_h", self.direction)
        self.sums.add_weight_before(name, d, chunk, self.h_rows, initial)


class _InputPart(NamedTuple):
    """Some columns of the cotangents, and the rows of W that made them.

    Parameters
    ----------
    name : str
        Of the rows' gradient.
    columns : slice
        Of the cotangents.
    W : array
        The rows.
    """

    name: str
    columns: slice
    W: Any


class _BackwardResetAfter(_GRUBackward):
    """The reset gate after the candidate's product: one product per step, of a, b and c r at once.

    The columns of the cotangents are c a b (c r), or c b a (c r), in the order of the weights. The first
    three are the input side's, the last three the recurrent side's. Rolled by H, the order c a b is the
    kernels' a b c.
    """

    blocks = 4

    def __init__(
        self, call: RecurrentCall, direction: Direction, wanted: frozenset[str], per_sample: bool | str
    ) -> None:
        super().__init__(call, direction, wanted, per_sample)
        self.formula = Formula(_gru_pullback_after, self.constants)
        self.columns = (0, 1 + call.order[0], 1 + call.order[1], 3)
        self.R = call.engine.loop_weight(call.part("R", direction), call.T)
        self.inputs, self.shift = self.input_parts()

    def input_parts(self) -> tuple[list[_InputPart], int]:
        """How W and the cotangents' columns belong together, and by how many rows dW is then rolled.

        Products of all columns at once need W in their order. For a single step that copy, and dW's, take
        longer than products of the gates and of the candidate apart.
        """
        call, H = self.call, self.call.H
        W = call.part("W", self.direction)
        if call.T == 1:
            gates = _InputPart("W of gates", slice(H, 3 * H), W[: 2 * H, :])
            return [gates, _InputPart("W of candidate", slice(0, H), W[2 * H :, :])], 0
        W = call.xp.roll(W, H, axis=0) if "X" in self.wanted else W
        return [_InputPart("W", slice(0, 3 * H), W)], -H

    def stages(self, operands: _GRUPullbackOperands, d: Any) -> list:
        outputs = [Operand(d, 4, "local", self.columns), self.direct]
        return [Elementwise(self.formula, operands, outputs)]

    def to_state(self, d: Any) -> Product:
        H = self.call.H
        return Product(Operand(self.engine.columns(d, H, 4 * H), 1, "local"), self.R, self.product)

    def reads_recurrent_product(self) -> bool:
        return True  # the reset gate multiplies it

    def candidate_input(self, chunk: Chunk) -> Any:
        return self.taken_before(chunk)

    def add(self, chunk: Chunk, rows: Any) -> None:
        H, sums = self.call.H, self.sums
        if "X" in self.wanted:
            sums.add_input(chunk, *((rows[:, part.columns], part.W) for part in self.inputs))
        rows = sums.weighted(chunk, rows)
        if "W" in self.wanted:
            for part in self.inputs:
                sums.add_weight(part.name, rows[:, part.columns], self.x[chunk.part, :])
        if "R" in self.wanted:
            self.add_recurrent_weight("R", rows[:, H:], chunk)
        if "B" in self.wanted:
            sums.add_rows("B", rows)

    def parameter_gradients(self) -> dict[str, Any]:
        xp, H, sums = self.call.xp, self.call.H, self.sums
        grads: dict[str, Any] = {}
        if "W" in self.wanted:
            grads["W"] = sums.weight(*(part.name for part in self.inputs), shift=self.shift)
        if "R" in self.wanted:
            grads["R"] = sums["R"]
        if "B" in self.wanted:
            b = sums["B"]
            axis = b.ndim - 1
            grads["B"] = xp.concat([xp.roll(b[..., : 3 * H], -H, axis=axis), b[..., H:]], axis=axis)
        return grads


class _BackwardResetBefore(_GRUBackward):
    """The reset gate before the candidate's product: two products per step; the columns are a b c."""

    blocks = 3

    def __init__(
        self, call: RecurrentCall, direction: Direction, wanted: frozenset[str], per_sample: bool | str
    ) -> None:
        super().__init__(call, direction, wanted, per_sample)
        gate, H = direction.activations[0], call.H
        self.candidate_formula = Formula(_gru_candidate_pullback_before, self.constants)
        self.reset_formula = Formula(_gru_reset_pullback_before, {"gate": gate, "clip": call.clip})
        R = call.part("R", direction)
        self.R_gates, self.R_candidate = (
            call.engine.loop_weight(part, call.T) for part in (R[: 2 * H, :], R[2 * H :, :])
        )
        self.through_reset = call.engine.carry(direction.timeline.zeros(H))

    def stages(self, operands: _GRUPullbackOperands, d: Any) -> list:
        columns = Operand(d, 3, "local", self.call.order)
        mask = Operand(None) if self.state is None else self.state.mask
        through_reset = Operand(self.through_reset, 1, "first")
        step = [operands.gates, operands.h_prev, operands.x, operands.bias]
        reset_inputs = [columns, through_reset, mask, self.direct, *step]
        outputs = [columns, self.direct]
        return [
            Elementwise(self.candidate_formula, operands, outputs),
            Product(self._blocks_of(d, 2, 3), self.R_candidate, self.through_reset),
            Elementwise(self.reset_formula, reset_inputs, outputs),
        ]

    def to_state(self, d: Any) -> Product:
        return Product(self._blocks_of(d, 0, 2), self.R_gates, self.product)

    def _blocks_of(self, d: Any, start: int, stop: int) -> Operand:
        H = self.call.H
        return Operand(self.engine.columns(d, start * H, stop * H), 1, "local")

    def candidate_input(self, chunk: Chunk) -> Any:
        reset = self.call.order[1] * self.call.H
        return self.zrh[chunk.part, reset : reset + self.call.H] * self.taken_before(chunk)

    def add(self, chunk: Chunk, rows: Any) -> None:
        H, sums = self.call.H, self.sums
        if "X" in self.wanted:
            sums.add_input(chunk, (rows, self.call.part("W", self.direction)))
        rows = sums.weighted(chunk, rows)
        if "W" in self.wanted:
            sums.add_weight("W", rows, self.x[chunk.part, :])
        if "R" in self.wanted:
            self.add_recurrent_weight("R of gates", rows[:, : 2 * H], chunk)
            sums.add_weight("R of candidate", rows[:, 2 * H :], self.candidate_input(chunk))
        if "B" in self.wanted:
            sums.add_rows("B", rows)

    def parameter_gradients(self) -> dict[str, Any]:
        sums = self.sums
        grads: dict[str, Any] = {}
        if "W" in self.wanted:
            grads["W"] = sums["W"]
        if "R" in self.wanted:
            grads["R"] = sums.weight("R of gates", "R of candidate")
        if "B" in self.wanted:
            grads["B"] = self.call.xp.concat([sums["B"], sums["B"]], axis=sums["B"].ndim - 1)
        return grads


# --- one step ----------------------------------------------------------------------------------------


class GRUCellForward(NamedTuple, Generic[AnyArray]):
    """What `gru_cell` returns.

    Parameters
    ----------
    H_next : array, shape (N, H)
        The state after the step.
    zrh : array, shape (N, 3H)
        The gates z, r and the candidate n, after their activations.
    """

    H_next: AnyArray
    zrh: AnyArray


class GRUCellGrads(NamedTuple, Generic[AnyArray]):
    """What `gru_cell_grad` returns: one gradient each, None if it was not asked for.

    Parameters
    ----------
    dX, dH : array, shapes (N, I), (N, H)
        Of the input and of the state before the step.
    dW, dR, dB : array, shapes (3H, I), (3H, H), (6H,)
        Of the parameters.
    """

    dX: AnyArray
    dH: AnyArray
    dW: AnyArray
    dR: AnyArray
    dB: AnyArray


@_GRU.function
@public
def gru_cell(
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
    linear_before_reset: int = 0,
    _foreign: Foreign = PLAIN,
) -> GRUCellForward[A]:
    """One step of `gru`, for your own loops.

    Parameters
    ----------
    X : array, shape (N, I)
        The step's input.
    H : array, shape (N, H)
        The state before the step.
    W, R : array, shapes (3H, I), (3H, H)
        Weights, gates in the order z r h.
    B : array, shape (6H,), optional
        Input biases, then recurrence biases.
    activations, activation_alpha, activation_beta, clip, linear_before_reset
        As for one direction of `gru`, with its equations.

    Returns
    -------
    GRUCellForward
        ``(H_next, zrh)``; `gru_cell_grad` takes zrh.

    Raises
    ------
    ValueError
        For an invalid shape or attribute.
    TypeError
        For arguments that are not arrays, or arrays that do not share namespace, dtype and device.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import gru_cell
    >>> rng = np.random.default_rng(0)
    >>> X, H, W, R = (rng.normal(size=s) for s in [(2, 3), (2, 5), (15, 3), (15, 5)])
    >>> step = gru_cell(X, H, W, R)
    >>> step.H_next.shape, step.zrh.shape
    ((2, 5), (2, 15))
    """
    return planned_call(_CELL, locals())


@_GRU.function
@public
def gru_cell_grad(
    X: Array[A],
    H: Array[A],
    W: Array[A],
    R: Array[A],
    *,
    zrh: Array[A],
    grad_H: Array[A] | None = None,
    B: Array[A] | None = None,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
    per_sample: PerSample = False,
    sample_weight: Array[A] | None = None,
    wrt: Wanted[MaybeNone] | None = None,
    _foreign: Foreign = PLAIN,
) -> GRUCellGrads[A | MaybeNone]:
    """Gradient of `gru_cell`.

    Parameters
    ----------
    X, H, W, R, B
        The arguments of `gru_cell`.
    zrh : array, shape (N, 3H)
        As `gru_cell` returned it.
    grad_H : array, shape (N, H), optional
        Cotangent of H_next; zero by default.
    activations, activation_alpha, activation_beta, clip, linear_before_reset
        The arguments of `gru_cell`.
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
    GRUCellGrads
        ``(dX, dH, dW, dR, dB)``, None for those not asked for; the equations are those of `gru_grad`.

    Raises
    ------
    ValueError
        For an invalid shape, attribute or name.
    TypeError
        For arguments that are not arrays, or arrays that do not share namespace, dtype and device.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import gru_cell, gru_cell_grad
    >>> rng = np.random.default_rng(0)
    >>> X, H, W, R = (rng.normal(size=s) for s in [(2, 3), (2, 5), (15, 3), (15, 5)])
    >>> step = gru_cell(X, H, W, R)
    >>> gru_cell_grad(X, H, W, R, zrh=step.zrh, grad_H=rng.normal(size=(2, 5))).dW.shape
    (15, 3)
    """
    return planned_call(_CELL_GRADIENT, locals())


_CELL, _CELL_GRADIENT = one_step(_GRU, _FORWARD, _GRADIENT, GRUCellForward, GRUCellGrads)
