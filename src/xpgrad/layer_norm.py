r"""Recurrent networks with layer normalization: `layer_norm_lstm`, `layer_norm_gru`, and their gradients.

Their docstrings have the equations, with LN(z; g, s) = g (z - mean(z)) / sqrt(variance(z) + epsilon) + s over
all gates of a product together, and the biased variance. Both are cells (`xpgrad.Cell`): this module has the
steps, and reverse mode finds their pullbacks. Biases and shifts that are added to the same values are one
vector of the cell. The gates' slopes come from the saved gates. With `clip`, and with activations whose
output does not determine the slope, the pre-activations are rebuilt from the saved normalized products.

References
----------
Ba, Kiros, Hinton, "Layer normalization" (2016).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple

from xpgrad._calls.adapter_calls import PLAIN, Foreign, public
from xpgrad._calls.plans import Asked, planned_call
from xpgrad._cells.call import CellCall
from xpgrad._elementwise.activation_formulas import BoundActivation
from xpgrad._operators.arguments import check_shape
from xpgrad._operators.axes import shape_of
from xpgrad._operators.types import A, AnyArray, Array, Lengths, MaybeNone, Wanted
from xpgrad._operators.units import Unit, UnitArray
from xpgrad._operators.words import PerSample, TimeDirection
from xpgrad._recurrent.backward import gradient_results
from xpgrad._recurrent.forward import forward_results
from xpgrad._recurrent.operator import UnitOperator
from xpgrad.cells import Cell, activation_step, layer_norm

_SOURCE = 'Ba, Kiros, Hinton, "Layer normalization" (2016)'


def _of_products(gates: int) -> dict[str, UnitArray]:
    return {
        "gamma": UnitArray(f"D 2 {gates}H", "Scales of the input's and of the recurrent product, {}."),
        "beta": UnitArray(f"D 2 {gates}H", "Shifts of the input's and of the recurrent product, {}."),
    }


_LSTM = Unit(
    "layer_norm_lstm",
    "The LSTM with layer normalization",
    "i o f c",
    _SOURCE,
    states={"h": "hidden state", "c": "cell state"},
    parameters={
        **_of_products(4),
        "gamma_c": UnitArray("D H", "Scale of the cell state, {}."),
        "beta_c": UnitArray("D H", "Shift of the cell state, {}."),
    },
    kept={"saved": 14, "means": -3},
    torch="LayerNormLSTM",
)
_GRU = Unit(
    "layer_norm_gru",
    "The GRU with layer normalization",
    "z r h",
    _SOURCE,
    parameters=_of_products(3),
    kept={"saved": 9, "means": -2},
    torch="LayerNormGRU",
)


class LayerNormLSTMForward(NamedTuple, Generic[AnyArray]):
    """The results of `layer_norm_lstm`; `layer_norm_lstm_grad` needs H_all and the last three.

    Parameters
    ----------
    saved : array, shape (T, D, N, 14H)
        Normalized products, gates, normalized cell state and its activation.
    means : array, shape (T, D, N, 3)
        The variances, of the products over all gates times 4.
    """

    H_all: AnyArray
    H_t: AnyArray
    C_t: AnyArray
    C_all: AnyArray
    saved: AnyArray
    means: AnyArray


class LayerNormLSTMGrads(NamedTuple, Generic[AnyArray]):
    """The gradients of `layer_norm_lstm_grad`; None for gradients that were not asked for."""

    dX: AnyArray
    dW: AnyArray
    dR: AnyArray
    dB: AnyArray
    dH0: AnyArray
    dC0: AnyArray
    dgamma: AnyArray
    dbeta: AnyArray
    dgamma_c: AnyArray
    dbeta_c: AnyArray


class LayerNormGRUForward(NamedTuple, Generic[AnyArray]):
    """The results of `layer_norm_gru`; `layer_norm_gru_grad` needs H_all and the last two.

    Parameters
    ----------
    saved : array, shape (T, D, N, 9H)
        Normalized products and gates.
    means : array, shape (T, D, N, 2)
        The variances of the products, times 3.
    """

    H_all: AnyArray
    H_t: AnyArray
    saved: AnyArray
    means: AnyArray


class LayerNormGRUGrads(NamedTuple, Generic[AnyArray]):
    """The gradients of `layer_norm_gru_grad`; None for gradients that were not asked for."""

    dX: AnyArray
    dW: AnyArray
    dR: AnyArray
    dB: AnyArray
    dH0: AnyArray
    dgamma: AnyArray
    dbeta: AnyArray


# --- the steps ---------------------------------------------------------------------------------------


def _products(xp: Any, weight: Any, operand: Any, v: Any, side: str, names: str, epsilon: float) -> list[Any]:
    """A weight's products with a value, normalized together, times the scales of their side."""
    normal = layer_norm(xp, [getattr(weight, name)(operand) for name in names], epsilon)
    return [getattr(v, f"{side}{name}") * z for name, z in zip(names, normal, strict=True)]


