r"""GRU-D, for series with missing values and uneven time gaps: `gru_d` and its gradient.

The docstring of `gru_d` has the equations. The operator consists of two cells (`xpgrad.Cell`): the first
carries the last observed value less the mean, and fills gaps; the second is the GRU with a state that decays.
So lengths, directions and resets apply to the last observation too.

References
----------
Che and others, "Recurrent neural networks for multivariate time series with missing values" (2018).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, NamedTuple

import numpy as np

from xpgrad._calls.computation import Computation
from xpgrad._operators import resets as _resets
from xpgrad._operators.arguments import (
    check_arrays,
    check_choice,
    check_given,
    check_rank,
    check_shape,
    check_wrt,
)
from xpgrad._operators.operator_docs import described
from xpgrad._operators.types import A, AnyArray, Array, Lengths, MaybeNone, Wanted
from xpgrad._operators.words import PerSample, TimeDirection
from xpgrad._recurrent.checked_call import DIRECTIONS
from xpgrad._recurrent.per_sample import PER_SAMPLE, square_norms, square_norms_of_products
from xpgrad.cells import Cell, sigmoid

_ARGUMENTS = ("X", "mask", "delta", "W", "R", "decay_x", "decay_h", "B", "mean", "initial_h")
_GRADED = tuple(name for name in _ARGUMENTS if name != "mask")


class GRUDForward(NamedTuple, Generic[AnyArray]):
    """The results of `gru_d`; `gru_d_grad` needs all except H_t.

    Parameters
    ----------
    H_all : array, shape (T, D, N, H)
        Every step's output.
    H_t : array, shape (D, N, H)
        The state at each sequence's end.
    filled : array, shape (T, D, N, I)
        The input with its gaps filled.
    last : array, shape (T, D, N, I)
        The last observed value, less the mean.
    saved_x, saved : array, shapes (T, D, N, kI), (T, D, N, kH)
        The other values that the gradient needs.
    """

    H_all: AnyArray
    H_t: AnyArray
    filled: AnyArray
    last: AnyArray
    saved_x: AnyArray
    saved: AnyArray


class GRUDGrads(NamedTuple, Generic[AnyArray]):
    """The gradients of `gru_d_grad`; None for gradients that were not asked for.

    Parameters
    ----------
    dX, ddelta : array, shape (T, N, I)
        0 past a sequence's end; dX is 0 where nothing was observed. The mask has no gradient.
    dW, dR, ddecay_x, ddecay_h, dB : array
        Of the parameters, with their shapes; with ``per_sample=True`` they have a batch axis in front, with
        ``"norm"`` they are norms (N, D).
    dmean : array, shape (D, I)
        With ``per_sample=True`` (N, D, I), with ``"norm"`` (N, D).
    dH0 : array, shape (D, N, H)
        Of the initial state.
    """

    dX: AnyArray
    ddelta: AnyArray
    dW: AnyArray
    dR: AnyArray
    ddecay_x: AnyArray
    ddecay_h: AnyArray
    dB: AnyArray
    dmean: AnyArray
    dH0: AnyArray


def _decay(xp: Any, gap: Any) -> Any:
    """exp(-gap); 1 with the slope 0 for gaps up to 0."""
    return xp.exp(-xp.where(gap > 0.0, gap, 0.0))


def _gaps_filled(
    xp: Any, x: Any, filled: Any, last: Any, v: Any, value: Any, mask: Any, delta: Any
) -> tuple[Any, Any]:
    """The filled input and the last observed value; `where` keeps NaN in gaps out of both."""
    g = _decay(xp, v.w * delta + v.b)
    last = xp.where(mask == 0.0, last, value - v.mean)
    fill = v.mean + g * last
    return xp.where(mask == 0.0, fill, mask * value + (1 - mask) * fill), last


def _decaying_gru(xp: Any, x: Any, h: Any, W: Any, R: Any, v: Any, gap: Any) -> Any:
    h = h * _decay(xp, gap)
    z = sigmoid(xp, W.z(x) + R.z(h) + v.z)
    r = sigmoid(xp, W.r(x) + R.r(h) + v.r)
    n = xp.tanh(W.h(x) + R.h(r * h) + v.h)
    return h + z * (n - h)


FILL = Cell(_gaps_filled, v="w b mean", inputs="value mask delta", name="gru_d")
"""The input with its gaps filled, and the last observed value less the mean: of width I."""
GRU = Cell(_decaying_gru, W="z r h", R="z r h", v="z r h", inputs="gap", name="gru_d")
"""The GRU whose state decays by its input `gap`, a pre-activation."""


class GRUDCall:
    """A checked call with time-major arrays, and the operands of both cells for each direction.

    With a namespace `xp`, for a compiler that cannot trace `check_arrays`, the cells check the arrays' dtypes
    and devices.
    """

    def __init__(
        self,
        operator: str,
        arrays: Mapping[str, Any],
        lengths: Any,
        direction: str,
        layout: int,
        reset: Any,
        xp: Any = None,
    ) -> None:
        self.operator, self.layout = operator, layout
        check_given(operator, {name: arrays[name] for name in _ARGUMENTS[:7]})
        if xp is None:
            xp = check_arrays(operator, dict(arrays))
        check_choice(operator, "direction", direction, DIRECTIONS)
        check_choice(operator, "layout", layout, (0, 1))
        self.directions = ("forward", "reverse") if direction == "bidirectional" else (direction,)
        self._check_shapes(arrays)
        arrays = {name: arrays[name] for name in _ARGUMENTS}
        self.xp, self.lengths, self.reset = xp, lengths, reset
        if reset is not None:
            T, N = arrays["X"].shape[layout], arrays["X"].shape[1 - layout]
            _resets.check_reset(operator, reset, _resets.are_booleans(operator, reset), T, N, layout)
            self.reset = reset.T if layout else reset
        own = ("X", "mask", "delta", "initial_h")
        self._dtype, self._computes_in = arrays["X"].dtype, arrays["X"].dtype
        if self._dtype not in (xp.float32, xp.float64):
            self._computes_in = xp.float32
        self.arrays = {name: self.raised(self.turned(x) if name in own else x) for name, x in arrays.items()}
        self.T, self.N, self.I = self.arrays["X"].shape
        self.H = arrays["R"].shape[2]

    def _check_shapes(self, arrays: Mapping[str, Any]) -> None:
        operator, X, R = self.operator, arrays["X"], arrays["R"]
        lead, states = ("N, T", "N, D, H") if self.layout else ("T, N", "D, N, H")
        check_rank(operator, "X", X, f"{lead}, I")
        check_rank(operator, "R", R, "D, 3H, H")
        D, H, I, N = len(self.directions), R.shape[2], X.shape[2], X.shape[0 if self.layout else 1]
        for name in ("mask", "delta"):
            check_shape(operator, name, arrays[name], f"{lead}, I", X.shape)
        rows: dict[str, tuple[str, tuple[int, ...]]] = {
            "W": ("D, 3H, 2I", (D, 3 * H, 2 * I)), "R": ("D, 3H, H", (D, 3 * H, H)),
            "decay_x": ("D, 2, I", (D, 2, I)), "decay_h": ("D, H, I + 1", (D, H, I + 1)),
            "B": ("D, 3H", (D, 3 * H)), "mean": ("D, I", (D, I)),
            "initial_h": (states, (N, D, H) if self.layout else (D, N, H)),
        }  # fmt: skip
        for name, (symbols, shape) in rows.items():
            check_shape(operator, name, arrays[name], symbols, shape)
        self._check_kept(arrays, D, H)

    def _check_kept(self, arrays: Mapping[str, Any], D: int, H: int) -> None:
        """Check the gradient's other arrays."""
        (T, N, I), operator = arrays["X"].shape, self.operator
        T, N = (N, T) if self.layout else (T, N)
        states = ("N, D, H", (N, D, H)) if self.layout else ("D, N, H", (D, N, H))
        check_shape(operator, "grad_H_t", arrays.get("grad_H_t"), *states)
        check_shape(operator, "sample_weight", arrays.get("sample_weight"), "N,", (N,))
        kept_x, kept = FILL.saved["saved"], GRU.saved["saved"]
        widths = {
            "H_all": ("H", H), "filled": ("I", I), "last": ("I", I), "grad_H_all": ("H", H),
            "saved_x": (f"{kept_x}I", kept_x * I), "saved": (f"{kept}H", kept * H),
        }  # fmt: skip
        lead = ("N, T, D", (N, T, D)) if self.layout else ("T, D, N", (T, D, N))
        for name, (symbol, width) in widths.items():
            check_shape(operator, name, arrays.get(name), f"{lead[0]}, {symbol}", (*lead[1], width))

    def raised(self, array: Any) -> Any:
        """The array in the dtype of the computation: half precision as float32."""
        same = array is None or array.dtype == self._computes_in
        return array if same else self.xp.astype(array, self._computes_in)

    def rounded(self, array: Any) -> Any:
        """A result in the caller's dtype."""
        if array is None or array.dtype == self._dtype:
            return array
        with np.errstate(over="ignore"):  # values too large for half precision become inf
            return self.xp.astype(array, self._dtype)

    def turned(self, array: Any) -> Any:
        """An array (T, N, ...), (D, N, ...) or (T, D, N, ...) as in layout 1; for three axes also back."""
        if array is None or not self.layout:
            return array
        return self.xp.permute_dims(array, {3: (1, 0, 2), 4: (2, 0, 1, 3)}[array.ndim])

    def time_major(self, array: Any) -> Any:
        """A result of the forward (N, T, D, width) in layout 1 as (T, D, N, width)."""
        if array is None or not self.layout or array.ndim != 4:
            return self.turned(array)
        return self.xp.permute_dims(array, (1, 2, 0, 3))

    def of(self, name: str, d: int) -> Any:
        """A parameter's or state's part for one direction, (1, ...); None for None."""
        array = self.arrays[name]
        return None if array is None else array[d : d + 1, ...]

    def vectors(self, d: int) -> Any:
        """The first cell's v for one direction: scales, offsets, mean."""
        scales = self.xp.reshape(self.of("decay_x", d), (1, 2 * self.I))
        mean = self.of("mean", d)
        if mean is None:
            mean = self.xp.zeros_like(scales[:, : self.I])
        return self.xp.concat([scales, mean], axis=1)

    def bias(self, d: int) -> Any:
        """The second cell's v."""
        B = self.of("B", d)
        R = self.arrays["R"]
        return self.xp.zeros_like(self.xp.sum(R[d : d + 1, ...], axis=2)) if B is None else B

    def gap(self, d: int) -> Any:
        """The state's decay before its exponential, (T, N, H)."""
        V = self.arrays["decay_h"][d, :, :]
        # reshaping to rows would gather a batch that is split over devices
        return self.xp.tensordot(self.arrays["delta"], V[:, : self.I], axes=((2,), (1,))) + V[:, self.I]

    def options(self, d: int) -> dict[str, Any]:
        """The options of both cells."""
        return {"sequence_lens": self.lengths, "direction": self.directions[d], "reset": self.reset}

    def inputs(self) -> dict[str, Any]:
        """The first cell's inputs."""
        return {"value": self.arrays["X"], "mask": self.arrays["mask"], "delta": self.arrays["delta"]}

    def second_input(self, filled: Any) -> Any:
        """The second cell's X, from the filled input (T, 1, N, I)."""
        return self.xp.concat([filled[:, 0, ...], self.arrays["mask"]], axis=-1)


