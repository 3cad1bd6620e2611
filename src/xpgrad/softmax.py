"""Softmax and log-softmax and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from xpgrad import engine as engines
from xpgrad._calls.computation import Computation
from xpgrad._elementwise import row_formulas as formulas
from xpgrad._operators.arguments import (
    check_arrays,
    check_axis,
    check_choice,
    check_given,
    check_out,
    check_shape,
    explained,
)
from xpgrad._operators.operator_docs import described
from xpgrad._operators.types import A, Array
from xpgrad.engine import RowFormula

_described = described(
    "shapes that differ, an axis that the array does not have, or an `out` of another shape or read-only",
    """
X : array, shape (...)
    Logits, with at least one axis, unless `flatten`. float32 or float64; float16 and bfloat16 if the
    namespace has them, computed in float32.
dY : array, shape (...)
    Cotangent of the output.
axis : int
    The axis along which the shares add up to 1.
flatten : bool
    The meaning before opset 13: all axes from `axis` on count as one, so the array is flattened to two
    dimensions at `axis`, and the shares of a row add up to 1. `axis` may then also be the array's rank: rows
    of one element.
out : array, optional
    Array for the result, of its shape and dtype; it may be one of the inputs.
""",
)


@_described
def softmax(X: Array[A], *, axis: int = -1, flatten: bool = False, out: Array[A] | None = None) -> A:
    r"""Shares of a whole: exponentials along an axis, divided by their sum.

    .. math::

        y_j = e^{x_j - m} / \sum_k e^{x_k - m}, \qquad m = \max_k x_k

    Returns
    -------
    array, shape (...)
        Y, of X's shape and dtype. A row of only -inf gives 0, a row with inf or NaN gives NaN.

    See Also
    --------
    log_softmax : Its logarithm, accurate also where the share is 0.
    softmax_grad : The gradient.

    References
    ----------
    ONNX operator Softmax, opset 13, and with `flatten` opsets 1 and 11.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import softmax
    >>> softmax(np.asarray([[0.0, np.log(3.0)], [-np.inf, 7.0]]))
    array([[0.25, 0.75],
           [0.  , 1.  ]])
    """
    return _along("softmax", formulas.SOFTMAX, ("X",), (X,), axis, flatten, out)


@_described
def softmax_grad(
    dY: Array[A], Y: Array[A], *, axis: int = -1, flatten: bool = False, out: Array[A] | None = None
) -> A:
    r"""Gradient of `softmax`.

    .. math::

        dx_j = y_j (dy_j - \sum_k dy_k y_k)

    Parameters
    ----------
    Y : array, shape (...)
        The output of `softmax`.

    Returns
    -------
    array, shape (...)
        dX, the cotangent of the input, of Y's shape and dtype.

    References
    ----------
    ONNX Runtime's SoftmaxGrad_13, and with `flatten` its SoftmaxGrad.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import softmax_grad
    >>> softmax_grad(np.asarray([1.0, 3.0]), np.asarray([0.25, 0.75]))
    array([-0.375,  0.375])
    """
    return _along("softmax_grad", formulas.SOFTMAX_GRAD, ("dY", "Y"), (dY, Y), axis, flatten, out)


@_described
def log_softmax(X: Array[A], *, axis: int = -1, flatten: bool = False, out: Array[A] | None = None) -> A:
    r"""Logarithm of `softmax`.

    .. math::

        y_j = (x_j - m) - \log \sum_k e^{x_k - m}, \qquad m = \max_k x_k

    Returns
    -------
    array, shape (...)
        Y, of X's shape and dtype. A row of only -inf gives -inf, a row with inf or NaN gives NaN.

    See Also
    --------
    log_softmax_grad : The gradient.

    References
    ----------
    ONNX operator LogSoftmax, opset 13, and with `flatten` opsets 1 and 11.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import log_softmax
    >>> log_softmax(np.asarray([1e4, 1e4 + np.log(3.0)])).round(4)
    array([-1.3863, -0.2877])
    """
    return _along("log_softmax", formulas.LOG_SOFTMAX, ("X",), (X,), axis, flatten, out)


@_described
def log_softmax_grad(
    dY: Array[A], Y: Array[A], *, axis: int = -1, flatten: bool = False, out: Array[A] | None = None
) -> A:
    r"""Gradient of `log_softmax`.

    .. math::

        dx_j = dy_j - e^{y_j} \sum_k dy_k

    Parameters
    ----------
    Y : array, shape (...)
        The output of `log_softmax`.

    Returns
    -------
    array, shape (...)
        dX, the cotangent of the input, of Y's shape and dtype. A row of only -inf gives 0.

    References
    ----------
    ONNX Runtime's LogSoftmaxGrad_13, and with `flatten` its LogSoftmaxGrad.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import log_softmax_grad
    >>> log_softmax_grad(np.asarray([1.0, 3.0]), np.log(np.asarray([0.25, 0.75])))
    array([0., 0.])
    """
    return _along("log_softmax_grad", formulas.LOG_SOFTMAX_GRAD, ("dY", "Y"), (dY, Y), axis, flatten, out)


def _along(
    operator: str, formula: RowFormula, names: Sequence[str], arrays: Sequence[Any], axis: int, flatten: bool,
    out: Any,
) -> Any:  # fmt: skip
    """The formula along an axis; the last array's shape is the result's."""
    if out is None and type(axis) is int and flatten is False:
        engine = engines.agreed(arrays)
        if engine is not None and -(rank := arrays[0].ndim) <= axis < rank:
            result = engine.quick_rows(formula, arrays, axis % rank)
            if result is not None:
                return result
    return _checked(operator, formula, names, arrays, axis, flatten, out)


@explained
def _checked(
    operator: str, formula: RowFormula, names: Sequence[str], arrays: Sequence[Any], axis: int, flatten: bool,
    out: Any,
) -> Any:  # fmt: skip
    """The formula along an axis, after the checks."""
    named = dict(zip(names, arrays, strict=True))
    check_given(operator, named)
    check_choice(operator, "flatten", flatten, (False, True))
    xp = check_arrays(operator, named | {"out": out})
    leader = names[-1]
    shape = tuple(named[leader].shape)
    for name, array in named.items():
        check_shape(operator, name, array, f"the shape of {leader}", shape)
    check_out(operator, out, shape)
    axis = check_axis(operator, axis, leader, shape, past_end=flatten)
    stop = len(shape) if flatten else axis + 1
    rows = (math.prod(shape[:axis]), math.prod(shape[axis:stop]), math.prod(shape[stop:]))
    computation = Computation(operator, xp, [*arrays, out])
    lifted = [computation.reshape(computation.lift(array), rows) for array in arrays]
    engine = computation.engine

    def compute(target: Any) -> Any:
        if math.prod(rows) == 0:
            return computation.reshape(lifted[-1], shape)
        (result,) = engine.over_rows(formula, lifted, (), target)
        return result if target is not None else computation.reshape(result, shape)

    return computation.deliver(operator, compute, out, rows)
