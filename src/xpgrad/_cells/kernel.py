"""A cell over sequences: the stages of its step and of its pullback in time loops, and what stands around."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from xpgrad._calls.plans import Asked
from xpgrad._cells.build import (
    BackwardPlan,
    ForwardPlan,
    Group,
    after,
    average,
    averaged,
    before,
    carry,
    given,
)
from xpgrad._cells.stages import Buffer, Stage, StageBlocks
from xpgrad._operators.arguments import check_rank, check_shape
from xpgrad._recurrent.call import Direction, RecurrentCall, units
from xpgrad._recurrent.gradient_sums import GradientSums
from xpgrad._recurrent.timeline import Chunk
from xpgrad.engine import Elementwise, Formula, Operand, Product

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
    inputs : mapping of str to int
        The inputs beside X, and how many blocks each has; one of one value has 0.
    heads : int
        How many heads a state has.
    names : mapping of str to str
        The call's own names for W, R and v.
    **options
        As RecurrentCall has them.
    """

    def __init__(
        self,
        asked: Asked,
        blocks: Mapping[str, int],
        over_time: Sequence[str] = (),
        columns: int = 0,
        inputs: Mapping[str, int] = MappingProxyType({}),
        heads: int = 1,
        names: Mapping[str, str] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        self._counts, self._optional, self._column_count = blocks, over_time, columns
        self.heads, self._input_blocks, self._names = heads, inputs, names
        attributes = ("clip", "activations", "activation_alpha", "activation_beta")
        plain: dict[str, Any] = {**dict.fromkeys(attributes), "defaults": ()}
        all_arrays = {**dict.fromkeys(PARAMETERS), **asked.arrays}  # a cell may have no such parameters
        super().__init__(asked._replace(arrays=all_arrays), 0, **(plain | options), cell_names=names)

    def _columns(self) -> int:
        return self._column_count

    def _needed(self) -> Sequence[str]:
        return ("X", *(name for name in PARAMETERS if self._counts[name]), *self._input_blocks)

    def _inputs(self) -> Collection[str]:
        return ("X", *self._input_blocks)

    def _check_shapes(
        self, direction: str, floats: dict[str, Any], widths: Mapping[str, int], states: Sequence[str]
    ) -> None:
        operator, blocks, X, W = self.operator, self._counts, floats["X"], floats["W"]
        check_rank(operator, "X", X, "N, T, I" if self.layout else "T, N, I")
        self.T, self.N = (X.shape[1], X.shape[0]) if self.layout else X.shape[:2]
        self.I = X.shape[2]
        kind = next(name for name in PARAMETERS if blocks[name])
        tail = {"W": ", I", "R": f", {self._head_width()}", "v": ""}
        check_rank(operator, kind, floats[kind], f"D, {units(blocks[kind])}{tail[kind]}")
        self.H = self.state_width = floats[kind].shape[1] // blocks[kind]
        self.D = 2 if direction == "bidirectional" else 1
        T, N, H, D = self.T, self.N, self.H, self.D
        if H % self.heads:
            raise ValueError(f"{operator}: H is {H}, expected a multiple of heads = {self.heads}")
        rows = {name: (f"D, {units(count)}", (D, count * H)) for name, count in blocks.items()}
        if blocks["W"]:
            check_shape(operator, "W", W, f"{rows['W'][0]}, I", (*rows["W"][1], self.I))
        if blocks["R"]:
            expected = (*rows["R"][1], H // self.heads)
            check_shape(operator, "R", floats["R"], f"{rows['R'][0]}{tail['R']}", expected)
        self._check_inputs(floats)
        if blocks["v"]:
            check_shape(operator, self._names.get("v", "v"), floats["v"], *rows["v"])
        check_shape(operator, "sample_weight", floats.get("sample_weight"), "N,", (N,))
        for name in states:
            axes = ("N, D, H", (N, D, H)) if self.layout else ("D, N, H", (D, N, H))
            check_shape(operator, name, floats.get(name), *axes)
        for name, width in {**widths, **dict.fromkeys(self._optional, 1)}.items():
            # what is negative counts numbers of rows
            symbol, size = (units(width), width * H) if width > 0 else (str(-width), -width)
            lead = ("N, T, D", (N, T, D)) if self.layout else ("T, D, N", (T, D, N))
            check_shape(operator, name, floats.get(name), f"{lead[0]}, {symbol}", (*lead[1], size))

    def _head_width(self) -> str:
        return "H" if self.heads == 1 else f"H/{self.heads}"

    def _check_inputs(self, floats: Mapping[str, Any]) -> None:
        """Raise ValueError for an input beside X of a wrong shape: (T, N, blocks H), or (T, N, 1)."""
        lead = ("N, T", (self.N, self.T)) if self.layout else ("T, N", (self.T, self.N))
        for name, count in self._input_blocks.items():
            one = (*lead[1], 1)
            if not count and tuple(floats[name].shape) == one:
                continue
            expected = (*lead[1], max(1, count) * self.H)
            other = "" if count else f" or ({lead[0]}, 1) = {one}"
            if tuple(floats[name].shape) != expected:
                raise ValueError(
                    f"{self.operator}: {name} has shape {tuple(floats[name].shape)}, expected "
                    f"({lead[0]}, {units(max(1, count))}) = {expected}{other}"
                )


def _scaled(xp: Any, x: Any, factor: Any) -> tuple:
    return (x * factor,)


class _CellLoop:
    """The buffers of one direction's loop by name, and stages on them."""

    def __init__(self, call: CellCall, direction: Direction) -> None:
        self.call, self.direction = call, direction
        self.rows: dict[str, Any] = {}
        self.of_row: set[str] = set()  # buffers of inputs that have one number for each row
        v = call.part("v", direction)
        if v is not None:
            self.rows["v"] = call.engine.wrap(call.xp.reshape(v, (1, v.shape[0])))
        self._averaging: Any = None

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

        def operands(parts: Sequence[StageBlocks]) -> list[Operand]:
            return [
                Operand(
                    rows.get(b.name),
                    b.blocks,
                    b.at,
                    None if len(own) == b.blocks else own,
                    b.of_row or b.name in self.of_row,
                )
                for b, own in parts
            ]

        return Elementwise(stage.formula, operands(stage.inputs), operands(stage.outputs))

    def weight(self, group: Group) -> Any:
        """The group's blocks of R: one below the other, or with heads a stack of every block's and head's."""
        R, H, heads, blocks = self.call.part("R", self.direction), self.call.H, self.call.heads, group.blocks
        if blocks == tuple(range(blocks[0], blocks[0] + len(blocks))):
            own = R[blocks[0] * H : (blocks[-1] + 1) * H, :]
        else:
            own = self.call.xp.concat([R[k * H : (k + 1) * H, :] for k in blocks], axis=0)
        return own if heads == 1 else self._by_head(own, len(blocks))

    def _by_head(self, rows: Any, blocks: int) -> Any:
        """Matrices (H / heads, H / heads) below one another, as a stack (blocks, heads, ...)."""
        heads, width = self.call.heads, self.call.H // self.call.heads
        return self.call.xp.reshape(rows, (blocks, heads, width, width))

    def average(self, number: int) -> Product:
        """The product for a mean within each head."""
        call = self.call
        if self._averaging is None:
            width = call.H // call.heads
            zeros = self.direction.timeline.zeros(width, call.H)
            parts = call.engine.elementwise(Formula(_constant, parameters=("number",)), [zeros], (1 / width,))
            self._averaging = call.engine.loop_weight(self._by_head(parts, 1), call.T)
        source = Operand(self.rows[averaged(number).name], 1, "first")
        return Product(source, self._averaging, self.rows[average(number).name])

    def carry_averages(self, averages: Sequence[tuple[int, int]]) -> None:
        """Memory for the means within heads and their operands."""
        for number, _ in averages:
            self.carried(averaged(number))
            self.carried(average(number))

    def read_inputs(self, plan: ForwardPlan) -> None:
        """The rows of the inputs beside X."""
        for buffer in plan.given:
            name = buffer.name.removeprefix("input_")
            rows = self.call.rows(name, self.direction)
            self.rows[buffer.name] = self.call.engine.wrap(rows)
            if rows.shape[1] < buffer.blocks * self.call.H:
                self.of_row.add(buffer.name)


def _constant(xp: Any, x: Any, number: Any) -> tuple:
    return (x + number,)


def forward_direction(
    call: CellCall, direction: Direction, plan: ForwardPlan, states: Sequence[str]
) -> tuple:
    """Rows of each state, final states, rows of what is saved and of row means."""
    engine, timeline, H = call.engine, direction.timeline, call.H
    loop = _CellLoop(call, direction)
    initial = [call.initial(f"initial_{name}", direction) for name in states]
    if call.part("W", direction) is not None:
        loop.rows["x"] = engine.product_rows(call.rows("X", direction), call.part("W", direction).T)
    for buffer in plan.scratch:
        loop.carried(buffer)
    loop.carry_averages(plan.averages)
    loop.read_inputs(plan)
    state_rows = [engine.rows(timeline.rows, H, like=initial[0]) for _ in states]
    loop.rows |= {after(k).name: rows for k, rows in enumerate(state_rows)}
    kept = [buffer for buffer in (plan.saved, *plan.means) if buffer is not None]
    for buffer in kept:
        width = 1 if buffer.of_row else buffer.blocks * H
        loop.rows[buffer.name] = engine.rows(timeline.rows, width, like=initial[0])
    weights = [
        engine.loop_weight(call.xp.matrix_transpose(loop.weight(group)), call.T) for group in plan.groups
    ]
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
            made += [loop.average(number) for number, last in plan.averages if last == level]
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
    back = _CellBackward(call, direction, forward, plan, states, wanted)
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


class _CellBackward:
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
        self.groups, self.plan, self.buffers = forward.groups, plan, _CellLoop(call, direction)
        rows = self.buffers.rows
        self.has_W = call.part("W", direction) is not None
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
        self.buffers.carry_averages(plan.averages)
        self.buffers.read_inputs(forward)
        for buffer, source in zip(plan.given, forward.given, strict=True):
            if buffer.name.removeprefix("dinput_") in wanted:
                self._input_rows(buffer, source)
        self.carried = [self._carried(k) for k in range(len(states))]
        for group in self.groups:
            if group.state is None:
                self.buffers.carried(group.back)
        self.weights = [engine.loop_weight(self.buffers.weight(group), call.T) for group in self.groups]

    def _input_rows(self, buffer: Buffer, source: Buffer) -> None:
        """Memory for the cotangent of an input beside X; of one number for each row, for its mean."""
        engine, like = self.call.engine, self.initial[0]
        of_row = source.name in self.buffers.of_row
        width = 1 if of_row else buffer.blocks * self.call.H
        self.buffers.rows[buffer.name] = engine.rows(self.direction.timeline.rows, width, like=like)
        if of_row:
            self.buffers.of_row.add(buffer.name)

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
                made += [self.buffers.average(number) for number, last in self.plan.averages if last == level]
            return made

        engine.scan(stages(self.wrapped, False), chunk.later)
        engine.scan(stages([engine.wrap(rows) for rows in self.initial], True), chunk.first)

    def _no_input_rows(self) -> Any:
        """Rows of zeros: no block of W multiplies X."""
        return self.direction.timeline.zeros(self.call.I, self.direction.timeline.rows)

    def _wants_initial(self, k: int) -> bool:
        return f"initial_{self.states[k]}" in self.wanted

    def add(self, sums: GradientSums, chunk: Chunk, d: Any) -> None:
        """Add the chunk's part, from its cotangents d, to the gradients of input and parameters."""
        call, direction, wanted, H, plan = self.call, self.direction, self.wanted, self.call.H, self.plan
        if "X" in wanted and self.has_W:
            sums.add_input(chunk, (d[:, : plan.inputs.stop * H], call.part("W", direction)))
        sources = {k: d[:, k * H : (k + 1) * H] for k in plan.sources if k is not None}
        d = sums.weighted(chunk, d[:, : plan.cotangents * H])
        if "W" in wanted:
            sums.add_weight("W", d[:, : plan.inputs.stop * H], self.x[chunk.part, :])
        if "R" in wanted:
            for group, (own, _), source in zip(self.groups, plan.products, plan.sources, strict=True):
                parts, dr = self._weight_parts(group), d[:, own.start * H : own.stop * H]
                if source is None:
                    k: Any = group.state
                    initial = call.part(f"initial_{self.states[k]}", direction)
                    sums.add_weights_before(parts, dr, chunk, self.state_rows[k], initial)
                else:
                    for name, (rows, columns) in parts.items():
                        sums.add_weight(name, dr[:, rows], sources[source][:, columns])
        if "v" in wanted:
            # vectors of one sum share their cotangent's column: each run of columns is summed once
            for start, count in dict.fromkeys(_runs(plan.vectors)):
                sums.add_rows(f"v {start} {count}", d[:, start * H : (start + count) * H])

    def _weight_parts(self, group: Group) -> dict[str, tuple[slice, slice]]:
        """The parts of a group's weight by name: rows, and the columns of the state that they multiply.

        One head is one part; of several, each block and each head is one.
        """
        H, heads, count = self.call.H, self.call.heads, len(group.blocks)
        if heads == 1:
            return {f"R {group.number}": (slice(0, count * H), slice(0, H))}
        width = H // heads
        return {
            f"R {group.number} {row}": (slice(row, row + width), slice(row % H, row % H + width))
            for row in range(0, count * H, width)
        }

    def gradients(self, sums: GradientSums, per_sample: bool | str) -> dict[str, Any]:
        """All wanted gradients, once all chunks are through."""
        engine, timeline, xp, wanted, H = (
            self.call.engine, self.direction.timeline, self.call.xp, self.wanted, self.call.H,
        )  # fmt: skip
        grads: dict[str, Any] = {}
        if "X" in wanted:
            grads["X"] = sums.input_rows() if self.has_W else self._no_input_rows()
        for buffer in self.plan.given:
            name = buffer.name.removeprefix("dinput_")
            if name in wanted:
                rows = engine.array(self.buffers.rows[buffer.name])
                if buffer.name in self.buffers.of_row:  # means over a row, of which the sums are wanted
                    rows = engine.elementwise(Formula(_scaled, parameters=("factor",)), [rows], (float(H),))
                grads[name] = rows
        if "W" in wanted:
            grads["W"] = sums["W"]
        if "R" in wanted and per_sample == "norm":
            names = [name for group in self.groups for name in self._weight_parts(group)]
            grads["R"] = sums.weight(*names)
        elif "R" in wanted:
            places = {}
            for group in self.groups:
                whole = sums.weight(*self._weight_parts(group))
                for number, block in enumerate(group.blocks):
                    places[block] = whole[..., number * H : (number + 1) * H, :]
            parts = [places[block] for block in sorted(places)]
            in_order = len(self.groups) == 1  # whose blocks are all
            grads["R"] = whole if in_order else xp.concat(parts, axis=parts[0].ndim - 2)
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
