"""Kernels of whole arrays inside XLA's programs: each of their loops is one call, the rest is XLA's.

Formulas over elements and rows, and the sums of convolutions, are compiled programs. The rest (reshaping, the
mean of a loss) are XLA's operations, which it fuses with others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import xpgrad
from xpgrad._operators.for_adapters import write_parts
from xpgrad.engine import Formula, RowFormula
from xpgrad.engine.programs.foreign import ForeignMachine
from xpgrad.engine.programs.instructions import CannotRecordError
from xpgrad_jax import _ffi, _partitioning
from xpgrad_jax._partitioning import Axes, Labels, Shape
from xpgrad_jax._scan import ScanEngine, inlined

foreign_machine = ForeignMachine()
"""Records programs for XLA."""


@contextmanager
def inlining() -> Iterator[None]:
    """Context in which kernels on JAX's arrays are lowered for a CPU's executable."""
    token = inlined.set(ProgramEngine if _ffi.why_not() is None else None)
    try:
        yield
    finally:
        inlined.reset(token)


class ProgramEngine(ScanEngine):
    """JAX's own operations, with formulas over arrays as calls of programs; nothing here has a gradient."""

    def elementwise(
        self, formula: Formula, inputs: Sequence[Any], numbers: Sequence[float] = (), out: Any = None
    ) -> Any:
        """See StandardEngine."""
        given = [x for x in inputs if x is not None]
        shape = jnp.broadcast_shapes(*(x.shape for x in given))
        arrays = [x if x is None or x.size == 1 else jnp.broadcast_to(x, shape) for x in inputs]
        if all(x is None or x.shape != shape for x in arrays):
            return super().elementwise(formula, inputs, numbers, out)  # of one element
        made = _run(_Elements(formula, tuple(numbers)), arrays, [shape])
        return super().elementwise(formula, inputs, numbers, out) if made is None else made[0]

    def over_rows(
        self, formula: RowFormula, operands: Sequence[Any], numbers: Sequence[float] = (), out: Any = None
    ) -> tuple:
        """See StandardEngine; XLA makes rows contiguous."""
        A, n, B = operands[0].shape
        arrays: list[Any] = []
        for name, x in zip(formula.operands, operands, strict=True):
            if x is None or name in formula.columns:
                arrays.append(x)
                continue
            width = n if name in formula.each else 1
            x = jnp.broadcast_to(x, (A, width, B))
            arrays.append(jnp.reshape(jnp.moveaxis(x, 2, 1), (A * B, width, 1)))
        widths = [n if name == formula.each_output else 1 for name in formula.outputs]
        made = _run(
            _RowFormulaWriter(formula, tuple(numbers)), arrays, [(A * B, width, 1) for width in widths]
        )
        if made is None:
            return super().over_rows(formula, operands, numbers, out)
        return tuple(
            jnp.moveaxis(jnp.reshape(y, (A, B, width)), 1, 2) for y, width in zip(made, widths, strict=True)
        )

    def whole(
        self, compute: Callable[..., Any], arrays: Sequence[Any], shape: Sequence[int], key: tuple[Any, ...]
    ) -> Any:
        """See Images."""
        made = _run(_Whole(compute, key), arrays, [tuple(shape)])
        return super().whole(compute, arrays, shape, key) if made is None else made[0]


class _Whole:
    """Records a sum of convolutions."""

    def __init__(self, compute: Callable[..., Any], key: tuple[Any, ...]) -> None:
        self._compute, self._key = compute, key

    def description(self) -> str:
        """Text that identifies the computation in any process."""
        return str(self._key)

    def labels(self, shape: Shape, result: Shape) -> Labels:
        """The axes of an array that may be split: none, because the whole kernel is split."""
        return (None,) * len(shape)

    def write(self, recorder: Any, arrays: Sequence[Any]) -> Sequence[Any]:
        """The recorded result."""
        return [self._compute(recorder, *arrays)]


