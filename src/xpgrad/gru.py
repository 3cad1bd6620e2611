r"""The GRU over sequences, `gru`, its gradient `gru_grad`, and the single step.

The docstrings of `gru` and `gru_grad` have the equations, with reset after (linear_before_reset = 1) and
reset before the product. Gates have ONNX's order z r h; the candidate n is ONNX's h; gate and candidate are
ONNX's activations f and g. x is the step's input, h' the state before it, w and v the input and the
recurrence bias; `clip` bounds the pre-activations. In the backward pass dh is the cotangent of h, and so on;
a, b, c are the cotangents of the pre-activations of z, r and n.

The loop has one product with reset after (with a, b and c r at once), and two with reset before. The
cotangent of the reset gate needs R_n h', which is rebuilt for all steps at once before the loop. After each
chunk of steps dX, dW, dR and db are single products: the input side takes a, b, c; the recurrent side takes
a, b and c r (reset after), or a, b, and c with the input r h' (reset before).

References
----------
ONNX operator GRU (opset 14 and later). Cho et al., "Learning phrase representations using RNN encoder-decoder
for statistical machine translation" (2014).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple

from xpgrad._calls.adapter_calls import PLAIN, Foreign, public
from xpgrad._calls.plans import planned_call
from xpgrad._elementwise.activation_formulas import activate, activate_pullback
from xpgrad._operators.types import A, AnyArray, Array, Lengths, MaybeNone, Wanted
from xpgrad._operators.units import Unit
from xpgrad._operators.words import PerSample, TimeDirection
from xpgrad._recurrent.backward import BackwardLoop
from xpgrad._recurrent.call import RecurrentCall
from xpgrad._recurrent.checked_call import Direction
from xpgrad._recurrent.hidden_state import masks
from xpgrad._recurrent.operator import LoopOperator
from xpgrad._recurrent.plan import BackwardPlan, Buffer, ForwardPlan, Group, InputPart, stage
from xpgrad._recurrent.timeline import Chunk
from xpgrad.engine import Formula, Operand

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
    """The results of `gru`. `gru_grad` also needs the last one.

    Parameters
    ----------
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
    """The gradients of `gru_grad`; None for gradients that were not asked for."""

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


# --- its loops ---------------------------------------------------------------------------------------
#
# Reset after: one product in a step, all blocks of R times h'. Reset before: R's gates times h', and between
# two formulas its candidate times r h'. pn is the candidate's recurrent product: kept, or rebuilt.

_AFTER = (Group(0, (0, 1, 2)),)
_BEFORE = (Group(0, (0, 1)), Group(1, (2,), None))


def _forward(
    call: RecurrentCall, direction: Direction, *, linear_before_reset: int, keep_products: bool = False
) -> ForwardPlan:
    gate, candidate = direction.activations
    if linear_before_reset:
        formula = Formula(_gru_step_after, {"gate": gate, "candidate": candidate, "clip": call.clip})
        stages = [stage(formula, "x product0 bias before0", "x output pn")]
    else:
        gates = Formula(_gru_gates_before, {"gate": gate, "clip": call.clip})
        output = Formula(_gru_output_before, {"candidate": candidate, "clip": call.clip})
        stages = [
            stage(gates, "x product0 bias taken", "x source1"),
            stage(output, "x product1 bias before0", "x output pn"),
        ]
    kept = {"zrh": (Buffer("x", 3, "now"),)}  # the gates replace their input products
    operands = {"bias": _bias(call, direction)}
    if keep_products:
        kept["products"] = (Buffer("pn", 1, "now"),)
    else:
        operands["pn"] = Operand(None)
    return ForwardPlan(tuple(_GRU.states), stages, _AFTER if linear_before_reset else _BEFORE, kept, operands)


def _bias(call: RecurrentCall, direction: Direction) -> Operand:
    """The biases of z and r, and the candidate's input and recurrence bias, as one row."""
    B, H = call.part("B", direction), call.H
    if B is None:
        return Operand(None, 4)
    order = (*call.order, 3)
    row = call.xp.concat([B[: 2 * H] + B[3 * H : 5 * H], B[2 * H : 3 * H], B[5 * H :]])
    return Operand(call.engine.wrap(call.xp.reshape(row, (1, 4 * H))), 4, "every", order)


def _backward(
    call: RecurrentCall, direction: Direction, wanted: frozenset[str], *, linear_before_reset: int
) -> BackwardPlan:
    gate, candidate = direction.activations
    rebuild = call.needs_pre_activations((gate, candidate))
    constants = {"gate": gate, "candidate": candidate, "clip": call.clip}
    shared: dict[str, Any] = {
        "direct": [True],
        "kept": {"zrh": (Buffer("gates", 3, "now"),), "products": (Buffer("pn", 1, "now"),)},
        "operands": {"x": Operand(None, 3), "bias": _bias(call, direction)},
    }
    return (_after if linear_before_reset else _before)(call, constants, rebuild, shared)


