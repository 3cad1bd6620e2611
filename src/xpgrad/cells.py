r"""Recurrent cells of one's own: the formula of a step becomes a compiled forward and its gradient.

A step is written as the mathematics has it, with ``W.name(x)`` for a block of the input's weights times the
input, ``R.name(h)`` for a block of the recurrence weights times a state (or any other value of the step), and
``v.name`` for a vector of parameters::

    def minimal_gated_unit(xp, x, h, W, R, v):
        f = sigmoid(xp, W.f(x) + R.f(h) + v.f)
        n = xp.tanh(W.n(x) + R.n(f * h) + v.n)
        return h + f * (n - h)

    cell = xpgrad.Cell(minimal_gated_unit, W="f n", R="f n", v="f n")

The formula is run once, on values that stand for arrays. What it did is a graph; reverse mode over the graph
is the gradient. Both become stages of the same time loop that `lstm` and `gru` use: W x is one product before
the loop, each step is compiled, every weight's gradient is one product after the loop, and lengths,
directions, half precision, per-sample gradients and programs are the same as theirs.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from xpgrad._calls.operation import PLAIN, Operation, planned_call
from xpgrad._calls.plans import Asked
from xpgrad._cells.build import BackwardPlan, ForwardPlan, build
from xpgrad._cells.kernel import PARAMETERS, CellCall, backward_direction, capital, forward_direction
from xpgrad._cells.misuse import Refusing
from xpgrad._cells.trace import StepTape, states_of
from xpgrad._elementwise.activation_formulas import (
    ONNX_ACTIVATIONS,
    BoundActivation,
    activate,
    activate_pullback,
)
from xpgrad._operators.arguments import check_integer, check_number, is_list
from xpgrad._operators.axes import gradient_name
from xpgrad._operators.types import Array

__all__ = ["activation", "layer_norm", "mean", "sigmoid", "with_pullback"]


_SAME: Mapping[str, str] = MappingProxyType({})
_OPTIONS = ("direction", "layout", "reset", "per_sample", "sample_weight", "wrt")


def __dir__() -> list[str]:
    """The functions for a step, for completion: what the module needs of the package is none of them."""
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
        The names of inputs beside x, which the step gets as they are: time gaps, masks, attention,
        pre-activations from elsewhere. An input has H numbers at each step or one, (T, N, H) or (T, N, 1). A
        mapping gives each the names of its blocks: with ``{"gates": "i f"}`` the step has ``gates.i`` and
        ``gates.f`` of an array (T, N, 2H). None or "" stands for no blocks. With inputs, W may be left out.
    heads : int
        Into how many parts the states are cut. Each block of R is then block-diagonal: head j's rows of R
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
        The inputs beside x, and the names of their blocks, none where an input is one value.
    heads : int
        As given.
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
    states over time (T, D, N, H), final states (D, N, H). `saved` (T, D, N, k·H) are the values that the
    gradient needs beside the states; reverse mode chooses them. Row means are saved in one more
    output, `means`. Directions, lengths, layouts and resets are
    those of `lstm`. The gradient is::

        cell.grad(X, W, R, v, *, H_all, C_all, saved, grad_H_all=None, grad_C_all=None, grad_H_t=None,
                  grad_C_t=None, sequence_lens=None, initial_h=None, initial_c=None, direction="forward",
                  layout=0, reset=None, per_sample=False, sample_weight=None, wrt=None)
            -> (dX, dW, dR, dv, dH0, dC0)

    with the arguments of `lstm_grad`. A cell without W, R or v has no such argument. Inputs beside x are
    keyword arguments of both; their gradients come last. Without W, nothing but T and N is read of X.

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
        self.blocks = {kind: _block_names(self.__name__, kind, names) for kind, names in given.items()}
        self.inputs = _input_blocks(self.__name__, inputs)
        self.heads = _checked_heads(self.__name__, heads)
        if not self.blocks["W"] and not (self.inputs and (self.blocks["R"] or self.blocks["v"])):
            raise ValueError(
                f"{self.__name__}: W has no blocks, expected one or more, for the input, or inputs beside x "
                "and blocks of R or v"
            )
        self.states = states_of(self.__name__, step, self.inputs)
        capitals = [capital(state) for state in self.states]
        if len(set(capitals)) < len(capitals):
            raise ValueError(f"{self.__name__}: states are {', '.join(self.states)}, expected names apart")
        self._forward, self._backward = build(self.__name__, step, self.blocks, self.inputs, self.heads)
        self._counts = {kind: len(names) for kind, names in self.blocks.items()}
        self._input_counts = {name: len(own) for name, own in self.inputs.items()}
        self._parameters = tuple(kind for kind in PARAMETERS if self.blocks[kind])
        self.carried = tuple(self.states[k] for k in self._forward.read)
        self._initial = tuple(f"initial_{state}" for state in self.carried)
        over_time = tuple(f"{state}_all" for state in capitals)
        ends = tuple(f"{state}_t" for state in capitals)
        self._saved = dict.fromkeys(over_time, 1)
        if self._forward.saved is not None:
            self._saved["saved"] = self._forward.saved.blocks
        if self._forward.means:
            self._saved["means"] = -len(self._forward.means)  # of one column each
        kept = tuple(name for name in self._saved if name not in over_time)
        self._cotangents = {name: f"grad_{name}" for name in (*over_time, *ends)}
        self._ends = tuple(f"grad_{end}" for end in ends)
        self._operands = ("X", *self._parameters, "sequence_lens", *self._initial, *self.inputs)
        self._arguments = ("X", *self._parameters, *self._initial, *self.inputs)
        known = ("X", *PARAMETERS, "sequence_lens", *self._initial, *self._saved, *_OPTIONS)
        for own in self.inputs:
            if own in known or own in self._cotangents.values():
                raise ValueError(f"{self.__name__}: inputs has {own!r}, expected a name of no other argument")
        title = capital(self.__name__)
        self._result: Any = namedtuple(f"{title}Forward", (*over_time, *ends, *kept))  # type: ignore[misc]
        grads = map(gradient_name, self._arguments)
        self._gradients: Any = namedtuple(f"{title}Grads", grads)  # type: ignore[misc]
        self.__signature__ = _signature(
            ("X", *self._parameters), ("sequence_lens", *self._initial), tuple(self.inputs)
        )
        self.grad = _Gradient(
            self._run_backward,
            f"{self.__name__}_grad",
            _signature(
                ("X", *self._parameters), (), (*self.inputs, *self._saved),
                (*self._cotangents.values(), "sequence_lens", *self._initial), gradient=True,
            ),
        )  # fmt: skip

    def __repr__(self) -> str:
        blocks = ", ".join(f"{kind}={' '.join(self.blocks[kind])!r}" for kind in self._parameters)
        more = f", inputs={' '.join(self.inputs)!r}" if self.inputs else ""
        more += f", heads={self.heads}" if self.heads > 1 else ""
        return f"Cell({self.__name__}, {blocks}{more})"

    def __reduce__(self) -> Any:
        return _remade, (
            self.step,
            {**self.blocks, "inputs": self.inputs, "heads": self.heads},
            self.__name__,
        )

    def __copy__(self) -> Cell:
        return self

    def __deepcopy__(self, memo: Any) -> Cell:
        return self

    @property
    def text(self) -> str:
        """The generated formulas of the step, as Python text."""
        return "\n".join(stage.text for stage in (*self._forward.stages, *self._backward.stages))

    @property
    def plans(self) -> tuple[ForwardPlan, BackwardPlan]:
        """The stages of the step and of its pullback, for operators that are made of a cell."""
        return self._forward, self._backward

    @property
    def digest(self) -> str:
        """Hexadecimal digits that tell cells apart, by their formulas, products, blocks and states.

        They are the same in every process.
        """
        products = [([stage[1:] for stage in plan.stages], plan[1:]) for plan in self.plans]  # no functions
        about = self.text, products, self.blocks, self.states, self.inputs, self.heads
        return hashlib.sha256(repr(about).encode()).hexdigest()[:16]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what a call returns."""
        return tuple(self._result._fields)

    @property
    def cotangents(self) -> Mapping[str, str]:
        """Of each output that has a cotangent the gradient's name for it."""
        return self._cotangents

    @property
    def saved(self) -> Mapping[str, int]:
        """The outputs that the gradient takes, with their widths: k for k * H columns, -k for k."""
        return self._saved

    @property
    def results(self) -> tuple[Any, Any]:
        """The named tuples that a call and the gradient return."""
        return self._result, self._gradients

    takes_foreign = True  # see `run_foreign`

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the cell over sequences; for the arguments see `Cell`."""
        arguments = _bound(self.__name__, self.__signature__, args, kwargs)
        return planned_call(Operation(self.__name__, self._compute_forward, self._operands), arguments)

    def _compute_forward(self, asked: Asked, **attributes: Any) -> Any:
        """Check and compute, or record."""
        return self._result(**self.run_forward(asked, _SAME, **attributes))

    def run_forward(self, asked: Asked, names: Mapping[str, str], **attributes: Any) -> dict[str, Any]:
        """The outputs by name, for operators that are one cell, whose names for W, R and v are `names`."""
        call = CellCall(asked, self._counts, names=names, **self._own(), **attributes)
        with call.engine.quiet():
            parts = call.by_direction(lambda d: forward_direction(call, d, self._forward, self.states))
            over_time, ends, saved, means = (list(part) for part in zip(*parts, strict=True))
            results = [call.over_time(list(rows)) for rows in zip(*over_time, strict=True)]
            results += [call.states(list(rows)) for rows in zip(*ends, strict=True)]
            results += [call.over_time(rows) for rows in (saved, means) if rows[0] is not None]
            return dict(zip(self._result._fields, results, strict=True))

    def _own(self) -> dict[str, Any]:
        """What its calls have of the cell."""
        return {"states": self._initial, "inputs": self._input_counts, "heads": self.heads}

    def _run_backward(self, arguments: dict[str, Any]) -> Any:
        names = (*self._operands, *self._saved, *self._cotangents.values(), "sample_weight")
        gradient = Operation(self.grad.__name__, self._compute_backward, names, self._arguments)
        return planned_call(gradient, arguments)

    def _compute_backward(self, asked: Asked, **attributes: Any) -> Any:
        """Check and compute, or record."""
        found = self.run_backward(asked, _SAME, **attributes)
        return self._gradients(*(found.get(name) for name in self._arguments))

    def run_backward(
        self,
        asked: Asked,
        names: Mapping[str, str],
        *,
        per_sample: bool | str,
        wanted: frozenset[str],
        **attributes: Any,
    ) -> dict[str, Any]:
        """The wanted gradients by the cell's names of arguments; for `names` see `run_forward`."""
        over_time = [name for name in self._cotangents.values() if name not in self._ends]
        call = CellCall(
            asked, self._counts, over_time, self._backward.cotangents, names=names, **self._own(),
            saved=self._saved, cotangents=self._ends, **attributes,
        )  # fmt: skip
        with call.engine.quiet():
            found = call.gradients(
                lambda call, d: backward_direction(
                    call, d, self._forward, self._backward, self.states, wanted, per_sample
                ),
                self._arguments,
                per_sample=per_sample,
            )
            return dict(zip(self._arguments, found, strict=True))

    def check(self, *, seed: int = 0) -> None:
        """Check the cell on small random arrays: against the plain formula, and against central differences.

        Parameters
        ----------
        seed : int
            The seed of the numbers.

        Raises
        ------
        AssertionError
            At the first wrong result. With your own pullbacks that is where they are wrong;
            a kink of the formula nearby shows as one, too: try another seed.
        """
        from xpgrad._testing import check_cell

        check_cell(self, seed=seed)