@described("an invalid shape, length or attribute")
def gru_d(
    X: Array[A],
    mask: Array[A],
    delta: Array[A],
    W: Array[A],
    R: Array[A],
    decay_x: Array[A],
    decay_h: Array[A],
    B: Array[A] | None = None,
    mean: Array[A] | None = None,
    sequence_lens: Lengths | None = None,
    initial_h: Array[A] | None = None,
    *,
    direction: TimeDirection = "forward",
    layout: int = 0,
    reset: Array[Any] | None = None,
) -> GRUDForward[A]:
    r"""GRU-D over series with missing values; it also returns the arrays for its gradient.

    .. math::

        g &= e^{-\max(0, w \odot \delta_t + b)}, \quad
        \hat x = m_t \odot x_t + (1 - m_t) \odot (g \odot x' + (1 - g) \odot \bar x) \\
        k &= e^{-\max(0, V \delta_t + c)}, \quad \hat h = k \odot h_{t-1} \\
        h_t &= (1 - z) \odot \hat h + z \odot \tanh(W_h [\hat x, m_t] + R_h (r \odot \hat h) + b_h)

    with gates z and r of :math:`W [\hat x, m_t] + R \hat h + b`, and x' the last observed value.

    Parameters
    ----------
    X : array, shape (T, N, I)
        Values. Where nothing was observed, the value has no effect, not even NaN.
    mask : array, shape (T, N, I)
        1 where a value was observed, else 0.
    delta : array, shape (T, N, I)
        The time since each variable's last observation.
    W : array, shape (D, 3H, 2I)
        Weights of the filled input, then of the mask; rows in order z r h.
    R : array, shape (D, 3H, H)
        Recurrence weights.
    decay_x : array, shape (D, 2, I)
        w and b of the input's decay.
    decay_h : array, shape (D, H, I + 1)
        V of the state's decay, and c in its last column.
    B : array, shape (D, 3H), optional
        Biases.
    mean : array, shape (D, I), optional
        Each variable's mean, zero by default. It is also the value before the first observation.
    initial_h : array, shape (D, N, H), optional
        State before the first step; zeros by default.

    Returns
    -------
    GRUDForward
        ``(H_all, H_t, filled, last, saved_x, saved)``.

    See Also
    --------
    gru_d_grad : The gradient.

    Notes
    -----
    Che and others, "Recurrent neural networks for multivariate time series with missing values" (2018). Its
    update gate z multiplies the candidate. A reverse direction fills gaps from the next observation; a reset
    forgets the last value.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import gru_d
    >>> rng = np.random.default_rng(0)
    >>> X, delta = rng.normal(size=(7, 2, 3)), rng.uniform(size=(7, 2, 3))
    >>> mask = (rng.uniform(size=X.shape) < 0.5).astype(float)
    >>> shapes = [(1, 12, 6), (1, 12, 4), (1, 2, 3), (1, 4, 4)]
    >>> gru_d(X, mask, delta, *(rng.normal(size=s) for s in shapes)).H_all.shape
    (7, 1, 2, 4)
    """
    arrays = dict(zip(_ARGUMENTS, (X, mask, delta, W, R, decay_x, decay_h, B, mean, initial_h), strict=True))
    call = GRUDCall("gru_d", arrays, sequence_lens, direction, layout, reset)
    parts = []
    for d in range(len(call.directions)):
        first = FILL(call.arrays["X"], call.vectors(d), **call.inputs(), **call.options(d))
        second = GRU(
            call.second_input(first.Filled_all), call.of("W", d), call.of("R", d), call.bias(d),
            initial_h=call.of("initial_h", d), gap=call.gap(d), **call.options(d),
        )  # fmt: skip
        parts.append((second.H_all, second.H_t, first.Filled_all, first.Last_all, first.saved, second.saved))
    joined = [
        own[0] if len(own) == 1 else call.xp.concat(own, axis=1 if own[0].ndim == 4 else 0)
        for own in map(list, zip(*parts, strict=True))
    ]
    return GRUDForward(*(call.rounded(call.turned(array)) for array in joined))


