r"""Your own recurrent cells: the formula of a step becomes a compiled forward and its gradient.

In a step ``W.name(x)`` is a block of the input weights times the input, ``R.name(h)`` a block of the
recurrence weights times a state (or another value of the step), and ``v.name`` a vector of parameters::

    def minimal_gated_unit(xp, x, h, W, R, v):
        f = sigmoid(xp, W.f(x) + R.f(h) + v.f)
        n = xp.tanh(W.n(x) + R.n(f * h) + v.n)
        return h + f * (n - h)

    cell = xpgrad.Cell(minimal_gated_unit, W="f n", R="f n", v="f n")

The formula runs once, on values that stand for arrays. The result is a graph, and reverse mode over the graph
gives the gradient. Both become stages of the time loop that `lstm` and `gru` use: W x is one product before
the loop, each step is compiled, every weight's gradient is one product after the loop. Lengths, directions,
half precision, per-sample gradients and programs are the same too.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from xpgrad._calls.plans import Asked, Operation, planned_call
from xpgrad._cells.arguments import CellArrays, CellGradient, block_names, bound, checked_heads, input_blocks
from xpgrad._cells.build import build
from xpgrad._cells.call import CellCall
from xpgrad._cells.misuse import Refusing
from xpgrad._cells.tape import StepTape
from xpgrad._cells.trace import states_of
from xpgrad._elementwise.activation_formulas import (
    ONNX_ACTIVATIONS,
    BoundActivation,
    activate,
    activate_pullback,
)
from xpgrad._operators.arguments import check_number, is_list
from xpgrad._recurrent.backward import gradient_results
from xpgrad._recurrent.forward import forward_results
from xpgrad._recurrent.plan import BackwardPlan, ForwardPlan, capital

__all__ = ["activation", "layer_norm", "mean", "sigmoid", "with_pullback"]


_SAME: Mapping[str, str] = MappingProxyType({})


def __dir__() -> list[str]:
    """The functions for a step, for completion, without the module's imports."""
    return list(__all__)


