"""The shortest way to a kernel's program: calls that came before are found by one look at their arrays."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from xpgrad import engine as engines
from xpgrad._plans import Plan
from xpgrad._recurrent import run_foreign
from xpgrad_torch._autocast import without_autocast
from xpgrad_torch._stacked import Layout, Stacked, grouped, joined

_MOST = 512  # calls with the same options

Known = dict[tuple, tuple[Plan, list[int] | None]]
"""Programs of calls with the same options; of which arrays they take the numbers, None for all of them."""


class Programs:
    """Runs a recurrent kernel or its gradient, again from the program of a call that looked the same.

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
        self._gradients = [None if name is None else self._names.index(name) for name in gradients]

    def run(
        self,
        arrays: Sequence[Tensor | None],
        layout: Layout | None,
        options: Mapping[str, Any],
        known: Known | None = None,
    ) -> list[Tensor | None]:
        """Return the function's results.

        Parameters
        ----------
        arrays : sequence of tensor or None
            What it takes, those that are joined one behind the other.
        layout : Layout, optional
            Which ones are joined; none by default. Gradients come in pieces for the same ones.
        options : mapping
            What else it takes.
        known : dict, optional
            The programs of earlier calls with the same options and layout.
        """
        function = self._find()
        # a function that somebody has put in the place of xpgrad's is called each time
        looked = None if known is None or function is not self._function else _look(arrays)
        if looked is not None:
            key, engine, addresses = looked
            found = known.get(key)
            if found is not None:
                plan, order = found
                return engine.run_at(
                    plan.program, addresses if order is None else [addresses[k] for k in order]
                )
        operands = list(arrays) if layout is None else grouped(layout, arrays)
        stacked = {
            name: x.parameters for name, x in zip(self._names, operands, strict=True) if type(x) is Stacked
        }
        seen: list[Plan] = []
        keywords: dict[str, Any] = {**dict(zip(self._names, joined(operands), strict=True)), **options}
        with without_autocast(next(x for x in arrays if x is not None)):
            results = run_foreign(function, **keywords, seen=seen, joined=stacked)
        if looked is not None and seen:
            if len(known) >= _MOST:
                known.clear()
            known[key] = seen[0], self._order(seen[0], operands)
        return list(self._flat(results, operands))

    def _order(self, plan: Plan, operands: Sequence[Any]) -> list[int] | None:
        """Return which of the arrays that are given the program takes, in its order."""
        places: dict[str, list[int]] = {}
        count = 0
        for name, x in zip(self._names, operands, strict=True):
            if x is not None:
                size = len(x.parameters) if type(x) is Stacked else 1
                places[name] = list(range(count, count + size))
                count += size
        order = [place for name in plan.names for place in places[name]]
        return None if order == list(range(count)) else order

    def _flat(self, results: Sequence[Any], operands: Sequence[Any]) -> Iterator[Tensor | None]:
        """Yield the results, gradients of what was joined in pieces."""
        for number, result in zip(self._gradients, results, strict=True):
            operand = None if number is None else operands[number]
            if type(operand) is not Stacked:
                yield result
            elif isinstance(result, tuple):
                yield from result
            else:
                yield from operand.parts(result)


def _look(arrays: Sequence[Tensor | None]) -> tuple[tuple, Any, list[int]] | None:
    """Return all that a program depends on but options, the engine, and the addresses of the arrays.

    None where that cannot be said.
    """
    engine = engines.of_type(arrays[0])
    if engine is None:
        return None
    given = [array for array in arrays if array is not None]
    looked = engine.look(given)
    if looked is None:
        return None
    form, addresses = looked
    absent = None if len(given) == len(arrays) else tuple([array is None for array in arrays])
    return (engine, form, absent), engine, addresses
