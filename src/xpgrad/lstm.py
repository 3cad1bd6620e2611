r"""The LSTM over sequences, `lstm`, its gradient `lstm_grad`, and the single step.

The docstrings of `lstm` and `lstm_grad` have the equations. In the code z are the gates' pre-activations, and
gates have ONNX's order i o f c. The candidate g is ONNX's c; gate, candidate and output are ONNX's
activations f, g and h. x is the step's input (the operand `x` of a plan is W x), h' and c' the states before
it, b the sum of both biases, P the peepholes; `clip` bounds the z. In the backward pass dx is the cotangent
of x, and so on.

W x is one product before the forward loop. In the gradient dX = dZ W, dW = dZ^T X, dR = dZ^T H' and db, the
sum of dZ, follow after each chunk of the backward loop.

References
----------
ONNX operator LSTM (opset 14 and later). Hochreiter and Schmidhuber, "Long short-term memory" (1997). Gers,
Schraudolph and Schmidhuber, "Learning precise timing with LSTM recurrent networks" (2002), for peepholes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple

from xpgrad._calls.adapter_calls import PLAIN, Foreign, public
from xpgrad._calls.plans import planned_call
from xpgrad._elementwise.activation_formulas import activate, activate_pullback
from xpgrad._operators.types import A, AnyArray, Array, Lengths, MaybeNone, Wanted
from xpgrad._operators.units import Unit, UnitArray
from xpgrad._operators.words import Peephole, PerSample, TimeDirection
from xpgrad._recurrent.backward import BackwardLoop, rebuilt_products
from xpgrad._recurrent.call import RecurrentCall
from xpgrad._recurrent.checked_call import Direction
from xpgrad._recurrent.hidden_state import ZONEOUT, masks
from xpgrad._recurrent.operator import LoopOperator
from xpgrad._recurrent.plan import BackwardPlan, Buffer, ForwardPlan, Group, InputPart, stage
from xpgrad._recurrent.timeline import Chunk
from xpgrad.engine import Formula, Operand

_LSTM = Unit(
    "lstm",
    "The ONNX LSTM",
    "i o f c",
    "the operator LSTM of the ONNX specification, version 14",
    states={"h": "hidden state", "c": "cell state"},
    parameters={
        "P": UnitArray("D 3H", "Peephole weights, {}, in order i o f."),
        "S": UnitArray("D J H", "Projection of the hidden states, {}. Without it proj is H."),
        **masks("J"),
        "zoneout_c": UnitArray("T D N H", ZONEOUT.format("cell"), False),
    },
    kept={"iofc": 4},
    hidden="J",
    columns="J",
    step="c",
)


class LSTMForward(NamedTuple, Generic[AnyArray]):
    """The results of `lstm`. `lstm_grad` also needs the last two.

    Parameters
    ----------
    iofc : array, shape (T, D, N, 4H)
        Every step's gates, after their activations.
    """

    H_all: AnyArray
    H_t: AnyArray
    C_t: AnyArray
    C_all: AnyArray
    iofc: AnyArray


class LSTMGrads(NamedTuple, Generic[AnyArray]):
    """The gradients of `lstm_grad`; None for gradients that were not asked for."""

    dX: AnyArray
    dW: AnyArray
    dR: AnyArray
    dB: AnyArray
    dH0: AnyArray
    dC0: AnyArray
    dP: AnyArray | Any
    dS: AnyArray | Any


# --- the formulas of one step ------------------------------------------------------------------------
#
# The parameters are the operands, then the constants. An operand with a block for each gate is a tuple; zi
# is the block of z for the gate i. z and r are the gates' input and recurrent products; in the pullback z
# is their sum, rebuilt if clip or an activation needs it. b and p are biases and peepholes, `share` is the
# share of the old cell state that zoneout keeps. dy and dc_all are cotangents of the states as outputs; dh
# and dc come from the step after.


def _pre_activation(xp: Any, z: Any, b: Any, p: Any, c: Any) -> Any:
    """A gate's pre-activation from its products z, before `clip`."""
    if b is not None:
        z = z + b
    if p is not None:
        z = z + p * c
    return z


def _gate_input(xp: Any, z: Any, b: Any, p: Any, c: Any, y: Any) -> Any:
    """The rebuilt pre-activation; if it was not rebuilt, the output, which then determines the slope."""
    if z is None:
        return y
    return _pre_activation(xp, z, b, p, c)


