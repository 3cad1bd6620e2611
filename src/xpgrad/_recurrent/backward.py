"""The backward loop of every recurrent operator, and the sums that follow each chunk of its steps.

The loop runs from the last step to the first, and writes the cotangents of a chunk's products, `columns`.
While they are in the cache, dX and the sums for parameters (`gradient_sums.py`) follow for the whole chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from xpgrad._recurrent.call import RecurrentCall
from xpgrad._recurrent.checked_call import Direction
from xpgrad._recurrent.gradient_sums import GradientSums, PlannedSums
from xpgrad._recurrent.hidden_state import StateBackward
from xpgrad._recurrent.loop import StepLoop
from xpgrad._recurrent.plan import BackwardPlan, Buffer, after, before, capital, carry, given
from xpgrad._recurrent.timeline import Chunk
from xpgrad.engine import Operand, Product


def gradient_results(
    call: RecurrentCall,
    plan_of: Callable[[RecurrentCall, Direction], BackwardPlan],
    names: Sequence[str],
    wanted: frozenset[str],
    per_sample: bool | str,
    finish: Callable[[Any, dict[str, Any]], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """The gradients of a call by argument, from the plan of each direction; None for unwanted gradients.

    ``finish(call, gradients)`` changes the gradients of a direction.
    """

    def one_direction(call: RecurrentCall, direction: Direction) -> dict[str, Any]:
        found = BackwardLoop(call, direction, plan_of(call, direction), wanted, per_sample).run()
        return found if finish is None else finish(call, found)

    def compute(call: RecurrentCall) -> dict[str, Any]:
        parts = call.by_direction(lambda d: one_direction(call, d) if wanted else {})
        return call.results({name: [part[name] for part in parts] for name in parts[0]}, per_sample)

    with call.engine.quiet():
        # norms need the cotangents of whole sequences at once: parts of the batch take less memory
        found = [compute(part) for part in (call.in_parts() if per_sample == "norm" else [call])]
        joined = found[0]
        if len(found) > 1:
            joined = {name: call.join(name, [part[name] for part in found]) for name in joined}
        return {name: joined.get(name) for name in names}


def rebuilt_products(back: BackwardLoop, chunk: Chunk) -> dict[str, Operand]:
    """Rows of W x + R h' for all steps of a chunk at once, to rebuild pre-activations."""
    call, matmul = back.call, back.engine.matmul
    inputs = matmul(back.x[chunk.part, :], call.part("W", back.direction).T)
    rows = back.engine.wrap(inputs + matmul(back.taken_before(chunk), call.part("R", back.direction).T))
    return {"z": Operand(rows, call.gates, "local", call.order if call.gates > 1 else None)}


