"""The text of the compiled loops of `compiled_shifts`.

A row of an image in the grid is given by five numbers: its first element in the image and in the grid, its
length, its stride in the image, and the grid's layer.
"""

from __future__ import annotations

from xpgrad.engine.compiled.register_tiles import Tiles
from xpgrad.engine.compiled.source import versions


def few_channels(dtype: str, tiles: Tiles) -> str:
    """The loops for groups of few channels: a stretch of a sum stays in the cache while terms are added.

    Up to eight terms are added at a time, so a sum is read and written once per eight multiplications. LLVM
    checks eight pairs of pointers for overlap; it does not vectorize loops with more. In the inner products
    the order of additions is free ("reassoc", "nsz"): each vector lane keeps its own sum.
    """
    return _head(dtype, tiles) + _FEW.format(
        first=_terms_at_once(8, 24, "="),
        eight=_terms_at_once(8, 24, "+="),
        four=_terms_at_once(4, 24, "+="),
        one=_terms_at_once(1, 24, "+="),
        three=_products_at_once(3, 20),
        single=_products_at_once(1, 20),
    )


def many_channels(dtype: str, tiles: Tiles, vectors: int, columns: int) -> str:
    """The loops for groups of many channels, with tiles of sums in registers.

    Parameters
    ----------
    dtype : str
        ``"float32"`` or ``"float64"``.
    tiles : Tiles
        The tiles' shapes.
    vectors : int
        The vectors of a tile of `products_of_shifts`.
    columns : int
        The number of positions whose cotangents are transposed to columns at a time.
    """
    constants = {
        "TALL": tiles.tall[0],
        "TALL_VECTORS": tiles.tall[1],
        "FLAT": tiles.flat[0],
        "FLAT_VECTORS": tiles.flat[1],
        "ROWS": tiles.products[vectors - 1],
        "VECTORS": vectors,
        "COLUMNS": columns,
    }
    lines = [f"{name} = {value}" for name, value in constants.items()]
    lines += [
        f"# generated, {versions()}",
        "from xpgrad.engine.compiled.register_tiles import product_tile, sum_tile, turn_tile\n",
        *(
            f"{name} = sum_tile({dtype!r}, LANES, {rows}, {count})"
            for name, rows, count in (
                ("tall", "TALL", "TALL_VECTORS"),
                ("tall_end", "TALL", "1"),
                ("flat", "FLAT", "FLAT_VECTORS"),
                ("flat_end", "FLAT", "1"),
            )
        ),
        f"products = product_tile({dtype!r}, LANES, ROWS, VECTORS)",
        f"turn = turn_tile({dtype!r}, LANES)",
    ]
    return _head(dtype, tiles) + "\n".join(lines) + "\n" + _MANY


def _head(dtype: str, tiles: Tiles) -> str:
    size = 4 if dtype == "float32" else 8
    lanes = tiles.bytes // size
    return (
        f"""# weighted sums of shifted images, and their gradient; generated, {versions()}
import numpy as np
from numba import njit

from xpgrad.engine.compiled.register_tiles import row_tile

U = np.uintp
SIZE, LANES = {size}, {lanes}
NOTHING = np.{dtype}(-0.0)  # which changes no number that it is added to
move_row = row_tile({dtype!r}, {lanes}, 1, 1)
gather_row = row_tile({dtype!r}, {lanes}, 2, 1)
spread_row = row_tile({dtype!r}, {lanes}, 1, 2)
"""
        + _ROWS
    )