def _remade(step: Callable[..., Any], blocks: Mapping[str, Any], name: str) -> Cell:
    return Cell(step, **blocks, name=name)


class _Gradient:
    """A cell's gradient."""

    takes_foreign = True

    def __init__(self, run: Callable[[dict[str, Any]], Any], name: str, signature: inspect.Signature) -> None:
        self._run, self.__name__, self.__signature__ = run, name, signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(_bound(self.__name__, self.__signature__, args, kwargs))

    def __repr__(self) -> str:
        return f"{self.__name__}{_without_types(self.__signature__)}"


def _block_names(operator: str, kind: str, names: Any) -> tuple[str, ...]:
    if isinstance(names, str):
        names = names.split()
    if not is_list(names):
        raise TypeError(f"{operator}: {kind} is a {type(names).__name__}, expected names of its blocks")
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            raise ValueError(f"{operator}: {kind} has {name!r}, expected a Python name without _ in front")
    if len(set(names)) < len(names):
        raise ValueError(f"{operator}: {kind} has {', '.join(names)}, expected names apart")
    return tuple(names)


def _input_blocks(operator: str, inputs: Any) -> dict[str, tuple[str, ...]]:
    """Of each input beside x the names of its blocks, none where it is one value."""
    if not isinstance(inputs, Mapping):
        return dict.fromkeys(_block_names(operator, "inputs", inputs), ())
    _block_names(operator, "inputs", list(inputs))
    return {name: _block_names(operator, name, own or ()) for name, own in inputs.items()}