@described("an invalid shape, length, attribute or name")
def gru_d_grad(
    X: Array[A],
    mask: Array[A],
    delta: Array[A],
    W: Array[A],
    R: Array[A],
    decay_x: Array[A],
    decay_h: Array[A],
    *,
    H_all: Array[A],
    filled: Array[A],
    last: Array[A],
    saved_x: Array[A],
    saved: Array[A],
    grad_H_all: Array[A] | None = None,
    grad_H_t: Array[A] | None = None,
    B: Array[A] | None = None,
    mean: Array[A] | None = None,
    sequence_lens: Lengths | None = None,
    initial_h: Array[A] | None = None,
    direction: TimeDirection = "forward",
    layout: int = 0,
    reset: Array[Any] | None = None,
    per_sample: PerSample = False,
    sample_weight: Array[A] | None = None,
    wrt: Wanted[MaybeNone] | None = None,
) -> GRUDGrads[A | MaybeNone]:
    r"""Gradient of `gru_d`: from cotangents of its outputs to gradients of its arguments.

    .. math::

        \bar x_t = m_t \odot \bar{\hat x}_t + \text{the cotangents from later gaps}, \quad
        \bar V = \textstyle\sum_t \bar a_t \delta_t^T

    with a the state's decay before its exponential. The rest is the GRU's gradient.

    Parameters
    ----------
    X, mask, delta, W, R, decay_x, decay_h, B, mean, sequence_lens, initial_h
        The arguments of `gru_d`.
    H_all, filled, last, saved_x, saved
        Results of `gru_d`.
    grad_H_all : array, shape (T, D, N, H), optional
        Cotangent of H_all; zero by default.
    grad_H_t : array, shape (D, N, H), optional
        Cotangent of the final state; zero by default.
    direction, layout, reset
        The arguments of `gru_d`.
    per_sample : bool or "norm"
        True gives the gradients of parameters for each sequence separately, with a batch axis in front.
        ``"norm"`` gives only their Euclidean norms, (N, D), without the gradients themselves.
    sample_weight : array, shape (N,), optional
        A factor for each sequence's gradients of the parameters, applied before these are summed or returned
        separately. It has no effect on the other gradients.
    wrt : iterable of str, optional
        Arguments whose gradients to return; all by default.

    Returns
    -------
    GRUDGrads
        ``(dX, ddelta, dW, dR, ddecay_x, ddecay_h, dB, dmean, dH0)``, None for those not asked for, and for dB
        and dmean without B and mean.

    See Also
    --------
    gru_d : The forward.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import gru_d, gru_d_grad
    >>> rng = np.random.default_rng(0)
    >>> X, delta = rng.normal(size=(7, 2, 3)), rng.uniform(size=(7, 2, 3))
    >>> mask = (rng.uniform(size=X.shape) < 0.5).astype(float)
    >>> shapes = [(1, 12, 6), (1, 12, 4), (1, 2, 3), (1, 4, 4)]
    >>> given = [X, mask, delta, *(rng.normal(size=s) for s in shapes)]
    >>> out = gru_d(*given)
    >>> kept = {name: getattr(out, name) for name in ("H_all", "filled", "last", "saved_x", "saved")}
    >>> gru_d_grad(*given, **kept, grad_H_all=out.H_all).ddecay_h.shape
    (1, 4, 4)
    """
    operator = "gru_d_grad"
    arrays = dict(zip(_ARGUMENTS, (X, mask, delta, W, R, decay_x, decay_h, B, mean, initial_h), strict=True))
    check_choice(operator, "per_sample", per_sample, PER_SAMPLE)
    wanted = check_wrt(operator, wrt, _GRADED, {"B": B, "mean": mean})
    if grad_H_all is None and grad_H_t is None:
        raise ValueError(f"{operator}: no cotangent is given, expected one or more of grad_H_all, grad_H_t")
    kept = {"H_all": H_all, "filled": filled, "last": last, "saved_x": saved_x, "saved": saved}
    check_given(operator, kept)
    more = {**kept, "grad_H_all": grad_H_all, "grad_H_t": grad_H_t, "sample_weight": sample_weight}
    call = GRUDCall(operator, arrays | more, sequence_lens, direction, layout, reset)
    own = {name: call.raised(call.time_major(x)) for name, x in {**kept, "grad_H_all": grad_H_all}.items()}
    own["grad_H_t"] = call.raised(call.turned(grad_H_t))
    weight = call.raised(sample_weight)
    parts = [_one_direction(call, d, own, wanted, per_sample, weight) for d in range(len(call.directions))]
    found: dict[str, Any] = {}
    for name in wanted:
        values = [part[name] for part in parts]
        if name in ("X", "delta"):
            found[name] = call.turned(values[0] if len(values) == 1 else values[0] + values[1])
        elif len(values) == 1:
            found[name] = values[0]
        else:
            axis = 1 if per_sample and name != "initial_h" else 0
            found[name] = call.xp.concat(values, axis=axis)
    if "initial_h" in found:
        found["initial_h"] = call.turned(found["initial_h"])
    gradients: list[Any] = [call.rounded(found[name]) if name in wanted else None for name in _GRADED]
    return GRUDGrads(*gradients)


