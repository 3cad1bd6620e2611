"""A loop over time as one Scan: its body is a step of the kernel, traced once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from onnx import helper

from xpgrad.engine import Elementwise, Operand, Product, Span, StandardEngine
from xpgrad_onnx import _namespace as xp
from xpgrad_onnx._arrays import GraphArray, Scope, current, tensor_info, used

Stages = Sequence[Elementwise | Product]

_NOW, _BEFORE = "now", "before"  # names of rows within a step; rows at "first" and "every" begin at 0


class GraphRows:
    """A row buffer: an array, and within a step the rows that the step touches."""

    def __init__(self, width: int, like: GraphArray, array: GraphArray | None = None) -> None:
        self.width, self.like, self.array = width, like, array
        self.step: dict[Any, GraphArray] | None = None

    def write(self, first: Any, piece: GraphArray) -> None:
        """Rows of a step, or all rows."""
        if self.step is None:
            self.array = piece
        else:
            self.step[first] = piece

    def read(self, first: Any, count: Any) -> GraphArray:
        """Rows of a step, or all rows."""
        if self.step is not None:
            return self.step[first]
        return self.whole()

    def whole(self) -> GraphArray:
        """All rows."""
        if self.array is None:
            raise AssertionError("a step reads rows that nothing has written")
        return self.array


class GraphColumns:
    """Some columns of another row buffer, for reading."""

    def __init__(self, rows: GraphRows, start: int, stop: int) -> None:
        self.rows, self._start, self._stop = rows, start, stop

    def read(self, first: Any, count: Any) -> GraphArray:
        """The columns of these rows."""
        return self.rows.read(first, count)[:, self._start : self._stop]


class _GraphAccess:
    """How a step touches a buffer: the rows that it reads before it writes them, and the written rows."""

    def __init__(self, rows: GraphRows) -> None:
        self.rows = rows
        self.reads: list[str] = []
        self.writes: set[str] = set()
        self.initial: GraphRows | None = None  # the rows before the first step

    def read(self, at: str, initial: GraphRows) -> None:
        """Note an operand of a stage; at the first step it is read from the rows `initial`."""
        if at not in self.writes and at not in self.reads:
            self.reads.append(at)
        if at == _BEFORE:
            self.initial = initial


def run(engine: StandardEngine, first: Stages, later: Stages, steps: Any) -> None:
    """Append the loop. The stages of the first step and of later steps differ only in their rows.

    In a loop from the last step to the first, stages of only the first step follow after the loop.
    """
    GraphLoop(engine, _accesses(first, later), steps).append(later)
    if len(first) > len(later):
        engine.run_step(first[len(later) :], Span(steps.timeline.batch))


def _accesses(first: Stages, later: Stages) -> list[_GraphAccess]:
    found: dict[int, _GraphAccess] = {}

    def access(rows: Any) -> _GraphAccess:
        under = _under(rows)
        return found.setdefault(id(under), _GraphAccess(under))

    for own, stage in zip(_padded(first, later), later, strict=True):
        for other, operand in zip(_inputs(own), _inputs(stage), strict=True):
            if operand.rows is not None:
                access(operand.rows).read(_label(operand.at), _under(other.rows))
        for operand in _outputs(stage):
            if operand.rows is not None:
                access(operand.rows).writes.add(_label(operand.at))
    return list(found.values())


def _padded(first: Stages, later: Stages) -> Stages:
    """Give the first step as many stages as later steps: missing stages write nothing that is read."""
    return [*first[: len(later)], *later[len(first) :]]


def _under(rows: Any) -> GraphRows:
    return rows.rows if isinstance(rows, GraphColumns) else rows


def _label(at: str) -> str:
    return _NOW if at == "local" else at


def _inputs(stage: Elementwise | Product) -> Sequence[Operand]:
    return [stage.source] if isinstance(stage, Product) else stage.inputs


def _outputs(stage: Elementwise | Product) -> Sequence[Operand]:
    return [Operand(stage.target, 1, "first")] if isinstance(stage, Product) else stage.outputs


class GraphLoop:
    """A loop under construction: the carried rows of its steps, their input slices and their results.

    `engine` evaluates a step, and `accesses` tell how a step touches each buffer.
    """

    def __init__(self, engine: StandardEngine, accesses: Sequence[_GraphAccess], steps: Any) -> None:
        self._engine, self._steps = engine, steps
        self._T, self._N = steps.timeline.steps, steps.timeline.batch
        self._accesses = accesses
        self._fixed: list[tuple[GraphRows, Any, GraphArray]] = []
        # the rows, their names when a step reads and writes them, and their start
        self._states: list[tuple[GraphRows, Any, Any, GraphArray]] = []
        self._slices: list[tuple[GraphRows, Any, GraphArray]] = []
        self._given: list[GraphRows] = []
        for access in accesses:
            for at in access.reads:
                self._read(access, at)
            if _NOW in access.writes:
                self._given.append(access.rows)

    def _read(self, access: _GraphAccess, at: str) -> None:
        rows = access.rows
        if at == "every" or (at == "first" and at not in access.writes):
            self._fixed.append((rows, 0, rows.whole()))
        elif at == "first":
            self._states.append((rows, 0, 0, rows.whole()))
        elif at == _NOW:
            self._slices.append((rows, at, self._by_step(rows.whole())))
        elif access.initial is None:
            raise AssertionError("a step reads previous rows that the first step does not have")
        elif _NOW in access.writes:
            self._states.append((rows, _BEFORE, _NOW, access.initial.whole()))
        else:
            before = self._steps.timeline.previous(rows.whole(), access.initial.whole(), None)
            self._slices.append((rows, _BEFORE, self._by_step(before)))

    def _by_step(self, rows: GraphArray) -> GraphArray:
        return self._in_order(rows.reshaped((self._T, self._N, rows.shape[1])))

    def _in_order(self, array: GraphArray) -> GraphArray:
        """From the rows' order to the steps', or back. Onnx's evaluator has no backward Scan."""
        if not self._steps.descending:
            return array
        scope, T = array.scope, self._T
        numbers = scope.cached(("backwards", T), lambda: T - 1 - xp.arange(T))
        return xp.take(array, numbers, axis=0)

    def append(self, stages: Stages) -> None:
        """Trace a step, and append the Scan to the graph."""
        scope = current()
        body = scope.inner()
        taken = [array for *_, array in self._slices]
        states = [array for *_, array in self._states]
        if self._steps.valid is not None:
            taken.append(self._in_order(self._steps.valid))
        held = [GraphArray(body, a.dtype, a.shape, scope.fresh("xpgrad/state")) for a in states]
        parts = [GraphArray(body, a.dtype, a.shape[1:], scope.fresh("xpgrad/slice")) for a in taken]
        with self._in_step(held, parts), body.active():
            self._engine.run_step(stages, Span(self._N, _NOW, _BEFORE, _NOW))  # type: ignore[arg-type]
            results = self._results(held, parts)
        outputs = _own(body, [*held, *parts], results)
        self._finish(scope, body, [*states, *taken], [*held, *parts], outputs)

    @contextlib.contextmanager
    def _in_step(self, held: Sequence[GraphArray], parts: Sequence[GraphArray]) -> Iterator[None]:
        """Make the buffers hold the rows that a step reads, and take the rows that it writes."""
        for access in self._accesses:
            access.rows.step = {}
        found = [(rows, label, array) for rows, label, array in self._fixed]
        found += [(rows, read, a) for (rows, read, *_), a in zip(self._states, held, strict=True)]
        found += [(rows, at, a) for (rows, at, _), a in zip(self._slices, parts, strict=False)]
        for rows, label, array in found:
            _step(rows)[label] = array
        try:
            yield
        finally:
            for access in self._accesses:
                access.rows.step = None

    def _results(self, held: Sequence[GraphArray], parts: Sequence[GraphArray]) -> list[GraphArray]:
        """The carried rows of a step, then its results; invalid rows keep their old values."""
        kept = [_step(rows)[write] for rows, _, write, _ in self._states]
        given = [_step(rows)[_NOW] for rows in self._given]
        if self._steps.valid is None:
            return [*kept, *given]
        valid = parts[-1]
        kept = [xp.where(valid, new, old) for new, old in zip(kept, held, strict=True)]
        return [*kept, *(xp.where(valid, new, 0) for new in given)]

    def _finish(
        self,
        scope: Scope,
        body: Scope,
        inputs: Sequence[GraphArray],
        places: Sequence[GraphArray],
        outputs: Sequence[GraphArray],
    ) -> None:
        """Append the Scan; its results become the buffers' arrays."""
        states, slices = len(self._states), len(inputs) - len(self._states)
        graph = helper.make_graph(
            used(body.nodes, [array.name for array in outputs]),
            scope.fresh("xpgrad/step"),
            list(map(tensor_info, places)),
            list(map(tensor_info, outputs)),
        )
        names = [scope.fresh("xpgrad/Scan") for _ in outputs]
        scope.nodes.append(
            helper.make_node(
                "Scan", [array.name for array in inputs], names, name=scope.fresh("xpgrad/Scan_node"),
                body=graph, num_scan_inputs=slices,
            )
        )  # fmt: skip
        for (rows, read, write, _), name, array in zip(self._states, names, outputs, strict=False):
            if read == write:
                rows.array = GraphArray(scope, array.dtype, array.shape, name)
        for rows, name, array in zip(self._given, names[states:], outputs[states:], strict=True):
            whole = self._in_order(GraphArray(scope, array.dtype, (self._T, *array.shape), name))
            rows.array = whole.reshaped((self._T * self._N, array.shape[1]))


def _step(rows: GraphRows) -> dict[Any, GraphArray]:
    return {} if rows.step is None else rows.step


def _own(body: Scope, inputs: Sequence[GraphArray], outputs: Sequence[GraphArray]) -> list[GraphArray]:
    """The outputs under new names, made in the body, as ONNX requires."""
    taken, made = {array.name for array in inputs}, []
    for array in outputs:
        source = array.name  # constant arrays get a tensor now, perhaps outside of the body
        if array.scope is not body or source in taken:
            name = body.fresh("xpgrad/Identity")
            body.nodes.append(helper.make_node("Identity", [source], [name], name=f"{name}_node"))
            array = GraphArray(body, array.dtype, array.shape, name)
        taken.add(array.name)
        made.append(array)
    return made
