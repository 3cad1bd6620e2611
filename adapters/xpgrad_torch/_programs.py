"""Known calls: their programs, by everything that a call depends on except the numbers in tensors.

The table is `known_calls`. The head of a key names a kernel, a function or a module's class, and the options;
the rest describes the call's tensors. A known call needs no checks. Nor does a new call that differs from a
known one only in sizes, if its program needs no recording; the table of these is `call_families`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from xpgrad import engine as engines
from xpgrad._operators.for_adapters import PlannedCall, run_foreign
from xpgrad.engine.process.remembered import Remembered
from xpgrad_torch._autocast import without_autocast
from xpgrad_torch._lengths import FULL, LENGTHS, LengthsMemory, lengths_in_memory
from xpgrad_torch._profiling import shown
from xpgrad_torch._stacked import Layout, Stacked, grouped, joined
from xpgrad_torch.engine import TorchEngine, look_at, new_result

Head = tuple | None
"""Everything that a call depends on except its tensors; None if that may change unnoticed."""

_FIXED = frozenset({type(None), bool, int, float, str})
_FIXED_IN_TUPLES = frozenset({int, str})


def head_of(who: Any, values: tuple[Any, ...]) -> Head:
    """Return the head of the keys of calls of `who` with these options.

    It includes the options' types, as 1, 1.0 and True are equal. It is None for options with tensors, arrays
    or lists, also within tuples, because their numbers may change.
    """
    kinds = tuple(map(type, values))
    if _FIXED.issuperset(kinds):
        return who, values, kinds
    for kind, value in zip(kinds, values, strict=True):
        if kind not in _FIXED and not (kind is tuple and _FIXED_IN_TUPLES.issuperset(map(type, value))):
            return None
    return who, values, kinds


class KnownCall(NamedTuple):
    """An earlier call: its function and its program."""

    function: "PlannedFunction"
    template: Any
    """The caller's data for such calls."""
    plan: PlannedCall
    order: Sequence[int]
    """The places of the program's arrays among the call's."""


class KnownCalls(Remembered[KnownCall]):
    """Calls by head, form of the tensors and kind of the lengths; new calls replace the oldest."""

    MOST = 1024


known_calls = KnownCalls()
call_families = KnownCalls()
"""The last call whose program was planned, by the key without shapes and strides."""


class Ready(NamedTuple):
    """A known call with the addresses of its arrays; it runs once."""

    known: KnownCall
    addresses: list[int]
    lengths: LengthsMemory

    def run(self) -> list[Any]:
        """Return the results."""
        addresses = [self.addresses[k] for k in self.known.order]
        if self.lengths.kind:
            addresses.append(self.lengths.address)
        with shown(self.known.function.name):
            return self.known.plan.program.run(addresses, new_result)


def _key(head: Head, arrays: Sequence[Tensor], kind: int) -> tuple[tuple, list[int]] | None:
    """Return a call's key, for lengths of this kind, and its arrays' addresses; None if it has no key."""
    engine = engines.of_type(arrays[0])
    threads = engine.program_threads() if isinstance(engine, TorchEngine) else None
    seen = None if threads is None else look_at(arrays)
    if seen is None:
        return None
    forms, strides, addresses = seen
    return (head, forms, strides, kind, threads), addresses


def _remember(key: tuple, known: KnownCall) -> None:
    head, forms, *rest = key
    # Python's collector of cycles looks at each torch.Size again and again, not at plain tuples
    plain = tuple([(dtype, is_cpu, tuple(shape)) for dtype, is_cpu, shape in forms])
    known_calls[(head, plain, *rest)] = known


def _family_key(key: tuple) -> tuple:
    head, forms, _, *rest = key
    return (head, tuple([form[:2] for form in forms]), *rest)


def _of_other_sizes(key: tuple, arrays: Sequence[Tensor]) -> KnownCall | None:
    """Return a new call that differs from a known one only in sizes; None if its program is not known."""
    like = call_families.get(_family_key(key))
    if like is None or not like.function.takes(arrays):
        return None
    forms, strides = key[1:3]
    program = like.plan.program_of([(tuple(forms[k][2]), strides[k]) for k in like.order])
    if program is None:
        return None
    known = like._replace(plan=like.plan._replace(program=program))
    _remember(key, known)
    return known


