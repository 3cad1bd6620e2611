"""Losses on logits and their gradients, each in one stable formula."""

from __future__ import annotations

import math
from typing import Any

from array_api_compat import array_namespace, device

from xpgrad import engine as engines
from xpgrad._calls.computation import Computation
from xpgrad._elementwise import activation_formulas
from xpgrad._elementwise import row_formulas as formulas
from xpgrad._elementwise.kernel import ElementwiseKernel
from xpgrad._operators.arguments import (
    check_array,
    check_arrays,
    check_choice,
    check_given,
    check_integer,
    check_number,
    check_out,
    check_shape,
    explained,
)
from xpgrad._operators.operator_docs import described
from xpgrad._operators.types import A, Array
from xpgrad._operators.words import Reduction
from xpgrad.engine import Engine, Formula, is_traced

_REDUCTIONS = ("mean", "sum", "none")
_described = described(
    "shapes that do not fit, or an invalid label or option",
    """
dY : array
    Cotangent of the loss, of its shape.
out : array, optional
    Array for the result, of its shape and dtype.
""",
)


@_described
def softmax_cross_entropy(
    X: Array[A],
    labels: Array[object],
    weights: Array[A] | None = None,
    *,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    out: Array[A] | None = None,
) -> A:
    r"""Cross-entropy between target distributions and the softmax of logits.

    .. math::

        \ell = \sum_j w_j t_j (\log \sum_k e^{x_k - m} - (x_j - m)), \qquad m = \max_k x_k

    t is the target distribution: 1 for the label and 0 for the other classes, or the given probabilities.
    Smoothing by s makes it (1 - s) t + s / C. w are the class weights.

    Parameters
    ----------
    X : array, shape (N, C, ...) or (C,)
        Logits with the classes along axis 1; a single sample has only that axis. float32 or float64; float16
        and bfloat16 if the namespace has them, computed in float32.
    labels : array
        With an integer dtype: the class of each sample, 0 to C - 1, of X's shape without the class axis. With
        X's dtype: the probabilities of all classes, of X's shape.
    weights : array, shape (C,), optional
        A weight for each class.
    ignore_index : int, optional
        A label whose samples are ignored: their loss and gradient are 0 for any X. For class numbers only.
    reduction : {"mean", "sum", "none"}
        How the samples' losses are combined. With class numbers the mean is weighted by the labels' weights;
        with probabilities it is over all samples.
    label_smoothing : float
        The s above, 0 to 1.

    Returns
    -------
    array, shape () or, for "none", X's without the classes
        The loss; NaN for a sample with a logit of inf or NaN, or with only logits of -inf. A class with
        target 0 adds nothing, even if its logit is -inf.

    See Also
    --------
    softmax_cross_entropy_grad : The gradient.

    References
    ----------
    ONNX operator SoftmaxCrossEntropyLoss; PyTorch's cross_entropy for probabilities and smoothing.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import softmax_cross_entropy
    >>> X = np.log(np.asarray([[0.25, 0.75], [0.5, 0.5]]))
    >>> softmax_cross_entropy(X, np.asarray([1, 0]), reduction="none").round(4)
    array([0.2877, 0.6931])
    >>> float(softmax_cross_entropy(X, np.asarray([1, 0])).round(4))
    0.4904
    """
    call = _call(
        "softmax_cross_entropy", X, labels, weights, ignore_index, reduction, label_smoothing, out=out
    )
    return call.loss(out)


@_described
def softmax_cross_entropy_grad(
    dY: Array[A],
    X: Array[A],
    labels: Array[object],
    weights: Array[A] | None = None,
    *,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    out: Array[A] | None = None,
) -> A:
    r"""Gradient of `softmax_cross_entropy` with respect to the logits.

    .. math::

        dx_j = d \cdot (y_j \sum_k w_k t_k - w_j t_j), \qquad y = \mathrm{softmax}(x)

    d is the sample's cotangent: the cotangent of the loss, with "mean" divided by the mean's divisor.

    Parameters
    ----------
    X, labels, weights, ignore_index, reduction, label_smoothing
        As in `softmax_cross_entropy`.
    out : array, optional
        Array for the result, of its shape and dtype; it may be X.

    Returns
    -------
    array, shape (N, C, ...) or (C,)
        dX, the cotangent of the logits, of X's shape and dtype. No other array of that size is allocated.

    References
    ----------
    ONNX operator SoftmaxCrossEntropyLoss.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import softmax_cross_entropy_grad
    >>> X = np.log(np.asarray([[0.25, 0.75], [0.5, 0.5]]))
    >>> softmax_cross_entropy_grad(np.asarray(1.0), X, np.asarray([1, 0]))
    array([[ 0.125, -0.125],
           [-0.25 ,  0.25 ]])
    """
    call = _call(
        "softmax_cross_entropy_grad", X, labels, weights, ignore_index, reduction, label_smoothing, dY, out
    )
    return call.gradient(dY, out)


