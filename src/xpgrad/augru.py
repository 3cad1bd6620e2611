r"""The GRU with an attentional update gate, AUGRU: `augru` and its gradient.

The operator is a cell (`xpgrad.Cell`): this module has the step, and reverse mode finds its pullback. The
docstring of `augru` has the equations, for reset before the product; with ``linear_before_reset=1`` n is
tanh(W_h x + w_h + r (R_h h' + u_h)).

References
----------
Zhou and others, "Deep interest evolution network for click-through rate prediction" (2019); the equations are
from oneDNN's AUGRU and LBR AUGRU.
"""

from __future__ import annotations

import functools
from typing import Any, Generic, NamedTuple

from xpgrad._calls.adapter_calls import PLAIN, Foreign, public
from xpgrad._calls.plans import planned_call
from xpgrad._cells.operator import CellOperator
from xpgrad._operators.arguments import check_choice
from xpgrad._operators.types import A, AnyArray, Array, Lengths, MaybeNone, Wanted
from xpgrad._operators.units import Unit, UnitArray
from xpgrad._operators.words import PerSample, TimeDirection
from xpgrad.cells import Cell, sigmoid


class AUGRUForward(NamedTuple, Generic[AnyArray]):
    """The results of `augru`; `augru_grad` needs H_all and saved.

    Parameters
    ----------
    saved : array, shape (T, D, N, kH)
        The other values that the gradient needs.
    """

    H_all: AnyArray
    H_t: AnyArray
    saved: AnyArray


class AUGRUGrads(NamedTuple, Generic[AnyArray]):
    """The gradients of `augru_grad`; None for gradients that were not asked for."""

    dX: AnyArray
    dattention: AnyArray
    dW: AnyArray
    dR: AnyArray
    dB: AnyArray
    dH0: AnyArray


@functools.lru_cache(maxsize=64)
def _cell(biased: bool, linear_before_reset: int) -> Cell:
    def augru(xp: Any, x: Any, h: Any, W: Any, R: Any, attention: Any, v: Any) -> Any:
        def with_bias(value: Any, name: str) -> Any:
            return value + getattr(v, name) if biased else value

        z = with_bias(with_bias(W.z(x) + R.z(h), "wz"), "rz")
        r = sigmoid(xp, with_bias(with_bias(W.r(x) + R.r(h), "wr"), "rr"))
        z = (1 - attention) * sigmoid(xp, z)
        if linear_before_reset:
            n = with_bias(W.h(x), "wh") + r * with_bias(R.h(h), "rh")
        else:
            n = with_bias(with_bias(W.h(x) + R.h(r * h), "wh"), "rh")
        n = xp.tanh(n)
        return n + z * (h - n)

    return Cell(augru, W="z r h", R="z r h", v="wz wr wh rz rr rh" if biased else "", inputs="attention")


_AUGRU = CellOperator(
    Unit(
        "augru",
        "The GRU with an attentional update gate",
        "z r h",
        'Zhou and others, "Deep interest evolution network for click-through rate prediction" (2019)',
        inputs={
            "attention": UnitArray("T N ?", "Attention of each step, (T, N, 1), or of its units, (T, N, H).")
        },
        kept={"saved": (3, 4)},
    ),
    _cell,
    AUGRUForward,
    AUGRUGrads,
    options=("linear_before_reset",),
)


@_AUGRU.unit.function
@public
def augru(
    X: Array[A],
    attention: Array[A],
    W: Array[A],
    R: Array[A],
    B: Array[A] | None = None,
    sequence_lens: Lengths | None = None,
    initial_h: Array[A] | None = None,
    *,
    linear_before_reset: int = 0,
    direction: TimeDirection = "forward",
    layout: int = 0,
    reset: Array[Any] | None = None,
    _foreign: Foreign = PLAIN,
) -> AUGRUForward[A]:
    r"""The GRU with an attentional update gate over sequences; it also returns the arrays for its gradient.

    .. math::

        z &= (1 - a_t) \odot \sigma(W_z x_t + R_z h_{t-1} + b_z), \quad
        r = \sigma(W_r x_t + R_r h_{t-1} + b_r) \\
        n &= \tanh(W_h x_t + R_h (r \odot h_{t-1}) + b_h), \quad
        h_t = z \odot h_{t-1} + (1 - z) \odot n

    Parameters
    ----------
    attention : array, shape (T, N, 1) or (T, N, H)
        The attention of each step, or of each of its units.
    linear_before_reset : {0, 1}
        Where the reset gate multiplies, as of `gru`.

    See Also
    --------
    gru : Without attention.

    Notes
    -----
    Zhou and others, "Deep interest evolution network for click-through rate prediction" (2019), as oneDNN has
    it: with an attention of 0 it is the GRU, with 1 nothing of the state is kept.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import augru
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = (rng.normal(size=s) for s in [(7, 2, 3), (1, 15, 3), (1, 15, 5)])
    >>> augru(X, rng.uniform(size=(7, 2, 1)), W, R).H_all.shape
    (7, 1, 2, 5)
    """
    check_choice("augru", "linear_before_reset", linear_before_reset, (0, 1, False, True))
    return planned_call(_AUGRU.forward, locals())


@_AUGRU.unit.function
@public
def augru_grad(
    X: Array[A],
    attention: Array[A],
    W: Array[A],
    R: Array[A],
    *,
    H_all: Array[A],
    saved: Array[A],
    grad_H_all: Array[A] | None = None,
    grad_H_t: Array[A] | None = None,
    B: Array[A] | None = None,
    sequence_lens: Lengths | None = None,
    initial_h: Array[A] | None = None,
    linear_before_reset: int = 0,
    direction: TimeDirection = "forward",
    layout: int = 0,
    reset: Array[Any] | None = None,
    per_sample: PerSample = False,
    sample_weight: Array[A] | None = None,
    wrt: Wanted[MaybeNone] | None = None,
    _foreign: Foreign = PLAIN,
) -> AUGRUGrads[A | MaybeNone]:
    r"""Gradient of `augru`: from cotangents of its outputs to gradients of its arguments.

    .. math:: \bar a_t = -\bar z_t \odot \sigma(W_z x_t + R_z h_{t-1} + b_z), \quad
        \bar z_t = \bar h_t \odot (h_{t-1} - n)

    If the attention is one number for a step, this is summed over the units. The rest is the GRU's gradient.

    Notes
    -----
    Without B, dB is None.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import augru, vjp
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = (rng.normal(size=s) for s in [(7, 2, 3), (1, 15, 3), (1, 15, 5)])
    >>> out, pullback = vjp(augru, X, rng.uniform(size=(7, 2, 1)), W, R)
    >>> pullback(grad_H_t=rng.normal(size=out.H_t.shape)).dattention.shape
    (7, 2, 1)
    """
    check_choice("augru_grad", "linear_before_reset", linear_before_reset, (0, 1, False, True))
    return planned_call(_AUGRU.backward, locals())