def _lstm_step(
    xp: Any, z: Any, r: Any, b: Any, p: Any, c_prev: Any, share: Any,
    *, gate: Any, candidate: Any, output: Any, clip: Any, input_forget: Any,
) -> tuple:  # fmt: skip
    """Gates i o f g, cell state, output."""
    (zi, zo, zf, zg), (ri, ro, rf, rg), (bi, bo, bf, bg), (pi, po, pf) = z, r, b, p
    i = activate(xp, gate, _pre_activation(xp, zi + ri, bi, pi, c_prev), clip)
    f = 1 - i if input_forget else activate(xp, gate, _pre_activation(xp, zf + rf, bf, pf, c_prev), clip)
    g = activate(xp, candidate, _pre_activation(xp, zg + rg, bg, None, c_prev), clip)
    c = f * c_prev + i * g
    o = activate(xp, gate, _pre_activation(xp, zo + ro, bo, po, c), clip)
    h = o * activate(xp, output, c, None)
    if share is not None:
        c = share * c_prev + (1 - share) * c
    return (i, o, f, g), c, h


def _lstm_made(xp: Any, gates: Any, c: Any, c_prev: Any, share: Any, *, output: Any) -> tuple:
    """Cell state and output from the step's gates, before zoneout and projection."""
    i, o, f, g = gates
    if share is not None:
        c = f * c_prev + i * g
    return c, o * activate(xp, output, c, None)


def _lstm_step_pullback(
    xp: Any, dy: Any, dh: Any, dc_all: Any, dc: Any, gates: Any, c: Any, share: Any, c_prev: Any,
    z: Any, b: Any, p: Any,
    *, gate: Any, candidate: Any, output: Any, clip: Any, input_forget: Any, full: Any,
) -> tuple:  # fmt: skip
    """Cotangents of the pre-activations i o f g, and of the previous cell state.

    With `full` the peepholes pass a cotangent to the cell state.
    """
    (i, o, f, g), (zi, zo, zf, zg), (bi, bo, bf, bg), (pi, po, pf) = gates, z, b, p
    if dy is not None:
        dh = dh + dy
    if dc_all is not None:
        dc = dc + dc_all
    if share is not None:
        c = f * c_prev + i * g  # the step's cell state, before zoneout
        passed = share * dc
        dc = (1 - share) * dc
    y = activate(xp, output, c, None)
    do = activate_pullback(xp, gate, dh * y, _gate_input(xp, zo, bo, po, c, o), o, clip)
    dc = dc + activate_pullback(xp, output, dh * o, c, y, None)
    if full:
        dc = dc + do * po
    xi = _gate_input(xp, zi, bi, pi, c_prev, i)
    dg = activate_pullback(xp, candidate, dc * i, _gate_input(xp, zg, bg, None, c_prev, g), g, clip)
    dc_prev = dc * f
    if input_forget:
        # f = 1 - i: its cotangent goes to i, and its own weights have gradient zero
        di = activate_pullback(xp, gate, dc * (g - c_prev), xi, i, clip)
        df = xp.zeros_like(di)
    else:
        di = activate_pullback(xp, gate, dc * g, xi, i, clip)
        df = activate_pullback(xp, gate, dc * c_prev, _gate_input(xp, zf, bf, pf, c_prev, f), f, clip)
        if full:
            dc_prev = dc_prev + df * pf
    if full:
        dc_prev = dc_prev + di * pi
    if share is not None:
        dc_prev = dc_prev + passed
    return (di, do, df, dg), dc_prev


# --- its loops ---------------------------------------------------------------------------------------
#
# State 0 is h, state 1 is c. One product in a step: all gates' blocks of R, times h'.

_GROUPS = (Group(0, (0, 1, 2, 3)),)


def _constants(call: RecurrentCall, direction: Direction, input_forget: Any) -> dict[str, Any]:
    """The constants of both formulas."""
    gate, candidate, output = direction.activations
    activations = {"gate": gate, "candidate": candidate, "output": output}
    return activations | {"clip": call.clip, "input_forget": bool(input_forget)}


def _forward(call: RecurrentCall, direction: Direction, *, input_forget: Any) -> ForwardPlan:
    formula = Formula(_lstm_step, _constants(call, direction, input_forget))
    return ForwardPlan(
        tuple(_LSTM.states),
        [stage(formula, "x product0 b p before1 share", "x after1 output")],
        _GROUPS,
        kept={"iofc": (Buffer("x", 4, "now"),)},  # the gates replace their input products
        operands={
            "b": call.bias_operand(direction),
            "p": _peepholes(call, direction),
            "share": Operand(call.wrapped("zoneout_c", direction)),
        },
    )


