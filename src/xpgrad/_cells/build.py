"""A step and its gradient as stages: which values are saved, and in which buffers of a time loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from xpgrad._cells.reverse import pull_back
from xpgrad._cells.stages import BufferBlock, Planner, Sum, is_expensive
from xpgrad._cells.tape import StepValue
from xpgrad._cells.trace import StepGraph, in_order, number_of, reached, trace
from xpgrad._recurrent.backward import BackwardLoop
from xpgrad._recurrent.plan import (
    BackwardPlan,
    Buffer,
    ForwardPlan,
    Group,
    InputPart,
    after,
    average,
    averaged,
    before,
    carry,
    given,
)
from xpgrad._recurrent.timeline import Chunk


class ColumnSource(NamedTuple):
    """A value that R multiplied, as a column behind the cotangents."""

    column: int

    def __call__(self, back: BackwardLoop, chunk: Chunk, columns: Any) -> Any:
        """The value's rows."""
        H = back.call.H
        return columns[:, self.column * H : (self.column + 1) * H]


def build(
    operator: str,
    function: Callable,
    states: Sequence[str],
    blocks: Mapping[str, Sequence[str]],
    inputs: Mapping[str, Sequence[str]],
    heads: int,
) -> tuple[ForwardPlan, BackwardPlan]:
    """The plans of a step and of its pullback; see `trace` for `blocks` and `inputs`."""
    return _Builder(operator, trace(operator, function, blocks, inputs, heads), states, inputs).plans()


