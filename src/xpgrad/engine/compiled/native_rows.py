"""The loop over rows and columns of a time loop's stage, as LLVM instructions around a traced formula.

Needs numba.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from xpgrad.engine.compiled.scalar_common import add_up
from xpgrad.engine.compiled.tracing import Emitter, Number

_INT = ir.IntType(64)


class Block(NamedTuple):
    """Where one of a formula's operands or results is.

    Parameters
    ----------
    matrix : int
        Which number of the loop's data its matrix begins at: address, rows, columns, length of a whole row.
    at : str
        The step's rows: ``"first"``, ``"now"``, ``"before"``, ``"local"``; ``"every"`` for the only row.
    block, blocks : int
        Which of so many equal blocks of columns.
    of_row : bool
        Whether there is one number for each row: as a result, the mean over it.
    """

    matrix: int
    at: str
    block: int = 0
    blocks: int = 1
    of_row: bool = False


def rows_loop(
    function: Callable[..., tuple],
    inputs: Sequence[Block | None],
    outputs: Sequence[Block | None],
    real: type[np.floating],
) -> Any:
    """An intrinsic ``run(data, count, first, now, before, local)``: a formula on `count` rows.

    Parameters
    ----------
    function : callable
        The formula, on traced numbers; None in place of absent operands.
    inputs, outputs : sequence of Block or None
        Where its operands come from, and its results go to.
    real : numpy scalar type
        That of the matrices.

    Returns
    -------
    intrinsic
        For compiled code. `data` points to the loop's numbers, the others are the step's.
    """

    @intrinsic
    def run(typingctx, data, count, first, now, before, local):
        def codegen(context, builder, signature, arguments):
            data, count, *starts = arguments
            rows = _Rows(
                Emitter(context, builder, real),
                builder.bitcast(data, _INT.as_pointer()),
                dict(zip(("first", "now", "before", "local"), starts, strict=True)),
            )
            rows.loop(function, inputs, outputs, count)
            return context.get_dummy_value()

        return types.void(types.voidptr, *[types.int64] * 5), codegen

    return run


class _Rows:
    """What makes the instructions of one stage."""

    def __init__(self, emitter: Emitter, data: ir.Value, starts: dict[str, ir.Value]) -> None:
        self._emitter, self._builder, self._data, self._starts = emitter, emitter.builder, data, starts
        self._matrices: dict[int, tuple[ir.Value, ir.Value]] = {}

    def _number(self, place: int) -> ir.Value:
        return self._builder.load(self._builder.gep(self._data, [_INT(place)]))

    def _matrix(self, place: int) -> tuple[ir.Value, ir.Value]:
        """Its address as a pointer, and the length of its rows."""
        if place not in self._matrices:
            pointer = self._builder.inttoptr(self._number(place), self._emitter.type.as_pointer())
            self._matrices[place] = pointer, self._number(place + 3)
        return self._matrices[place]

    def loop(
        self,
        function: Callable[..., tuple],
        inputs: Sequence[Block | None],
        outputs: Sequence[Block | None],
        count: ir.Value,
    ) -> None:
        """One row after the other, and in each one column after the other."""
        builder = self._builder
        used = list(dict.fromkeys(place for place in (*inputs, *outputs) if place))
        wide = next(place for place in used if not place.of_row)
        for place in used:
            self._matrix(place.matrix)
        width = builder.sdiv(self._number(wide.matrix + 2), _INT(wide.blocks))
        sums = {
            place: cgutils.alloca_once(builder, self._emitter.type)
            for place in outputs
            if place and place.of_row
        }
        with cgutils.for_range(builder, count) as rows:
            begins = {place: self._begin(place, rows.index, width) for place in used}
            of_rows = {
                place: Number(self._emitter, builder.load(begins[place]))
                for place in inputs
                if place and place.of_row
            }
            for total in sums.values():
                builder.store(ir.Constant(self._emitter.type, 0.0), total)
            vectors = {place: begins[place] for place in used if not place.of_row}
            with cgutils.for_range(builder, width) as columns:
                at = {place: builder.gep(begin, [columns.index]) for place, begin in vectors.items()}
                elements = of_rows | {
                    place: Number(self._emitter, self._set_apart(builder.load(at[place]), place, vectors))
                    for place in vectors
                    if place in inputs
                }
                results = function(*(place and elements[place] for place in inputs))
                for target, result in zip(outputs, results, strict=True):
                    if target in sums:
                        self._add_up(sums[target], self._emitter.value(result))
                    elif target:
                        access = builder.store(self._emitter.value(result), at[target])
                        self._set_apart(access, target, vectors)
            for place, total in sums.items():
                columns_of_row = builder.sitofp(width, self._emitter.type)
                builder.store(builder.fdiv(builder.load(total), columns_of_row), begins[place])

    def _begin(self, place: Block, row: ir.Value, width: ir.Value) -> ir.Value:
        """A pointer to the first element of the block in a row."""
        builder, (pointer, length) = self._builder, self._matrix(place.matrix)
        begin = _INT(0)
        if place.at != "every":
            begin = builder.mul(builder.add(self._starts[place.at], row), length)
        if place.block:
            begin = builder.add(begin, builder.mul(_INT(place.block), width))
        return builder.gep(pointer, [begin])

    def _add_up(self, total: ir.Value, value: ir.Value) -> None:
        """One more summand of a row's sum, in any order."""
        numbers = [Number(self._emitter, number) for number in (self._builder.load(total), value)]
        self._builder.store(self._emitter.call(add_up, numbers).value, total)

    def _set_apart(self, access: Any, place: Block, vectors: Iterable[Block]) -> Any:
        """Say of a load or store that its vector shares no memory with the others of the loop.

        It shares none: a result that replaces an operand is the same vector, and all others are other
        columns, other rows or other matrices. LLVM would look for itself, for every row and pair.
        """
        module = self._builder.module
        domain = module.add_metadata([f"{self._builder.function.name} {min(vectors).matrix}"])
        scopes = {vector: module.add_metadata([f"{vector}", domain]) for vector in vectors}
        own = scopes.pop(place)
        access.set_metadata("alias.scope", module.add_metadata([own]))
        if scopes:
            access.set_metadata("noalias", module.add_metadata(list(scopes.values())))
        return access