def _backward(
    call: RecurrentCall, direction: Direction, wanted: frozenset[str], *, input_forget: Any, peephole: str
) -> BackwardPlan:
    full = peephole == "full" and call.part("P", direction) is not None
    rebuild = call.needs_pre_activations(direction.activations[:2])  # the output activation reads C
    formula = Formula(_lstm_step_pullback, _constants(call, direction, input_forget) | {"full": full})
    share = Operand(call.wrapped("zoneout_c", direction))
    # dP needs the cell state before zoneout, dS the output before the projection
    hidden = [name for name in ("P", "S") if name in wanted and (name == "S" or share.rows is not None)]
    made = Formula(_lstm_made, {"output": direction.activations[2]})
    again = [stage(made, "gates after1 before1 share", "made_P made_S")] if hidden else []
    return BackwardPlan(
        tuple(_LSTM.states),
        _GROUPS,
        [*again, stage(formula, "dy dh given1 carry1 gates after1 share before1 z b p", "columns carry1")],
        Buffer("columns", 4, "local"),
        products=[(range(4), len(again))],
        direct=[False, True],
        inputs=[InputPart(range(4))],
        vectors=[*range(4)] * 2,  # both biases are added, so their gradients are equal
        kept={"iofc": (Buffer("gates", 4, "now"),)},
        order=call.order,
        operands={
            "z": Operand(None, 4),
            "b": call.bias_operand(direction, rebuild),
            "p": _peepholes(call, direction, rebuild or full),
            "share": share,
            "made_P": Operand(None),
            "made_S": Operand(None),
        },
        local=[f"made_{name}" for name in hidden],
        rebuild=rebuilt_products if rebuild else None,
        others={"P": _add_peepholes, "S": _add_projection},
    )


def _peepholes(call: RecurrentCall, direction: Direction, wanted: bool = True) -> Operand:
    P = call.part("P", direction) if wanted else None
    return Operand(None if P is None else call.engine.wrap(call.xp.reshape(P, (1, 3 * call.H))), 3, "every")


def _add_peepholes(back: BackwardLoop, chunk: Chunk, d: Any) -> None:
    """dP: the sum of each gate's cotangent times the cell state that it saw, gates i o f."""
    H, order = back.call.H, back.call.order
    made = back.operands["made_P"].rows
    c_prev = back.before(1, chunk)
    c = back.kept_rows("after1", chunk) if made is None else back.local_rows("made_P", chunk)
    own = [d[:, k * H : (k + 1) * H] for k in order[:3]]
    back.sums.add_dots("P", [*zip(own, [c_prev, c, c_prev], strict=True)])


def _add_projection(back: BackwardLoop, chunk: Chunk, d: Any) -> None:
    """dS; see `hidden_state`."""
    if back.hidden is not None:
        back.hidden.add_projection(back, chunk, back.local_rows("made_S", chunk))


_OPERATOR = LoopOperator(
    _LSTM,
    LSTMForward,
    LSTMGrads,
    _forward,
    _backward,
    ("Sigmoid", "Tanh", "Tanh"),
    options={"input_forget": (False, True, 0, 1)},
    gradient_options={"peephole": ("full", "truncated")},
    optional=("P", "S"),
)

# --- forward -----------------------------------------------------------------------------------------