def _call(
    operator: str, X: Any, labels: Any, weights: Any, ignore_index: Any, reduction: Any, smoothing: Any,
    dY: Any = None, out: Any = None,
) -> _CrossEntropy:  # fmt: skip
    """The call with its arguments checked."""
    if weights is None and out is None:
        usual = _usual_call(operator, X, labels, ignore_index, reduction, smoothing, dY)
        if usual is not None:
            return usual
    return _checked_call(operator, X, labels, weights, ignore_index, reduction, smoothing, dY, out)


def _usual_call(
    operator: str, X: Any, labels: Any, ignore_index: Any, reduction: Any, smoothing: Any, dY: Any
) -> _CrossEntropy | None:
    """A call with plain arrays and class numbers, all of which count; None for other calls, and wrong ones.

    Most training steps have such calls. They need few checks, whose time small steps would notice.
    """
    engine = engines.agreed((X,))
    label = None if engine is None else engine.integers(labels)
    if engine is None or label is None or not label.size:
        return None
    shape = tuple(X.shape)
    if (type(smoothing), type(reduction)) != (float, str):
        return None
    if not 0 <= smoothing <= 1 or reduction not in _REDUCTIONS:
        return None
    loss_shape = label.shape if reduction == "none" else ()
    if operator.endswith("_grad") and not _is_usual_cotangent(engine, dY, X, loss_shape):
        return None
    # a negative number ignores nothing: a label of that number takes the way with masks
    can_ignore = ignore_index is not None and (type(ignore_index) is not int or ignore_index >= 0)
    if len(shape) < 2 or label.shape != _samples_of(shape) or can_ignore:
        return None
    if label.min() < 0 or label.max() >= shape[1]:
        return None
    computation = Computation.of_agreed(engine, X)
    call = _CrossEntropy(operator, computation, X, None, reduction, smoothing)
    call.take_numbers(label)
    return call


def _samples_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of logits without the classes."""
    return shape[:1] + shape[2:] if len(shape) > 1 else ()


def _rows_of(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """The shape of logits as (N, C, rest)."""
    batch, classes = (1, shape[0]) if len(shape) == 1 else shape[:2]
    return batch, classes, math.prod(shape[2:])


def _is_usual_cotangent(engine: Engine, dY: Any, X: Any, loss_shape: tuple[int, ...]) -> bool:
    """Whether it is a plain array of this engine like X, of the loss' shape."""
    is_own = engines.of_type(dY) is engine and engine.agrees([dY])
    return is_own and dY.dtype == X.dtype and tuple(dY.shape) == loss_shape