def _one_direction(
    call: GRUDCall,
    d: int,
    kept: Mapping[str, Any],
    wanted: Collection[str],
    per_sample: bool | str,
    sample_weight: Any,
) -> dict[str, Any]:
    """The gradients of one direction, by the operator's names of arguments; the wanted ones are right."""
    xp = call.xp
    of_first = {"value": ["X"], "delta": ["delta"], "v": ["decay_x", "mean"]}
    of_second = {
        "X": ["X", "delta", "decay_x", "mean"], "W": ["W"], "R": ["R"], "v": ["B"],
        "gap": ["delta", "decay_h"], "initial_h": ["initial_h"],
    }  # fmt: skip

    def needed(cell: Mapping[str, Sequence[str]]) -> list[str]:
        """The gradients of a cell that the wanted ones need."""
        return [name for name, results in cell.items() if not set(results).isdisjoint(wanted)]

    def part(name: str) -> Any:
        array = kept[name]
        if array is None:
            return None
        return array[:, d : d + 1, ...] if array.ndim == 4 else array[d : d + 1, ...]

    options = {**call.options(d), "sample_weight": sample_weight}
    second = GRU.grad(
        call.second_input(part("filled")), call.of("W", d), call.of("R", d), call.bias(d),
        H_all=part("H_all"), saved=part("saved"), gap=call.gap(d), initial_h=call.of("initial_h", d),
        grad_H_all=part("grad_H_all"), grad_H_t=part("grad_H_t"), per_sample=per_sample,
        wrt=needed(of_second), **options,
    )  # fmt: skip
    found = {"W": second.dW, "R": second.dR, "B": second.dv, "initial_h": second.dH0}
    if "decay_h" in wanted:
        found["decay_h"] = _decay_gradient(call, second.dgap, per_sample, sample_weight)
    if second.dX is None:
        return found
    d_filled = xp.expand_dims(second.dX[..., : call.I], axis=1)
    first = FILL.grad(
        call.arrays["X"], call.vectors(d), Filled_all=part("filled"), Last_all=part("last"),
        saved=part("saved_x"), grad_Filled_all=d_filled, per_sample=bool(per_sample),
        wrt=needed(of_first), **call.inputs(), **options,
    )  # fmt: skip
    found["X"] = first.dvalue
    if "delta" in wanted:
        V = call.arrays["decay_h"][d, :, :]
        found["delta"] = first.ddelta + xp.tensordot(second.dgap, V[:, : call.I], axes=((2,), (0,)))
    if first.dv is not None:
        decay_x, mean = first.dv[..., : 2 * call.I], first.dv[..., 2 * call.I :]
        if per_sample == "norm":
            decay_x, mean = (_norms(call, square_norms, x[:, 0, :]) for x in (decay_x, mean))
        else:
            decay_x = xp.reshape(decay_x, (*first.dv.shape[:-1], 2, call.I))
        found |= {"decay_x": decay_x, "mean": mean}
    return found