@_LSTM.function
@public
def lstm(
    X: Array[A],
    W: Array[A],
    R: Array[A],
    B: Array[A] | None = None,
    sequence_lens: Lengths | None = None,
    initial_h: Array[A] | None = None,
    initial_c: Array[A] | None = None,
    P: Array[A] | None = None,
    *,
    direction: TimeDirection = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    layout: int = 0,
    reset: Array[Any] | None = None,
    S: Array[A] | None = None,
    recurrent_mask: Array[A] | None = None,
    zoneout_h: Array[A] | None = None,
    zoneout_c: Array[A] | None = None,
    _foreign: Foreign = PLAIN,
) -> LSTMForward[A]:
    r"""Long short-term memory over sequences; it also returns the arrays for its gradient.

    .. math::

        i &= a_f(W_i x_t + R_i h_{t-1} + b_i + P_i \odot c_{t-1}) \\
        f &= a_f(W_f x_t + R_f h_{t-1} + b_f + P_f \odot c_{t-1}) \\
        g &= a_g(W_g x_t + R_g h_{t-1} + b_g) \\
        c_t &= f \odot c_{t-1} + i \odot g \\
        o &= a_f(W_o x_t + R_o h_{t-1} + b_o + P_o \odot c_t) \\
        h_t &= o \odot a_h(c_t)

    a_f, a_g and a_h are ONNX's activations f, g and h. The candidate g is the block that ONNX calls c. With a
    projection h_t is S (o ⊙ a_h(c_t)), as in ``torch.nn.LSTM`` with `proj_size`; without S, proj is H. The
    cell state has the width H. With zoneout each step keeps a share z of the old cell state,
    z ⊙ c_{t-1} + (1 - z) ⊙ c_t, and likewise of h; h_t is computed from c_t before zoneout. With a mask R
    multiplies m ⊙ h_{t-1}.

    Parameters
    ----------
    activations : list of str, optional
        ONNX's names of f, g and h for each direction; ``["Sigmoid", "Tanh", "Tanh"]`` by default.
    input_forget : bool
        Couple the forget gate to the input gate: f = 1 - i.

    Notes
    -----
    The operator is ONNX's LSTM; C_all and iofc are the results of ONNX Runtime's LSTMTraining.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import lstm
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = (rng.normal(size=s) for s in [(7, 2, 3), (1, 20, 3), (1, 20, 5)])
    >>> out = lstm(X, W, R, sequence_lens=np.asarray([7, 4]))
    >>> out.H_all.shape, out.H_t.shape, out.iofc.shape
    ((7, 1, 2, 5), (1, 2, 5), (7, 1, 2, 20))
    >>> bool(np.all(out.H_all[4:, 0, 1] == 0))
    True
    """
    return planned_call(_OPERATOR.forward, locals())


# --- backward ----------------------------------------------------------------------------------------


@_LSTM.function
@public
def lstm_grad(
    X: Array[A],
    W: Array[A],
    R: Array[A],
    *,
    H_all: Array[A],
    C_all: Array[A],
    iofc: Array[A],
    grad_H_all: Array[A] | None = None,
    grad_H_t: Array[A] | None = None,
    grad_C_t: Array[A] | None = None,
    grad_C_all: Array[A] | None = None,
    B: Array[A] | None = None,
    sequence_lens: Lengths | None = None,
    initial_h: Array[A] | None = None,
    initial_c: Array[A] | None = None,
    P: Array[A] | None = None,
    direction: TimeDirection = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    layout: int = 0,
    reset: Array[Any] | None = None,
    S: Array[A] | None = None,
    recurrent_mask: Array[A] | None = None,
    zoneout_h: Array[A] | None = None,
    zoneout_c: Array[A] | None = None,
    peephole: Peephole = "full",
    per_sample: PerSample = False,
    sample_weight: Array[A] | None = None,
    wrt: Wanted[MaybeNone] | None = None,
    _foreign: Foreign = PLAIN,
) -> LSTMGrads[A | MaybeNone]:
    r"""Gradient of `lstm`: from cotangents of its outputs to gradients of its arguments.

    .. math::

        dc_t &\mathrel{+}= dh_t \odot o \odot a_h'(c_t) + P_o \odot dz_o \\
        dz_o &= a_f'(z_o) \odot dh_t \odot a_h(c_t), \quad
        dz_i = a_f'(z_i) \odot dc_t \odot g, \quad
        dz_f = a_f'(z_f) \odot dc_t \odot c_{t-1}, \quad
        dz_g = a_g'(z_g) \odot dc_t \odot i \\
        dc_{t-1} &= dc_t \odot f + P_i \odot dz_i + P_f \odot dz_f, \quad dh_{t-1} = R^T dz \\
        dX &= dZ\,W, \quad dW = dZ^T X, \quad dR = dZ^T H_{-1}, \quad db = \textstyle\sum dZ

    With a projection the step's output y = o ⊙ a_h(c) has the cotangent S^T dh, and dS is the sum of dh y^T
    over steps and samples. Zoneout passes z ⊙ dc and z ⊙ dh to the previous states, and the rest to the step.
    A mask multiplies R^T dz, and H_{-1} in dR.

    Parameters
    ----------
    H_all, C_all, iofc : array, shapes (T, D, N, proj), (T, D, N, H), (T, D, N, 4H)
        Results of `lstm` or of any other forward with ONNX's meaning. The gradient is a function of these
        arrays. The pre-activations are rebuilt from them only if the gates do not determine the slopes: with
        `clip`, and for LeakyRelu, Elu and ThresholdedRelu with a negative alpha.
    peephole : {"full", "truncated"}
        ``"full"`` is the true gradient. ``"truncated"`` drops the path from the peepholes into the cell
        state, as ONNX Runtime's LSTMGrad does.
    wrt : iterable of str, optional
        Arguments whose gradients to compute, among "X", "W", "R", "B", "initial_h", "initial_c", "P",
        "S"; all by default, "P" and "S" only if P and S are given. The work for the others is skipped.

    Notes
    -----
    The contract is ONNX Runtime's LSTMGrad, completed. Omitted arguments have a gradient too: dB is the
    gradient at a zero bias. Slopes at kinks are PyTorch's; `clip` passes the cotangent at its bounds.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import lstm, lstm_grad
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = (rng.normal(size=s) for s in [(7, 2, 3), (1, 20, 3), (1, 20, 5)])
    >>> out = lstm(X, W, R)
    >>> grads = lstm_grad(X, W, R, H_all=out.H_all, C_all=out.C_all, iofc=out.iofc,
    ...                   grad_H_t=rng.normal(size=out.H_t.shape), wrt=("X", "R"))
    >>> grads.dX.shape, grads.dR.shape, grads.dW is None
    ((7, 2, 3), (1, 20, 5), True)
    """
    return planned_call(_OPERATOR.backward, locals())