# Rows are short: views of them would cost more than their elements. Indices are unsigned, because for numba a
# signed index may count from the end.
_ROWS = """

@njit(nogil=True, cache=True, error_model='numpy')
def stretch_of(rows, low, count, clipped):
    # the parts of rows from low on in the grid, count elements; from there on they are counted
    found = 0
    for r in range(len(rows)):
        to = rows[r, 1] - low
        begin, end = max(0, -to), min(rows[r, 2], count - to)
        if begin < end:
            clipped[found, 0] = rows[r, 0] + begin * rows[r, 3]
            clipped[found, 1] = to + begin
            clipped[found, 2] = end - begin
            clipped[found, 3] = rows[r, 3]
            clipped[found, 4] = rows[r, 4]
            found += 1
    return found


@njit(nogil=True, cache=True, error_model='numpy', forceinline=True)
def place(x, start, rows, count, grid, base, by_layer):
    # an image's rows into the grid
    x_at, grid_at = x.ctypes.data, grid.ctypes.data
    for r in range(count):
        source, to, step = start + rows[r, 0], base + rows[r, 1] + rows[r, 4] * by_layer, rows[r, 3]
        if step == 1:
            move_row(x_at + SIZE * source, grid_at + SIZE * to, rows[r, 2], NOTHING)
        elif step == 2:
            gather_row(x_at + SIZE * source, grid_at + SIZE * to, rows[r, 2], NOTHING)
        else:
            for t in range(rows[r, 2]):
                grid[U(to + t)] = x[U(source + step * t)]


@njit(nogil=True, cache=True, error_model='numpy', forceinline=True)
def place_group(x, start, by_channel, rows, count, grid, room, channels):
    # the images of a group's channels into their parts of the grid
    for c in range(channels):
        place(x, start + c * by_channel, rows, count, grid, c * room, channels * room)


@njit(nogil=True, cache=True, error_model='numpy', forceinline=True)
def crop(total, start, rows, count, b, y, target):
    # the wanted rows of a sum into the result
    total_at, y_at = total.ctypes.data, y.ctypes.data
    for r in range(count):
        source, to, step = start + rows[r, 1], target + rows[r, 0], rows[r, 3]
        if step == 1:
            move_row(total_at + SIZE * source, y_at + SIZE * to, rows[r, 2], b)
        elif step == 2:
            spread_row(total_at + SIZE * source, y_at + SIZE * to, rows[r, 2], b)
        else:
            for t in range(rows[r, 2]):
                y[U(to + step * t)] = total[U(source + t)] + b


@njit(nogil=True, cache=True, error_model='numpy', forceinline=True)
def offsets_of(taps, seen, room, offsets):
    # where the grid's element 0 for each channel and tap is
    for c in range(seen):
        for k in range(len(taps)):
            offsets[c * len(taps) + k] = (taps[k, 0] * seen + c) * room + taps[k, 1]

"""


def _terms_at_once(count: int, indent: int, operation: str) -> str:
    """The text that adds `count` terms, from term k on, to a stretch of the sum."""
    lines = [f"w{i} = weights[g, i, k + {i}]" for i in range(count)]
    lines += [f"x{i} = grid[offsets[k + {i}] + start:]" for i in range(count)]
    lines += ["for t in range(stretch):"]
    lines += [f"    part[t] {operation} " + " + ".join(f"w{i} * x{i}[t]" for i in range(count))]
    return f"\n{' ' * indent}".join(lines)


def _products_at_once(count: int, indent: int) -> str:
    """The text that adds up `count` inner products with one stretch, from number k on."""
    lines = [f"x{i} = grid[offsets[k + {i}]:]" for i in range(count)]
    lines += [f"p{i} = products[g, i, k] * 0" for i in range(count)]
    lines += ["for t in range(length):", "    a_t = other[t]"]
    lines += [f"    p{i} += a_t * x{i}[t]" for i in range(count)]
    lines += [f"products[g, i, k + {i}] += p{i}" for i in range(count)]
    return f"\n{' ' * indent}".join(lines)