class Cell:
    r"""A recurrent operator, from the formula of one step.

    .. math:: s_t = \mathrm{step}(x_t, s_{t-1}; W, R, v)

    Parameters
    ----------
    step : callable
        ``step(xp, x, *states, W, R, v)`` returns the new states, several as a tuple. `xp` has the
        elementwise functions of the array API (`exp`, `expm1`, `log`, `log1p`, `sqrt`, `tanh`, `abs`,
        `maximum`, `minimum`, `where`) and `mean`, over a row; values have Python's operators. The
        parameters that are not called xp, x, W, R or v, and are no `inputs`, are the states, each of width H;
        the first one is the output. A state that the step does not read is an output only, and has no initial
        value. The step takes only the weights that it uses. It runs once, when the cell is made: no ``if`` on
        values, and every number in it is a constant.
    W, R, v : sequence of str, or str
        The names of their blocks, from top to bottom; in a str, spaces separate them. ``W.name(x)`` is a
        block of H rows times the input, ``R.name(value)`` a block times a value of the step, ``v.name`` a
        vector of length H.
    inputs : sequence of str, str or mapping, optional
        The names of inputs besides x, which the step gets unchanged: time gaps, masks, attention,
        pre-activations of another layer. An input has H numbers at each step or one, (T, N, H) or (T, N, 1).
        A mapping gives each the names of its blocks: with ``{"gates": "i f"}`` the step has ``gates.i`` and
        ``gates.f`` of an array (T, N, 2H). None or "" stands for no blocks. With inputs, W may be left out.
    heads : int
        The number of parts of the states. Each block of R is then block-diagonal: head j's rows of R
        (D, k·H, H/heads) multiply head j's part of a value. Means, and `layer_norm`, are within a head.
    name : str, optional
        For messages and generated code; by default the step's.

    Attributes
    ----------
    states, carried : tuple of str
        The names of all states, and of the states that the step reads.
    blocks : dict of str to tuple of str
        The names of the blocks of W, R and v.
    inputs : dict of str to tuple of str
        The inputs besides x, and the names of their blocks; none if an input is a single value.
    heads : int
        The number of parts of the states.
    grad : callable
        The gradient, see Notes.
    text : str
        The generated formulas of the step, as Python text.

    Raises
    ------
    TypeError, ValueError, AttributeError
        If the step is not a formula, uses a block that is not named, or leaves a named one unused.

    See Also
    --------
    xpgrad.cells.with_pullback : Your own pullback, for the step or a part of it.
    xpgrad.vjp : Forward and gradient in one; it takes cells.

    Notes
    -----
    A cell with the states h and c is called as::

        cell(X, W, R, v, sequence_lens=None, initial_h=None, initial_c=None, *, direction="forward", layout=0,
             reset=None) -> (H_all, C_all, H_t, C_t, saved)

    with X (T, N, I), W (D, k·H, I), R (D, k·H, H), v (D, k·H) for k blocks each, initial states (D, N, H),
    states over time (T, D, N, H), final states (D, N, H). `saved` (T, D, N, k·H) are the values besides the
    states that the gradient needs; reverse mode chooses them. Row means are saved in one more output,
    `means`. Directions, lengths, layouts and resets are as in `lstm`. The gradient is::

        cell.grad(X, W, R, v, *, H_all, C_all, saved, grad_H_all=None, grad_C_all=None, grad_H_t=None,
                  grad_C_t=None, sequence_lens=None, initial_h=None, initial_c=None, direction="forward",
                  layout=0, reset=None, per_sample=False, sample_weight=None, wrt=None)
            -> (dX, dW, dR, dv, dH0, dC0)

    with the arguments of `lstm_grad`. A cell without W, R or v has no such argument. Inputs besides x are
    keyword arguments of both; their gradients come after dv. Without W, only T and N are read from X.

    Slopes at kinks: 0 for `abs` at 0. At ties `maximum` and `minimum` share the cotangent, as PyTorch's do.
    `where` passes it to the chosen side.

    Examples
    --------
    >>> import numpy as np
    >>> import xpgrad
    >>> from xpgrad.cells import sigmoid
    >>> def minimal_gated_unit(xp, x, h, W, R, v):
    ...     f = sigmoid(xp, W.f(x) + R.f(h) + v.f)
    ...     n = xp.tanh(W.n(x) + R.n(f * h) + v.n)
    ...     return h + f * (n - h)
    >>> cell = xpgrad.Cell(minimal_gated_unit, W="f n", R="f n", v="f n")
    >>> rng = np.random.default_rng(0)
    >>> X, W, R, v = (rng.normal(size=s) for s in [(7, 2, 3), (1, 10, 3), (1, 10, 5), (1, 10)])
    >>> out = cell(X, W, R, v, sequence_lens=[7, 4])
    >>> out.H_all.shape
    (7, 1, 2, 5)
    >>> outputs, pullback = xpgrad.vjp(cell, X, W, R, v)
    >>> pullback(grad_H_t=rng.normal(size=(1, 2, 5))).dR.shape
    (1, 10, 5)
    >>> cell.check()  # against the plain formula and central differences
    """

    def __init__(
        self,
        step: Callable[..., Any],
        *,
        W: Sequence[str] | str = (),
        R: Sequence[str] | str = (),
        v: Sequence[str] | str = (),
        inputs: Sequence[str] | str | Mapping[str, Sequence[str] | str] = (),
        heads: int = 1,
        name: str | None = None,
    ) -> None:
        if not callable(step):
            raise TypeError(f"Cell: step is a {type(step).__name__}, expected a function")
        self.step = step
        self.__name__ = getattr(step, "__name__", "cell") if name is None else name
        if self.__name__ == "<lambda>":
            raise ValueError("Cell: step is a lambda, expected a function by def, or its name as name=...")
        if not isinstance(self.__name__, str) or not self.__name__.isidentifier():
            raise ValueError(f"Cell: name is {self.__name__!r}, expected a Python name")
        given = {"W": W, "R": R, "v": v}
        self.blocks = {kind: block_names(self.__name__, kind, names) for kind, names in given.items()}
        self.inputs = input_blocks(self.__name__, inputs)
        self.heads = checked_heads(self.__name__, heads)
        if not self.blocks["W"] and not (self.inputs and (self.blocks["R"] or self.blocks["v"])):
            raise ValueError(
                f"{self.__name__}: W has no blocks, expected one or more, for the input, or inputs besides x "
                "and blocks of R or v"
            )
        self.states = states_of(self.__name__, step, self.inputs)
        if len({*map(capital, self.states)}) < len(self.states):
            raise ValueError(f"{self.__name__}: states are {', '.join(self.states)}, expected names apart")
        self.plans: tuple[ForwardPlan, BackwardPlan] = build(
            self.__name__, step, self.states, self.blocks, self.inputs, self.heads
        )
        """The stages of the step and of its pullback, for operators that consist of cells."""
        own = self._arrays = CellArrays(self.__name__, self.states, self.blocks, self.inputs, self.plans[0])
        self.carried = own.carried
        self.outputs: tuple[str, ...] = tuple(own.result._fields)
        """The names of a call's results."""
        self.cotangents: Mapping[str, str] = own.cotangents
        """The gradient's name for the cotangent of each output that has one."""
        self.saved: Mapping[str, int] = own.saved
        """The outputs that the gradient takes, with their widths: k for k * H columns, -k for k."""
        self.results: tuple[Any, Any] = own.result, own.gradients
        """The named tuples that a call and the gradient return."""
        self.__signature__ = own.signature
        self._forward = Operation(self.__name__, self._compute_forward, own.operands)
        gradient = Operation(
            f"{self.__name__}_grad", self._compute_backward, own.gradient_operands, own.arguments
        )
        self.grad = CellGradient(gradient, own.gradient_signature)

    def __repr__(self) -> str:
        blocks = ", ".join(f"{kind}={' '.join(own)!r}" for kind, own in self.blocks.items() if own)
        more = f", inputs={' '.join(self.inputs)!r}" if self.inputs else ""
        more += f", heads={self.heads}" if self.heads > 1 else ""
        return f"Cell({self.__name__}, {blocks}{more})"

    def __reduce__(self) -> Any:
        options: dict[str, Any] = {"inputs": self.inputs, "heads": self.heads, "name": self.__name__}
        return functools.partial(Cell, self.step, **(self.blocks | options)), ()

    def __copy__(self) -> Cell:
        return self

    def __deepcopy__(self, memo: Any) -> Cell:
        return self

    @property
    def text(self) -> str:
        """The generated formulas of the step, as Python text."""
        return "\n".join(stage.text for stage in (*self.plans[0].stages, *self.plans[1].stages))

    @functools.cached_property
    def digest(self) -> str:
        """A hash of the cell's formulas, products, blocks and states, the same in every process."""
        plans = [plan._asdict() | {"stages": [stage[1:] for stage in plan.stages]} for plan in self.plans]
        about = self.text, plans, self.blocks, self.states, self.inputs, self.heads
        return hashlib.sha256(repr(about).encode()).hexdigest()[:16]

    takes_foreign = True  # see `run_foreign`

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the cell over sequences; for the arguments see `Cell`."""
        return planned_call(self._forward, bound(self.__name__, self.__signature__, args, kwargs))

    def _compute_forward(self, asked: Asked, **attributes: Any) -> Any:
        return self._arrays.result(**self.run_forward(asked, _SAME, **attributes))

    def run_forward(self, asked: Asked, names: Mapping[str, str], **attributes: Any) -> dict[str, Any]:
        """The outputs by name, for operators of one cell; `names` are their names for W, R and v."""
        return forward_results(self._call(asked, names, **attributes), lambda call, d: self.plans[0])

    def _call(self, asked: Asked, names: Mapping[str, str], **attributes: Any) -> CellCall:
        """A checked call."""
        counts, inputs = ({name: len(own) for name, own in x.items()} for x in (self.blocks, self.inputs))
        initial = self._arrays.initial
        return CellCall(
            asked, counts, names=names, states=initial, inputs=inputs, heads=self.heads, **attributes
        )

    def _compute_backward(self, asked: Asked, **attributes: Any) -> Any:
        return self._arrays.gradients(*self.run_backward(asked, _SAME, **attributes).values())

    def run_backward(
        self, asked: Asked, names: Mapping[str, str], *, per_sample: bool | str, wanted: frozenset[str],
        **attributes: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """The wanted gradients by the cell's names of arguments; for `names` see `run_forward`."""
        own, plan = self._arrays, self.plans[1]
        call = self._call(
            asked, names, saved=own.saved, cotangents=own.ends, columns=plan.cotangents,
            over_time=[name for name in own.cotangents.values() if name not in own.ends], **attributes,
        )  # fmt: skip
        return gradient_results(call, lambda call, d: plan, own.arguments, wanted, per_sample)

    def check(self, *, seed: int = 0) -> None:
        """Check the cell on small random arrays: against the plain formula, and against central differences.

        Parameters
        ----------
        seed : int
            The seed of the numbers.

        Raises
        ------
        AssertionError
            At the first wrong result: if you wrote pullbacks, one may be wrong. A kink of the formula
            near a number has the same effect: try another seed.
        """
        from xpgrad._testing.cells import check_cell

        check_cell(self, seed=seed)