# --- one step ----------------------------------------------------------------------------------------


class LSTMCellForward(NamedTuple, Generic[AnyArray]):
    """The results of `lstm_cell`.

    Parameters
    ----------
    iofc : array, shape (N, 4H)
        The gates, after their activations.
    """

    H_next: AnyArray
    C_next: AnyArray
    iofc: AnyArray


class LSTMCellGrads(NamedTuple, Generic[AnyArray]):
    """The gradients of `lstm_cell_grad`; None for gradients that were not asked for."""

    dX: AnyArray
    dH: AnyArray
    dC: AnyArray
    dW: AnyArray
    dR: AnyArray
    dB: AnyArray
    dP: AnyArray | Any


@_LSTM.function
@public
def lstm_cell(
    X: Array[A],
    H: Array[A],
    C: Array[A],
    W: Array[A],
    R: Array[A],
    B: Array[A] | None = None,
    P: Array[A] | None = None,
    *,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    _foreign: Foreign = PLAIN,
) -> LSTMCellForward[A]:
    """One step of `lstm`, for your own loops.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import lstm_cell
    >>> rng = np.random.default_rng(0)
    >>> X, H, C, W, R = (rng.normal(size=s) for s in [(2, 3), (2, 5), (2, 5), (20, 3), (20, 5)])
    >>> step = lstm_cell(X, H, C, W, R)
    >>> step.H_next.shape, step.iofc.shape
    ((2, 5), (2, 20))
    """
    return planned_call(_CELL, locals())


@_LSTM.function
@public
def lstm_cell_grad(
    X: Array[A],
    H: Array[A],
    C: Array[A],
    W: Array[A],
    R: Array[A],
    *,
    C_next: Array[A],
    iofc: Array[A],
    grad_H: Array[A] | None = None,
    grad_C: Array[A] | None = None,
    B: Array[A] | None = None,
    P: Array[A] | None = None,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    peephole: Peephole = "full",
    per_sample: PerSample = False,
    sample_weight: Array[A] | None = None,
    wrt: Wanted[MaybeNone] | None = None,
    _foreign: Foreign = PLAIN,
) -> LSTMCellGrads[A | MaybeNone]:
    """Gradient of `lstm_cell`, with the equations of `lstm_grad`.

    Parameters
    ----------
    peephole : {"full", "truncated"}
        See `lstm_grad`.
    wrt : iterable of str, optional
        Arguments whose gradients to compute, among "X", "H", "C", "W", "R", "B", "P"; all by default, "P"
        only if P is given. The work for the others is skipped.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import lstm_cell, lstm_cell_grad
    >>> rng = np.random.default_rng(0)
    >>> X, H, C, W, R = (rng.normal(size=s) for s in [(2, 3), (2, 5), (2, 5), (20, 3), (20, 5)])
    >>> step = lstm_cell(X, H, C, W, R)
    >>> grads = lstm_cell_grad(X, H, C, W, R, C_next=step.C_next, iofc=step.iofc,
    ...                        grad_H=rng.normal(size=(2, 5)), wrt=["H"])
    >>> grads.dH.shape, grads.dX is None
    ((2, 5), True)
    """
    return planned_call(_CELL_GRADIENT, locals())


_CELL, _CELL_GRADIENT = _OPERATOR.step(LSTMCellForward, LSTMCellGrads)
