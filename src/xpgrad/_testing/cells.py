"""A user's cell: its plain formula one step at a time, and its check."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from xpgrad._testing.comparing import assert_close
from xpgrad._testing.differences import check_vjp
from xpgrad._testing.sequences import each_step, lengths_of

if TYPE_CHECKING:
    from xpgrad._operators.units import Unit
    from xpgrad.cells import Cell

Array = Any


class _Blocks:
    """W, R, v or an input in a step: an attribute for each block, as a product or as the array.

    A block of R has rows for each head. They multiply the head's part of a value.
    """

    def __init__(self, array: Array, names: Sequence[str], multiplies: bool, heads: int = 1) -> None:
        height = array.shape[0] // len(names)
        for k, name in enumerate(names):
            block = array[k * height : (k + 1) * height, ...]
            setattr(self, name, _product_with(block, heads) if multiplies else block)


def _product_with(block: Array, heads: int) -> Callable[[Array], Array]:
    def product(x: Array) -> Array:
        xp, width, height = array_namespace(x), x.shape[0] // heads, block.shape[0] // heads
        parts = [
            xp.matmul(block[k * height : (k + 1) * height, :], x[k * width : (k + 1) * width])
            for k in range(heads)
        ]
        return parts[0] if heads == 1 else xp.concat(parts, axis=0)

    return product


class _OfHeads:
    """The namespace of a step with several heads: `mean` is taken within each head."""

    def __init__(self, xp: Any, heads: int) -> None:
        self._xp, self._heads = xp, heads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._xp, name)

    def mean(self, x: Array, axis: int = -1, keepdims: bool = True) -> Array:
        """The mean of each column's head."""
        xp, width = self._xp, x.shape[0] // self._heads
        parts = [x[k * width : (k + 1) * width] for k in range(self._heads)]
        return xp.concat([xp.zeros_like(part) + xp.mean(part) for part in parts], axis=0)


def cell_reference(
    cell: Cell,
    X: Array,
    W: Array | None,
    R: Array | None = None,
    v: Array | None = None,
    sequence_lens: Array | None = None,
    initial: Mapping[str, Array] | None = None,
    *,
    direction: str = "forward",
    **inputs: Array,
) -> tuple[Array, ...]:
    r"""Naive `xpgrad.Cell`: the user's step, one sample and one step at a time.

    The function uses the step's own operations and writes nothing in place. With torch tensors that require
    gradients, PyTorch's autograd differentiates it. It does not use the pullbacks that the step gives.

    Parameters
    ----------
    cell : Cell
        The cell.
    X, W, R, v, sequence_lens : array
        As the cell takes them. They are taken to be valid.
    initial : mapping of str to array, optional
        Initial states (D, N, H) by the states' names; zeros by default.
    direction : {"forward", "reverse", "bidirectional"}
        The direction of time.
    **inputs : array
        The inputs other than X, by name.

    Returns
    -------
    tuple of array
        Each state over time (T, D, N, H), then each final state (D, N, H).

    Examples
    --------
    >>> import numpy as np
    >>> import xpgrad
    >>> from xpgrad.testing import cell_reference
    >>> def elman(xp, x, h, W, R):
    ...     return xp.tanh(W.z(x) + R.z(h))
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = rng.normal(size=(5, 2, 3)), rng.normal(size=(1, 4, 3)), rng.normal(size=(1, 4, 4))
    >>> H_all, H_t = cell_reference(xpgrad.Cell(elman, W="z", R="z"), X, W, R)
    >>> H_all.shape
    (5, 1, 2, 4)
    """
    weights = {"W": W, "R": R, "v": v}
    return _over_sequences(cell, weights, X, sequence_lens, initial or {}, direction, inputs)


class _CellFormula(NamedTuple):
    """A cell for `_over_sequences`: the formula of a step, and the names of its states, blocks and inputs."""

    step: Callable[..., Any]
    states: Sequence[str]
    blocks: Mapping[str, Sequence[str]]
    inputs: Mapping[str, Sequence[str]]
    heads: int


def _over_sequences(
    cell: Cell | _CellFormula,
    weights: Mapping[str, Array | None],
    X: Array,
    sequence_lens: Array | None,
    initial: Mapping[str, Array],
    direction: str,
    inputs: Mapping[str, Array],
) -> tuple[Array, ...]:
    """Each state over time, then each final state."""
    given: dict[str, Any] = {kind: array for kind, array in weights.items() if cell.blocks.get(kind)}
    kind, parameter = next(iter(given.items()))
    xp, (T, N, _), D = array_namespace(X), X.shape, parameter.shape[0]
    H = parameter.shape[1] // len(cell.blocks[kind])
    own_xp = xp if cell.heads == 1 else _OfHeads(xp, cell.heads)
    zeros = xp.zeros((H,), dtype=X.dtype, device=device(X))

    def begin(d: int, n: int) -> tuple[Array, ...]:
        return tuple(initial[name][d, n, :] if name in initial else zeros for name in cell.states)

    def visit(t: int, d: int, n: int, states: tuple[Array, ...]) -> tuple[Array, ...]:
        taken = {
            kind: _Blocks(array[d, ...], cell.blocks[kind], kind != "v", cell.heads if kind == "R" else 1)
            for kind, array in given.items()
        }
        others = {
            name: _Blocks(inputs[name][t, n, :], names, False) if names else inputs[name][t, n, :] + zeros
            for name, names in cell.inputs.items()
        }
        named = dict(zip(cell.states, states, strict=True))
        after = cell.step(own_xp, X[t, n, :], **named, **taken, **others)
        return tuple(zeros + state for state in (after if isinstance(after, tuple | list) else (after,)))

    padding = [zeros] * len(cell.states)
    over_time, ends = each_step(visit, begin, padding, T, lengths_of(sequence_lens, T, N), D, direction)
    return (*over_time, *ends)


