"""Programs for calls whose sizes are new each time, as images of many sizes.

All calls of a kind have the same form but for some sizes. The first call records a program. The second one
records a `Template`: the sizes that differ stay symbols. Later calls get their program from a template. If
their sizes need other instructions, they record another template.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from xpgrad.engine.programs.program import Program
from xpgrad.engine.programs.template import Template
from xpgrad.engine.symbols import Trace

_MOST = 16  # templates of one kind of call
_TRIES = 8  # templates in a row that no call has used, before recording with symbols is given up

Layouts = Mapping[str, tuple[Sequence[Any], Sequence[Any]]]


def contiguous_strides(shape: Sequence[Any], order: Sequence[int]) -> tuple[Any, ...]:
    """The strides of contiguous elements, the axes in this order, the last one in memory first; else 0."""
    strides: list[Any] = [0] * len(shape)
    step: Any = 1
    for axis in order:
        strides[axis], step = step, step * shape[axis]
    return tuple(strides)


class VaryingCall(Protocol):
    """A call of a `kind`, within which only the `sizes` vary."""

    kind: tuple[Any, ...]
    sizes: tuple[int, ...]

    def layouts(self, sizes: Sequence[Any]) -> Layouts:
        """Shape and strides by name, of a call with other sizes."""


class Plan(NamedTuple):
    """A program, and what makes the call's result of the program's results, or a host's program of it."""

    program: Program
    result: Callable[..., Any]


class CallSizes:
    """The sizes of a call that vary within its `kind`: of some arrays, on all axes but the second.

    Parameters
    ----------
    layouts : mapping
        Shape and strides by name.
    names : sequence of str
        Those arrays. They are contiguous in some order of their axes, but for axes of stride 0, or are some
        channels of such an array. The sizes of another array belong to the kind.
    """

    def __init__(self, layouts: Layouts, names: Sequence[str]) -> None:
        self._layouts, self._memory = layouts, dict[str, _AxesInMemory]()
        kind: list[Any] = []
        for name, (shape, strides) in layouts.items():  # of a Joined, its parts and shape
            memory = _AxesInMemory.of(shape, strides) if name in names else None
            if memory is not None and (*strides,) == memory.strides(shape):
                self._memory[name] = memory
                kind.append((name, len(shape), shape[1:2], memory))
            else:
                kind.append((name, shape, strides))
        self.kind = tuple(kind)
        self._axes = [(name, k) for name in self._memory for k in range(len(layouts[name][0])) if k != 1]
        self.sizes = tuple([layouts[name][0][axis] for name, axis in self._axes])

    def layouts(self, sizes: Sequence[Any]) -> Layouts:
        """The layouts of a call with other sizes."""
        found = dict(self._layouts)
        each = dict(zip(self._axes, sizes, strict=True))
        for name, memory in self._memory.items():
            shape = tuple([each.get((name, axis), size) for axis, size in enumerate(found[name][0])])
            found[name] = shape, memory.strides(shape)
        return found


class _AxesInMemory(NamedTuple):
    """The order of an array's axes in memory, without axes of stride 0, and the number of channels there.

    A cotangent of a concatenation is some channels of a larger array.
    """

    order: tuple[int, ...]
    channels: int

    @classmethod
    def of(cls, shape: Sequence[int], strides: Sequence[int]) -> _AxesInMemory:
        order = sorted([axis for axis, by in enumerate(strides) if by], key=lambda axis: -strides[axis])
        place = order.index(1) if 1 in order else 0
        return cls(tuple(order), strides[order[place - 1]] // strides[1] if place else 1)

    def strides(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """The strides for other sizes."""
        in_memory = [self.channels if axis == 1 else size for axis, size in enumerate(shape)]
        return contiguous_strides(in_memory, self.order[::-1])


class Templates:
    """The templates of a kind of call, and which of its sizes have varied."""

    def __init__(self) -> None:
        self._known: list[tuple[Template, Callable[..., Any]]] = []
        self._last: Sequence[int] = ()
        self._varying: set[int] = set()
        self._unused = 0

    def plan(self, call: VaryingCall, record: Callable[[Layouts, bool], Plan | None] | None) -> Plan | None:
        """The plan of a call, None if it has none; ``record(layouts, has_symbols)`` records one."""
        for known in self._known:
            program = known[0].program(call.sizes)
            if program is not None:
                self._unused = 0
                if known is not self._known[0]:  # a new list, because other threads may be looking
                    self._known = [known, *(one for one in self._known if one is not known)]
                return Plan(program, known[1])
        if record is None:
            return None
        pairs = zip(self._last or call.sizes, call.sizes, strict=True)
        self._varying |= {place for place, (last, size) in enumerate(pairs) if last != size}
        self._last = call.sizes
        if self._varying and self._unused < _TRIES:
            self._unused += 1
            plan = self._with_symbols(call, record)
            if plan is not None:
                return plan
        return record(call.layouts(call.sizes), False)

    def _with_symbols(self, call: VaryingCall, record: Callable[[Layouts, bool], Plan | None]) -> Plan | None:
        """The plan, recorded with symbols; None where only numbers do, as for sizes that are an error."""
        trace = Trace()
        symbols = [trace.size(size) for size in call.sizes]
        # an integer of a symbol is a condition
        sizes = [one if place in self._varying else int(one) for place, one in enumerate(symbols)]
        try:
            plan = record(call.layouts(sizes), True)
            if plan is not None:
                parts, plan.program.symbolic = plan.program.symbolic, None
                if parts is not None and not trace.pins([symbols[place] for place in self._varying]):
                    template = Template(plan.program, parts, trace)
                    self._known = [(template, plan.result), *self._known[: _MOST - 1]]
        except Exception:
            return None
        finally:
            trace.clear()
        return plan
