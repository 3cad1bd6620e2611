"""A cell over sequences: the stages of its step and of its pullback in time loops, and what stands around."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xpgrad._arguments import check_rank, check_shape
from xpgrad._cells.build import BackwardPlan, ForwardPlan, Group, after, before, carry, given
from xpgrad._cells.stages import Buffer, Part, Stage
from xpgrad._gradient_sums import GradientSums
from xpgrad._plans import Asked
from xpgrad._recurrent import Direction, RecurrentCall, units
from xpgrad._timeline import Chunk
from xpgrad.engine import Elementwise, Operand, Product

PARAMETERS = ("W", "R", "v")


def capital(state: str) -> str:
    """A state's name as arrays have it."""
    return state[:1].upper() + state[1:]


class CellCall(RecurrentCall):
    """A checked call of a cell; see `RecurrentCall`.

    Parameters
    ----------
    asked : Asked
        The cell's name and its arrays.
    blocks : mapping of str to int
        How many blocks W, R and v have.
    over_time : sequence of str
        The names of cotangents (T, D, N, H), which may be left out.
    columns : int
        How many values have a cotangent in the gradient.
    **options
        As RecurrentCall has them.
    """

    def __init__(
        self,
        asked: Asked,
        blocks: Mapping[str, int],
        over_time: Sequence[str] = (),
        columns: int = 0,
        **options: Any,
    ) -> None:
        self._counts, self._optional, self._column_count = blocks, over_time, columns
        attributes = ("clip", "activations", "activation_alpha", "activation_beta")
        plain: dict[str, Any] = {**dict.fromkeys(attributes), "defaults": ()}
        all_arrays = {**dict.fromkeys(PARAMETERS), **asked.arrays}  # a cell may have no such parameters
        super().__init__(asked._replace(arrays=all_arrays), 0, **(plain | options))

    def _columns(self) -> int:
        return self._column_count

    def _needed(self) -> Sequence[str]:
        return ("X", *(name for name in PARAMETERS if self._counts[name]))

    def _check_shapes(
        self, direction: str, floats: dict[str, Any], widths: Mapping[str, int], states: Sequence[str]
    ) -> None:
        operator, blocks, X, W = self.operator, self._counts, floats["X"], floats["W"]
        check_rank(operator, "X", X, "N, T, I" if self.layout else "T, N, I")
        check_rank(operator, "W", W, f"D, {units(blocks['W'])}, I")
        self.T, self.N = (X.shape[1], X.shape[0]) if self.layout else X.shape[:2]
        self.I = X.shape[2]
        self.H = self.state_width = W.shape[1] // blocks["W"]
        self.D = 2 if direction == "bidirectional" else 1
        T, N, H, D = self.T, self.N, self.H, self.D
        rows = {name: (f"D, {units(count)}", (D, count * H)) for name, count in blocks.items()}
        check_shape(operator, "W", W, f"{rows['W'][0]}, I", (*rows["W"][1], self.I))
        if blocks["R"]:
            check_shape(operator, "R", floats["R"], f"{rows['R'][0]}, H", (*rows["R"][1], H))
        if blocks["v"]:
            check_shape(operator, "v", floats["v"], *rows["v"])
        check_shape(operator, "sample_weight", floats.get("sample_weight"), "N,", (N,))
        for name in states:
            axes = ("N, D, H", (N, D, H)) if self.layout else ("D, N, H", (D, N, H))
            check_shape(operator, name, floats.get(name), *axes)
        for name, width in {**widths, **dict.fromkeys(self._optional, 1)}.items():
            # what is negative counts numbers of rows
            symbol, size = (units(width), width * H) if width > 0 else (str(-width), -width)
            lead = ("N, T, D", (N, T, D)) if self.layout else ("T, D, N", (T, D, N))
            check_shape(operator, name, floats.get(name), f"{lead[0]}, {symbol}", (*lead[1], size))


class _Loop:
    """The buffers of one direction's loop by name, and stages on them."""

    def __init__(self, call: CellCall, direction: Direction) -> None:
        self.call, self.direction = call, direction
        self.rows: dict[str, Any] = {}
        v = call.part("v", direction)
        if v is not None:
            self.rows["v"] = call.engine.wrap(call.xp.reshape(v, (1, v.shape[0])))

    def carried(self, buffer: Buffer, rows: Any = None) -> Any:
        """A buffer that every step rewrites, from these rows on; from zeros by default."""
        if rows is None:
            width = 1 if buffer.of_row else buffer.blocks * self.call.H
            rows = self.direction.timeline.zeros(width)
        self.rows[buffer.name] = self.call.engine.carry(rows)
        return self.rows[buffer.name]

    def stage(self, stage: Stage, others: Mapping[str, Any]) -> Elementwise:
        """A stage on the buffers; `others` stand in the place of some."""
        rows = {**self.rows, **others}

        def operands(parts: Sequence[Part]) -> list[Operand]:
            return [
                Operand(rows.get(b.name), b.blocks, b.at, None if len(own) == b.blocks else own, b.of_row)
                for b, own in parts
            ]

        return Elementwise(stage.formula, operands(stage.inputs), operands(stage.outputs))

    def weight(self, group: Group) -> Any:
        """The group's blocks of R, one below the other."""
        R, H, blocks = self.call.part("R", self.direction), self.call.H, group.blocks
        if blocks == tuple(range(blocks[0], blocks[0] + len(blocks))):
            return R[blocks[0] * H : (blocks[-1] + 1) * H, :]
        return self.call.xp.concat([R[k * H : (k + 1) * H, :] for k in blocks], axis=0)