def unit_reference(unit: Unit, formula: Callable[..., Any]) -> Callable[..., tuple[Array, ...]]:
    """The naive form of a declared operator, from the definition of its step.

    Parameters
    ----------
    unit : Unit
        The operator.
    formula : callable
        The step as `xpgrad.Cell` takes it; its blocks have the gates' names. v holds the biases, zeros if B
        is None: ``v.z`` for the gate z, or ``v.wz`` and ``v.rz`` for an operator with two. The step gets the
        operator's own attributes by name.

    Returns
    -------
    callable
        A function of the operator's arguments by name, in layout 0. It returns the outputs that have a
        cotangent.
    """
    gates, states = unit.gates.split(), list(unit.states)
    biases = gates if unit.biases == 1 else [f"{side}{gate}" for side in "wr" for gate in gates]
    blocks = {"W": gates, "R": gates, "v": biases}

    def run(
        X: Array,
        W: Array,
        R: Array,
        B: Array | None = None,
        sequence_lens: Array | None = None,
        direction: str = "forward",
        heads: int = 1,
        **others: Any,
    ) -> tuple[Array, ...]:
        given = {name: others.pop(name, None) for name in unit.initial}
        initial = {
            name: array for name, array in zip(states, given.values(), strict=True) if array is not None
        }
        inputs = {name: others.pop(name) for name in unit.inputs}
        if B is None:
            xp, rows = array_namespace(W), W.shape[1] // len(gates) * len(biases)
            B = xp.zeros((W.shape[0], rows), dtype=W.dtype, device=device(W))
        step = _CellFormula(
            functools.partial(formula, **others), states, blocks, dict.fromkeys(inputs, ()), heads
        )
        weights = {"W": W, "R": R, "v": B}
        first, *rest = _over_sequences(step, weights, X, sequence_lens, initial, direction, inputs)
        return first, *rest[len(states) - 1 :], *rest[: len(states) - 1]

    return run


def check_cell(cell: Cell, *, seed: int = 0) -> None:
    """Check a cell on small random arrays, against its plain formula and central differences.

    Parameters
    ----------
    cell : Cell
        The cell.
    seed : int
        The seed of the numbers.

    Raises
    ------
    AssertionError
        At the first wrong result.

    Examples
    --------
    >>> import xpgrad
    >>> from xpgrad.testing import check_cell
    >>> check_cell(xpgrad.Cell(lambda xp, x, h, W, R: xp.tanh(W.z(x) + R.z(h)), W="z", R="z", name="elman"))
    """
    rng = np.random.default_rng(seed)
    # layer normalization of two numbers is nearly a step function, of which differences are wrong
    T, N, inputs, H = 3, 2, 3, 3 * cell.heads if cell.heads > 1 else 4
    counts = {kind: len(names) for kind, names in cell.blocks.items() if names}
    for direction, lengths in (("forward", None), ("reverse", [2, 3]), ("bidirectional", [3, 1])):
        D = 2 if direction == "bidirectional" else 1
        tails = {"W": (inputs,), "R": (H // cell.heads,), "v": ()}
        arguments = {"X": rng.standard_normal((T, N, inputs))}
        for kind, count in counts.items():
            arguments[kind] = 0.7 * rng.standard_normal((D, count * H, *tails[kind]))
        for number, (name, blocks) in enumerate(cell.inputs.items()):
            # an input without blocks has the width 1 in one call and H in another
            width = 1 if not blocks and (number + D) % 2 else max(1, len(blocks)) * H
            arguments[name] = rng.standard_normal((T, N, width))
        arguments |= {f"initial_{name}": rng.standard_normal((D, N, H)) for name in cell.carried}
        options: dict[str, Any] = {"direction": direction, "sequence_lens": lengths}
        _check_cell_call(cell, arguments, options)


def _check_cell_call(cell: Cell, arguments: dict[str, np.ndarray], options: dict[str, Any]) -> None:
    differentiable = list(cell.cotangents)

    def forward(**arrays: Array) -> tuple[Array, ...]:
        out = cell(**arrays, **options)
        return tuple(getattr(out, name) for name in differentiable)

    def gradient(*cotangents: Array, **arrays: Array) -> Any:
        out = cell(**arrays, **options)
        saved = {name: getattr(out, name) for name in cell.saved}
        named = dict(zip(cell.cotangents.values(), cotangents, strict=True))
        return tuple(cell.grad(**arrays, **saved, **named, **options))

    initial = {name: arguments[f"initial_{name}"] for name in cell.carried}
    plain = cell_reference(
        cell, arguments["X"], arguments.get("W"), arguments.get("R"), arguments.get("v"),
        options["sequence_lens"], initial, direction=options["direction"],
        **{name: arguments[name] for name in cell.inputs},
    )  # fmt: skip
    for name, actual, desired in zip(differentiable, forward(**arguments), plain, strict=True):
        assert_close(actual, desired, label=f"{cell.__name__}: {name}")
    check_vjp(forward, gradient, arguments, operator=cell.__name__, outputs=differentiable)