# --- what steps call ---------------------------------------------------------------------------------


def with_pullback(pullback: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give an elementwise function of a step your own pullback.

    Parameters
    ----------
    pullback : callable
        ``pullback(xp, *cotangents, *operands, *results)``, a formula too, returns a cotangent for each
        operand, several as a tuple; 0 stands for none. The cotangent of a result that nothing uses is the
        number 0.

    Returns
    -------
    callable
        A decorator for ``function(xp, *operands)``, which returns one value or a tuple of them.

    Notes
    -----
    The gradient saves the results that the pullback uses, and computes the operands from saved values. So
    a pullback that uses only results costs least.

    Examples
    --------
    >>> from xpgrad.cells import with_pullback
    >>> def straight_through(xp, d, x, y):
    ...     return d
    >>> @with_pullback(straight_through)
    ... def sign(xp, x):
    ...     return xp.where(x > 0, 1.0, xp.where(x < 0, -1.0, 0.0))
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(xp: Any, *operands: Any) -> Any:
            if isinstance(xp, StepTape):
                return xp.ruled(function, pullback, operands)
            if isinstance(xp, Refusing):
                raise TypeError(
                    f"{function.__name__}: xp is a value of a step, expected the step's xp in front: "
                    f"{function.__name__}(xp, value)"
                )
            return function(xp, *operands)

        return run

    return decorate


def activation_step(name: str, activation: BoundActivation, clip: float | None) -> Callable[[Any, Any], Any]:
    """An activation after `clip`. Its pullback takes the input if the output does not determine the slope."""
    by_input = clip is not None or activation.needs_input

    def pullback(xp: Any, d: Any, x: Any, y: Any) -> Any:
        return activate_pullback(xp, activation, d, x if by_input else y, y, clip)

    def function(xp: Any, x: Any) -> Any:
        """An activation of a value, for steps; `xpgrad.cells.activation` makes others."""
        return activate(xp, activation, x, clip)

    function.__name__ = name
    return with_pullback(pullback)(function)


def activation(name: str, alpha: float | None = None, beta: float | None = None) -> Callable[[Any, Any], Any]:
    """One of ONNX's activation functions for recurrent operators, for steps.

    Parameters
    ----------
    name : str
        ONNX's name, such as ``"Sigmoid"``, ``"Tanh"``, ``"Relu"``, ``"Softsign"``, ``"HardSigmoid"``.
    alpha, beta : float, optional
        Its parameters, by default ONNX's.

    Returns
    -------
    callable
        ``function(xp, x)``. Its gradient needs only the result if that determines the slope.

    Raises
    ------
    ValueError
        For a name that ONNX does not have, or a parameter that the function does not have.

    Examples
    --------
    >>> from xpgrad.cells import activation
    >>> hard_sigmoid = activation("HardSigmoid", alpha=0.25)
    """
    found = ONNX_ACTIVATIONS.get(name.lower()) if isinstance(name, str) else None
    if found is None:
        known = ", ".join(one.name for one in ONNX_ACTIVATIONS.values())
        raise ValueError(f"activation: name is {name!r}, expected one of {known}")
    numbers = []
    for label, given, default in (("alpha", alpha, found.alpha), ("beta", beta, found.beta)):
        if default is None and given is not None:
            raise ValueError(f"activation: {label} is {given!r}, expected None: {found.name} has no {label}")
        value = default if given is None else check_number("activation", label, given)
        numbers.append(0.0 if value is None else value)
    return activation_step(found.name.lower(), found.bind(*numbers), None)


sigmoid = activation("Sigmoid")


def mean(xp: Any, x: Any) -> Any:
    """The mean of a value over its row, for steps: one number for each sequence.

    Parameters
    ----------
    xp : namespace
        The step's `xp`.
    x : value
        The value; for several blocks, their sum divided by their number.

    Returns
    -------
    value
        One number for each row; it broadcasts over the columns.

    Examples
    --------
    >>> from xpgrad.cells import mean
    >>> def centered(xp, x):
    ...     return x - mean(xp, x)
    """
    if isinstance(xp, StepTape):
        return xp.mean(x)
    return xp.mean(x, axis=-1, keepdims=True)


def layer_norm(xp: Any, values: Sequence[Any], epsilon: float = 1e-5) -> tuple[Any, ...]:
    r"""Values of one row normalized together, for steps: less their mean, over their deviation.

    .. math:: \hat z = (z - \mu) / \sqrt{\sigma^2 + \epsilon}

    Parameters
    ----------
    xp : namespace
        The step's `xp`.
    values : sequence of value
        The blocks that share a mean and a (biased) variance. The step scales and shifts the results:
        ``v.scale * normal + v.shift``.
    epsilon : float
        A small number that is added to the variance.

    Returns
    -------
    tuple of value
        The normalized blocks.

    Notes
    -----
    Ba, Kiros, Hinton, "Layer normalization" (2016). The pullback, with means over all blocks, is
    :math:`(d - \overline{d} - \hat z\, \overline{d \hat z}) / \sqrt{\sigma^2 + \epsilon}`.

    Examples
    --------
    >>> import xpgrad
    >>> from xpgrad.cells import layer_norm
    >>> def normalized(xp, x, h, W, R, v):
    ...     (z,) = layer_norm(xp, [R.z(h)])
    ...     return xp.tanh(W.z(x) + v.scale * z + v.shift)
    >>> xpgrad.Cell(normalized, W="z", R="z", v="scale shift").check()
    """
    if not is_list(values):
        raise TypeError(
            f"layer_norm: values is a {type(values).__name__}, expected a list of values, also of one: "
            "layer_norm(xp, [value])"
        )

    def total(xp: Any, terms: Sequence[Any]) -> Any:
        """The mean over the row and all blocks."""
        return mean(xp, functools.reduce(lambda a, b: a + b, terms)) / len(values)

    def pullback(xp: Any, *given: Any) -> tuple[Any, ...]:
        count = len(values)
        ds, normal, inverse = given[:count], given[2 * count + 1 : 3 * count + 1], given[-1]
        along = total(xp, ds), total(xp, [d * z for d, z in zip(ds, normal, strict=True)])
        return tuple(inverse * (d - along[0] - z * along[1]) for d, z in zip(ds, normal, strict=True))

    @with_pullback(pullback)
    def normalize(xp: Any, *blocks: Any) -> tuple[Any, ...]:
        center = total(xp, blocks)
        centered = [z - center for z in blocks]
        inverse = 1 / xp.sqrt(total(xp, [z * z for z in centered]) + epsilon)
        return (*(z * inverse for z in centered), inverse)

    return normalize(xp, *values)[:-1]
