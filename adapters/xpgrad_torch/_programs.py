"""The shortest way to a kernel's program: calls that came before are found by one look at their arrays."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from torch import Tensor

from xpgrad import engine as engines
from xpgrad._operators.for_adapters import PlannedCall, run_foreign
from xpgrad.engine.process.remembered import Remembered
from xpgrad.engine.programs.program import Form, Fresh, Program, ProgramForSteps
from xpgrad_torch._autocast import without_autocast
from xpgrad_torch._lengths import FULL, LENGTHS, LengthsMemory, lengths_in_memory
from xpgrad_torch._private import matcher_of
from xpgrad_torch._stacked import Layout, Stacked, grouped, joined

_MOST_ALIKE = 8

Order = list[int] | None
"""Of which of the arrays that are given a program takes the numbers, None for all of them."""


class Ready(NamedTuple):
    """A program that can run: on memory at these addresses, with fresh memory for its results."""

    program: Program | ProgramForSteps
    addresses: list[int]
    fresh: Fresh
    lengths: LengthsMemory

    def run(self) -> list[Any]:
        """Return the results. Each run needs a list of addresses of its own."""
        return self.program.run(self.addresses, self.fresh)


class _Alike(NamedTuple):
    """What shows that a call is like an earlier one, and its program.

    Parameters
    ----------
    picked : callable
        Returns the given arrays of a call: those first that the program takes, in its order.
    absent : tuple of int
        Which arrays are not given.
    matches : callable
        Tells whether those picked are of the same kinds.
    lengths : int
        The kind of the lengths that the program takes, 0 where it takes none.
    form, fresh, program
        See `Look`.
    """

    picked: Callable[[Sequence[Any]], tuple[Any, ...]]
    absent: tuple[int, ...]
    matches: Callable[..., bool]
    lengths: int
    form: Form
    fresh: Fresh
    program: Program | ProgramForSteps

    def ready(self, arrays: Sequence[Tensor | None], lengths: LengthsMemory) -> Ready | None:
        """Return the program for such a call; None if this one is not."""
        if self.lengths != lengths.kind:
            return None
        for place in self.absent:
            if arrays[place] is not None:
                return None
        picked = self.picked(arrays)
        if not self.matches(*picked):
            return None
        addresses = [x.data_ptr() for x in picked]
        if 0 in addresses:  # memory that was given back
            return None
        del addresses[self.program.count - (self.lengths > 0) :]
        if self.lengths:
            addresses.append(lengths.address)
        return Ready(self.program, addresses, self.fresh, lengths)


class TensorCallCache:
    """The programs of calls with the same options and layout, by all else that they depend on."""

    def __init__(self) -> None:
        self._plans: Remembered[tuple[PlannedCall, Order]] = Remembered()
        self._alike: Remembered[list[_Alike]] = Remembered()  # by the shape of the first array

    def get(self, key: tuple) -> tuple[PlannedCall, Order] | None:
        """Return the plan and the order of its arrays."""
        return self._plans.get(key)

    def add(self, key: tuple, plan: PlannedCall, order: Order) -> None:
        """Remember them."""
        self._plans[key] = plan, order

    def ready(self, arrays: Sequence[Tensor | None], lengths: LengthsMemory = FULL) -> Ready | None:
        """Return the program of a call that is like an earlier one; its lengths are not among its arrays."""
        first = arrays[0]
        engine = engines.of_type(first)
        if engine is None or first is None or first.is_nested:  # a nested tensor has no shape
            return None
        for one in self._alike.get(first.shape, ()):
            machine, threads = one.form.machine, one.form.threads
            ready = one.ready(arrays, lengths) if machine is engine else None
            if ready is not None and machine.program_threads() == threads:
                return ready
        return None

    def add_alike(
        self,
        arrays: Sequence[Tensor | None],
        form: Form,
        fresh: Fresh,
        program: Program | ProgramForSteps,
        order: Order,
        lengths: LengthsMemory,
    ) -> None:
        """Remember a call; of one shape only the first few, because one after the other is compared."""
        shape = None if arrays[0] is None else arrays[0].shape
        alike = self._alike.get(shape, [])
        if len(alike) == _MOST_ALIKE:
            return
        given = [k for k, x in enumerate(arrays) if x is not None]
        first = given if order is None else [given[k] for k in order]
        places = [*first, *(k for k in given if k not in first)]
        absent = tuple(k for k, x in enumerate(arrays) if x is None)
        picked = itemgetter(*places)
        tensors = picked(arrays)
        matches = matcher_of(tensors)
        if matches is not None and matches(*tensors):  # it knows no call with one tensor in two places
            one = _Alike(picked, absent, matches, lengths.kind, form, fresh, program)
            self._alike[shape] = [*alike, one]


_FIXED = {type(None), bool, int, float, str}
_FIXED_IN_TUPLES = {int, str}


def are_fixed(values: Iterable[Any]) -> bool:
    """Tell whether options stay what they are, and are equal to no other ones, so that they can be a key.

    The numbers in tensors, arrays and lists may change, also of those in a tuple.
    """
    for value in values:
        kind = type(value)
        if kind not in _FIXED and not (kind is tuple and _FIXED_IN_TUPLES.issuperset(map(type, value))):
            return False
    return True


def key_of(values: tuple[Any, ...]) -> tuple | None:
    """Return options as a key, with their types: 1, 1.0 and True are equal. None where they may change."""
    return (values, tuple(map(type, values))) if are_fixed(values) else None


class Programs:
    """Runs a planned kernel or its gradient, again from the program of a call that looked the same.

    Checks, names and the kernel's own way to its program are left out then, which take longer than a step.

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
        self._has_lengths, self._is_gradient = LENGTHS in self._names, any(gradients)
        self._gradients = [self._names.index(name) if name in self._names else None for name in gradients]
        self._known: Remembered[TensorCallCache] = Remembered()

    def known(self, options: Mapping[str, Any], layout: Layout | None = None) -> TensorCallCache | None:
        """Return the programs of calls with these options and layout; None if the options may change."""
        fixed = key_of(tuple(options.values()))
        if fixed is None:
            return None
        key = layout, tuple(options), fixed
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = TensorCallCache()
        return known

    def ready(
        self,
        arrays: Sequence[Tensor | None],
        layout: Layout | None,
        options: Mapping[str, Any],
        known: TensorCallCache | None,
    ) -> Ready | None:
        """Return the program of a call that is like one with the same options and layout; see `run`.

        A function that somebody has put in the place of xpgrad's has none.
        """
        if known is None or self._find() is not self._function:
            return None
        others, lengths = self._apart(arrays, layout, options)
        return None if lengths is None else known.ready(others, lengths)

    def run(
        self,
        arrays: Sequence[Tensor | None],
        layout: Layout | None,
        options: Mapping[str, Any],
        known: TensorCallCache | None = None,
    ) -> list[Any]:
        """Return the function's results.

        Parameters
        ----------
        arrays : sequence of tensor or None
            What it takes, those that are joined one behind the other.
        layout : Layout, optional
            Which ones are joined; none by default. Gradients come in pieces for the same ones.
        options : mapping
            What else it takes.
        known : TensorCallCache, optional
            What `known` returns for the same options and layout.
        """
        function, looked = self._find(), None
        # a function that somebody has put in the place of xpgrad's is called each time
        if known is not None and function is self._function:
            others, lengths = self._apart(arrays, layout, options)
            if lengths is not None:
                ready = known.ready(others, lengths)
                if ready is not None:
                    return ready.run()
                looked = self._look(others, lengths)
        if looked is not None and known is not None and lengths is not None:
            key, addresses, fresh = looked
            found = known.get(key)
            if found is not None:
                plan, order = found
                known.add_alike(others, key[1], fresh, plan.program, order, lengths)
                taken = addresses if order is None else [addresses[k] for k in order]
                return plan.program.run([*taken, lengths.address] if lengths.kind else taken, fresh)
        operands = list(arrays) if layout is None else grouped(layout, arrays)
        stacked = {
            name: x.parameters for name, x in zip(self._names, operands, strict=True) if type(x) is Stacked
        }
        plans_out: list[PlannedCall] = []
        keywords: dict[str, Any] = {**dict(zip(self._names, joined(operands), strict=True)), **options}
        with without_autocast(next(x for x in arrays if x is not None)):
            results = run_foreign(function, **keywords, plans_out=plans_out, joined=stacked)
        if looked is not None and known is not None and plans_out:
            known.add(key, plans_out[0], self._order(plans_out[0], operands))
        return list(self._flat(results, operands))

    def _apart(
        self, arrays: Sequence[Tensor | None], layout: Layout | None, options: Mapping[str, Any]
    ) -> tuple[Sequence[Tensor | None], LengthsMemory | None]:
        """Return the arrays without lengths, and these; None where no program takes them."""
        place = self._place_of_lengths(layout) if self._has_lengths else None
        if place is None or arrays[place] is None:
            return arrays, FULL
        engine, X, given = engines.of_type(arrays[0]), arrays[0], arrays[place]
        if engine is None or X is None or given is None:
            return arrays, None
        lengths = lengths_in_memory(engine, X, given, options, self._is_gradient)
        return [*arrays[:place], None, *arrays[place + 1 :]], lengths

    def _look(
        self, arrays: Sequence[Tensor | None], lengths: LengthsMemory
    ) -> tuple[tuple, list[int], Fresh] | None:
        """Return all else that a program depends on, addresses of arrays, and memory for results.

        None where that cannot be said.
        """
        engine = engines.of_type(arrays[0])
        if engine is None:
            return None
        present = [array for array in arrays if array is not None]
        look = engine.look(present)
        if look is None:
            return None
        form, addresses, fresh = look
        absent = None if len(present) == len(arrays) else tuple([array is None for array in arrays])
        return (engine, form, absent, lengths.kind), addresses, fresh

    def _place_of_lengths(self, layout: Layout | None) -> int:
        """Return where the lengths are among the arrays that are given."""
        number = self._names.index(LENGTHS)
        return number if layout is None else sum(size for size, _ in layout[:number])

    def _order(self, plan: PlannedCall, operands: Sequence[Any]) -> list[int] | None:
        """Return which of the arrays that are given the program takes, in its order."""
        places: dict[str, list[int]] = {}
        count = 0
        for name, x in zip(self._names, operands, strict=True):
            if x is not None and name != LENGTHS:
                size = len(x.parameters) if type(x) is Stacked else 1
                places[name] = list(range(count, count + size))
                count += size
        order = [place for name in plan.names for place in places[name]]
        return None if order == list(range(count)) else order

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
