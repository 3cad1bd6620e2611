"""Calls that came before: their programs, found by all that a call depends on beside the numbers in tensors.

There is one table, `known_calls`. The head of a key says what is called: a kernel, a function or a module's
class, and the options. The rest is one look at the call's tensors. A call that is found needs no check again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from xpgrad import engine as engines
from xpgrad._operators.for_adapters import PlannedCall, run_foreign
from xpgrad.engine.process.remembered import Remembered
from xpgrad.engine.programs.program import Program, ProgramForSteps
from xpgrad_torch._autocast import without_autocast
from xpgrad_torch._lengths import FULL, LENGTHS, LengthsMemory, lengths_in_memory
from xpgrad_torch._stacked import Layout, Stacked, grouped, joined
from xpgrad_torch.engine import TorchEngine, look_at, new_result

Head = tuple | None
"""What a call depends on beside its tensors; None where that may change unnoticed."""

_FIXED = frozenset({type(None), bool, int, float, str})
_FIXED_IN_TUPLES = frozenset({int, str})


def head_of(who: Any, values: tuple[Any, ...]) -> Head:
    """Return the head of the keys of calls of `who` with these options.

    Options have their types with them: 1, 1.0 and True are equal. The numbers in tensors, arrays and lists
    may change, also in those of a tuple.
    """
    kinds = tuple(map(type, values))
    if _FIXED.issuperset(kinds):
        return who, values, kinds
    for kind, value in zip(kinds, values, strict=True):
        if kind not in _FIXED and not (kind is tuple and _FIXED_IN_TUPLES.issuperset(map(type, value))):
            return None
    return who, values, kinds


class KnownCall(NamedTuple):
    """A call that came before.

    Parameters
    ----------
    function : PlannedFunction
        What was called.
    template : object
        What the caller keeps for such calls.
    program
        The program.
    order : list of int
        Which of the call's arrays the program takes, in its order.
    """

    function: "PlannedFunction"
    template: Any
    program: Program | ProgramForSteps
    order: list[int]


class KnownCalls(Remembered[KnownCall]):
    """Calls by head, form of the tensors and kind of the lengths; the oldest make room for new ones."""

    MOST = 1024


known_calls = KnownCalls()


class Ready(NamedTuple):
    """A known call with the addresses of its arrays; each one runs once."""

    known: KnownCall
    addresses: list[int]
    lengths: LengthsMemory

    def run(self) -> list[Any]:
        """Return the results."""
        addresses = [self.addresses[k] for k in self.known.order]
        if self.lengths.kind:
            addresses.append(self.lengths.address)
        return self.known.program.run(addresses, new_result)


def _key(head: Head, arrays: Sequence[Tensor], kind: int) -> tuple[tuple, list[int]] | None:
    """Return the key of a call with lengths of this kind, and where its arrays are.

    None where another call that looks the same may be another one.
    """
    engine = engines.of_type(arrays[0])
    threads = engine.program_threads() if isinstance(engine, TorchEngine) else None
    seen = None if threads is None else look_at(arrays)
    if seen is None:
        return None
    forms, strides, addresses = seen
    return (head, forms, strides, kind, threads), addresses


def find(head: Head, arrays: Sequence[Tensor], lengths: LengthsMemory | None = FULL) -> Ready | None:
    """Return a call that came before, for these arrays; lengths are not among them. None where none did.

    A function that somebody has put in the place of xpgrad's is called each time.
    """
    if head is None or lengths is None:
        return None
    found = _key(head, arrays, lengths.kind)
    known = None if found is None else known_calls.get(found[0])
    if found is None or known is None or known.function.is_replaced():
        return None
    return Ready(known, found[1], lengths)


class PlannedFunction:
    """A planned kernel or its gradient.

    Parameters
    ----------
    find : callable
        Returns the function as it is now.
    names : sequence of str
        The names of the arrays that it takes.
    gradients : sequence of str or None
        Of each result the array whose gradient it is; None for no array's.
    """

    def __init__(
        self, find: Callable[[], Callable[..., Any]], names: Sequence[str], gradients: Sequence[str | None]
    ) -> None:
        self._find, self._names, self._function = find, tuple(names), find()
        self._gradients = [self._names.index(name) if name in self._names else None for name in gradients]

    def is_replaced(self) -> bool:
        """Tell whether somebody has put another function in the place of xpgrad's."""
        return self._find() is not self._function

    def apart(
        self, arrays: Sequence[Tensor], layout: Layout, options: Mapping[str, Any]
    ) -> tuple[Sequence[Tensor], LengthsMemory | None]:
        """Return the arrays without lengths, and these; None where no program takes them."""
        place = self.place_of_lengths(layout)
        if place is None:
            return arrays, FULL
        return without(place, arrays), lengths_in_memory(arrays[0], arrays[place], options)

    def place_of_lengths(self, layout: Layout) -> int | None:
        """Return where the lengths are among the arrays of a call; None where it has none."""
        if LENGTHS not in self._names:
            return None
        number = self._names.index(LENGTHS)
        return sum(size for size, _ in layout[:number]) if layout[number][0] else None

    def run(
        self,
        head: Head,
        arrays: Sequence[Tensor],
        layout: Layout,
        options: Mapping[str, Any],
        template: Any = None,
    ) -> list[Any]:
        """Return the function's results, of a known call by its program.

        Parameters
        ----------
        head : tuple or None
            The head of the call's key.
        arrays : sequence of tensor or None
            What the function is given, parameters of one operand one behind the other.
        layout : Layout
            Which arrays are one operand, and which are absent. Gradients come in pieces for the same ones.
        options : mapping
            What else the function takes.
        template : object, optional
            What to keep for such calls.
        """
        others, lengths = self.apart(arrays, layout, options)
        ready = find(head, others, lengths)
        return (
            self.run_anew(head, arrays, layout, options, lengths, template) if ready is None else ready.run()
        )

    def run_anew(
        self,
        head: Head,
        arrays: Sequence[Tensor],
        layout: Layout,
        options: Mapping[str, Any],
        lengths: LengthsMemory | None,
        template: Any = None,
    ) -> list[Any]:
        """Return the function's results with all checks, and remember the call if it has a program."""
        operands, plans_out = grouped(layout, arrays), list[PlannedCall]()
        pairs = list(zip(self._names, operands, strict=True))
        stacked = {name: x.parameters for name, x in pairs if type(x) is Stacked}
        keywords: dict[str, Any] = {**dict(zip(self._names, joined(operands), strict=True)), **options}
        with without_autocast(arrays[0]):
            results = run_foreign(self._find(), **keywords, plans_out=plans_out, joined=stacked)
        if plans_out and head is not None and lengths is not None and not self.is_replaced():
            place = self.place_of_lengths(layout)
            found = _key(head, arrays if place is None else without(place, arrays), lengths.kind)
            if found is not None:
                order = self._order(plans_out[0], layout)
                known_calls[found[0]] = KnownCall(self, template, plans_out[0].program, order)
        return list(self._flat(results, operands))

    def _order(self, plan: PlannedCall, layout: Layout) -> list[int]:
        """Return which of the arrays beside lengths the program takes, in its order."""
        places: dict[str, range] = {}
        count = 0
        for name, (size, _) in zip(self._names, layout, strict=True):
            places[name] = range(count, count + (size if name != LENGTHS else 0))
            count = places[name].stop
        return [place for name in plan.names for place in places[name]]

    def _flat(self, results: Any, operands: Sequence[Any]) -> Iterator[Tensor | None]:
        """Yield the results, gradients of what was joined in pieces; a tensor alone is the only one."""
        results = results if isinstance(results, tuple) else (results,)
        for number, result in zip(self._gradients, results, strict=True):
            operand = None if number is None else operands[number]
            if type(operand) is not Stacked:
                yield result
            elif isinstance(result, tuple):
                yield from result
            else:
                yield from operand.parts(result)


def without(place: int, arrays: Sequence[Tensor]) -> list[Tensor]:
    """Return arrays without that in one place."""
    return [*arrays[:place], *arrays[place + 1 :]]
