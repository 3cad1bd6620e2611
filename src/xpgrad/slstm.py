r"""The sLSTM of xLSTM: `slstm` and its gradient.

The docstring of `slstm` has the equations. The states are the output h, the cell c, its normalizer n, and the
stabilizer m, which keeps the exponentials of the gates i and f in range. R is block-diagonal: head j of h'
reaches only head j of the gates. c / n does not depend on m, so the output's cotangent passes nothing to m;
the cotangents of c, n and m do. The operator is a cell (`xpgrad.Cell`): this module has the step, and reverse
mode finds its pullback.

References
----------
Beck and others, "xLSTM: extended long short-term memory" (2024).
"""

from __future__ import annotations

import functools
from typing import Any, Generic, NamedTuple

from xpgrad._calls.adapter_calls import PLAIN, Foreign, public
from xpgrad._calls.plans import planned_call
from xpgrad._cells.arguments import checked_heads
from xpgrad._cells.operator import CellOperator
from xpgrad._operators.arguments import check_choice
from xpgrad._operators.types import A, AnyArray, Array, Lengths, MaybeNone, Wanted
from xpgrad._operators.units import Unit
from xpgrad._operators.words import PerSample, TimeDirection
from xpgrad.cells import Cell, sigmoid, with_pullback
from xpgrad.engine.formulas.special import exp_minus_abs

_FORGET = ("sigmoid", "exp")


class SLSTMForward(NamedTuple, Generic[AnyArray]):
    """The results of `slstm`; `slstm_grad` needs H_all and the last four.

    Parameters
    ----------
    saved : array, shape (T, D, N, kH)
        The other values that the gradient needs.
    """

    H_all: AnyArray
    H_t: AnyArray
    C_t: AnyArray
    N_t: AnyArray
    M_t: AnyArray
    C_all: AnyArray
    N_all: AnyArray
    M_all: AnyArray
    saved: AnyArray


class SLSTMGrads(NamedTuple, Generic[AnyArray]):
    """The gradients of `slstm_grad`; None for gradients that were not asked for."""

    dX: AnyArray
    dW: AnyArray
    dR: AnyArray
    dB: AnyArray
    dH0: AnyArray
    dC0: AnyArray
    dN0: AnyArray
    dM0: AnyArray


def _log_sigmoid_pullback(xp: Any, d: Any, x: Any, y: Any) -> Any:
    return -(d * xp.expm1(y))


@with_pullback(_log_sigmoid_pullback)
def _log_sigmoid(xp: Any, x: Any) -> Any:
    return xp.where(x < 0.0, x, 0.0) - xp.log1p(exp_minus_abs(xp, x))


_GATES = "ifzo"


def _step(xp: Any, c: Any, n: Any, m: Any, gates: Any, forget: str) -> tuple:
    """The states after a step, from those before and the gates' pre-activations."""
    zi, zf, zz, zo = gates
    kept = m + (_log_sigmoid(xp, zf) if forget == "sigmoid" else zf)
    m = xp.where(n == 0.0, zi, xp.maximum(zi, kept))
    # for n = 0 the second exponent may be above 0; its bound keeps f c from being inf times 0
    i, f = xp.exp(zi - m), xp.exp(xp.minimum(kept - m, 80.0))
    c, n = f * c + i * xp.tanh(zz), f * n + i
    return sigmoid(xp, zo) * (c / n), c, n, m


@functools.lru_cache(maxsize=64)
def _cell(biased: bool, heads: int, forget: str) -> Cell:
    def slstm(xp: Any, x: Any, h: Any, c: Any, n: Any, m: Any, W: Any, R: Any, v: Any) -> tuple:
        gates = [getattr(W, gate)(x) + getattr(R, gate)(h) for gate in _GATES]
        if biased:
            gates = [z + getattr(v, gate) for z, gate in zip(gates, _GATES, strict=True)]
        return _step(xp, c, n, m, gates, forget)

    names = list(_GATES)
    return Cell(slstm, W=names, R=names, v=names if biased else (), heads=heads)


@functools.lru_cache(maxsize=64)
def cell_of_gates(heads: int) -> Cell:
    """The cell whose input `gates` (T, N, 4H) holds W x, as another layer computed it."""

    def slstm(xp: Any, x: Any, h: Any, c: Any, n: Any, m: Any, R: Any, v: Any, gates: Any) -> tuple:
        own = [getattr(gates, name) + getattr(R, name)(h) + getattr(v, name) for name in _GATES]
        return _step(xp, c, n, m, own, "sigmoid")

    names = list(_GATES)
    return Cell(slstm, R=names, v=names, inputs={"gates": names}, heads=heads)