def forward_direction(
    call: CellCall, direction: Direction, plan: ForwardPlan, states: Sequence[str]
) -> tuple:
    """Rows of each state, final states, rows of what is saved and of row means."""
    engine, timeline, H = call.engine, direction.timeline, call.H
    loop = _Loop(call, direction)
    initial = [call.initial(f"initial_{name}", direction) for name in states]
    loop.rows["x"] = engine.product_rows(call.rows("X", direction), call.part("W", direction).T)
    for buffer in plan.scratch:
        loop.carried(buffer)
    state_rows = [engine.rows(timeline.rows, H, like=initial[0]) for _ in states]
    loop.rows |= {after(k).name: rows for k, rows in enumerate(state_rows)}
    kept = [buffer for buffer in (plan.saved, *plan.means) if buffer is not None]
    for buffer in kept:
        width = 1 if buffer.of_row else buffer.blocks * H
        loop.rows[buffer.name] = engine.rows(timeline.rows, width, like=initial[0])
    weights = [engine.loop_weight(loop.weight(group).T, call.T) for group in plan.groups]
    targets = [loop.carried(group.product) for group in plan.groups]
    sources = [loop.carried(group.source) if group.state is None else None for group in plan.groups]

    def stages(rows_before: Sequence[Any]) -> list:
        made: list[Any] = []
        others = {before(k).name: rows for k, rows in enumerate(rows_before)}
        for group, weight, target in zip(plan.groups, weights, targets, strict=True):
            if group.state is not None:
                made.append(Product(Operand(rows_before[group.state], 1, "before"), weight, target))
        for level, stage in enumerate(plan.stages):
            made.append(loop.stage(stage, others))
            for group, weight, target, source in zip(plan.groups, weights, targets, sources, strict=True):
                if group.state is None and group.level == level:
                    made.append(Product(Operand(source, 1, "first"), weight, target))
        return made

    first, later = timeline.forward()
    engine.scan(stages([engine.wrap(rows) for rows in initial]), first)
    engine.scan(stages(state_rows), later)
    arrays = [engine.array(rows) for rows in state_rows]
    finals = [timeline.last(rows, start) for rows, start in zip(arrays, initial, strict=True)]
    saved = None if plan.saved is None else engine.array(loop.rows[plan.saved.name])
    means = [engine.array(loop.rows[buffer.name]) for buffer in plan.means]
    return arrays, finals, saved, call.xp.concat(means, axis=1) if len(means) > 1 else (*means, None)[0]


def backward_direction(
    call: Any,
    direction: Direction,
    forward: ForwardPlan,
    plan: BackwardPlan,
    states: Sequence[str],
    wanted: frozenset[str],
    per_sample: bool | str,
) -> dict[str, Any]:
    """The wanted gradients of one direction, by argument name."""
    if not wanted:
        return {}
    back = _Backward(call, direction, forward, plan, states, wanted)
    sums = GradientSums(call, direction, wanted, per_sample)
    for chunk, columns in sums.chunks(plan.columns.blocks * call.H, like=back.initial[0]):
        back.loop(chunk, columns)
        back.add(sums, chunk, call.engine.array(columns)[: chunk.rows, :])
    return back.gradients(sums, per_sample)


def _runs(columns: Sequence[int]) -> list[tuple[int, int]]:
    """Columns as runs of consecutive ones: the first of each, and how many they are."""
    runs: list[tuple[int, int]] = []
    for column in columns:
        if runs and column == sum(runs[-1]):
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((column, 1))
    return runs