class _Builder:
    def __init__(
        self, name: str, step: StepGraph, states: Sequence[str], inputs: Mapping[str, Sequence[str]]
    ) -> None:
        self._name, self._step, self._names, self._inputs = name, step, tuple(states), inputs
        self._states = range(len(step.before))
        sources: dict[StepValue, list[int]] = {}
        for k, product in enumerate(step.products):
            sources.setdefault(product.arguments[0], []).append(k)
        self._sources = list(sources)
        self._blocks: list[tuple[int, ...]] = [tuple(own) for own in sources.values()]
        self._products = [[step.products[k] for k in own] for own in self._blocks]

    def plans(self) -> tuple[ForwardPlan, BackwardPlan]:
        """Both plans."""
        step = self._step
        last = step.tape.count()
        seeds = [step.tape.leaf("seed", k) for k in self._states]
        found = pull_back(step, self._products, seeds)
        saved, means = self._saved(list(found.values()), last)
        forward = self._forward(saved, means)
        return forward, self._backward(forward, saved, means, seeds, found)

    def _own_leaves(self) -> dict[StepValue, BufferBlock]:
        """The places of states, inputs and vectors, for the forward and the backward step."""
        step = self._step
        leaves = {value: BufferBlock(after(k)) for k, value in enumerate(step.after)}
        leaves |= {value: BufferBlock(before(k)) for k, value in enumerate(step.before)}
        leaves |= dict(zip(step.given, self._given_places("input"), strict=True))
        vectors = Buffer("v", len(step.vectors), "every")
        return leaves | {value: BufferBlock(vectors, k) for k, value in enumerate(step.vectors)}

    def _given_buffers(self, kind: str) -> tuple[Buffer, ...]:
        """A buffer for each input besides x."""
        return tuple(Buffer(f"{kind}_{name}", max(1, len(own)), "now") for name, own in self._inputs.items())

    def _given_places(self, kind: str) -> list[BufferBlock]:
        """The places of the blocks of inputs besides x, or of their cotangents."""
        return [BufferBlock(buffer, k) for buffer in self._given_buffers(kind) for k in range(buffer.blocks)]

    def _saved(self, values: Sequence[Any], last: int) -> tuple[list[Any], list[Any]]:
        """The values of the step that are kept for the gradient, and the row means."""
        leaves, saved, means, seen = self._own_leaves(), set[Any](), set[Any](), set[Any]()
        raw: dict[StepValue, bool] = {}
        todo = list(values)
        todo += [source for source in self._sources if source not in leaves]
        while todo:
            value = todo.pop()
            if value in seen or value in leaves or value.function == "seed":
                continue
            seen.add(value)
            if value.number > last or value.is_flag or value.axes == "column":
                todo += value.uses
            elif value.function == "mean":
                means.add(value)
            elif value.axes == "each" and (is_expensive(value) or _is_raw(value, raw)):
                saved.add(value)
            else:
                todo += value.uses
        return sorted(saved, key=number_of), sorted(means, key=number_of)

    def _forward(self, saved: Sequence[Any], means: Sequence[Any]) -> ForwardPlan:
        step = self._step
        inputs = Buffer("x", len(step.inputs), "now")
        given = set(step.given)
        leaves: dict[StepValue, BufferBlock | Sum] = {
            value: place
            for value, place in self._own_leaves().items()
            if place.buffer.at != "now" or value in given
        }
        leaves |= {value: BufferBlock(inputs, k) for k, value in enumerate(step.inputs)}
        groups = [self._group(number) for number in range(len(self._sources))]
        later: dict[StepValue, BufferBlock] = {}
        for group in groups:
            places = {v: BufferBlock(group.product, n) for n, v in enumerate(self._products[group.number])}
            if group.state is None:
                later |= places
            else:
                leaves |= places
        kept = tuple(Buffer(f"saved_mean{k}", 1, "now", True) for k in range(len(means)))
        later |= {value: BufferBlock(buffer) for value, buffer in zip(means, kept, strict=True)}
        buffer = Buffer("saved", len(saved), "now") if saved else None
        outputs: list[tuple[BufferBlock, Any]] = [
            (BufferBlock(after(k)), v) for k, v in enumerate(step.after)
        ]
        if buffer is not None:
            outputs += [(BufferBlock(buffer, k), value) for k, value in enumerate(saved)]
        outputs += [
            (BufferBlock(group.source), self._sources[group.number])
            for group in groups
            if group.state is None
        ]
        full = BufferBlock(inputs) if step.inputs else BufferBlock(before(step.read[0]))
        averages = _averages(outputs, leaves, later)
        planner = Planner(f"{self._name}_step", leaves, later, full, outputs)
        stages = planner.stages()
        groups = [group._replace(level=planner.level(self._sources[group.number])) for group in groups]
        results = {} if buffer is None else {"saved": (buffer,)}
        return ForwardPlan(
            self._names,
            stages,
            groups,
            kept=results | ({"means": kept} if kept else {}),
            scratch=planner.scratch,
            given=self._given_buffers("input"),
            averages=[(number, planner.level(value.arguments[0])) for number, value in averages],
            read=step.read,
        )

    def _group(self, number: int) -> Group:
        source = self._sources[number]
        state = next((k for k, value in enumerate(self._step.before) if value is source), None)
        return Group(number, self._blocks[number], state)

    def _backward_leaves(
        self, forward: ForwardPlan, saved: Sequence[Any], means: Sequence[Any], seeds: Sequence[Any],
        direct: Sequence[bool],
    ) -> dict[StepValue, BufferBlock | Sum]:  # fmt: skip
        """The operands of the backward step: leaves, saved values, means, states' cotangents as sums."""
        leaves: dict[StepValue, BufferBlock | Sum] = dict(self._own_leaves())
        for buffer in forward.kept.get("saved", ()):
            leaves |= {value: BufferBlock(buffer, k) for k, value in enumerate(saved)}
        kept = forward.kept.get("means", ())
        leaves |= {value: BufferBlock(buffer) for value, buffer in zip(means, kept, strict=True)}
        for k, seed in enumerate(seeds):
            through = [BufferBlock(group.back) for group in forward.groups if group.state == k]
            passed = [BufferBlock(carry(k))] if direct[k] else []
            leaves[seed] = Sum((*passed, *through), (BufferBlock(given(k)),))
        return leaves

    def _backward(
        self, forward: ForwardPlan, saved: Sequence[Any], means: Sequence[Any], seeds: Sequence[Any],
        found: Mapping[StepValue, Any],
    ) -> BackwardPlan:  # fmt: skip
        step, groups = self._step, forward.groups
        multiplied = {group.state for group in groups}
        direct = [found.get(v) is not None or k not in multiplied for k, v in enumerate(step.before)]
        leaves = self._backward_leaves(forward, saved, means, seeds, direct)
        wanted: list[Any] = [found.get(value) for value in step.inputs]
        products, sources = [], dict[int, ColumnSource]()
        for group in groups:
            products.append(_placed(wanted, [found.get(v) for v in self._products[group.number]]))
        vectors = [_placed(wanted, [found.get(value)]).start for value in step.vectors]
        count = len(wanted)
        for group in groups:
            if group.state is None:
                sources[group.number] = ColumnSource(len(wanted))
                wanted.append(self._sources[group.number])
        columns = Buffer("columns", len(wanted), "local")
        outputs = [(BufferBlock(columns, k), value) for k, value in enumerate(wanted)]
        outputs += [(BufferBlock(carry(k)), found.get(v)) for k, v in enumerate(step.before) if direct[k]]
        outputs += list(zip(self._given_places("dinput"), map(found.get, step.given), strict=True))
        later = {
            value: BufferBlock(groups[value.index].back)
            for value in reached([v for _, v in outputs], leaves)
            if value.function == "back"
        }
        averages = _averages(outputs, leaves, later)
        given_cotangents = self._given_buffers("dinput")
        full = BufferBlock(after(0))
        planner = Planner(f"{self._name}_pullback", leaves, later, full, outputs, given_cotangents)
        stages = planner.stages()
        levels = [
            max(planner.level(found.get(value)) for value in self._products[group.number]) for group in groups
        ]
        return BackwardPlan(
            self._names,
            groups,
            stages,
            columns,
            products=list(zip(products, levels, strict=True)),
            direct=direct,
            inputs=[InputPart(range(len(step.inputs)))] if step.inputs else [],
            vectors=vectors,
            vector="v",
            kept=forward.kept,
            cotangents=count,
            sources=sources,
            scratch=planner.scratch,
            inputs_beside=forward.given,
            given=given_cotangents,
            averages=[(number, planner.level(value.arguments[0])) for number, value in averages],
        )