_LSTM_GATES, _GRU_GATES = "iofc", "zrn"


def _vectors(names: str) -> list[str]:
    """The scales of the input's product and of the recurrent product, and the shifts."""
    return [f"{kind}{name}" for kind in "xhs" for name in names]


@functools.lru_cache(maxsize=64)
def _lstm_cell(activations: tuple[BoundActivation, ...], clip: float | None, epsilon: float) -> Cell:
    names = _LSTM_GATES
    f, g = (activation_step("gate", activation, clip) for activation in activations[:2])
    output = activation_step("gate", activations[2], None)

    def layer_norm_lstm(xp: Any, x: Any, h: Any, c: Any, W: Any, R: Any, v: Any) -> tuple[Any, Any]:
        inputs = _products(xp, W, x, v, "x", names, epsilon)
        recurrent = _products(xp, R, h, v, "h", names, epsilon)
        shifts = [getattr(v, f"s{name}") for name in names]
        zi, zo, zf, zc = (a + p + s for a, p, s in zip(inputs, recurrent, shifts, strict=True))
        c = f(xp, zf) * c + f(xp, zi) * g(xp, zc)
        (normal,) = layer_norm(xp, [c], epsilon)
        return f(xp, zo) * output(xp, v.scale * normal + v.shift), c

    return Cell(layer_norm_lstm, W=list(names), R=list(names), v=[*_vectors(names), "scale", "shift"])


@functools.lru_cache(maxsize=64)
def _gru_cell(activations: tuple[BoundActivation, ...], clip: float | None, epsilon: float) -> Cell:
    names = _GRU_GATES
    f, g = (activation_step("gate", activation, clip) for activation in activations)

    def layer_norm_gru(xp: Any, x: Any, h: Any, W: Any, R: Any, v: Any) -> Any:
        inputs = _products(xp, W, x, v, "x", names, epsilon)
        recurrent = _products(xp, R, h, v, "h", names, epsilon)
        z = f(xp, inputs[0] + recurrent[0] + v.sz)
        r = f(xp, inputs[1] + recurrent[1] + v.sr)
        n = g(xp, inputs[2] + v.sn + r * (recurrent[2] + v.sm))
        return n + z * (h - n)

    return Cell(layer_norm_gru, W=list(names), R=list(names), v=[*_vectors(names), "sm"])


# --- what both operators share ------------------------------------------------------------------------


class _LayerNormOperator(UnitOperator):
    """One of the two operators; ``cell(activations, clip, epsilon)`` returns its cell."""

    def __init__(
        self, unit: Unit, cell: Callable[[tuple[BoundActivation, ...], float | None, float], Cell],
        defaults: tuple[str, ...], result: Any, gradients: Any,
    ) -> None:  # fmt: skip
        super().__init__(unit, result, gradients)
        self.cell, self.defaults = cell, defaults
        self.vectors = ("B", *unit.parameters)

    def _compute_forward(self, asked: Asked, *, epsilon: float, **attributes: Any) -> Any:
        call = _LayerNormCall(asked, self, epsilon, **attributes)
        return self._result(**forward_results(call, lambda _, d: call.cells[d.number].plans[0]))

    def _compute_backward(
        self, asked: Asked, *, wanted: frozenset[str], per_sample: bool | str, epsilon: float,
        **attributes: Any,
    ) -> Any:  # fmt: skip
        unit = self.unit
        over_time = [unit.cotangents[name] for name in unit.over_time]
        call = _LayerNormCall(
            asked, self, epsilon, over_time=over_time, saved=unit.saved, cotangents=unit.end_cotangents,
            **attributes,
        )  # fmt: skip
        inner = frozenset("v" if name in self.vectors else name for name in wanted)

        def finish(call: Any, found: dict[str, Any]) -> dict[str, Any]:
            if "v" in found:
                found |= call.parted(found.pop("v"), per_sample)
            return {name: found[name] for name in wanted}

        found = gradient_results(
            call, lambda _, d: call.cells[d.number].plans[1], unit.graded, inner, per_sample, finish
        )
        return self._gradients(*found.values())


