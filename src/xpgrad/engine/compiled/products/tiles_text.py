"""The generated function that runs through the tiles of a matrix product, from rows and columns to a tile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from xpgrad.engine.compiled.folder import versions

__all__ = ["tiles_text"]


def tiles_text(dtype: str, lanes: int, height: int, vectors: int, passes: int) -> str:
    """The function that runs through tiles: as tall as there are rows for, the last rows by lower ones.

    By rows, the last rows are one tile: a time loop's products have few rows, and several low tiles have too
    few sums, which wait for one another. For the same reason one or two rows make use of several panels.
    """
    several = [(1, vectors, 4), (2, vectors, 2)]
    heights = {
        "rows": list(range(height, 0, -1)),
        "columns": [height >> shift for shift in range(height.bit_length())],
    }
    widths = range(vectors, 0, -1)
    tall = [(by, height, v, 1) for by in heights for v in widths]
    low = [(by, h, v, 1) for by in heights for v in widths for h in heights[by][1:]]
    text = _TilesText(np.dtype(dtype).itemsize, lanes, height, vectors, passes)

    def made(by: str, h: int, v: int, p: int, options: str) -> str:
        goes_on, streams = by == "rows" and v == vectors, (h, v) == (height, vectors)
        shape = f"{dtype!r}, {lanes}, {h}, {v}, {p}, {by == 'rows'}, 0"
        return f"matrix_tile({shape}, goes_on={goes_on}, streams={streams}{options})"

    of_tallest = f", paced=True, passes={passes}"
    lines = [
        f"# tiles of matrix products in {dtype}; generated, {versions()}",
        "from xpgrad.engine.compiled.cache import cfunc",
        "from xpgrad.engine.compiled.native_ahead import advance, asked",
        "from xpgrad.engine.compiled.register_tiles import matrix_tile\n",
        *(f"{text.name(*tile)} = {made(*tile, of_tallest)}" for tile in tall),
        *(f"{text.name(*tile)} = {made(*tile, '')}" for tile in (*low, *(("rows", *one) for one in several))),
        *(
            f"near_{text.name(*tile)} = {made(*tile, of_tallest + ', near=True')}"
            for tile in tall
            if text.has_near(tile[2])
        ),
        f"asking = matrix_tile({dtype!r}, {lanes}, {height}, {vectors}, 1, True, 2)",
        "\n",
        f'@cfunc("void({", ".join(["int64"] * 14)})")',
        "def run(by_rows, a, a_line, a_tile, rows, b, b_line, b_panel, count, c, c_line, columns, add,",
        "        ahead):",
        *text.ends(),
        *text.few_rows(several),
    ]
    for by in heights:
        for v in widths:
            tests = ["by_rows"] * (by == "rows") + [f"columns > {lanes * (v - 1)}"] * (v > 1)
            lines.append(f"    elif {' and '.join(tests)}:" if tests else "    else:")
            lines += [*text.tallest(by, v), *text.rest(by, v, heights[by][1:])]
    return "\n".join(lines) + "\n"


class _TilesText(NamedTuple):
    """Lines that call tiles: an element's size; lanes, rows, vectors and passes of the tallest tile."""

    size: int
    lanes: int
    height: int
    vectors: int
    passes: int

    @staticmethod
    def name(by: str, rows: int, vectors: int, panels: int) -> str:
        """The name of a tile."""
        return f"{by}_{rows}_{vectors}_{panels}"

    def has_near(self, v: int) -> bool:
        """Whether a panel of so many vectors is prefetched by its first tile only.

        With single passes each tile prefetches it. Narrow panels are few, and compiling takes its time.
        """
        return self.passes > 1 and v == self.vectors

    def _call(self, tile: str, a: str, c: str, asked: str = "") -> str:
        return f"{tile}({a}, a_line, b, b_line, b_panel, count, {c}, c_line, columns, add{asked})"

    def ends(self) -> Iterator[str]:
        """How many of the tallest tiles there are, and where the rows of A and C behind them begin."""
        of_c = self.size * self.height
        yield f"    whole = rows // {self.height}"
        yield f"    last, end = a + {self.size} * whole * a_tile, c + {of_c} * whole * c_line"

    def few_rows(self, shapes: Sequence[tuple[int, int, int]]) -> Iterator[str]:
        """One or two rows, which meet several panels at once."""
        for number, (h, v, p) in enumerate(shapes):
            yield f"    {'elif' if number else 'if'} columns > {v * self.lanes * p // 2}:"
            yield f"        {self._call(self.name('rows', h, v, p), 'a', 'c')}"

    def tallest(self, by: str, v: int) -> Iterator[str]:
        """The tallest tiles of so many vectors, one below the other.

        With `ahead` the widest also ask for what comes after them: lines of the panel's next block, all of
        them in the passes of all tiles, and those of `ahead`.
        """
        place = (
            f"            at, to = a + {self.size} * m * a_tile, c + {self.size * self.height} * m * c_line"
        )
        name, line = self.name(by, self.height, v, 1), self.size * self.lanes * self.vectors
        asks = (by, v) == ("rows", self.vectors)
        if asks:
            yield f"        coming, pace = b + {line} * count, {line} // max(whole, 1)"
            yield "        for m in range(whole if ahead else 0):"
            yield place
            yield "            place, step = asked(ahead)"
            asked = ", coming + m * count * pace, pace, place, step"
            yield f"            {self._call('asking', 'at', 'to', asked)}"
            yield "            advance(ahead, count)"
        parts = [(name, 0, "whole")]
        if self.has_near(v):
            parts = [(name, 0, "min(whole, 1)"), (f"near_{name}", 1, "whole")]
        for tile, first, end in parts:
            yield f"        for m in range({f'whole if ahead else {first}' if asks else first}, {end}):"
            yield place
            yield f"            {self._call(tile, 'at', 'to')}"

    def rest(self, by: str, v: int, heights: Sequence[int]) -> Iterator[str]:
        """The last rows: by rows one tile, by columns one for each bit of their number."""
        for h in heights:
            if by == "rows":
                yield f"        if rows - whole * {self.height} == {h}:"
                yield f"            {self._call(self.name(by, h, v, 1), 'last', 'end')}"
            else:
                yield f"        if rows & {h}:"
                yield f"            {self._call(self.name(by, h, v, 1), 'last', 'end')}"
                yield f"            last, end = last + {self.size * h}, end + {self.size * h} * c_line"
