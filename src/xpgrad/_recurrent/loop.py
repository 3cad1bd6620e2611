"""The shared parts of forward and backward loops: operands by name, stages on them, weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xpgrad._recurrent.call import RecurrentCall
from xpgrad._recurrent.checked_call import Direction
from xpgrad._recurrent.plan import (
    BackwardPlan,
    Buffer,
    ForwardPlan,
    Group,
    OperandBlocks,
    Stage,
    average,
    averaged,
)
from xpgrad.engine import Elementwise, Formula, Operand, Product


def _constant(xp: Any, x: Any, number: Any) -> tuple:
    return (x + number,)


class StepLoop:
    """The operands of one direction's loop by name, and stages on them; `inputs` are the inputs besides x."""

    def __init__(
        self, call: RecurrentCall, direction: Direction, plan: ForwardPlan | BackwardPlan,
        inputs: Sequence[Buffer],
    ) -> None:  # fmt: skip
        self.call, self.direction = call, direction
        self.engine, self.timeline = call.engine, direction.timeline
        self.operands: dict[str, Operand] = dict(plan.operands)
        self.initial = [call.initial(f"initial_{name}", direction) for name in plan.states]
        v = call.part("v", direction)
        if v is not None:
            row = call.engine.wrap(call.xp.reshape(v, (1, v.shape[0])))
            self.operands["v"] = Operand(row, call.vector_blocks, "every")
        for buffer in plan.scratch:
            self.carried(buffer)
        for number, _ in plan.averages:
            self.carried(averaged(number))
            self.carried(average(number))
        for buffer in inputs:
            rows = call.rows(buffer.name.removeprefix("input_"), direction)
            self.put(buffer, self.engine.wrap(rows), of_row=rows.shape[1] < buffer.blocks * call.H)
        self._averaging: Any = None

    def put(
        self, buffer: Buffer, rows: Any, order: tuple[int, ...] | None = None, of_row: bool = False
    ) -> None:
        """Enter an operand; rows None for an absent one."""
        name, blocks, at, own = buffer
        self.operands[name] = Operand(rows, blocks, at, order if blocks > 1 else None, own or of_row)

    def gate_order(self, blocks: Sequence[int]) -> tuple[int, ...] | None:
        """The order of some blocks of R in the formulas; None for the blocks' own order."""
        order = self.call.order
        if order == tuple(range(len(order))):
            return None
        return tuple(blocks.index(block) for block in order if block in blocks)

    def carried(self, buffer: Buffer, rows: Any = None, order: tuple[int, ...] | None = None) -> Any:
        """A buffer that every step rewrites; it starts from these rows, by default from zeros."""
        if rows is None:
            rows = self.timeline.zeros(1 if buffer.of_row else buffer.blocks * self.call.H)
        self.put(buffer, self.engine.carry(rows), order)
        return self.operands[buffer.name].rows

    def stage(self, stage: Stage) -> Elementwise:
        """A stage on the operands."""
        return Elementwise(stage.formula, self._named(stage.inputs), self._named(stage.outputs))

    def _named(self, parts: Sequence[OperandBlocks]) -> list[Operand]:
        operands = self.operands
        return [
            operands[name] if blocks is None else operands[name]._replace(order=blocks)
            for name, blocks in parts
        ]

    def weight(self, group: Group) -> Any:
        """The group's blocks of R, one below the other; with heads a stack for each block and head."""
        R, H, blocks = self.call.part("R", self.direction), self.call.H, group.blocks
        if blocks == tuple(range(self.call.recurrent_blocks)):
            own = R
        elif blocks == tuple(range(blocks[0], blocks[0] + len(blocks))):
            own = R[blocks[0] * H : (blocks[-1] + 1) * H, :]
        else:
            own = self.call.xp.concat([R[k * H : (k + 1) * H, :] for k in blocks], axis=0)
        return own if self.call.heads == 1 else self._by_head(own, len(blocks))

    def _by_head(self, rows: Any, blocks: int) -> Any:
        """Rows of matrices (H / heads, H / heads) as a stack (blocks, heads, ...)."""
        heads, width = self.call.heads, self.call.H // self.call.heads
        return self.call.xp.reshape(rows, (blocks, heads, width, width))

    def constant(self, number: float, rows: int, width: int) -> Any:
        """A matrix of this number."""
        formula = Formula(_constant, parameters=("number",))
        return self.engine.elementwise(formula, [self.timeline.zeros(width, rows)], (number,))

    def averages(self, wanted: Sequence[tuple[int, int]], level: int) -> list[Product]:
        """The products for means within heads that follow this stage."""
        call, operands = self.call, self.operands
        numbers = [number for number, last in wanted if last == level]
        if numbers and self._averaging is None:
            width = call.H // call.heads
            parts = self._by_head(self.constant(1 / width, call.H, width), 1)
            self._averaging = call.engine.loop_weight(parts, call.T)
        return [
            Product(operands[averaged(n).name], self._averaging, operands[average(n).name].rows)
            for n in numbers
        ]