def _after(
    call: RecurrentCall, constants: dict[str, Any], rebuild: bool, shared: dict[str, Any]
) -> BackwardPlan:
    """The pullback with reset after: one product per step, of a, b and c r at once.

    The columns are c a b (c r), or c b a (c r), in the order of the weights. The first three are the input
    side's, the last three the recurrent side's. W rolled by a block of rows has the order of the first three.
    """
    inputs, shift = [InputPart(range(3))], 1
    if call.T == 1:  # then copies of W and dW take longer than products of the gates and the candidate apart
        inputs, shift = [InputPart(range(1, 3), range(2)), InputPart(range(1), range(2, 3))], 0
    formula = Formula(_gru_pullback_after, constants)
    return BackwardPlan(
        tuple(_GRU.states),
        _AFTER,
        [stage(formula, "dy dh dp gates before0 pn x bias", "columns carry0")],
        Buffer("columns", 4, "local"),
        products=[(range(1, 4), 0)],
        inputs=inputs,
        shift=shift,
        vectors=[1, 2, 0, 1, 2, 3],
        order=(0, 1 + call.order[0], 1 + call.order[1], 3),
        rebuild=lambda back, chunk: _rebuilt(back, chunk, rebuild, BackwardLoop.taken_before),
        **shared,
    )


def _before(
    call: RecurrentCall, constants: dict[str, Any], rebuild: bool, shared: dict[str, Any]
) -> BackwardPlan:
    """The pullback with reset before: two products per step; the columns are a b c."""
    formula = Formula(_gru_candidate_pullback_before, constants)
    reset = Formula(_gru_reset_pullback_before, {name: constants[name] for name in ("gate", "clip")})
    return BackwardPlan(
        tuple(_GRU.states),
        _BEFORE,
        [
            stage(formula, "dy dh dp gates before0 pn x bias", "columns carry0"),
            stage(reset, "columns back1 mask carry0 gates before0 x bias", "columns carry0"),
        ],
        Buffer("columns", 3, "local"),
        products=[(range(2), 1), (range(2, 3), 0)],
        inputs=[InputPart(range(3))],
        vectors=[*range(3)] * 2,  # both biases are added, so their gradients are equal
        order=call.order,
        sources={1: lambda back, chunk, _: _reset_state(back, chunk)},
        rebuild=(lambda back, chunk: _rebuilt(back, chunk, True, _reset_state)) if rebuild else None,
        **shared,
    )


def _reset_state(back: BackwardLoop, chunk: Chunk) -> Any:
    """Rows of r h', which the candidate's blocks of R multiplied."""
    r = back.call.order[1] * back.call.H
    return back.kept_rows("gates", chunk)[:, r : r + back.call.H] * back.taken_before(chunk)


def _rebuilt(
    back: BackwardLoop, chunk: Chunk, gates: bool, multiplied: Callable[[BackwardLoop, Chunk], Any]
) -> dict[str, Operand]:
    """The candidate's product pn with its `multiplied` rows, unless it was kept; x, if gates are rebuilt."""
    call, engine, H, found = back.call, back.engine, back.call.H, dict[str, Operand]()
    R_T = call.part("R", back.direction).T
    if "products" not in call.arrays:
        rows = engine.matmul(multiplied(back, chunk), R_T[:, 2 * H :])
        found["pn"] = Operand(engine.wrap(rows), 1, "local")
    if gates:
        inputs = engine.matmul(back.x[chunk.part, :], call.part("W", back.direction).T)
        sums = inputs[:, : 2 * H] + engine.matmul(back.taken_before(chunk), R_T[:, : 2 * H])
        rows = engine.wrap(call.xp.concat([sums, inputs[:, 2 * H :]], axis=1))
        found["x"] = Operand(rows, 3, "local", call.order)
    return found


_OPERATOR = LoopOperator(
    _GRU,
    GRUForward,
    GRUGrads,
    _forward,
    _backward,
    ("Sigmoid", "Tanh"),
    options={"linear_before_reset": (0, 1, False, True)},
    kept_result=KeptGRUForward,
)

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
    r"""Gated recurrent unit over sequences; it also returns the arrays for its gradient.

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
    activations : list of str, optional
        ONNX's names of f and g for each direction; ``["Sigmoid", "Tanh"]`` by default.
    linear_before_reset : {0, 1}
        1: the reset gate multiplies the candidate's recurrent product (PyTorch, cuDNN); 0: it multiplies the
        state before that product (ONNX's default, Keras with ``reset_after=False``).

    Notes
    -----
    The operator is ONNX's GRU; zrh is the result of ONNX Runtime's GRUTraining.

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
    return planned_call(_OPERATOR.forward, locals())


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
    H_all, zrh : array, shapes (T, D, N, H), (T, D, N, 3H)
        Results of `gru` or of any other forward with ONNX's meaning. The gradient is a function of these
        arrays.

    Notes
    -----
    The contract is ONNX Runtime's GRUGrad, completed. Omitted arguments have a gradient too: dB is the
    gradient at a zero bias. B changes other gradients with ``linear_before_reset=1`` and with `clip`. Slopes
    at kinks are PyTorch's; `clip` passes the cotangent at its bounds.

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
    return planned_call(_OPERATOR.backward, locals())


# --- one step ----------------------------------------------------------------------------------------


class GRUCellForward(NamedTuple, Generic[AnyArray]):
    """The results of `gru_cell`.

    Parameters
    ----------
    zrh : array, shape (N, 3H)
        The gates z, r and the candidate n, after their activations.
    """

    H_next: AnyArray
    zrh: AnyArray


class GRUCellGrads(NamedTuple, Generic[AnyArray]):
    """The gradients of `gru_cell_grad`; None for gradients that were not asked for."""

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
    """Gradient of `gru_cell`, with the equations of `gru_grad`.

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


_CELL, _CELL_GRADIENT = _OPERATOR.step(GRUCellForward, GRUCellGrads)