class BackwardLoop(StepLoop):
    """The backward loop of one direction, and the sums that follow each chunk of its steps.

    `wanted` has the names of the arguments whose gradients are wanted.
    """

    def __init__(
        self, call: RecurrentCall, direction: Direction, plan: BackwardPlan, wanted: frozenset[str],
        per_sample: bool | str,
    ) -> None:  # fmt: skip
        super().__init__(call, direction, plan, plan.inputs_beside)
        engine, self.plan, self.wanted = self.engine, plan, wanted
        self.sums = GradientSums(call, direction, wanted, per_sample)
        self._parameters = PlannedSums(plan, self.sums)
        self._rows: dict[Any, Any] = {}  # states' rows, made when they are first read
        self._read = {name for stage in plan.stages for name, _ in stage.inputs}
        for name, buffers in plan.kept.items():
            self._put_kept(call.rows(name, direction), buffers)
        for buffer in plan.given:
            self._put_input_rows(buffer, buffer.name.removeprefix("dinput_"))
        for k, name in enumerate(plan.states):
            self.put(given(k), call.wrapped(f"grad_{capital(name)}_all", direction))
            if after(k).name in self._read:
                self.put(after(k), self._wrapped(k))
        hidden = StateBackward(self)
        self.hidden = None if hidden.is_plain else hidden
        self.taken: Any = None  # a chunk's rows that R multiplied, if there is a mask
        self._carries = [self._carried(k) for k in range(len(plan.states))]
        for group in plan.groups:
            if group.state is None:
                self.carried(group.back)
        self._name_cotangents()
        self._weights = [engine.loop_weight(self.weight(group), call.T) for group in plan.groups]

    # --- operands

    def _put_kept(self, rows: Any, buffers: tuple[Buffer, ...]) -> None:
        """Enter a result of the forward; several buffers have a column each."""
        if len(buffers) == 1:
            (buffer,) = buffers
            order = self.call.order if buffer.blocks == self.call.gates else None
            self.put(buffer, None if rows is None else self.engine.wrap(rows), order)
            return
        for k, buffer in enumerate(buffers):
            self.put(buffer, self.engine.wrap(rows[:, k : k + 1]))

    def _put_input_rows(self, buffer: Buffer, name: str) -> None:
        """Memory for the cotangent of an input besides X; one column, for its mean, if the input has one."""
        of_row = self.operands[f"input_{name}"].of_row
        width = 1 if of_row else buffer.blocks * self.call.H
        rows = None
        if name in self.wanted:
            rows = self.engine.rows(self.timeline.rows, width, like=self.initial[0])
        self.put(buffer, rows, of_row=of_row and rows is not None)

    def _carried(self, k: int) -> list[Any]:
        """A state's cotangent from the step after, in parts; the first starts with the final state's."""
        backs = [group.back for group in self.plan.groups if group.state == k]
        own = [carry(k)] if self.plan.direct[k] else []
        if k == 0 and self.hidden is not None:
            direct = [self.carried(buffer) for buffer in own]
            self.hidden.enter(self)  # it needs carry0
            return direct
        end = self.call.initial(f"grad_{capital(self.plan.states[k])}_t", self.direction)
        return [self.carried(buffer, None if number else end) for number, buffer in enumerate([*own, *backs])]

    def _name_cotangents(self) -> None:
        """Enter the first state's cotangents by the names that hand-written formulas use."""
        operands, none = self.operands, Operand(None)
        if self.hidden is not None:
            operands |= {"dy": none, "dh": operands["output"], "dp": none}
            return
        parts = [Operand(rows, 1, "first") for rows in self._carries[0]]
        dh, dp = (*parts, none)[:2]
        operands |= {"dy": operands[given(0).name], "dh": dh, "dp": dp}

    @cached_property
    def x(self) -> Any:
        """The input's rows."""
        return self.call.rows("X", self.direction)

    def states(self, k: int) -> Any:
        """A state's rows, as an array."""
        if k not in self._rows:
            self._rows[k] = self.call.rows(f"{capital(self.plan.states[k])}_all", self.direction)
        return self._rows[k]

    def _wrapped(self, k: int, is_first: bool = False) -> Any:
        """The rows that hold a state before the step: the initial state for the first step."""
        key = k, is_first
        if key not in self._rows:
            self._rows[key] = self.engine.wrap(self.initial[k] if is_first else self.states(k))
        return self._rows[key]

    def kept_rows(self, name: str, chunk: Chunk) -> Any:
        """The chunk's rows of a kept result or of another operand with all rows, as an array."""
        return self.engine.array(self.operands[name].rows)[chunk.part, :]

    def local_rows(self, name: str, chunk: Chunk) -> Any:
        """The chunk's rows of one of the plan's local operands."""
        return self.engine.array(self.operands[name].rows)[: chunk.rows, :]

    def taken_before(self, chunk: Chunk) -> Any:
        """The first state before the step as R multiplied it, for each row of the chunk."""
        return self.before(0, chunk) if self.taken is None else self.taken

    def before(self, k: int, chunk: Chunk) -> Any:
        """A state before the step, for each row of the chunk."""
        return self.timeline.previous(self.states(k), self.initial[k], chunk)

    # --- the loop

    def run(self) -> dict[str, Any]:
        """The wanted gradients of this direction, by argument."""
        plan, H = self.plan, self.call.H
        for chunk, columns in self.sums.chunks(plan.columns.blocks * H, like=self.initial[-1]):
            self._run_chunk(chunk, columns)
            self._parameters.add(self, chunk, self.engine.array(columns)[: chunk.rows, :])
        return self._gradients()

    def _run_chunk(self, chunk: Chunk, columns: Any) -> None:
        """Write the cotangents of the chunk's rows, and carry the states' cotangents back."""
        plan, engine, hidden = self.plan, self.engine, self.hidden
        self.put(plan.columns, columns, plan.order)
        for name in plan.local:
            self.put(Buffer(name, 1, "local"), self.sums.scratch(name, self.call.H))
        if hidden is not None and (plan.rebuild or "R" in self.wanted):
            self.taken = hidden.masked_before(self, chunk, self._wrapped(0), self._wrapped(0, True))
        if plan.rebuild is not None:
            self.operands |= plan.rebuild(self, chunk)
        engine.scan(self._stages(columns, False), chunk.later)
        engine.scan(self._stages(columns, True), chunk.first)

    def _stages(self, columns: Any, is_first: bool) -> list:
        """A step's stages; the first step needs the last products only for the initial states."""
        plan, hidden = self.plan, self.hidden
        for k in range(len(plan.states)):
            if before(k).name in self._read:
                self.put(before(k), self._wrapped(k, is_first))
        made: list[Any] = [] if hidden is None else hidden.stages(self)
        for level, stage in enumerate(plan.stages):
            made.append(self.stage(stage))
            for group, weight, (own, last) in zip(plan.groups, self._weights, plan.products, strict=True):
                needless = is_first and group.state is not None and not self._wants_initial(group.state)
                if last == level and not needless:
                    source = self._columns(columns, own)
                    made.append(Product(source, weight, self.operands[group.back.name].rows))
            made += self.averages(plan.averages, level)
        if is_first and hidden is not None and self._wants_initial(0):
            made.append(hidden.to_initial(self))
        return made

    def _columns(self, columns: Any, own: range) -> Operand:
        """Some columns of the cotangents, as a source of products."""
        count, H = self.plan.columns.blocks, self.call.H
        if len(own) == count:
            return Operand(columns, count, "local")
        return Operand(self.engine.columns(columns, own.start * H, own.stop * H), 1, "local")

    def _wants_initial(self, k: int) -> bool:
        return f"initial_{self.plan.states[k]}" in self.wanted

    # --- after the last chunk

    def _gradients(self) -> dict[str, Any]:
        """All wanted gradients."""
        grads = self._parameters.gradients()
        for buffer in self.plan.given:
            if self.operands[buffer.name].rows is not None:
                grads[buffer.name.removeprefix("dinput_")] = self._input_cotangent(buffer)
        for k, name in enumerate(self.plan.states):
            if self._wants_initial(k):
                grads[f"initial_{name}"] = self.timeline.unsort(self._initial_gradient(k))
        return grads

    def _input_cotangent(self, buffer: Buffer) -> Any:
        """Rows of the cotangent of an input besides X."""
        _, _, _, _, of_row = operand = self.operands[buffer.name]
        rows = self.engine.array(operand.rows)
        # from the mean over a row to the sum
        return rows * self.constant(float(self.call.H), 1, 1) if of_row else rows

    def _initial_gradient(self, k: int) -> Any:
        """The cotangent carried back to an initial state."""
        if k == 0 and self.hidden is not None:
            return self.engine.array(self.operands["passed"].rows)
        total, *others = (self.engine.array(rows) for rows in self._carries[k])
        for one in others:
            total = total + one
        return total