_FEW = """
STRETCH = 1024


@njit(nogil=True, cache=True, error_model='numpy', fastmath={{'contract'}})
def sum_of_shifts(
    x, x_image, x_channel, rows, seen, taps, weights, length, room, grid,
    wanted, y_start, bias, y, y_image, y_channel, images,
):
    groups, sums = weights.shape[0], weights.shape[1]
    offsets = np.zeros(seen * len(taps), np.int64)
    offsets_of(taps, seen, room, offsets)
    total = np.empty(length, x.dtype)
    grid[:] = 0
    for n in range(images):
        for g in range(groups):
            start = n * x_image + g * seen * x_channel
            place_group(x, start, x_channel, rows, len(rows), grid, room, seen)
            for i in range(sums):
                for start in range(0, length, STRETCH):
                    stretch = min(STRETCH, length - start)
                    part = total[start:start + stretch]
                    k = 0
                    if len(offsets) >= 8:
                        {first}
                        k = 8
                    else:
                        for t in range(stretch):
                            part[t] = 0
                    while k + 8 <= len(offsets):
                        {eight}
                        k += 8
                    while k + 4 <= len(offsets):
                        {four}
                        k += 4
                    while k < len(offsets):
                        {one}
                        k += 1
                o = g * sums + i
                crop(total, 0, wanted, len(wanted), bias[o], y, n * y_image + o * y_channel + y_start)


@njit(nogil=True, cache=True, error_model='numpy', fastmath={{'contract', 'reassoc', 'nsz'}})
def products_of_shifts(
    a, a_image, a_channel, a_rows, length, x, x_image, x_channel, rows, seen, images, taps,
    room, grid, other, products,
):
    groups, sums = products.shape[0], products.shape[1]
    offsets = np.zeros(seen * len(taps), np.int64)
    offsets_of(taps, seen, room, offsets)
    grid[:] = 0
    products[:] = 0
    for n in range(images):
        for g in range(groups):
            start = n * x_image + g * seen * x_channel
            place_group(x, start, x_channel, rows, len(rows), grid, room, seen)
            for i in range(sums):
                start = n * a_image + (g * sums + i) * a_channel
                place(a, start, a_rows, len(a_rows), other, 0, 0)
                k = 0
                while k + 3 <= len(offsets):
                    {three}
                    k += 3
                while k < len(offsets):
                    {single}
                    k += 1


@njit(nogil=True, cache=True, error_model='numpy', fastmath={{'contract', 'reassoc', 'nsz'}})
def row_sums(x, width, sums):
    for r in range(len(sums)):
        total = sums[r]
        for t in range(width):
            total += x[U(r * width + t)]
        sums[r] = total
"""

