"""The interface of an engine: all that the package may ask of the machine beyond the array API.

Recurrent kernels use `TimeLoops`; a recorder has this interface too, and records instead of computing.
`Engine` adds the methods for all other kernels, those of `Images` among them. Where a method has a body, that
is what the standard engine does: it defines the method's meaning, and every other engine is a subclass of
`StandardEngine`. `Adapter` is the engine of one framework's arrays: it says which arrays it takes, and may
have shorter ways for some calls.
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
"""An array of the engine's namespace, or what stands for one while a program is written down."""
Rows = Any
"""A row buffer: kernels read it through operands of stages, and through `array`."""


class TimeLoops(Protocol):
    """The interface for recurrent kernels: row buffers, products of whole arrays, and loops over time."""

    xp: Any
    """The namespace of the engine's arrays."""

    def quiet(self) -> AbstractContextManager[Any]:
        """Context in which inf and NaN propagate without warnings (NumPy's, if NumPy computes)."""
        return np.errstate(all="ignore")

    def lane(self, number: int) -> AbstractContextManager[Any]:
        """Context of work that depends on none within a context of another number."""
        return nullcontext()

    def lower(self, array: Array) -> Any:
        """The caller's array for one of the engine's."""
        return array

    # --- row buffers

    def wrap(self, array: Array) -> Rows:
        """The rows of an array (rows, width), for reading."""

    def rows(self, count: int, width: int, like: Array) -> Rows:
        """Rows that are written once each, step by step, before they are read."""

    def scratch(self, count: int, width: int, like: Array) -> Rows:
        """Like `rows`, for rows that are not part of a result."""
        return self.rows(count, width, like)

    def product_rows(self, a: Array, b: Array) -> Rows:
        """The rows of a matrix product; steps read and replace them."""
        return self.wrap(self.xp.matmul(a, b))

    def carry(self, array: Array) -> Rows:
        """Rows that start as those of the array; every step may read and replace the first ones."""

    def columns(self, rows: Rows, start: int, stop: int) -> Rows:
        """Some columns of a row buffer, as a source of products."""

    def array(self, rows: Rows) -> Array:
        """All rows of a buffer, as one array in the order of their numbers."""

    # --- what is computed

    def loop_weight(self, weight: Array, times: int) -> Any:
        """A weight, as `Product` takes it, in the form for this many products of a time loop."""
        return weight

    def matmul(self, a: Array, b: Array) -> Array:
        """Matrix product."""
        return self.xp.matmul(a, b)

    def write_product(self, a: Array, b: Array, target: Rows, first: Any) -> None:
        """Matrix product, into `target`'s rows from `first` on."""
        target.write(first, self.xp.matmul(a, b))

    def add_product(self, total: Array | None, a: Array, b: Array) -> Array:
        """Matrix product, added to a total; None stands for none yet."""
        product = self.xp.matmul(a, b)
        return product if total is None else total + product

    def chunk(self, width: int, like: Array) -> int | None:
        """How many rows of this width a backward loop should finish at a time; None for all."""
        return None

    def column_sums(self, array: Array) -> Array:
        """The sum over the rows."""
        return self.xp.sum(array, axis=0)

    def column_dots(self, a: Array, b: Array) -> Array:
        """The sum over the rows of a b."""
        return self.xp.sum(a * b, axis=0)

    def scale(self, array: Array, factors: Array) -> Array:
        """The rows of an array that is no longer needed, each times its factor; the factors are (rows, 1)."""
        return array * factors

    def broadcast(self, array: Array, shape: tuple[int, ...]) -> Array:
        """The array broadcast to a larger shape, for reading."""
        return self.xp.broadcast_to(array, shape)

    def roots(self, squares: Array) -> Array:
        """Square roots of sums of squares; those below 0 by rounding give 0."""
        return self.xp.sqrt(self.xp.where(squares < 0, squares - squares, squares))

    def scan(self, stages: Sequence[Elementwise | Product], steps: Any) -> None:
        """Run a time loop: for each step (a Span as a row of integers) all stages in order on its rows."""

    def elementwise(self, formula: Formula, inputs: Sequence[Any], numbers: Sequence[float] = ()) -> Array:
        """The single result of a formula, of the shape of its inputs; see `Engine.elementwise`."""
        (result,) = formula(self.xp, *inputs, **dict(zip(formula.parameters, numbers, strict=True)))
        return result


