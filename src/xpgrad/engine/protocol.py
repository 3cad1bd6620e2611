"""The interface of an engine: everything that the package asks of the machine beyond the array API.

Recurrent kernels use `TimeLoops`; a recorder has the same interface, and records instead of computing.
`Engine` adds the methods for all other kernels, including `Images`. A method's body is the standard engine's:
it defines what the method means. All other engines are subclasses of `StandardEngine`. `Adapter` is the
engine of one framework's arrays: it says which arrays it takes, and may have shorter ways for some calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np

from xpgrad.engine.formulas.formula import Elementwise, Formula, Product
from xpgrad.engine.formulas.row_formula import RowFormula
from xpgrad.engine.images.methods import Images
from xpgrad.engine.process.team import Host
from xpgrad.engine.programs.program import Look

Array = Any
"""An array of the engine's namespace, or its placeholder while a program is recorded."""
Rows = Any
"""A row buffer: kernels read it through operands of stages, and through `array`."""


class TimeLoops(Protocol):
    """The interface for recurrent kernels: row buffers, products of whole arrays, and loops over time."""

    xp: Any
    """The namespace of the engine's arrays."""

    def quiet(self) -> AbstractContextManager[Any]:
        """Context in which inf and NaN propagate without NumPy's warnings."""
        return np.errstate(all="ignore")

    def lane(self, number: int) -> AbstractContextManager[Any]:
        """Context of work that does not depend on the work of other lanes."""
        return nullcontext()

    def lower(self, array: Array) -> Any:
        """The caller's array for one of the engine's."""
        return array

    # --- row buffers

    def wrap(self, array: Array) -> Rows:
        """The rows of an array (rows, width), for reading."""

    def rows(self, count: int, width: int, like: Array) -> Rows:
        """New rows; steps write each row once, before it is read."""

    def scratch(self, count: int, width: int, like: Array) -> Rows:
        """New rows that are not part of a result."""
        return self.rows(count, width, like)

    def product_rows(self, a: Array, b: Array) -> Rows:
        """The rows of a matrix product; steps read and replace them."""
        return self.wrap(self.xp.matmul(a, b))

    def carry(self, array: Array) -> Rows:
        """A copy of an array's rows; every step may read and replace the first rows."""

    def columns(self, rows: Rows, start: int, stop: int) -> Rows:
        """Some columns of a row buffer, as a source of products."""

    def array(self, rows: Rows) -> Array:
        """All rows of a buffer in order, as one array."""

    # --- products, sums, loops

    def loop_weight(self, weight: Array, times: int) -> Any:
        """A weight in the form for `Product`, for so many products of a time loop."""
        return weight

    def matmul(self, a: Array, b: Array) -> Array:
        """Matrix product."""
        return self.xp.matmul(a, b)

    def write_product(self, a: Array, b: Array, target: Rows, first: Any) -> None:
        """Matrix product, into `target`'s rows from `first` on."""
        target.write(first, self.xp.matmul(a, b))

    def add_product(self, total: Array | None, a: Array, b: Array) -> Array:
        """Matrix product, added to a total; at first the total is None."""
        product = self.xp.matmul(a, b)
        return product if total is None else total + product

    def chunk(self, width: int, like: Array) -> int | None:
        """The number of rows of this width that a backward loop finishes at a time; None for all."""
        return None

    def column_sums(self, array: Array) -> Array:
        """The sum over the rows."""
        return self.xp.sum(array, axis=0)

    def column_dots(self, a: Array, b: Array) -> Array:
        """The sum over the rows of a b."""
        return self.xp.sum(a * b, axis=0)

    def scale(self, array: Array, factors: Array) -> Array:
        """The rows of an array times their factors (rows, 1); the array is not needed afterwards."""
        return array * factors

    def broadcast(self, array: Array, shape: tuple[int, ...]) -> Array:
        """The array broadcast to a larger shape, for reading."""
        return self.xp.broadcast_to(array, shape)

    def roots(self, squares: Array) -> Array:
        """Square roots of sums of squares; sums that rounding made negative give 0."""
        return self.xp.sqrt(self.xp.where(squares < 0, squares - squares, squares))

    def scan(self, stages: Sequence[Elementwise | Product], steps: Any) -> None:
        """Run a time loop: all stages in order for each step, a Span as a row of integers."""

    def elementwise(self, formula: Formula, inputs: Sequence[Any], numbers: Sequence[float] = ()) -> Array:
        """The single result of a formula, of the shape of its inputs; see `Engine.elementwise`."""
        (result,) = formula(self.xp, *inputs, **dict(zip(formula.parameters, numbers, strict=True)))
        return result