def _checked_heads(operator: str, heads: Any) -> int:
    number = check_integer(operator, "heads", heads)
    if number < 1:
        raise ValueError(f"{operator}: heads is {number}, expected a number from 1 on")
    return number


def _signature(
    positional: Sequence[str],
    optional: Sequence[str],
    needed: Sequence[str] = (),
    keywords: Sequence[str] = (),
    gradient: bool = False,
) -> inspect.Signature:
    """Of a cell or of its gradient, with annotations as the package's own operators have them."""
    kinds = inspect.Parameter
    anywhere, by_name = kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY
    found = [kinds(name, anywhere, annotation=Array) for name in positional]
    found += [kinds(name, anywhere, default=None, annotation=Array) for name in optional]
    found += [kinds(name, by_name, annotation=Array) for name in needed]
    found += [kinds(name, by_name, default=None, annotation=Array) for name in keywords]
    found.append(kinds("direction", by_name, default="forward", annotation="str"))
    found.append(kinds("layout", by_name, default=0, annotation="int"))
    found.append(kinds("reset", by_name, default=None, annotation=Array))
    if gradient:
        found.append(kinds("per_sample", by_name, default=False, annotation="bool | str"))
        found.append(kinds("sample_weight", by_name, default=None, annotation=Array))
        found.append(kinds("wrt", by_name, default=None, annotation="Iterable[str] | None"))
    return inspect.Signature(found)


