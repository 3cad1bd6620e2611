"""The forward loop of every recurrent operator: one product for all inputs, then the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xpgrad._recurrent.call import RecurrentCall
from xpgrad._recurrent.checked_call import Direction
from xpgrad._recurrent.hidden_state import StateForward
from xpgrad._recurrent.loop import StepLoop
from xpgrad._recurrent.plan import Buffer, ForwardPlan, after, before, capital
from xpgrad.engine import Product


def forward_results(
    call: RecurrentCall, plan_of: Callable[[RecurrentCall, Direction], ForwardPlan]
) -> dict[str, Any]:
    """The results of a call by name, from the plan of each direction."""
    with call.engine.quiet():
        parts = call.by_direction(lambda d: ForwardLoop(call, d, plan_of(call, d)).run())
        over_time, ends = (
            {name: [part[name] for part in own] for name in own[0]} for own in zip(*parts, strict=True)
        )
        found = {name: call.saved(name, rows) for name, rows in over_time.items()}
        return found | {name: call.states(rows) for name, rows in ends.items()}


class ForwardLoop(StepLoop):
    """The forward loop of one direction."""

    def __init__(self, call: RecurrentCall, direction: Direction, plan: ForwardPlan) -> None:
        super().__init__(call, direction, plan, plan.given)
        engine, self.plan = self.engine, plan
        W = call.part("W", direction)
        if W is not None:
            rows = engine.product_rows(call.rows("X", direction), W.T)
            self.put(Buffer("x", call.gates, "now"), rows, call.order)
        weights = (call.xp.matrix_transpose(self.weight(group)) for group in plan.groups)
        self._weights = [engine.loop_weight(weight, call.T) for weight in weights]
        for group in plan.groups:
            self.carried(group.product, order=self.gate_order(group.blocks))
            if group.state is None:
                self.carried(group.source)
        self._states = [
            self.operands["x"].rows if plan.is_in_place else self._rows(call.H if k else call.state_width)
            for k in range(len(plan.states))
        ]
        for k, rows in enumerate(self._states):
            self.put(after(k), rows)
        for buffer in (buffer for buffers in plan.kept.values() for buffer in buffers):
            if buffer.name not in self.operands:
                self.put(buffer, self._rows(1 if buffer.of_row else buffer.blocks * call.H))
        self._hidden = StateForward(self)

    def _rows(self, width: int) -> Any:
        return self.engine.rows(self.timeline.rows, width, like=self.initial[0])

    def _stages(self, states: Sequence[Any]) -> list:
        """A step's stages, with the previous states in these rows."""
        plan = self.plan
        for k, rows in enumerate(states):
            self.put(before(k), rows)
        made = self._hidden.into_product(self)
        made += [
            Product(
                self.operands[before(group.state).name if group.state else "taken"],
                weight,
                self.operands[group.product.name].rows,
            )
            for group, weight in zip(plan.groups, self._weights, strict=True)
            if group.state is not None
        ]
        for level, stage in enumerate(plan.stages):
            made.append(self.stage(stage))
            for group, weight in zip(plan.groups, self._weights, strict=True):
                if group.state is None and group.level == level:
                    source, target = (self.operands[b.name] for b in (group.source, group.product))
                    made.append(Product(source, weight, target.rows))
            made += self.averages(plan.averages, level)
        return [*made, *self._hidden.hand_on(self)]

    def run(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Rows of the results over time by name, and the final states (N, H)."""
        engine, plan, ends = self.engine, self.plan, dict[str, Any]()
        first, later = self.timeline.forward()
        engine.scan(self._stages([engine.wrap(rows) for rows in self.initial]), first)
        engine.scan(self._stages(self._states), later)
        arrays = {
            f"{capital(name)}_all": engine.array(rows)
            for name, rows in zip(plan.states, self._states, strict=True)
        }
        for name, rows, start in zip(plan.states, arrays.values(), self.initial, strict=True):
            ends[f"{capital(name)}_t"] = self.timeline.last(rows, start)
        for name, buffers in plan.kept.items():
            parts = [engine.array(self.operands[buffer.name].rows) for buffer in buffers]
            arrays[name] = parts[0] if len(parts) == 1 else self.call.xp.concat(parts, axis=1)
        return arrays, ends