class Engine(TimeLoops, Images, Protocol):
    """The interface for all kernels; `Images` has the methods for convolutions."""

    name: str
    counts_steps: bool = True
    """Whether T and N are numbers; if not, `scan` gets its steps as `_recurrent.timeline.UncountedSteps`."""

    def lift(self, array: Any) -> Array:
        """The engine's array for one of the caller's."""
        return array

    def target(self, out: Any, shape: tuple[int, ...]) -> Array | None:
        """The caller's `out`, lifted and in this shape, if results can be written to it; else None."""
        return None

    def pack(self, weight: Array) -> Array:
        """An array in the fastest form for repeated products."""
        return weight

    def agrees(self, arrays: Sequence[Any]) -> bool:
        """Whether the arrays are certainly this engine's, of one shape and of one dtype that it computes."""
        return False

    def elementwise(
        self, formula: Formula, inputs: Sequence[Any], numbers: Sequence[float] = (), out: Any = None
    ) -> Array:
        """The single result of a formula, of the broadcast shape of its inputs.

        Parameters
        ----------
        formula : Formula
            The formula.
        inputs : sequence of array or None
            Its operands.
        numbers : sequence of float
            Values of the formula's parameters.
        out : array, optional
            Array for the result; it may be an input.
        """
        with self.quiet():
            named = dict(zip(formula.parameters, numbers, strict=True))
            (result,) = formula(self.xp, *_of_one_rank(self.xp, inputs), **named)
            if not hasattr(result, "__setitem__"):  # NumPy's operators return scalars for arrays without axes
                result = self.xp.asarray(result)
            return _written(result, out)

    def over_rows(
        self, formula: RowFormula, operands: Sequence[Any], numbers: Sequence[float] = (), out: Any = None
    ) -> tuple:
        """The outputs of a row formula.

        Parameters
        ----------
        formula : RowFormula
            The formula. A row runs along the second of three axes.
        operands : sequence of array or None
            Its operands, in the order of ``formula.operands``: shape (A, n, B) for an element per row and
            column, (A, 1, B) for a number per row, (1, n, 1) for a number per column. n is at least 1.
        numbers : sequence of float
            Values of the formula's parameters.
        out : array, shape (A, n, B), optional
            Array for the output of this shape; it may be an operand.
        """
        with self.quiet():
            results = formula.evaluate(self.xp, operands, numbers)
            if formula.each_output is not None:
                number = formula.outputs.index(formula.each_output)
                results[number] = _written(results[number], out)
        return tuple(results)


class Adapter(Engine, Protocol):
    """The engine for the arrays of one framework.

    An entry point of the group ``xpgrad.engines`` has the name of the framework's module, which is also the
    engine's name. It names a class that is called without arguments. The first array of the framework loads
    the class. The methods here have no quick ways, no programs and no traces.
    """

    array_types: tuple[type, ...] = ()
    """Exact types of the arrays that the quick ways below may take."""
    host: Host | None = None
    """The engine itself, if the whole process uses the framework's threads."""
    traces_resets: bool = True
    """Whether resets, or lengths beside resets, may be traced."""

    def takes(self, xp: Any, arrays: Sequence[Any]) -> bool:
        """Whether this engine computes with these arrays; otherwise the standard engine does."""
        return xp is self.xp

    def standard(self, xp: Any) -> Engine | None:
        """The framework's own standard engine for arrays of the namespace, or None."""
        return None

    def describe(self) -> str:
        """How the engine works here, in a line."""
        return f"{self.name} arrays: {type(self).__name__}"

    # --- arrays without values

    def is_traced(self, array: Any) -> bool:
        """Whether an array of the framework has no values, because the framework traces its operations."""
        return False

    def traced_call(self, operator: str, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        """A recurrent operator's results for traced arrays, as one step of the trace, or None.

        `arrays` and `options` are the arguments of `_calls.plans.planned`.
        """
        return None

    def traced_kernel(
        self, operator: str, arrays: Mapping[str, Any], options: Mapping[str, Any],
        kernel: Callable[[Mapping[str, Any]], Any],
    ) -> Any:  # fmt: skip
        """Like `traced_call`; `kernel`, a `_calls.plans.TracedKernel`, computes the call for other arrays."""
        return self.traced_call(operator, arrays, options)

    # --- quick ways, for arrays of `array_types`

    def quick_elementwise(
        self, formula: Formula, arrays: Sequence[Any], numbers: Sequence[float], out: Any = None
    ) -> Any:
        """The result of a formula for the caller's arrays; they and `out` agree (see `Engine.agrees`).

        None if there is an `out` and no quick way.
        """
        if out is not None:
            return None
        return self.lower(self.elementwise(formula, [self.lift(array) for array in arrays], numbers))

    def quick_rows(self, formula: RowFormula, arrays: Sequence[Any], axis: int) -> Any:
        """The single output along an axis, for arrays that agree; None without a quick way."""
        return None

    def look(self, arrays: Collection[Any]) -> Look | None:
        """The facts of a call's arrays that select its program; None if the call has no program."""
        return None

    def integers(self, array: Any) -> np.ndarray | None:
        """An integer array of one or two axes as contiguous 64-bit integers; None for other arrays."""
        return None


def _of_one_rank(xp: Any, arrays: Sequence[Any]) -> list[Any]:
    """Return arrays with as many axes as the one with most: JAX may be told not to add axes itself."""
    rank = max(array.ndim for array in arrays if array is not None)
    return [
        array
        if array is None or array.ndim in (0, rank)
        else xp.reshape(array, (1,) * (rank - array.ndim) + array.shape)
        for array in arrays
    ]


def _written(result: Any, out: Any) -> Any:
    """The result, in `out` if given."""
    if out is None:
        return result
    out[...] = result
    return out