def _without_types(signature: inspect.Signature) -> inspect.Signature:
    """For messages: names and defaults."""
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return signature.replace(parameters=parameters)


def _bound(operator: str, signature: inspect.Signature, args: Any, kwargs: Any) -> dict[str, Any]:
    foreign = kwargs.pop("_foreign", PLAIN)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{operator}: {error}, expected {_without_types(signature)}") from None
    bound.apply_defaults()
    return {**bound.arguments, "_foreign": foreign}


# --- what steps call ---------------------------------------------------------------------------------


def with_pullback(pullback: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give an elementwise function of a step your own pullback.

    Parameters
    ----------
    pullback : callable
        ``pullback(xp, *cotangents, *operands, *results)`` returns a cotangent for each operand, several
        as a tuple; 0 stands for none. It is a formula too. Each result has a cotangent; if nothing uses
        the result, this is the number 0.

    Returns
    -------
    callable
        A decorator for ``function(xp, *operands)``, which returns one value or a tuple of them.

    Notes
    -----
    The gradient saves the results that the pullback uses, and computes the operands from saved values. So
    a pullback that uses only results is the cheapest.

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
    """An activation after `clip`. Its pullback takes the input if the output does not give the slope."""
    by_input = clip is not None or activation.needs_input

    def pullback(xp: Any, d: Any, x: Any, y: Any) -> Any:
        return activate_pullback(xp, activation, d, x if by_input else y, y, clip)

    def function(xp: Any, x: Any) -> Any:
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
        Its parameters; ONNX's defaults where left out.

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
        What the step was given.
    x : value
        The value; for several blocks, their sum divided by how many they are.

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
        What the step was given.
    values : sequence of value
        The blocks that have one mean and one variance (the biased one). Their scales and shifts are the
        step's own: ``v.scale * normal + v.shift``.
    epsilon : float
        A small number that is added to the variance.

    Returns
    -------
    tuple of value
        As many.

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
