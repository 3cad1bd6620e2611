"""Rows that a time loop prefetches for a formula; needs llvmlite.

A formula waits for its rows from far caches. The product before it computes from near caches. So each pass of
its tallest tiles prefetches one line of these rows: more lines would delay the tiles' own.
"""

from xpgrad.engine.compiled.native import fields, inside
from xpgrad.engine.compiled.records import Ahead, Rows, length, positions
from xpgrad.engine.process.memory import LINE

_AT, _LENGTH, _ROWS = positions(Ahead), length(Ahead), positions(Rows)


@inside()
def forget(ahead):
    """Remove all ranges."""
    fields(ahead)[_AT.left] = 0


@inside()
def ask_rows(ahead, head, m, itemsize, first, count):
    """Add a range: `count` rows from `first` on, of the matrix whose Rows begins at m in head.

    Rows far from one another are not prefetched.
    """
    line = head[m + _ROWS.line]
    if count > 0 and line <= 2 * head[m + _ROWS.columns]:
        ranges = fields(ahead)
        left = ranges[_AT.left]
        ranges[_LENGTH + 2 * left] = head[m + _ROWS.address] + itemsize * line * first
        ranges[_LENGTH + 2 * left + 1] = itemsize * line * count
        ranges[_AT.left] = left + 1


@inside()
def begin(ahead, passes):
    """Begin with the first range, unless an earlier product did; each of the products has `passes` passes.

    All passes share all ranges, but prefetch at most a line each.
    """
    ranges, total = fields(ahead), 0
    whole = passes * ranges[_AT.products]
    if whole == 0:
        return
    ranges[_AT.products] = 0
    for k in range(ranges[_AT.left]):
        total += ranges[_LENGTH + 2 * k + 1]
    ranges[_AT.place] = ahead
    ranges[_AT.step] = min(LINE, (total + whole - 1) // whole)
    ranges[_AT.next] = ahead + 8 * _LENGTH
    _next_range(ranges)


@inside()
def _next_range(at):
    """Go to the next range, if any."""
    if at[_AT.left]:
        one = fields(at[_AT.next])
        at[_AT.place], at[_AT.end] = one[0], one[0] + one[1]
        at[_AT.next] += 16
        at[_AT.left] -= 1
    else:
        at[_AT.step] = 0


@inside()
def advance(ahead, passes):
    """Advance after a tile of `passes` passes."""
    at = fields(ahead)
    at[_AT.place] += passes * at[_AT.step]
    if at[_AT.place] >= at[_AT.end]:
        _next_range(at)


@inside()
def asked(ahead):
    """The byte that the next tile prefetches first, and the distance of the next byte."""
    at = fields(ahead)
    return at[_AT.place], at[_AT.step]
