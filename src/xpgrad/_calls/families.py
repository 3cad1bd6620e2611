"""Calls of one family differ only in some sizes, or in T and N: one call's program may serve others.

Images have new sizes, batches another N, and nearly every batch of text another T (`new_sizes.py`,
`shared_steps.py`). An adapter that remembers a call finds others of its family without any checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from xpgrad._calls.new_sizes import CallSizes, Layouts, Plan, Templates, VaryingCall
from xpgrad._calls.shared_steps import SharedSteps, shared_steps
from xpgrad.engine.process import guard
from xpgrad.engine.process.remembered import Remembered
from xpgrad.engine.programs.program import Program
from xpgrad.engine.programs.recorded import row_major
from xpgrad.engine.programs.recorder import Joined

_NEW: Any = object()
_Record = Callable[..., Plan | None] | None
"""Writes the program of a call: ``record(layouts, has_symbols=False, steps=None)``."""


class CallCache:
    """Plans; None for a form without one.

    `calls` finds them by what one look at a call shows, its T and sizes among that. `programs` has each one
    that serves several T once, by all that it depends on: many T push no other program out. `templates` are
    the same for many sizes.
    """

    def __init__(self) -> None:
        self.calls: Remembered[Any] = Remembered()
        self.programs: Remembered[Any] = Remembered()
        self.templates: Remembered[Templates] = Remembered()

    def clear(self) -> None:
        """Forget all."""
        self.calls.clear()
        self.programs.clear()
        self.templates.clear()


known = CallCache()


class CallFamily(NamedTuple):
    """What calls have in common of which only sizes differ.

    `form` is all that matters of arrays and machine but for layouts. `sized` are the arrays whose sizes vary;
    without them T and N do, of a recurrent operator. `lengths` is the number of axes of its lengths, 0 for
    none.
    """

    compute: Callable[..., Any]
    form: tuple[Any, ...]
    options: Mapping[str, Any]
    options_key: tuple
    sized: Sequence[str]
    is_recurrent: bool
    lengths: int

    def plan(self, layouts: Layouts, record: _Record) -> Plan | None:
        """The plan of a call with these layouts.

        Without `record` it is None if the program must be recorded first, as where the call is an error.
        """
        if self.sized:
            return self._of_sizes(CallSizes(layouts, self.sized), record)
        shared = shared_steps(layouts, self.options) if self.is_recurrent else None
        plan = None if shared is None else self._of_steps(shared, record)
        if shared is not None and plan is not None:
            return plan._replace(program=plan.program.for_steps(shared.steps))
        return None if record is None else record(layouts)

    def _of_sizes(self, call: VaryingCall, record: _Record) -> Plan | None:
        """The plan of a call of which some sizes are others in other calls."""
        if guard.on:  # it watches the blocks of a recording
            return None if record is None else record(call.layouts(call.sizes))
        return known.templates.again(self._key(call.kind), Templates).plan(call, record)

    def _of_steps(self, shared: SharedSteps, record: _Record) -> Plan | None:
        """The plan of calls with several T."""
        key = self._key(shared.kind, shared.sizes)
        plan = known.programs.renewed(key, _NEW)
        if plan is _NEW:
            plan = self._of_sizes(shared, record and self._for_steps(record, shared))
            if plan is not None or record is not None:
                known.programs[key] = plan
        return plan

    def _for_steps(self, record: Callable[..., Plan | None], shared: SharedSteps) -> _Record:
        """The function that records a program for several T."""

        def recorded(layouts: Layouts, has_symbols: bool = False) -> Plan | None:
            steps = layouts["X"][0][self.options["layout"]]
            try:
                return record(layouts, has_symbols, steps if shared.most else None)
            except (TypeError, ValueError):  # the call itself says what is wrong, of its own sizes
                return None

        return recorded

    def _key(self, *more: Any) -> tuple[Any, ...]:
        return self.compute, *self.form, self.options_key, *more

    def with_lengths(self, layouts: Mapping[str, Any]) -> Mapping[str, Any]:
        """The layouts of a call, and of its lengths, if it has any, as a program takes them."""
        if not self.lengths:
            return layouts
        shape, axis = layouts["X"][0], self.options["layout"]
        own = (shape[1 - axis], 1 + shape[axis])[: self.lengths]
        return {**layouts, "sequence_lens": (own, row_major(own))}


class PlannedCall(NamedTuple):
    """A program, what makes the call's result of the program's results, and the layouts of its arrays."""

    program: Program
    result: Callable[[list[Any]], Any]
    layouts: Mapping[str, Any]
    family: CallFamily

    def program_of(self, each: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> Program | None:
        """The program of a call of the family; None if it is not known, as where the call is an error.

        `each` has shape and strides of the program's arrays without lengths.
        """
        rest = iter(each)
        layouts = {
            name: own.of_others([next(rest) for _ in own.layouts]) if isinstance(own, Joined) else next(rest)
            for name, own in self.layouts.items()
        }
        plan = self.family.plan(self.family.with_lengths(layouts), None)
        return None if plan is None else plan.program
