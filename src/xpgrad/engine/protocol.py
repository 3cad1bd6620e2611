"""The interface of an engine: all that the package may ask of the machine beyond the array API.

Recurrent kernels use `TimeLoops`; a recorder has this interface too, and records instead of computing.
`Engine` adds the methods for all other kernels, those of `Images` among them. `StandardEngine` defines the
meaning of each method, and every other engine is a subclass of it. `Adapter` is the engine of one
framework's arrays: it says which arrays it takes, and may have shorter ways for some calls.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
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
        """Context in which inf and NaN propagate without warnings."""

    def lower(self, array: Array) -> Any:
        """The caller's array for one of the engine's."""

    # --- row buffers

    def wrap(self, array: Array) -> Rows:
        """The rows of an array, for reading."""

    def rows(self, count: int, width: int, like: Array) -> Rows:
        """Rows that steps write, each once."""

    def scratch(self, count: int, width: int, like: Array) -> Rows:
        """Rows that are not part of a result."""

    def product_rows(self, a: Array, b: Array) -> Rows:
        """The rows of a matrix product; steps read and replace them."""

    def carry(self, array: Array) -> Rows:
        """Rows; each step reads and replaces the first ones."""

    def columns(self, rows: Rows, start: int, stop: int) -> Rows:
        """Some columns of a row buffer, as a source of products."""

    def array(self, rows: Rows) -> Array:
        """All rows of a buffer, as one array."""

    # --- what is computed

    def loop_weight(self, weight: Array, times: int) -> Any:
        """A matrix in the fastest form for the products of a time loop."""

    def matmul(self, a: Array, b: Array) -> Array:
        """Matrix product."""

    def write_product(self, a: Array, b: Array, target: Rows, first: Any) -> None:
        """Matrix product into rows of a buffer."""

    def add_product(self, total: Array | None, a: Array, b: Array) -> Array:
        """Matrix product, added to a total."""

    def chunk(self, width: int, like: Array) -> int | None:
        """How many rows a backward loop finishes at a time; None for all."""

    def column_sums(self, array: Array) -> Array:
        """The sum over the rows."""

    def column_dots(self, a: Array, b: Array) -> Array:
        """The sum over the rows of a b."""

    def scale(self, array: Array, factors: Array) -> Array:
        """The rows of an array that is no longer needed, each times its factor; the factors are (rows, 1)."""

    def broadcast(self, array: Array, shape: tuple[int, ...]) -> Array:
        """The array broadcast to a larger shape, for reading."""

    def roots(self, squares: Array) -> Array:
        """Square roots of sums of squares; those below 0 by rounding give 0."""

    def scan(self, stages: Sequence[Elementwise | Product], steps: Any) -> None:
        """Run a time loop."""


class Engine(TimeLoops, Images, Protocol):
    """The interface for all kernels; what convolutions ask for is that of `Images`."""

    name: str

    def lift(self, array: Any) -> Array:
        """The engine's array for one of the caller's."""

    def target(self, out: Any, shape: tuple[int, ...]) -> Array | None:
        """The caller's `out`, if results can be written to it directly."""

    def pack(self, weight: Array) -> Array:
        """An array in the fastest form for several products."""

    def agrees(self, arrays: Sequence[Any]) -> bool:
        """Whether the arrays clearly are this engine's, of one shape and dtype."""

    def elementwise(
        self, formula: Formula, inputs: Sequence[Any], numbers: Sequence[float] = (), out: Any = None
    ) -> Array:
        """The result of a formula."""

    def over_rows(
        self, formula: RowFormula, operands: Sequence[Any], numbers: Sequence[float] = (), out: Any = None
    ) -> tuple:
        """The outputs of a row formula."""


class Adapter(Engine, Protocol):
    """The engine for the arrays of one framework; NumPy's is the one that is always there.

    An entry point of the group ``xpgrad.engines`` has the name of the framework's module, which is the
    engine's name too, and names a class that is called without arguments. The class is loaded with the first
    array of the framework. What an engine does not define is as here: no quick ways, no programs, no traces.
    """

    array_types: tuple[type, ...] = ()
    """Exact types of arrays for which the quick ways below are worth a look."""
    host: Host | None = None
    """The engine itself, if the framework has threads and a BLAS for the whole process."""

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

        `arrays` and `options` are as `_plans.planned` takes them.
        """
        return None

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
        """A one-dimensional integer array as contiguous 64-bit integers; None for other arrays."""
        return None