_SLSTM = CellOperator(
    Unit(
        "slstm",
        "The sLSTM of xLSTM",
        "i f z o",
        'Beck and others, "xLSTM: extended long short-term memory" (2024)',
        states={"h": "hidden state", "c": "cell state", "n": "normalizer", "m": "stabilizer"},
        kept={"saved": 7},
        biases=1,
        columns="E",
    ),
    _cell,
    SLSTMForward,
    SLSTMGrads,
    options=("heads", "forget"),
)


@_SLSTM.unit.function
@public
def slstm(
    X: Array[A],
    W: Array[A],
    R: Array[A],
    B: Array[A] | None = None,
    sequence_lens: Lengths | None = None,
    initial_h: Array[A] | None = None,
    initial_c: Array[A] | None = None,
    initial_n: Array[A] | None = None,
    initial_m: Array[A] | None = None,
    *,
    heads: int = 1,
    forget: str = "sigmoid",
    direction: TimeDirection = "forward",
    layout: int = 0,
    reset: Array[Any] | None = None,
    _foreign: Foreign = PLAIN,
) -> SLSTMForward[A]:
    r"""The sLSTM of xLSTM over sequences, with heads; it also returns the arrays for its gradient.

    .. math::

        l &= \log \sigma(z_f) \text{ or } z_f, \quad m_t = \max(l + m_{t-1}, z_i) \\
        i &= e^{z_i - m_t}, \quad f = e^{l + m_{t-1} - m_t} \\
        c_t &= f \odot c_{t-1} + i \odot \tanh(z_z), \quad n_t = f \odot n_{t-1} + i \\
        h_t &= \sigma(z_o) \odot c_t / n_t

    with :math:`z = W x_t + R h_{t-1} + b`, and :math:`m_t = z_i` where :math:`n_{t-1} = 0`.

    Parameters
    ----------
    R : array, shape (D, 4H, H / heads)
        Recurrence weights. The rows of a gate's head j multiply head j of the output before.
    heads : int
        The number of parts of the states; it divides H.
    forget : {"sigmoid", "exp"}
        The forget gate's activation.

    See Also
    --------
    convert : Weights of `xlstm` and FlashRNN.

    Notes
    -----
    Beck and others, "xLSTM: extended long short-term memory" (2024). The first step is as in the plain
    backend of the package `xlstm`.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import slstm
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = (rng.normal(size=s) for s in [(7, 2, 3), (1, 16, 3), (1, 16, 2)])
    >>> slstm(X, W, R, heads=2, sequence_lens=[7, 4]).H_all.shape
    (7, 1, 2, 4)
    """
    check_choice("slstm", "forget", forget, _FORGET)
    heads = checked_heads("slstm", heads)
    return planned_call(_SLSTM.forward, locals())


@_SLSTM.unit.function
@public
def slstm_grad(
    X: Array[A],
    W: Array[A],
    R: Array[A],
    *,
    H_all: Array[A],
    C_all: Array[A],
    N_all: Array[A],
    M_all: Array[A],
    saved: Array[A],
    grad_H_all: Array[A] | None = None,
    grad_H_t: Array[A] | None = None,
    grad_C_t: Array[A] | None = None,
    grad_N_t: Array[A] | None = None,
    grad_M_t: Array[A] | None = None,
    grad_C_all: Array[A] | None = None,
    grad_N_all: Array[A] | None = None,
    grad_M_all: Array[A] | None = None,
    B: Array[A] | None = None,
    sequence_lens: Lengths | None = None,
    initial_h: Array[A] | None = None,
    initial_c: Array[A] | None = None,
    initial_n: Array[A] | None = None,
    initial_m: Array[A] | None = None,
    heads: int = 1,
    forget: str = "sigmoid",
    direction: TimeDirection = "forward",
    layout: int = 0,
    reset: Array[Any] | None = None,
    per_sample: PerSample = False,
    sample_weight: Array[A] | None = None,
    wrt: Wanted[MaybeNone] | None = None,
    _foreign: Foreign = PLAIN,
) -> SLSTMGrads[A | MaybeNone]:
    r"""Gradient of `slstm`: from cotangents of its outputs to gradients of its arguments.

    .. math::

        \bar c_t \mathrel{+}= \bar h_t \odot \sigma(z_o) / n_t, \quad
        \bar n_t \mathrel{-}= \bar h_t \odot h_t / n_t, \quad
        \bar c_{t-1} = f \odot \bar c_t, \quad \bar n_{t-1} = f \odot \bar n_t

    Notes
    -----
    Without B, dB is None.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import slstm, vjp
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = (rng.normal(size=s) for s in [(7, 2, 3), (1, 16, 3), (1, 16, 2)])
    >>> out, pullback = vjp(slstm, X, W, R, heads=2)
    >>> pullback(grad_H_t=rng.normal(size=out.H_t.shape)).dR.shape
    (1, 16, 2)
    """
    check_choice("slstm_grad", "forget", forget, _FORGET)
    heads = checked_heads("slstm_grad", heads)
    return planned_call(_SLSTM.backward, locals())
