"""Records of integers: where compiled code reads a field is where Python wrote it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from xpgrad.engine.compiled import records

RECORDS = [kind for _, kind in inspect.getmembers(records, inspect.isclass) if hasattr(kind, "_fields")]


def numbered(kind: Any, values: Any) -> Any:
    """A record whose fields hold the values in their order."""
    return kind(
        *(next(values) if part is None else numbered(part, values) for part in records.parts_of(kind))
    )


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_fields_are_read_where_they_were_written(kind: Any) -> None:
    size = records.length(kind)
    values = [10 * place for place in range(size)]
    assert records.flat(numbered(kind, iter(values))) == values
    assert records.flat(records.positions(kind)) == [*range(size)]


def test_a_weight_stands_between_rows() -> None:
    assert records.length(records.Panels) == records.length(records.Rows)


def test_a_record_in_a_record_stands_as_its_fields() -> None:
    at = records.positions(records.ProductRecord)
    assert at.a == (11, 12, 13)
    assert at.b.address == 14
    assert records.length(records.ProductRecord) == 20