def _norms(call: GRUDCall, squares: Callable[..., Any], *arrays: Any) -> Any:
    """Each sample's norm, (N, 1), from a function that gives their squares."""
    computation = Computation(call.operator, call.xp, arrays)
    engine = computation.engine
    return computation.lower(engine.roots(squares(engine, *map(computation.lift, arrays))))[:, None]


def _decay_gradient(call: GRUDCall, d_gap: Any, per_sample: bool | str, sample_weight: Any) -> Any:
    """The gradient of `decay_h`, from its pre-activation's cotangent: products with time gaps and ones."""
    xp, delta = call.xp, call.arrays["delta"]
    if sample_weight is not None:
        d_gap = d_gap * sample_weight[None, :, None]
    # in padding the cotangent is 0, and the time gap anything
    silent = xp.sum(xp.abs(d_gap), axis=-1, keepdims=True) == 0
    delta = xp.where(silent, xp.zeros_like(delta), delta)
    factors = xp.concat([delta, xp.astype(~silent, delta.dtype)], axis=2)
    if per_sample == "norm":
        return _norms(call, square_norms_of_products, d_gap, factors)
    each = xp.matmul(xp.permute_dims(d_gap, (1, 2, 0)), xp.permute_dims(factors, (1, 0, 2)))  # (N, H, I + 1)
    return xp.expand_dims(each, axis=1) if per_sample else xp.expand_dims(xp.sum(each, axis=0), axis=0)