def find(head: Head, arrays: Sequence[Tensor], lengths: LengthsMemory | None = FULL) -> Ready | None:
    """Return the known call for these arrays, lengths excluded; None if there is none.

    A function that replaces xpgrad's is called each time.
    """
    if head is None or lengths is None or (found := _key(head, arrays, lengths.kind)) is None:
        return None
    key, addresses = found
    known = known_calls.get(key) or _of_other_sizes(key, arrays)
    if known is None or known.function.is_replaced():
        return None
    return Ready(known, addresses, lengths)


class PlannedFunction:
    """A planned kernel or its gradient.

    `find` returns the current function, `names` are its arrays' names, and `gradients` names for each result
    the array whose gradient it is, None for other results. `takes` tells whether calls on some arrays run
    from programs.
    """

    def __init__(
        self,
        find: Callable[[], Callable[..., Any]],
        names: Sequence[str],
        gradients: Sequence[str | None],
        takes: Callable[[Sequence[Tensor]], bool],
    ) -> None:
        self._find, self._names, self._function, self.takes = find, tuple(names), find(), takes
        self.name = self._function.__name__
        self._gradients = [self._names.index(name) if name in self._names else None for name in gradients]

    def is_replaced(self) -> bool:
        """Tell whether another function replaces xpgrad's."""
        return self._find() is not self._function

    def apart(
        self, arrays: Sequence[Tensor], layout: Layout, options: Mapping[str, Any]
    ) -> tuple[Sequence[Tensor], LengthsMemory | None]:
        """Return the arrays without lengths, and the lengths; None if no program takes these lengths."""
        place = self.place_of_lengths(layout)
        if place is None:
            return arrays, FULL
        return without(place, arrays), lengths_in_memory(arrays[0], arrays[place], options)

    def place_of_lengths(self, layout: Layout) -> int | None:
        """Return the place of the lengths among the arrays of a call; None if it has no lengths."""
        if LENGTHS not in self._names:
            return None
        number = self._names.index(LENGTHS)
        return sum(size for size, _ in layout[:number]) if layout[number][0] else None

    def run_anew(
        self,
        head: Head,
        arrays: Sequence[Tensor],
        layout: Layout,
        options: Mapping[str, Any],
        lengths: LengthsMemory | None,
        template: Any = None,
    ) -> list[Any]:
        """Return the function's results after all checks; a call with a program becomes known.

        `head` is the head of the call's key. `arrays` are the parameters of all operands, as `layout` says;
        gradients of operands with several parameters come in pieces. `options` are the other arguments, and
        `template` is the caller's data for such calls.
        """
        operands, plans_out = grouped(layout, arrays), list[PlannedCall]()
        pairs = list(zip(self._names, operands, strict=True))
        stacked = {name: x.parameters for name, x in pairs if type(x) is Stacked}
        # a function that replaces xpgrad's gets the weights themselves
        whole = joined(operands, Stacked.joined if self.is_replaced() else Stacked.outline)
        keywords: dict[str, Any] = {**dict(zip(self._names, whole, strict=True)), **options}
        with without_autocast(arrays[0]), shown(self.name):
            results = run_foreign(self._find(), **keywords, plans_out=plans_out, joined=stacked)
        if plans_out and head is not None and lengths is not None and not self.is_replaced():
            place = self.place_of_lengths(layout)
            found = _key(head, arrays if place is None else without(place, arrays), lengths.kind)
            if found is not None:
                known = KnownCall(self, template, plans_out[0], self._order(plans_out[0], layout))
                _remember(found[0], known)
                call_families[_family_key(found[0])] = known
        return list(self._flat(results, operands))

    def _order(self, plan: PlannedCall, layout: Layout) -> Sequence[int]:
        """Return the places of the program's arrays among the arrays without lengths."""
        places: dict[str, range] = {}
        count = 0
        for name, (size, _) in zip(self._names, layout, strict=True):
            places[name] = range(count, count + (size if name != LENGTHS else 0))
            count = places[name].stop
        return tuple([place for name in plan.layouts for place in places[name]])

    def _flat(self, results: Any, operands: Sequence[Any]) -> Iterator[Tensor | None]:
        """Yield the results; gradients of `Stacked` operands in pieces."""
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
    """Return the arrays without the one at `place`."""
    return [*arrays[:place], *arrays[place + 1 :]]
