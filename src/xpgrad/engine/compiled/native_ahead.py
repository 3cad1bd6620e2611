"""Rows that a time loop asks for ahead of their formula; needs llvmlite.

The rows of a formula come from far caches, and the formula waits for them. The product before it computes
from near caches. So each pass of its tallest tiles asks for one line of these rows: a few at a time, because
more of them keep the tiles' own lines waiting.
"""

from xpgrad.engine.compiled.native import fields, inside
from xpgrad.engine.compiled.records import Ahead, Rows, length, positions
from xpgrad.engine.process.memory import LINE

__all__ = ["advance", "ask_rows", "asked", "begin", "forget"]

_AT, _LENGTH, _ROWS = positions(Ahead), length(Ahead), positions(Rows)


@inside()
def forget(ahead):
    """No ranges."""
    fields(ahead)[_AT.left] = 0


@inside()
def ask_rows(ahead, head, m, itemsize, first, count):
    """One more range: `count` rows from `first` on of the matrix whose Rows stands in head from m on.

    Rows far from one another are not asked for.
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
    """Begin with the first range, unless a product before has; each of the products has so many passes.

    The pace is that of all passes for all ranges, at most a line each.
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
    if at[_AT.left]:
        one = fields(at[_AT.next])
        at[_AT.place], at[_AT.end] = one[0], one[0] + one[1]
        at[_AT.next] += 16
        at[_AT.left] -= 1
    else:
        at[_AT.step] = 0


@inside()
def advance(ahead, passes):
    """After a tile of so many passes."""
    at = fields(ahead)
    at[_AT.place] += passes * at[_AT.step]
    if at[_AT.place] >= at[_AT.end]:
        _next_range(at)


@inside()
def asked(ahead):
    """What the next tile asks for: a byte, and how far the next one is."""
    at = fields(ahead)
    return at[_AT.place], at[_AT.step]