class _Elements:
    """Records an elementwise formula."""

    method = "elementwise"

    def __init__(self, formula: Any, numbers: tuple[float, ...]) -> None:
        self._formula, self._numbers = formula, numbers

    def description(self) -> str:
        """Text that identifies the computation in any process."""
        numbers = [float(number).hex() for number in self._numbers]
        return f"{self.method} {_described(self._formula)} {numbers}"

    def labels(self, shape: Shape, result: Shape) -> Labels:
        """The axes of an array that may be split: all that are not broadcast."""
        return tuple(f"axis{k}" if shape == result else None for k in range(len(shape)))

    def write(self, recorder: Any, arrays: Sequence[Any]) -> Sequence[Any]:
        """The recorded results."""
        return [recorder.elementwise(self._formula, arrays, self._numbers)]


class _RowFormulaWriter(_Elements):
    """Records a row formula."""

    method = "over_rows"

    def labels(self, shape: Shape, result: Shape) -> Labels:
        """The axes of an array that may be split: the rows."""
        return ("row" if shape[0] == result[0] else None, None, None)

    def write(self, recorder: Any, arrays: Sequence[Any]) -> Sequence[Any]:
        """The recorded results."""
        return list(recorder.over_rows(self._formula, arrays, self._numbers))


def _described(part: Any) -> str:
    """A unique text for a formula with its functions and constants."""
    if callable(part) and hasattr(part, "__qualname__"):
        return f"{part.__module__}.{part.__qualname__}"
    if isinstance(part, dict):
        return f"{{{', '.join(f'{name}: {_described(x)}' for name, x in sorted(part.items()))}}}"
    if isinstance(part, tuple):
        return f"({', '.join(map(_described, part))})"
    if isinstance(part, Formula):
        return _described((part.function, part.constants, part.parameters))
    if isinstance(part, RowFormula):
        steps = tuple((step.function, dict(step.results)) for step in part.steps)
        return _described((steps, part.outputs, part.each, part.rows, part.columns, part.constants))
    return repr(part)


def _run(work: Any, arrays: Sequence[Any], shapes: Sequence[Shape]) -> list[Any] | None:
    """The results of some work as one call of a program; None if it has no program."""
    given = [x for x in arrays if x is not None]
    if given[0].dtype not in (jnp.float32, jnp.float64) or any(0 in x.shape for x in given):
        return None
    if _key_of(work, arrays) is None:
        return None
    axes = _axes(work, given, shapes) if _partitioning.is_splitting() else None
    if axes is None:
        return _call(work, arrays, shapes)

    def run(*parts: Any) -> list[Any]:
        each = iter(parts)
        made = _partitioning.shapes_of_results(axes, [x.shape for x in parts], shapes)
        return _call(work, [None if x is None else next(each) for x in arrays], made)

    return _partitioning.split(run, work.description(), axes, *given)


def _axes(work: Any, arrays: Sequence[Any], shapes: Sequence[Shape]) -> Axes | None:
    """The axes of some work's arrays and results."""
    operands, results = [tuple(x.shape) for x in arrays], [*shapes]
    axes = Axes(*(tuple(work.labels(shape, shapes[0]) for shape in part) for part in (operands, results)))
    return _partitioning.agreeing(axes, operands + results)


def _call(work: Any, arrays: Sequence[Any], shapes: Sequence[Shape]) -> list[Any]:
    """The results of some work on whole arrays, for which it has a program."""
    key, given = _key_of(work, arrays), [x for x in arrays if x is not None]
    if key is None:
        raise CannotRecordError(f"no program for shapes {[x.shape for x in given]}")
    return _ffi.call(key, given, [jax.ShapeDtypeStruct(shape, given[0].dtype) for shape in shapes])


def _key_of(work: Any, arrays: Sequence[Any]) -> _ffi.Key | None:
    return _key(work, [None if x is None else (tuple(x.shape), np.dtype(x.dtype)) for x in arrays])


_keys: dict[str, _ffi.Key | None] = {}


def _key(work: Any, forms: Sequence[tuple | None]) -> _ffi.Key | None:
    """The key of the program of some work on arrays of these shapes and dtypes; None without a program."""
    text = f"{xpgrad.__version__} {work.description()} {forms} {foreign_machine.team.size()}"
    if text not in _keys:

        def write(recorder: Any, *arrays: Any) -> Sequence[Any]:
            given = iter(arrays)
            return work.write(recorder, [None if form is None else next(given) for form in forms])

        try:
            program = write_parts(write, foreign_machine, [form for form in forms if form is not None])
        except CannotRecordError:
            _keys[text] = None
        else:
            _keys[text] = _ffi.registry().add(text, program)
    return _keys[text]
