"""The formulas of softmax, log-softmax and the softmax cross-entropy: steps over a row of logits.

A row of only -inf masks all classes: its softmax is 0, its log-softmax -inf, and their gradients are 0. Its
loss and the loss' gradient are NaN. All results of a row with inf or NaN are NaN.
"""

from __future__ import annotations

from typing import Any

from xpgrad._elementwise.activation_formulas import finite_or_zero, times_share
from xpgrad.engine import RowFormula, Step


def below_peak(xp: Any, x: Any, peak: Any) -> Any:
    """The value minus its row's peak; a row of only -inf does not change, so its exponentials are 0."""
    return x - xp.where(peak == -xp.inf, xp.zeros_like(peak), peak)


def peak_of(xp: Any, x: Any) -> tuple:
    return (x,)


def exponentials(xp: Any, x: Any, peak: Any) -> tuple:
    e = xp.exp(below_peak(xp, x, peak))
    return e, e


def total_of_exponentials(xp: Any, x: Any, peak: Any) -> tuple:
    return (xp.exp(below_peak(xp, x, peak)),)


def inverse(xp: Any, total: Any) -> tuple:
    return (xp.where(total == 0, xp.zeros_like(total), 1 / _or_one(xp, total)),)


def logarithm(xp: Any, total: Any) -> tuple:
    return (xp.where(total == 0, xp.zeros_like(total), xp.log(_or_one(xp, total))),)


def _or_one(xp: Any, total: Any) -> Any:
    """The total; 1 for a row that masks all classes, so that its derivatives are finite."""
    return xp.where(total == 0, xp.zeros_like(total) + 1, total)


# --- softmax ------------------------------------------------------------------------------------------


def share(xp: Any, e: Any, scale: Any) -> tuple:
    return (e * scale,)


def log_share(xp: Any, x: Any, peak: Any, log_total: Any) -> tuple:
    y = below_peak(xp, x, peak) - log_total
    return (xp.where(peak == -xp.inf, xp.zeros_like(x) - xp.inf, y),)


def inner_product(xp: Any, d: Any, y: Any) -> tuple:
    return (d * y,)


def softmax_pullback(xp: Any, d: Any, y: Any, product: Any) -> tuple:
    return (d * y - y * product,)


def cotangent_and_peak(xp: Any, d: Any, y: Any) -> tuple:
    return d, y


def log_softmax_pullback(xp: Any, d: Any, y: Any, total: Any, peak: Any) -> tuple:
    return (xp.where(peak == -xp.inf, xp.zeros_like(d), d - xp.exp(y) * total),)


_PEAK = Step(peak_of, {"peak": "max"})
_EXPONENTIALS = Step(exponentials, {"e": "each", "total": "sum"})
_TOTAL = Step(total_of_exponentials, {"total": "sum"})

SOFTMAX = RowFormula(
    each=("x",),
    steps=(_PEAK, _EXPONENTIALS, Step(inverse, {"scale": "row"}), Step(share, {"y": "each"})),
    outputs=("y",),
)
LOG_SOFTMAX = RowFormula(
    each=("x",),
    steps=(_PEAK, _TOTAL, Step(logarithm, {"log_total": "row"}), Step(log_share, {"y": "each"})),
    outputs=("y",),
)
SOFTMAX_GRAD = RowFormula(
    each=("d", "y"),
    steps=(Step(inner_product, {"product": "sum"}), Step(softmax_pullback, {"dx": "each"})),
    outputs=("dx",),
)
LOG_SOFTMAX_GRAD = RowFormula(
    each=("d", "y"),
    steps=(
        Step(cotangent_and_peak, {"total": "sum", "peak": "max"}),
        Step(log_softmax_pullback, {"dx": "each"}),
    ),
    outputs=("dx",),
)


# --- cross-entropy ------------------------------------------------------------------------------------
# A row's target distribution is t, with the class weights w, and its mass is sum_j w_j t_j. Its loss is
# sum_j w_j t_j (log(total) - (x_j - peak)) = mass log(total) - sum_j w_j t_j (x_j - peak), in one pass: both
# terms are >= 0, so nothing cancels.


def target(xp: Any, x: Any, p: Any, label: Any, number: Any, weight: Any, keep: Any, spread: Any) -> Any:
    """A class's target, smoothed and weighted: its probability, or 1 for the label.

    The weight of a class that no sample has may be infinite, as 1 / its frequency.
    """
    if p is not None:
        t = p * keep + spread
    else:
        spread = xp.zeros_like(x) + spread
        t = xp.where(number == label, spread + keep, spread)
    return t if weight is None else times_share(xp, t, weight)


def exponential_and_share(
    xp: Any, x: Any, peak: Any, p: Any, label: Any, number: Any, weight: Any, *, keep: Any, spread: Any
) -> tuple:  # fmt: skip
    """A class's exponential, its target, and its part of the second term: 0 if its target is 0."""
    below = below_peak(xp, x, peak)
    t = target(xp, x, p, label, number, weight, keep, spread)
    return xp.exp(below), t, times_share(xp, t, below)


def loss_of_row(xp: Any, total: Any, mass: Any, expected: Any) -> tuple:
    """The loss; NaN if the row has no distribution, even if no class counts."""
    log_total = xp.log(total)
    return (mass * log_total - expected + (log_total - log_total),)


def exponentials_and_target(
    xp: Any, x: Any, peak: Any, p: Any, label: Any, number: Any, weight: Any, *, keep: Any, spread: Any
) -> tuple:
    """Exponentials twice, as elements and for a sum, and the row's target for a sum."""
    e = xp.exp(below_peak(xp, x, peak))
    return e, e, target(xp, x, p, label, number, weight, keep, spread)


def factors(xp: Any, total: Any, mass: Any, d: Any) -> tuple:
    """The factors of the target and of e: 0 for ignored rows, even with NaN."""
    return d, times_share(xp, d, mass / total)


def cross_entropy_pullback(
    xp: Any, e: Any, factor: Any, share_factor: Any, p: Any, label: Any, number: Any, weight: Any,
    *, keep: Any, spread: Any,
) -> tuple:  # fmt: skip
    """The gradient. A row with NaN has it in its factor, unless it is ignored."""
    t = target(xp, e, p, label, number, weight, keep, spread)
    part = t * factor if weight is None else times_share(xp, factor, t)
    return (finite_or_zero(xp, e) * share_factor - part,)


# p, or label and number, and weight may be None
CROSS_ENTROPY = RowFormula(
    each=("x", "p"),
    rows=("label",),
    columns=("number", "weight"),
    parameters=("keep", "spread"),
    steps=(
        _PEAK,
        Step(exponential_and_share, {"total": "sum", "mass": "sum", "expected": "sum"}),
        Step(loss_of_row, {"loss": "row"}),
    ),
    outputs=("loss",),
)
CROSS_ENTROPY_GRAD = RowFormula(
    each=("x", "p"),
    rows=("label", "d"),
    columns=("number", "weight"),
    parameters=("keep", "spread"),
    steps=(
        _PEAK,
        Step(exponentials_and_target, {"e": "each", "total": "sum", "mass": "sum"}),
        Step(factors, {"factor": "row", "share_factor": "row"}),
        Step(cross_entropy_pullback, {"dx": "each"}),
    ),
    outputs=("dx",),
)