class Engine(TimeLoops, Images, Protocol):
    """The interface for all kernels; what convolutions ask for is that of `Images`."""

    name: str
    counts_steps: bool = True
    """Whether T and N are numbers; if not, `scan` gets its steps as `_recurrent.timeline.UncountedSteps`."""

    def lift(self, array: Any) -> Array:
        """The engine's array for one of the caller's."""
        return array

    def target(self, out: Any, shape: tuple[int, ...]) -> Array | None:
        """The caller's `out`, lifted and in this shape, if results can go there directly; else None."""
        return None

    def pack(self, weight: Array) -> Array:
        """An array in the fastest form for several products."""
        return weight

    def agrees(self, arrays: Sequence[Any]) -> bool:
        """Whether the arrays clearly are this engine's, of one shape and one dtype that it computes in."""
        return False

    def elementwise(
        self, formula: Formula, inputs: Sequence[Any], numbers: Sequence[float] = (), out: Any = None
    ) -> Array:
        """The single result of a formula, of the broadcast shape of its inputs.

        Parameters
        ----------
        formula : Formula
            What to evaluate.
        inputs : sequence of array or None
            Its operands.
        numbers : sequence of float
            Values of the formula's parameters.
        out : array, optional
            Array for the result; it may be an input.
        """
        with self.quiet():
            named = dict(zip(formula.parameters, numbers, strict=True))
            (result,) = formula(self.xp, *inputs, **named)
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
            What to evaluate. A row runs along the middle one of three axes.
        operands : sequence of array or None
            Its operands, in the order of ``formula.operands``: shape (A, n, B) for one element per row and
            column, (A, 1, B) for one number per row, (1, n, 1) for one per column. n is at least 1.
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
    """The engine for the arrays of one framework; NumPy's is the one that is always there.

    An entry point of the group ``xpgrad.engines`` has the name of the framework's module, which is the
    engine's name too, and names a class that is called without arguments. The class is loaded with the first
    array of the framework. What an engine does not define is as here: no quick ways, no programs, no traces.
    """

    array_types: tuple[type, ...] = ()
    """Exact types of arrays for which the quick ways below are worth a look."""
    host: Host | None = None
    """The engine itself, if the framework has threads for the whole process."""

    def takes(self, xp: Any, arrays: Sequence[Any]) -> bool:
        """Whether the engine computes with these arrays of the namespace; if not, the standard one does."""
        return xp is self.xp

    def standard(self, xp: Any) -> Engine | None:
        """The framework's own standard engine for arrays of the namespace, or None."""
        return None

    def describe(self) -> str:
        """How the engine works here, in a line."""
        return f"{self.name} arrays: {type(self).__name__}"

    # --- arrays without values

    def is_traced(self, array: Any) -> bool:
        """Whether it is an array of the framework that has no values yet, because it traces operations."""
        return False

    def traced_call(self, operator: str, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        """What a recurrent operator returns for traced arrays, as one step of the trace; None for none.

        `arrays` and `options` are as `_calls.plans.planned` takes them.
        """
        return None

    def traced_kernel(
        self,
        operator: str,
        arrays: Mapping[str, Any],
        options: Mapping[str, Any],
        kernel: Callable[[Mapping[str, Any]], Any],
    ) -> Any:
        """Like `traced_call`; `kernel` returns the call's named tuple for other arrays of the same names.

        It is a `_calls.plans.TracedKernel`: its `owner` is the `Cell` of a user's own operator.
        """
        return self.traced_call(operator, arrays, options)

    # --- quick ways, for arrays of `array_types`

    def quick_elementwise(self, formula: Formula, arrays: Sequence[Any], numbers: Sequence[float]) -> Any:
        """The result of a formula for the caller's arrays, which agree (see `Engine.agrees`)."""
        return self.lower(self.elementwise(formula, [self.lift(array) for array in arrays], numbers))

    def quick_rows(self, formula: RowFormula, arrays: Sequence[Any]) -> Any:
        """The single output along the last axis, for arrays that agree; None if there is no quick way."""
        return None

    def look(self, arrays: Collection[Any]) -> Look | None:
        """What a program needs to know of a call's arrays; None if the call has no program."""
        return None

    def integers(self, array: Any) -> np.ndarray | None:
        """An integer array of one or two axes as contiguous 64-bit integers; None for other arrays."""
        return None


def _written(result: Any, out: Any) -> Any:
    """The result, in `out` if given."""
    if out is None:
        return result
    out[...] = result
    return out
