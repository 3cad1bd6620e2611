"""Kernels of whole arrays inside XLA's programs: each of their loops is one call, the rest is XLA's.

Formulas over elements and rows, and the sums of convolutions, are compiled programs. The rest (reshaping, the
mean of a loss) are XLA's operations, which it fuses with others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

import xpgrad
from xpgrad._operators.for_adapters import write_parts
from xpgrad.engine import Formula, RowFormula
from xpgrad.engine.process.variables import with_value
from xpgrad.engine.programs.foreign import ForeignMachine
from xpgrad.engine.programs.instructions import CannotRecordError
from xpgrad_jax import _ffi, _partitioning
from xpgrad_jax._partitioning import Axes, Labels, Shape
from xpgrad_jax._scan import ScanEngine, inlined

_Result = TypeVar("_Result")

foreign_machine = ForeignMachine()
"""Records programs for XLA."""


def inlining(function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Call the function; its kernels on JAX's arrays are lowered for a CPU's executable."""
    engine = ProgramEngine if _ffi.why_not() is None else None
    return with_value(inlined, engine, function, *arguments)


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
        work = _ArrayWork(
            _description("elementwise", formula, numbers),
            lambda own, result: tuple(f"axis{k}" if own == result else None for k in range(len(own))),
            lambda recorder, *given: [recorder.elementwise(formula, given, numbers)],
        )
        made = _run(work, arrays, [shape])
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
        work = _ArrayWork(
            _description("over_rows", formula, numbers),
            lambda own, result: ("row" if own[0] == result[0] else None, None, None),
            lambda recorder, *given: recorder.over_rows(formula, given, numbers),
        )
        made = _run(work, arrays, [(A * B, width, 1) for width in widths])
        if made is None:
            return super().over_rows(formula, operands, numbers, out)
        return tuple(
            jnp.moveaxis(jnp.reshape(y, (A, B, width)), 1, 2) for y, width in zip(made, widths, strict=True)
        )

    def whole(
        self, compute: Callable[..., Any], arrays: Sequence[Any], shape: Sequence[int], key: tuple[Any, ...]
    ) -> Any:
        """See Images."""
        # no axes may be split here, because the whole kernel is split
        work = _ArrayWork(str(key), lambda own, _: (None,) * len(own), lambda *given: [compute(*given)])
        made = _run(work, arrays, [tuple(shape)])
        return super().whole(compute, arrays, shape, key) if made is None else made[0]


class _ArrayWork(NamedTuple):
    """A computation that a program records.

    `description` identifies it in any process. `labels(shape, result)` are the axes of an array that may be
    split, for the shape of the first result. `write(recorder, *arrays)` returns the recorded results.
    """

    description: str
    labels: Callable[[Shape, Shape], Labels]
    write: Callable[..., Sequence[Any]]


def _description(method: str, formula: Formula | RowFormula, numbers: Sequence[float]) -> str:
    return f"{method} {_described(formula)} {[float(number).hex() for number in numbers]}"


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


def _run(work: _ArrayWork, arrays: Sequence[Any], shapes: Sequence[Shape]) -> list[Any] | None:
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

    return _partitioning.split(run, work.description, axes, *given)


def _axes(work: _ArrayWork, arrays: Sequence[Any], shapes: Sequence[Shape]) -> Axes | None:
    """The axes of some work's arrays and results."""
    operands, results = [tuple(x.shape) for x in arrays], [*shapes]
    axes = Axes(*(tuple(work.labels(shape, shapes[0]) for shape in part) for part in (operands, results)))
    return _partitioning.agreeing(axes, operands + results)


def _call(work: _ArrayWork, arrays: Sequence[Any], shapes: Sequence[Shape]) -> list[Any]:
    """The results of some work on whole arrays, for which it has a program."""
    key, given = _key_of(work, arrays), [x for x in arrays if x is not None]
    if key is None:
        raise CannotRecordError(f"no program for shapes {[x.shape for x in given]}")
    return _ffi.call(key, given, [jax.ShapeDtypeStruct(shape, given[0].dtype) for shape in shapes])


_keys: dict[str, _ffi.Key | None] = {}


def _key_of(work: _ArrayWork, arrays: Sequence[Any]) -> _ffi.Key | None:
    """The key of the program of some work on arrays of these shapes and dtypes; None without a program."""
    forms = [None if x is None else (tuple(x.shape), np.dtype(x.dtype)) for x in arrays]
    text = f"{xpgrad.__version__} {work.description} {forms} {foreign_machine.team.size()}"
    if text not in _keys:

        def write(recorder: Any, *given: Any) -> Sequence[Any]:
            each = iter(given)
            return work.write(recorder, *(None if form is None else next(each) for form in forms))

        try:
            program = write_parts(write, foreign_machine, [form for form in forms if form is not None])
        except CannotRecordError:
            _keys[text] = None
        else:
            _keys[text] = _ffi.registry().add(text, program)
    return _keys[text]
