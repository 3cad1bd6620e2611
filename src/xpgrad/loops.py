"""For your own time loops: the parts that need no recurrence, for all steps at once.

A cell with the pre-activations ``z_t = W x_t + R h_{t-1} + b`` needs only the product with R inside its loop.
These two functions compute the rest: the products with the inputs before the loop, and every gradient as a
single product after the backward loop, from the cotangents of all z.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple

from xpgrad._calls.computation import Computation
from xpgrad._operators.arguments import check_arrays, check_given, check_rank, check_shape, check_wrt
from xpgrad._operators.types import A, AnyArray, Array, MaybeNone, Wanted


class GateGrads(NamedTuple, Generic[AnyArray]):
    """The gradients of `gate_inputs_grad`; None for gradients that were not asked for.

    Parameters
    ----------
    dX : array, shape (T, N, I)
        Of the input.
    dW, dR, dB : array, shapes (G, I), (G, H), (G,)
        Of the parameters.
    """

    dX: AnyArray
    dW: AnyArray
    dR: AnyArray
    dB: AnyArray


def gate_inputs(X: Array[A], W: Array[A], B: Array[A] | None = None) -> A:
    """The part of all gates' pre-activations that does not depend on the recurrence, ``X W^T + B``.

    Parameters
    ----------
    X : array, shape (T, N, I)
        Input of all steps, of a real floating-point dtype.
    W : array, shape (G, I)
        Input weights of all gates, G rows.
    B : array, shape (G,), optional
        Biases.

    Returns
    -------
    array, shape (T, N, G)
        Step t of the loop adds ``R h_{t-1}`` to row t.

    Raises
    ------
    ValueError
        If a shape breaks its rule.
    TypeError
        If an argument is not an array, or arrays differ in namespace, dtype or device.

    Examples
    --------
    An Elman network, ``h_t = tanh(W x_t + R h_{t-1} + b)``, forward and backward:

    >>> import numpy as np
    >>> from xpgrad import gate_inputs, gate_inputs_grad
    >>> rng = np.random.default_rng(0)
    >>> X, W, R, b = (rng.normal(size=s) for s in [(7, 2, 3), (5, 3), (5, 5), (5,)])
    >>> Z, h, states = gate_inputs(X, W, b), np.zeros((2, 5)), []
    >>> for z in Z:
    ...     h = np.tanh(z + h @ R.T)
    ...     states.append(h)
    >>> H_all, dZ, dh = np.stack(states), np.empty_like(Z), np.ones((2, 5))  # loss = sum of the last h
    >>> for t in reversed(range(7)):
    ...     dZ[t] = dh * (1 - H_all[t] ** 2)
    ...     dh = dZ[t] @ R
    >>> grads = gate_inputs_grad(dZ, X, W, H_all)
    >>> grads.dX.shape, grads.dR.shape
    ((7, 2, 3), (5, 5))
    """
    operator = "gate_inputs"
    check_given(operator, {"X": X, "W": W})
    xp = check_arrays(operator, {"X": X, "W": W, "B": B})
    check_rank(operator, "X", X, "T, N, I")
    check_rank(operator, "W", W, "G, I")
    check_shape(operator, "W", W, "G, I", (W.shape[0], X.shape[2]))
    check_shape(operator, "B", B, "G,", (W.shape[0],))
    here = Computation(operator, xp, [X, W, B])
    with here.engine.quiet():
        rows = here.xp.reshape(here.lift(X), (X.shape[0] * X.shape[1], X.shape[2]))
        Z = here.engine.matmul(rows, here.lift(W).T)
        if B is not None:
            Z = Z + here.lift(B)
        return here.lower(here.xp.reshape(Z, (X.shape[0], X.shape[1], W.shape[0])))


def gate_inputs_grad(
    dZ: Array[A],
    X: Array[A],
    W: Array[A],
    H_all: Array[A],
    initial_h: Array[A] | None = None,
    *,
    wrt: Wanted[MaybeNone] | None = None,
) -> GateGrads[A | MaybeNone]:
    r"""All gradients of a loop from the cotangents of its gates' pre-activations, one product each.

    .. math:: dX = dZ\,W, \quad dW = dZ^T X, \quad dR = dZ^T H_{-1}, \quad dB = \textstyle\sum dZ

    Parameters
    ----------
    dZ : array, shape (T, N, G)
        Cotangents of the pre-activations, from the backward loop.
    X, W : array, shapes (T, N, I), (G, I)
        The arguments of `gate_inputs`.
    H_all : array, shape (T, N, H)
        The output of every step, which is the recurrent input of the next step.
    initial_h : array, shape (N, H), optional
        The state before the first step; zeros by default.
    wrt : iterable of str, optional
        Which gradients to compute, among "X", "W", "R", "B"; all by default. The work for the others is
        skipped.

    Returns
    -------
    GateGrads
        ``(dX, dW, dR, dB)``, None for gradients that were not asked for.

    Raises
    ------
    ValueError
        If a shape or a name breaks its rule.
    TypeError
        If an argument is not an array, or arrays differ in namespace, dtype or device.

    Examples
    --------
    See `gate_inputs`.
    """
    operator = "gate_inputs_grad"
    check_given(operator, {"dZ": dZ, "X": X, "W": W, "H_all": H_all})
    xp = check_arrays(operator, {"dZ": dZ, "X": X, "W": W, "H_all": H_all, "initial_h": initial_h})
    check_rank(operator, "X", X, "T, N, I")
    check_rank(operator, "W", W, "G, I")
    check_rank(operator, "H_all", H_all, "T, N, H")
    (T, N, I), G, H = X.shape, W.shape[0], H_all.shape[2]
    check_shape(operator, "W", W, "G, I", (G, I))
    check_shape(operator, "dZ", dZ, "T, N, G", (T, N, G))
    check_shape(operator, "H_all", H_all, "T, N, H", (T, N, H))
    check_shape(operator, "initial_h", initial_h, "N, H", (N, H))
    wanted = check_wrt(operator, wrt, ("X", "W", "R", "B"))
    here = Computation(operator, xp, [dZ, X, W, H_all, initial_h])
    matmul = here.engine.matmul

    def rows(array: Any) -> Any:
        return here.xp.reshape(here.lift(array), (T * N, array.shape[2]))

    unwanted: Any = None
    dX = dW = dR = dB = unwanted
    with here.engine.quiet():
        d = rows(dZ)
        if "X" in wanted:
            dX = here.lower(here.xp.reshape(matmul(d, here.lift(W)), (T, N, I)))
        if "W" in wanted:
            dW = here.lower(matmul(d.T, rows(X)))
        if "R" in wanted:
            # the first step's recurrent input is initial_h; later steps read the outputs
            dR = matmul(d[N:, :].T, rows(H_all)[: max(T - 1, 0) * N, :])
            if initial_h is not None and T:
                dR = dR + matmul(d[:N, :].T, here.lift(initial_h))
            dR = here.lower(dR)
        if "B" in wanted:
            dB = here.lower(here.engine.column_sums(d))
    return GateGrads(dX, dW, dR, dB)