def _placed(wanted: list[Any], values: list[Any]) -> range:
    """The consecutive columns that hold these values, appended if no columns do."""
    count = len(values)
    for start in range(len(wanted) - count + 1):
        if all(a is b for a, b in zip(wanted[start : start + count], values, strict=True)):
            return range(start, start + count)
    wanted += values
    return range(len(wanted) - count, len(wanted))


def _is_raw(value: Any, known: dict[StepValue, bool]) -> bool:
    """Whether a value is a product, or a sum of products, vectors and numbers; `known` keeps the answers."""

    def terms(one: Any) -> list[Any]:
        return [a for a in one.uses if a not in known] if one.function in ("add", "subtract") else []

    for one in in_order(value, terms):
        sums = one.uses if one.function in ("add", "subtract") else []
        made = any(known[a] for a in sums) and all(known[a] or a.axes == "column" for a in sums)
        known[one] = made or one.function in ("x", "r", "average")
    return known[value]


def _averages(
    outputs: list[tuple[BufferBlock, Any]],
    leaves: Mapping[StepValue, Any],
    later: dict[StepValue, BufferBlock],
) -> list[tuple[int, Any]]:
    """The means within heads on which outputs depend, numbered; their operands become outputs too."""
    wanted = reached([value for _, value in outputs], leaves)
    found = list(enumerate(sorted((v for v in wanted if v.function == "average"), key=number_of)))
    later |= {value: BufferBlock(average(number)) for number, value in found}
    outputs += [(BufferBlock(averaged(number)), value.arguments[0]) for number, value in found]
    return found