class _LayerNormCall(CellCall):
    """A checked call of the operator `own`, whose vectors become the cell's v; for options see CellCall."""

    def __init__(self, asked: Asked, own: _LayerNormOperator, epsilon: float, **options: Any) -> None:
        self._own = own
        if not epsilon > 0:
            raise ValueError(f"{asked.operator}: epsilon is {epsilon}, expected a number > 0")
        super().__init__(
            asked,
            {"W": own.unit.rows, "R": own.unit.rows, "v": 0},
            states=own.unit.initial,
            defaults=own.defaults,
            **options,
        )
        self.cells = [own.cell(d.activations, self.clip, epsilon) for d in self.directions]
        self.arrays["v"] = self._joined()
        self.vector_blocks = len(self.cells[0].blocks["v"])

    def _columns(self) -> int:
        return max(cell.plans[1].cotangents for cell in self.cells)

    def _needed(self) -> Sequence[str]:
        return ("X", "W", "R", *self._own.vectors[1:])

    def _check_shapes(
        self, direction: str, floats: dict[str, Any], widths: Mapping[str, int], states: Sequence[str]
    ) -> None:
        super()._check_shapes(direction, floats, widths, states)
        for name in self._own.vectors:
            axes = self._own.unit.axes[name]
            expected = shape_of(axes, {"D": self.D, "H": self.H})
            check_shape(self.operator, name, floats[name], axes.replace(" ", ", "), expected)

    def _joined(self) -> Any:
        """The cell's v: scales of the input's and of the recurrent product, and the shifts' sums."""
        xp, H, split = self.xp, self.H, self._own.unit.rows * self.H
        B: Any = self.arrays.get("B")
        gamma, beta = self.arrays["gamma"], self.arrays["beta"]
        shifts = [beta[:, 0, :], beta[:, 1, :]]
        if B is not None:
            shifts = [shifts[0] + B[:, :split], shifts[1] + B[:, split:]]
        if "gamma_c" in self._own.vectors:
            last = [shifts[0] + shifts[1], self.arrays["gamma_c"], self.arrays["beta_c"]]
        else:  # the candidate's two shifts stay separate, because of the reset
            both = shifts[0][:, : 2 * H] + shifts[1][:, : 2 * H]
            last = [both, shifts[0][:, 2 * H :], shifts[1][:, 2 * H :]]
        return xp.concat([gamma[:, 0, :], gamma[:, 1, :], *last], axis=1)

    def parted(self, dv: Any, per_sample: bool | str) -> dict[str, Any]:
        """The vectors' gradients from v's, for one direction; a batch axis of samples comes first."""
        xp, H, split = self.xp, self.H, self._own.unit.rows * self.H
        axis = dv.ndim - 1
        shifts, rest = dv[..., 2 * split :], None
        if "gamma_c" in self._own.vectors:
            sides, rest = [shifts[..., :split]] * 2, shifts[..., split:]
        else:
            sides = [shifts[..., :split], xp.concat([shifts[..., : 2 * H], shifts[..., split:]], axis=axis)]
        found = {"B": xp.concat(sides, axis=axis), "beta": xp.concat(sides, axis=axis)}
        found["gamma"] = dv[..., : 2 * split]
        if rest is not None:
            found |= {"gamma_c": rest[..., :H], "beta_c": rest[..., H:]}
        if per_sample == "norm":  # the norm of rows
            return found
        lead = (dv.shape[0],) if per_sample else ()
        return found | {name: xp.reshape(found[name], (*lead, 2, split)) for name in ("gamma", "beta")}


