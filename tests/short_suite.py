"""Which tests the short suite has: of each test function, as few sets of parameters as have every value once.

The full products of parameters, and the files below, are marked ``long``: ``pytest -m ""`` runs them too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

LONG_FILES: dict[str, str] = {}
"""Files that belong to the long suite as a whole, and why."""


def mark_long(items: Sequence[pytest.Item]) -> None:
    """Mark what the short suite leaves out."""
    functions: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        if item.path.stem in LONG_FILES:
            item.add_marker(pytest.mark.long)
        else:
            functions.setdefault((str(item.path), item.nodeid.partition("[")[0]), []).append(item)
    for same in functions.values():
        chosen = set(covering([_values(item) for item in same]))
        for number, item in enumerate(same):
            if number not in chosen:
                item.add_marker(pytest.mark.long)


def _values(item: pytest.Item) -> frozenset[tuple[str, object]]:
    """The parameters of a test, each as its name and its value; one without a hash stands for itself."""
    callspec = getattr(item, "callspec", None)
    return (
        frozenset((name, _key(value)) for name, value in callspec.params.items()) if callspec else frozenset()
    )


def _key(value: object) -> object:
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value


def covering(sets: Sequence[frozenset]) -> Iterable[int]:
    """Numbers of as few of the sets as a greedy choice needs to have every element once."""
    missing = set[object]().union(*sets)
    if not missing:
        return range(len(sets))
    chosen = []
    while missing:
        best = max(range(len(sets)), key=lambda number: len(sets[number] & missing))
        chosen.append(best)
        missing -= sets[best]
    return chosen