@explained
def _checked_call(
    operator: str, X: Any, labels: Any, weights: Any, ignore_index: Any, reduction: Any, smoothing: Any,
    dY: Any, out: Any,
) -> _CrossEntropy:  # fmt: skip
    """Any call, after all checks."""
    check_given(operator, {"X": X, "labels": labels} | ({"dY": dY} if operator.endswith("_grad") else {}))
    check_array(operator, "labels", labels)
    by_number = not array_namespace(labels).isdtype(labels.dtype, "real floating")
    floats = {"X": X, "weights": weights, "dY": dY, "out": out}
    numbers, probabilities = ({"labels": labels}, {}) if by_number else ({}, {"labels": labels})
    xp = check_arrays(operator, floats | probabilities, numbers)
    check_choice(operator, "reduction", reduction, _REDUCTIONS)
    smoothing = check_number(operator, "label_smoothing", smoothing)
    if not 0 <= smoothing <= 1:
        raise ValueError(f"{operator}: label_smoothing is {smoothing}, expected 0 to 1")
    shape = tuple(X.shape)
    if not shape or shape[1 if len(shape) > 1 else 0] == 0:
        raise ValueError(f"{operator}: X has shape {shape}, expected (N, C, ...) or (C,) with C at least 1")
    samples, (_, classes, _) = _samples_of(shape), _rows_of(shape)
    check_shape(operator, "weights", weights, "C", (classes,))
    words, fitting = ("X's without the classes", samples) if by_number else ("the shape of X", shape)
    check_shape(operator, "labels", labels, f"{words}, for labels of dtype {labels.dtype}", fitting)
    loss_shape = samples if reduction == "none" else ()
    check_shape(operator, "dY", dY, "the shape of the loss", loss_shape)
    check_out(operator, out, shape if operator.endswith("_grad") else loss_shape)
    computation = Computation(operator, xp, [X, weights, dY, out])
    call = _CrossEntropy(operator, computation, X, weights, reduction, smoothing)
    if by_number:
        call.check_numbers(labels, ignore_index)
    elif ignore_index is not None:
        raise ValueError(
            f"{operator}: ignore_index is {ignore_index!r}, expected None for labels that are probabilities"
        )
    else:
        call.probabilities = computation.reshape(computation.lift(labels), call.rows)
    return call


class _CrossEntropy:
    """A checked call with lifted arrays, in the shapes (N, C, rest), (N, 1, rest) and (1, C, 1).

    Labels come last: as numbers, which `counts` may mask, or as probabilities.
    """

    def __init__(
        self, operator: str, computation: Computation, X: Any, weights: Any, reduction: str, smoothing: float
    ) -> None:
        self.operator, self.computation, self.reduction = operator, computation, reduction
        self.engine, self.xp = computation.engine, computation.xp
        self.shape = shape = tuple(X.shape)
        self.rows = _, classes, _ = _rows_of(shape)
        self.loss_shape = _samples_of(shape) if reduction == "none" else ()
        self.x = computation.reshape(computation.lift(X), self.rows)
        self.weight = None
        if weights is not None:
            self.weight = computation.reshape(computation.lift(weights), (1, classes, 1))
        # a number of classes that is not known before a graph runs has no quotient
        self.numbers = (1 - smoothing, smoothing / classes if smoothing else 0.0)
        self.probabilities = self.label = self.number = self.counts = None

    def check_numbers(self, labels: Any, ignore_index: Any) -> None:
        """Take labels that are class numbers; check those that are not ignored."""
        xp, computation = self.xp, self.computation
        N, C, rest = self.rows
        label = computation.reshape(computation.engine.lift(labels), (N, 1, rest))
        wrong = self._wrong_classes(label)
        if ignore_index is not None:
            ignored = check_integer(self.operator, "ignore_index", ignore_index)
            # otherwise all labels count, and masks would change nothing
            counts = wrong != [] or 0 <= ignored < C
            bounds = xp.iinfo(label.dtype)  # beyond them, JAX and PyTorch compare with another number
            if counts and bounds.min <= ignored <= bounds.max:
                self.counts = label != ignored
                label = xp.where(self.counts, label, xp.zeros_like(label))
                wrong = self._wrong_classes(label)
        if wrong:
            raise ValueError(f"{self.operator}: labels has {wrong[0]}, expected classes 0 to {C - 1}")
        self.take_numbers(label)

    def take_numbers(self, label: Any) -> None:
        """Take labels that are right class numbers."""
        xp, (N, C, rest) = self.xp, self.rows
        self.label = self.computation.reshape(xp.astype(label, xp.int32), (N, 1, rest))
        self.number = xp.reshape(xp.arange(C, dtype=xp.int32, device=device(self.x)), (1, C, 1))

    def _wrong_classes(self, label: Any) -> list[int] | None:
        """The least label if it is negative, the largest if too large; None if labels have no values."""
        N, C, rest = self.rows
        if not N * rest:
            return []
        if is_traced(label):
            return None
        try:
            low, high = self.xp.min(label), self.xp.max(label)
            if is_traced(low):  # known labels within a traced function
                return None
            low, high = int(low), int(high)
        except RuntimeError:
            return None  # under a transformation or a tracer
        return [low] * (low < 0) + [high] * (high >= C)

    def _denominator(self) -> Any:
        """The mean's divisor: the sum of the counted labels' weights, or the number of samples."""
        xp, (N, _, rest) = self.xp, self.rows
        if self.label is None or (self.weight is None and self.counts is None):
            return N * rest
        if self.weight is None:
            each = xp.astype(self.counts, self.x.dtype)
        else:
            # indices that all namespaces support: int64, but in JAX mostly int32
            flat = xp.astype(xp.reshape(self.label, (-1,)), xp.arange(1).dtype)
            each = xp.reshape(xp.take(xp.reshape(self.weight, (-1,)), flat, axis=0), (N, 1, rest))
            if self.counts is not None:
                each = xp.where(self.counts, each, xp.zeros_like(each))
        return xp.reshape(xp.sum(each), (1, 1, 1))

    def loss(self, out: Any) -> Any:
        """The loss."""
        xp = self.xp
        operands = (self.x, self.probabilities, self.label, self.number, self.weight)
        with self.engine.quiet():
            (result,) = self.engine.over_rows(formulas.CROSS_ENTROPY, operands, self.numbers)
            if self.counts is not None:
                result = xp.where(self.counts, result, xp.zeros_like(result))
            if self.reduction != "none":
                result = xp.reshape(xp.sum(result), (1, 1, 1))
            if self.reduction == "mean":
                result = result / self._denominator()
            result = self.computation.reshape(result, self.loss_shape)
        return self.computation.put(self.operator, result, out)

    def gradient(self, dY: Any, out: Any) -> Any:
        """The cotangent of the logits from the cotangent of the loss."""
        with self.engine.quiet():
            d = self._row_cotangent(dY)
        operands = (self.x, self.probabilities, self.label, d, self.number, self.weight)

        def compute(target: Any) -> Any:
            (result,) = self.engine.over_rows(formulas.CROSS_ENTROPY_GRAD, operands, self.numbers, target)
            return result if target is not None else self.computation.reshape(result, self.shape)

        return self.computation.deliver(self.operator, compute, out, self.rows)

    def _row_cotangent(self, dY: Any) -> Any:
        xp, (N, _, rest) = self.xp, self.rows
        d = self.computation.lift(dY)
        if self.reduction == "none":
            d = self.computation.reshape(d, (N, 1, rest))
        else:
            d = self.computation.reshape(d, (1, 1, 1))
            if self.reduction == "mean":
                d = d / self._denominator()
            d = xp.broadcast_to(d, (N, 1, rest))
        return d if self.counts is None else xp.where(self.counts, d, xp.zeros_like(d))