# --- the LSTM ----------------------------------------------------------------------------------------


@_LSTM.function
@public
def layer_norm_lstm(
    X: Array[A],
    W: Array[A],
    R: Array[A],
    B: Array[A],
    gamma: Array[A],
    beta: Array[A],
    gamma_c: Array[A],
    beta_c: Array[A],
    sequence_lens: Lengths | None = None,
    initial_h: Array[A] | None = None,
    initial_c: Array[A] | None = None,
    *,
    epsilon: float = 1e-5,
    direction: TimeDirection = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: Array[Any] | None = None,
    _foreign: Foreign = PLAIN,
) -> LayerNormLSTMForward[A]:
    r"""LSTM with layer normalization over sequences; it also returns the arrays for its gradient.

    .. math::

        z &= LN(W x_t; \gamma_0, \beta_0) + LN(R h_{t-1}; \gamma_1, \beta_1) + b \\
        c_t &= f(z_f) \odot c_{t-1} + f(z_i) \odot g(z_c) \\
        h_t &= f(z_o) \odot h(LN(c_t; \gamma_c, \beta_c))

    Each LN of a product normalizes all 4H numbers together; b is the sum of both biases.

    Parameters
    ----------
    B : array, shape (D, 8H), or None
        Input biases, then recurrence biases; 0 for None.
    epsilon : float
        Added to the variance, which is the biased one.
    activations : list of str, optional
        ONNX's names of f, g and h for each direction; ``["Sigmoid", "Tanh", "Tanh"]`` by default.

    Notes
    -----
    Ba, Kiros, Hinton, "Layer normalization" (2016), in the form of PyTorch's fastrnns benchmark. The carried
    cell state is not normalized.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import layer_norm_lstm
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = (rng.normal(size=s) for s in [(7, 2, 3), (1, 20, 3), (1, 20, 5)])
    >>> gamma, beta = np.ones((1, 2, 20)), np.zeros((1, 2, 20))
    >>> gamma_c, beta_c = np.ones((1, 5)), np.zeros((1, 5))
    >>> layer_norm_lstm(X, W, R, None, gamma, beta, gamma_c, beta_c).H_all.shape
    (7, 1, 2, 5)
    """
    return planned_call(_LSTM_OPERATOR.forward, locals())


_LSTM_OPERATOR = _LayerNormOperator(
    _LSTM, _lstm_cell, ("Sigmoid", "Tanh", "Tanh"), LayerNormLSTMForward, LayerNormLSTMGrads
)


@_LSTM.function
@public
def layer_norm_lstm_grad(
    X: Array[A],
    W: Array[A],
    R: Array[A],
    *,
    gamma: Array[A],
    beta: Array[A],
    gamma_c: Array[A],
    beta_c: Array[A],
    H_all: Array[A],
    C_all: Array[A],
    saved: Array[A],
    means: Array[A],
    grad_H_all: Array[A] | None = None,
    grad_C_all: Array[A] | None = None,
    grad_H_t: Array[A] | None = None,
    grad_C_t: Array[A] | None = None,
    B: Array[A] | None = None,
    sequence_lens: Lengths | None = None,
    initial_h: Array[A] | None = None,
    initial_c: Array[A] | None = None,
    epsilon: float = 1e-5,
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
) -> LayerNormLSTMGrads[A | MaybeNone]:
    r"""Gradient of `layer_norm_lstm`: from cotangents of its outputs to gradients of its arguments.

    .. math::

        \hat z = (z - \mu) / s, \quad s = \sqrt{\sigma^2 + \epsilon}, \quad
        dz = (d\hat z - \overline{d\hat z} - \hat z \odot \overline{d\hat z \odot \hat z}) / s

    for each normalization, with means over a row. The rest is the LSTM's gradient.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import layer_norm_lstm, vjp
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = (rng.normal(size=s) for s in [(7, 2, 3), (1, 20, 3), (1, 20, 5)])
    >>> gamma, beta = np.ones((1, 2, 20)), np.zeros((1, 2, 20))
    >>> gamma_c, beta_c = np.ones((1, 5)), np.zeros((1, 5))
    >>> out, pullback = vjp(layer_norm_lstm, X, W, R, None, gamma, beta, gamma_c, beta_c)
    >>> pullback(grad_H_t=rng.normal(size=out.H_t.shape)).dgamma.shape
    (1, 2, 20)
    """
    return planned_call(_LSTM_OPERATOR.backward, locals())