_MANY = """

@njit(nogil=True, cache=True, error_model='numpy')
def pack(w, by_group, by_sum, by_seen, by_tap, groups, sums, seen, taps, panels):
    at = 0
    for g in range(groups):
        first = 0
        while first < sums:
            rows = TALL if sums - first > FLAT else FLAT
            for j in range(seen):
                for k in range(len(taps)):
                    source = g * by_group + first * by_sum + j * by_seen + taps[k] * by_tap
                    for m in range(rows):
                        panels[U(at + m)] = w[U(source + m * by_sum)] if first + m < sums else 0
                    at += rows
            first += rows


@njit(nogil=True, cache=True, error_model='numpy', fastmath={'contract'})
def sum_of_shifts(
    x, x_image, x_channel, rows, seen, parts, taps, wanted, panels, groups, sums,
    begin, end, stretch, room, grid, total, bias, y, y_image, y_channel, images,
):
    placed, kept = np.empty_like(rows), np.empty_like(wanted)
    offsets = np.zeros(seen * len(taps), np.int64)
    first_tap = 0
    for part in range(len(parts)):
        last_tap = first_tap + parts[part, 1]
        offsets_of(taps[first_tap:last_tap], seen, room, offsets[seen * first_tap:])
        first_tap = last_tap
    line, flat_total = total.shape[1], total.reshape(total.size)
    grid_at, total_at = grid.ctypes.data, total.ctypes.data
    padded = sums // TALL * TALL
    padded += 0 if sums == padded else FLAT if sums - padded <= FLAT else TALL
    for n in range(images):
        for g in range(groups):
            for low in range(begin, end, stretch):
                here = min(stretch, end - low)
                grid[:] = 0
                count = stretch_of(rows, low, room, placed)
                start = n * x_image + g * seen * x_channel
                place_group(x, start, x_channel, placed, count, grid, room, seen)
                offsets_at, first_row = offsets.ctypes.data, 0
                for part in range(len(parts)):
                    count = seen * parts[part, 1]
                    panel = panels.ctypes.data + (parts[part, 0] + g * padded * count) * SIZE
                    last_row = first_row + parts[part, 2]
                    rows_here = stretch_of(wanted[first_row:last_row], low, here, kept)
                    first = 0
                    while first < sums:
                        height = TALL if sums - first > FLAT else FLAT
                        tiles_of(height, panel, grid_at, offsets_at, count, total_at, line, here)
                        for m in range(min(height, sums - first)):
                            o = g * sums + first + m
                            target = n * y_image + o * y_channel + parts[part, 3]
                            crop(flat_total, m * line, kept, rows_here, bias[o], y, target)
                        panel += height * count * SIZE
                        first += height
                    offsets_at += count * 8
                    first_row = last_row
    return offsets[:1]  # which keeps them until here


@njit(nogil=True, cache=True, error_model='numpy', forceinline=True)
def tiles_of(height, panel, grid_at, offsets_at, count, total_at, line, here):
    t = 0
    if height == TALL:
        while t + TALL_VECTORS * LANES <= here:
            tall(panel, grid_at + t * SIZE, offsets_at, count, total_at + t * SIZE, line)
            t += TALL_VECTORS * LANES
        while t < here:
            tall_end(panel, grid_at + t * SIZE, offsets_at, count, total_at + t * SIZE, line)
            t += LANES
    else:
        while t + FLAT_VECTORS * LANES <= here:
            flat(panel, grid_at + t * SIZE, offsets_at, count, total_at + t * SIZE, line)
            t += FLAT_VECTORS * LANES
        while t < here:
            flat_end(panel, grid_at + t * SIZE, offsets_at, count, total_at + t * SIZE, line)
            t += LANES


@njit(nogil=True, cache=True, error_model='numpy')
def turn_rows(a, source, a_channel, channels, count, columns, to, width):
    # a row of each channel as a column: in squares, and what is left one by one
    squares = count // LANES * LANES
    for i in range(0, channels, LANES):
        done = squares if i + LANES <= channels else 0
        for p in range(0, done, LANES):
            start, end = source + i * a_channel + p, to + p * width + i
            turn(a.ctypes.data + start * SIZE, a_channel, columns.ctypes.data + end * SIZE, width)
        for k in range(i, min(i + LANES, channels)):
            for p in range(done, count):
                columns[U(to + p * width + k)] = a[U(source + k * a_channel + p)]


@njit(nogil=True, cache=True, error_model='numpy', fastmath={'contract'})
def products_of_shifts(
    a, a_image, a_channel, a_rows, length, x, x_image, x_channel, rows, seen, images, taps,
    stretch, room, grid, columns, totals, results,
):
    groups, sums, width = results.shape[0], results.shape[1], VECTORS * LANES
    blocks, height = totals.shape[0], totals.shape[1]
    offsets = np.zeros(height, np.int64)
    offsets_of(taps, seen, room, offsets)
    grid_at, offsets_at = grid.ctypes.data, offsets.ctypes.data
    columns_at, totals_at = columns.ctypes.data, totals.ctypes.data
    placed, turned = np.empty_like(rows), np.empty_like(a_rows)
    for g in range(groups):
        totals[:] = 0
        for n in range(images):
            for low in range(0, length, stretch):
                here = min(stretch, length - low)
                grid[:] = 0
                count = stretch_of(rows, low, room, placed)
                start = n * x_image + g * seen * x_channel
                place_group(x, start, x_channel, placed, count, grid, room, seen)
                for block in range(blocks):
                    channels = min(width, sums - block * width)
                    start = n * a_image + (g * sums + block * width) * a_channel
                    for t in range(0, here, COLUMNS):
                        count = min(COLUMNS, here - t)
                        columns[:] = 0
                        for r in range(stretch_of(a_rows, low + t, count, turned)):
                            source, to = start + turned[r, 0], turned[r, 1] * width
                            turn_rows(a, source, a_channel, channels, turned[r, 2], columns, to, width)
                        for k in range(0, height, ROWS):
                            target = totals_at + (block * height + k) * width * SIZE
                            products(
                                grid_at + t * SIZE, offsets_at + k * 8, columns_at, count, target, width
                            )
        for i in range(sums):
            for k in range(results.shape[2]):
                results[g, i, k] = totals[i // width, k, i % width]
    return offsets[:1]  # which keeps them until here
"""