# --- binary -----------------------------------------------------------------------------------------


@_described
def binary_cross_entropy_with_logits(
    X: Array[A],
    targets: Array[A],
    weight: Array[A] | None = None,
    *,
    pos_weight: Array[A] | None = None,
    reduction: Reduction = "mean",
    out: Array[A] | None = None,
) -> A:
    r"""Cross-entropy between probabilities of yes and the sigmoid of logits.

    .. math::

        \ell = w (p t \log(1 + e^{-x}) + (1 - t) \log(1 + e^x))

    Parameters
    ----------
    X : array, shape (...)
        Logits. float32 or float64; float16 and bfloat16 if the namespace has them, computed in float32.
    targets : array, shape (...)
        The t above, the probabilities of yes.
    weight : array, optional
        The w above, of a shape that broadcasts to X's; 1 by default.
    pos_weight : array, optional
        The p above, of a shape that broadcasts to X's; (C,) gives one per class of an (N, C) input.
    reduction : {"mean", "sum", "none"}
        How the elements' losses are combined.

    Returns
    -------
    array, shape () or, for "none", (...)
        The loss.

    See Also
    --------
    binary_cross_entropy_with_logits_grad : The gradient.

    References
    ----------
    PyTorch's function of the same name.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import binary_cross_entropy_with_logits
    >>> X, targets = np.asarray([0.0, 2.0, -1e4]), np.asarray([1.0, 0.5, 0.0])
    >>> binary_cross_entropy_with_logits(X, targets, reduction="none").round(4)
    array([0.6931, 1.1269, 0.    ])
    """
    operator = "binary_cross_entropy_with_logits"
    check_choice(operator, "reduction", reduction, _REDUCTIONS)
    arrays = (X, targets, weight, pos_weight)
    if reduction == "none":
        return _BINARY(arrays, (), out)
    engine = engines.agreed((X, targets)) if weight is None and pos_weight is None else None
    computation = _BINARY.check(arrays) if engine is None else Computation.of_agreed(engine, X)
    lifted = [None if array is None else computation.lift(array) for array in arrays]
    losses = computation.engine.elementwise(_BINARY_FORMULA, lifted)
    xp = computation.xp
    with computation.engine.quiet():
        # keep an axis: NumPy would return a scalar
        total = xp.sum(xp.reshape(losses, (-1,)), axis=0, keepdims=True)
        loss = xp.reshape(total / math.prod(X.shape) if reduction == "mean" else total, ())
    if out is not None:
        check_arrays(operator, {"X": X, "out": out})
        check_out(operator, out, ())
    return computation.put(operator, loss, out)