class _Backward:
    """The backward loop of one direction: what it reads, and the cotangents that it carries."""

    def __init__(
        self,
        call: CellCall,
        direction: Direction,
        forward: ForwardPlan,
        plan: BackwardPlan,
        states: Sequence[str],
        wanted: frozenset[str],
    ) -> None:
        engine = call.engine
        self.call, self.direction, self.wanted, self.states = call, direction, wanted, states
        self.groups, self.plan, self.buffers = forward.groups, plan, _Loop(call, direction)
        rows = self.buffers.rows
        self.x: Any = call.rows("X", direction) if "W" in wanted else None
        self.initial = [call.initial(f"initial_{name}", direction) for name in states]
        self.state_rows = [call.rows(f"{capital(name)}_all", direction) for name in states]
        self.wrapped = [engine.wrap(array) for array in self.state_rows]
        rows |= {after(k).name: array for k, array in enumerate(self.wrapped)}
        if forward.saved is not None:
            rows["saved"] = engine.wrap(call.rows("saved", direction))
        if forward.means:
            means = call.rows("means", direction)
            rows |= {b.name: engine.wrap(means[:, k : k + 1]) for k, b in enumerate(forward.means)}
        for k, name in enumerate(states):
            rows[given(k).name] = call.wrapped(f"grad_{capital(name)}_all", direction)
        for buffer in plan.scratch:
            self.buffers.carried(buffer)
        self.carried = [self._carried(k) for k in range(len(states))]
        for group in self.groups:
            if group.state is None:
                self.buffers.carried(group.back)
        self.weights = [engine.loop_weight(self.buffers.weight(group), call.T) for group in self.groups]

    def _carried(self, k: int) -> list[Any]:
        """What the step after passed back to a state, in parts; the first begins with the end's cotangent."""
        own = [carry(k)] if self.plan.direct[k] else []
        own += [group.back for group in self.groups if group.state == k]
        end = self.call.initial(f"grad_{capital(self.states[k])}_t", self.direction)
        return [self.buffers.carried(buffer, None if number else end) for number, buffer in enumerate(own)]

    def loop(self, chunk: Chunk, columns: Any) -> None:
        """Write the cotangents of the chunk's rows, and carry those of the states on."""
        engine, H = self.call.engine, self.call.H

        def stages(rows_before: Sequence[Any], is_first: bool) -> list:
            made: list[Any] = []
            others = {before(k).name: rows for k, rows in enumerate(rows_before)}
            others[self.plan.columns.name] = columns
            for level, stage in enumerate(self.plan.stages):
                made.append(self.buffers.stage(stage, others))
                for group, weight, (own, last) in zip(
                    self.groups, self.weights, self.plan.products, strict=True
                ):
                    needless = is_first and group.state is not None and not self._wants_initial(group.state)
                    if last == level and not needless:
                        source = engine.columns(columns, own.start * H, own.stop * H)
                        target = self.buffers.rows[group.back.name]
                        made.append(Product(Operand(source, 1, "local"), weight, target))
            return made

        engine.scan(stages(self.wrapped, False), chunk.later)
        engine.scan(stages([engine.wrap(rows) for rows in self.initial], True), chunk.first)

    def _wants_initial(self, k: int) -> bool:
        return f"initial_{self.states[k]}" in self.wanted

    def add(self, sums: GradientSums, chunk: Chunk, d: Any) -> None:
        """Add the chunk's part, from its cotangents d, to the gradients of input and parameters."""
        call, direction, wanted, H, plan = self.call, self.direction, self.wanted, self.call.H, self.plan
        if "X" in wanted:
            sums.add_input(chunk, (d[:, : plan.inputs.stop * H], call.part("W", direction)))
        sources = {k: d[:, k * H : (k + 1) * H] for k in plan.sources if k is not None}
        d = sums.weighted(chunk, d[:, : plan.cotangents * H])
        if "W" in wanted:
            sums.add_weight("W", d[:, : plan.inputs.stop * H], self.x[chunk.part, :])
        if "R" in wanted:
            for group, (own, _), source in zip(self.groups, plan.products, plan.sources, strict=True):
                name, dr = f"R {group.number}", d[:, own.start * H : own.stop * H]
                if source is not None:
                    sums.add_weight(name, dr, sources[source])
                else:
                    k: Any = group.state
                    initial = call.part(f"initial_{self.states[k]}", direction)
                    sums.add_weight_before(name, dr, chunk, self.state_rows[k], initial)
        if "v" in wanted:
            # vectors of one sum share their cotangent's column: each run of columns is summed once
            for start, count in dict.fromkeys(_runs(plan.vectors)):
                sums.add_rows(f"v {start} {count}", d[:, start * H : (start + count) * H])

    def gradients(self, sums: GradientSums, per_sample: bool | str) -> dict[str, Any]:
        """All wanted gradients, once all chunks are through."""
        engine, timeline, xp, wanted, H = (
            self.call.engine, self.direction.timeline, self.call.xp, self.wanted, self.call.H,
        )  # fmt: skip
        grads: dict[str, Any] = {}
        if "X" in wanted:
            grads["X"] = sums.input_rows()
        if "W" in wanted:
            grads["W"] = sums["W"]
        if "R" in wanted and per_sample == "norm":
            grads["R"] = sums.weight(*(f"R {group.number}" for group in self.groups))
        elif "R" in wanted:
            places = {}
            for group in self.groups:
                whole = sums[f"R {group.number}"]
                for number, block in enumerate(group.blocks):
                    places[block] = whole[..., number * H : (number + 1) * H, :]
            parts = [places[block] for block in sorted(places)]
            in_order = len(self.groups) == 1  # whose blocks are all
            grads["R"] = sums["R 0"] if in_order else xp.concat(parts, axis=parts[0].ndim - 2)
        if "v" in wanted:
            parts = [sums[f"v {start} {count}"] for start, count in _runs(self.plan.vectors)]
            grads["v"] = parts[0] if len(parts) == 1 else xp.concat(parts, axis=parts[0].ndim - 1)
        for k, name in enumerate(self.states):
            if self._wants_initial(k):
                total, *others = (engine.array(rows) for rows in self.carried[k])
                for one in others:
                    total = total + one
                grads[f"initial_{name}"] = timeline.unsort(total)
        return grads