# --- the GRU -----------------------------------------------------------------------------------------


@_GRU.function
@public
def layer_norm_gru(
    X: Array[A],
    W: Array[A],
    R: Array[A],
    B: Array[A],
    gamma: Array[A],
    beta: Array[A],
    sequence_lens: Lengths | None = None,
    initial_h: Array[A] | None = None,
    *,
    epsilon: float = 1e-5,
    direction: TimeDirection = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: Array[Any] | None = None,
    _foreign: Foreign = PLAIN,
) -> LayerNormGRUForward[A]:
    r"""GRU with layer normalization over sequences; it also returns the arrays for its gradient.

    .. math::

        a &= LN(W x_t; \gamma_0, \beta_0) + w, \quad p = LN(R h_{t-1}; \gamma_1, \beta_1) + u \\
        z &= f(a_z + p_z), \quad r = f(a_r + p_r), \quad n = g(a_n + r \odot p_n) \\
        h_t &= (1 - z) \odot n + z \odot h_{t-1}

    Each LN normalizes all 3H numbers of a product together.

    Parameters
    ----------
    B : array, shape (D, 6H), or None
        The input biases w, then the recurrence biases u; 0 for None.
    epsilon : float
        Added to the variance, which is the biased one.
    activations : list of str, optional
        ONNX's names of f and g for each direction; ``["Sigmoid", "Tanh"]`` by default.

    Notes
    -----
    Ba, Kiros, Hinton, "Layer normalization" (2016), for the GRU with the reset after the product
    (``linear_before_reset=1``), each product normalized over its three gates together.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import layer_norm_gru
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = (rng.normal(size=s) for s in [(7, 2, 3), (1, 15, 3), (1, 15, 5)])
    >>> layer_norm_gru(X, W, R, None, np.ones((1, 2, 15)), np.zeros((1, 2, 15))).H_all.shape
    (7, 1, 2, 5)
    """
    return planned_call(_GRU_OPERATOR.forward, locals())


_GRU_OPERATOR = _LayerNormOperator(
    _GRU, _gru_cell, ("Sigmoid", "Tanh"), LayerNormGRUForward, LayerNormGRUGrads
)


@_GRU.function
@public
def layer_norm_gru_grad(
    X: Array[A],
    W: Array[A],
    R: Array[A],
    *,
    gamma: Array[A],
    beta: Array[A],
    H_all: Array[A],
    saved: Array[A],
    means: Array[A],
    grad_H_all: Array[A] | None = None,
    grad_H_t: Array[A] | None = None,
    B: Array[A] | None = None,
    sequence_lens: Lengths | None = None,
    initial_h: Array[A] | None = None,
    epsilon: float = 1e-5,
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
) -> LayerNormGRUGrads[A | MaybeNone]:
    r"""Gradient of `layer_norm_gru`: from cotangents of its outputs to gradients of its arguments.

    .. math::

        \hat z = (z - \mu) / s, \quad s = \sqrt{\sigma^2 + \epsilon}, \quad
        dz = (d\hat z - \overline{d\hat z} - \hat z \odot \overline{d\hat z \odot \hat z}) / s

    for each normalization, with means over a row. The rest is the GRU's gradient.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import layer_norm_gru, vjp
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = (rng.normal(size=s) for s in [(7, 2, 3), (1, 15, 3), (1, 15, 5)])
    >>> out, pullback = vjp(layer_norm_gru, X, W, R, None, np.ones((1, 2, 15)), np.zeros((1, 2, 15)))
    >>> pullback(grad_H_t=rng.normal(size=out.H_t.shape)).dgamma.shape
    (1, 2, 15)
    """
    return planned_call(_GRU_OPERATOR.backward, locals())