@_described
def binary_cross_entropy_with_logits_grad(
    dY: Array[A],
    X: Array[A],
    targets: Array[A],
    weight: Array[A] | None = None,
    *,
    pos_weight: Array[A] | None = None,
    reduction: Reduction = "mean",
    out: Array[A] | None = None,
) -> A:
    r"""Gradient of `binary_cross_entropy_with_logits` with respect to the logits.

    .. math::

        dx = d \cdot w ((1 - t) \sigma(x) - p t \sigma(-x))

    d is the element's cotangent: the cotangent of the loss, with "mean" divided by the number of elements.

    Parameters
    ----------
    X, targets, weight, pos_weight, reduction
        As in `binary_cross_entropy_with_logits`.
    out : array, optional
        Array for the result, of its shape and dtype; it may be one of the inputs.

    Returns
    -------
    array, shape (...)
        dX, the cotangent of the logits, of X's shape and dtype.

    References
    ----------
    PyTorch's function of the same name.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import binary_cross_entropy_with_logits_grad
    >>> X, targets = np.asarray([0.0, 2.0, -1e4]), np.asarray([1.0, 0.5, 0.0])
    >>> binary_cross_entropy_with_logits_grad(np.asarray(3.0), X, targets).round(4)
    array([-0.5   ,  0.3808,  0.    ])
    """
    operator = "binary_cross_entropy_with_logits_grad"
    check_choice(operator, "reduction", reduction, _REDUCTIONS)
    check_given(operator, {"dY": dY, "X": X})
    arrays, engine = (dY, X, targets, weight, pos_weight), None
    if weight is None and pos_weight is None and out is None and reduction != "none":
        engine = engines.agreed((X, targets))
    is_usual = engine is not None and _is_usual_cotangent(engine, dY, X, ())
    if not is_usual:
        check_arrays(operator, {"X": X, "dY": dY})
        shape = tuple(X.shape) if reduction == "none" else ()
        check_shape(operator, "dY", dY, "the shape of the loss", shape)
    size = math.prod(X.shape) if reduction == "mean" else 1
    numbers = (1 / size if size else 0.0,)
    if engine is not None and is_usual:
        return _BINARY_GRAD.run(Computation.of_agreed(engine, X), arrays, numbers)
    return _BINARY_GRAD(arrays, numbers, out)


_BINARY_FORMULA = Formula(activation_formulas.binary_cross_entropy)
_WEIGHTS = ("weight", "pos_weight")
_BINARY = ElementwiseKernel(
    "binary_cross_entropy_with_logits", ("X", "targets", *_WEIGHTS), _BINARY_FORMULA, "X", _WEIGHTS, _WEIGHTS
)
_BINARY_GRAD = ElementwiseKernel(
    "binary_cross_entropy_with_logits_grad",
    ("dY", "X", "targets", *_WEIGHTS),
    Formula(activation_formulas.binary_cross_entropy_pullback, {}, ("scale",)),
    "X",
    ("dY", *_WEIGHTS),
    ("dY", *_WEIGHTS),
)
