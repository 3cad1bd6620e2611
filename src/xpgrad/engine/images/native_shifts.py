"""The compiled loops of `compiled_shifts`; needs numba.

A row of an image in the grid is given by five numbers: its first element in the image and in the grid, its
length, its stride in the image, and the grid's layer. Rows are short: views of them would cost more than
their elements. Indices are unsigned, because for numba a signed index may count from the end.

Each function that makes loops takes a `label`, which tells their variants apart: see `native.variant`.
"""

from typing import NamedTuple

import numpy as np
from numba import types
from numba.extending import intrinsic

from xpgrad.engine.compiled.native import variant
from xpgrad.engine.compiled.native_loops import Sum, Vectors
from xpgrad.engine.compiled.register_tiles import product_tile, sum_tile, turn_tile
from xpgrad.engine.compiled.tracing import Emitter, Number
from xpgrad.engine.images.row_tiles import row_tile
from xpgrad.engine.process import numba_private

_U = np.uintp
_STRETCH = 1024  # elements of a sum that stay in the first-level cache while terms are added


class _Rows(NamedTuple):
    """Compiled functions that move rows of images."""

    stretch_of: object
    place: object
    place_group: object
    crop: object
    offsets_of: object


def _moves(dtype, lanes, label):
    """The functions that move rows of images into the grid, and rows of sums out of it."""
    real = np.dtype(dtype).type
    size, nothing = np.dtype(dtype).itemsize, real(-0.0)  # which changes no number that it is added to
    move_row, gather_row, spread_row = (row_tile(dtype, lanes, *steps) for steps in ((1, 1), (2, 1), (1, 2)))

    @variant(label)
    def stretch_of(rows, low, count, clipped):
        """The parts of rows from low on in the grid, count elements; from there on they are counted."""
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

    @variant(label, forceinline=True)
    def place(x, start, rows, count, grid, base, by_layer):
        """An image's rows into the grid."""
        x_at, grid_at = x.ctypes.data, grid.ctypes.data
        for r in range(count):
            source, to, step = start + rows[r, 0], base + rows[r, 1] + rows[r, 4] * by_layer, rows[r, 3]
            if step == 1:
                move_row(x_at + size * source, grid_at + size * to, rows[r, 2], nothing)
            elif step == 2:
                gather_row(x_at + size * source, grid_at + size * to, rows[r, 2], nothing)
            else:
                for t in range(rows[r, 2]):
                    grid[_U(to + t)] = x[_U(source + step * t)]

    @variant(label, forceinline=True)
    def place_group(x, start, by_channel, rows, count, grid, room, channels):
        """The images of a group's channels into their parts of the grid."""
        for c in range(channels):
            place(x, start + c * by_channel, rows, count, grid, c * room, channels * room)

    @variant(label, forceinline=True)
    def crop(total, start, rows, count, b, y, target):
        """The wanted rows of a sum into the result."""
        total_at, y_at = total.ctypes.data, y.ctypes.data
        for r in range(count):
            source, to, step = start + rows[r, 1], target + rows[r, 0], rows[r, 3]
            if step == 1:
                move_row(total_at + size * source, y_at + size * to, rows[r, 2], b)
            elif step == 2:
                spread_row(total_at + size * source, y_at + size * to, rows[r, 2], b)
            else:
                for t in range(rows[r, 2]):
                    y[_U(to + step * t)] = total[_U(source + t)] + b

    @variant(label, forceinline=True)
    def offsets_of(taps, seen, room, offsets):
        """Where the grid's element 0 for each channel and tap is."""
        for c in range(seen):
            for k in range(len(taps)):
                offsets[c * len(taps) + k] = (taps[k, 0] * seen + c) * room + taps[k, 1]

    return _Rows(stretch_of, place, place_group, crop, offsets_of)


# --- few channels: a stretch of a sum stays in the cache while terms are added to it


def _stretches(emitter, grid, offsets, count):
    """Pointers to the elements of `count` stretches, whose offsets stand at an address."""
    builder, integer = emitter.builder, offsets.type
    begin = builder.inttoptr(grid, emitter.type.as_pointer())
    table = builder.inttoptr(offsets, integer.as_pointer())
    return [builder.gep(begin, [builder.load(builder.gep(table, [integer(i)]))]) for i in range(count)]


def _terms(real, count, add):
    """An intrinsic ``run(weights, grid, offsets, total, length)``: adds weighted stretches to a sum.

    It takes the addresses of `count` weights, of the element of the grid that belongs to the sum's first, of
    the stretches' offsets from there, and of the sum. Without `add` the sum begins with these terms.
    """

    @intrinsic
    def run(typingctx, weights, grid, offsets, total, length):
        def codegen(context, builder, signature, arguments):
            weights, grid, offsets, total, length = arguments
            emitter = Emitter(context, builder, real)
            table = builder.inttoptr(weights, emitter.type.as_pointer())
            places = [builder.gep(table, [length.type(i)]) for i in range(count)]
            factors = [Number(emitter, builder.load(place)) for place in places]
            begins = dict(enumerate(_stretches(emitter, grid, offsets, count)))
            begins["total"] = builder.inttoptr(total, emitter.type.as_pointer())

            def added(*elements):
                terms = [w * x for w, x in zip(factors, elements, strict=False)]
                return (sum(terms[1:], elements[count] + terms[0] if add else terms[0]),)

            operands = [*range(count), *(["total"] if add else [])]
            vectors = Vectors(emitter, begins)
            with numba_private.for_range(builder, length) as element:
                vectors.element(added, operands, ["total"], begins, element.index)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), codegen

    return run


def _inner_products(real, count):
    """An intrinsic ``run(a, grid, offsets, results, length)``: adds the inner products of a with stretches.

    It takes the addresses of a, of the grid, of `count` stretches' offsets in it, and of their results.
    """

    @intrinsic
    def run(typingctx, a, grid, offsets, results, length):
        def codegen(context, builder, signature, arguments):
            a, grid, offsets, results, length = arguments
            emitter = Emitter(context, builder, real)
            begins = dict(enumerate(_stretches(emitter, grid, offsets, count)))
            begins["a"] = builder.inttoptr(a, emitter.type.as_pointer())
            sums = [Sum(emitter) for _ in range(count)]
            for one in sums:
                one.begin()
            vectors = Vectors(emitter, begins)
            with numba_private.for_range(builder, length) as element:
                vectors.element(
                    lambda a, *elements: [a * x for x in elements],
                    ["a", *range(count)], sums, begins, element.index,
                )  # fmt: skip
            table = builder.inttoptr(results, emitter.type.as_pointer())
            for i, one in enumerate(sums):
                place = builder.gep(table, [length.type(i)])
                builder.store((Number(emitter, builder.load(place)) + one.result()).value, place)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), codegen

    return run


def position_loops(dtype, lanes, label):
    """The loops for groups of few channels.

    Up to nine terms are added at a time, so a sum is read and written once per nine multiplications.

    Returns
    -------
    sum_of_shifts, products_of_shifts, row_sums
        Compiled functions.
    """
    real, size = np.dtype(dtype).type, np.dtype(dtype).itemsize
    moves = _moves(dtype, lanes, label)
    place, place_group, crop, offsets_of = moves.place, moves.place_group, moves.crop, moves.offsets_of
    first, nine, three, one = (_terms(real, *how) for how in ((9, False), (9, True), (3, True), (1, True)))
    products_nine, products_three, products_one = (_inner_products(real, count) for count in (9, 3, 1))

    @variant(label)
    def sum_of_shifts(
        x, x_image, x_channel, rows, seen, taps, weights, length, room, grid,
        wanted, y_start, bias, y, y_image, y_channel, images,
    ):  # fmt: skip
        groups, sums, terms = weights.shape[0], weights.shape[1], seen * len(taps)
        offsets = np.zeros(terms, np.int64)
        offsets_of(taps, seen, room, offsets)
        total = np.empty(length, x.dtype)
        grid[:] = 0
        weights_at, grid_at, offsets_at = weights.ctypes.data, grid.ctypes.data, offsets.ctypes.data
        total_at = total.ctypes.data
        for n in range(images):
            for g in range(groups):
                start = n * x_image + g * seen * x_channel
                place_group(x, start, x_channel, rows, len(rows), grid, room, seen)
                for i in range(sums):
                    line = weights_at + size * (g * sums + i) * terms
                    for start in range(0, length, _STRETCH):
                        stretch = min(_STRETCH, length - start)
                        source, part = grid_at + size * start, total_at + size * start
                        k = 0
                        if terms >= 9:
                            first(line, source, offsets_at, part, stretch)
                            k = 9
                        else:
                            total[start : start + stretch] = 0
                        while k + 9 <= terms:
                            nine(line + size * k, source, offsets_at + 8 * k, part, stretch)
                            k += 9
                        while k + 3 <= terms:
                            three(line + size * k, source, offsets_at + 8 * k, part, stretch)
                            k += 3
                        while k < terms:
                            one(line + size * k, source, offsets_at + 8 * k, part, stretch)
                            k += 1
                    o = g * sums + i
                    crop(total, 0, wanted, len(wanted), bias[o], y, n * y_image + o * y_channel + y_start)
        return offsets[:1]  # which keeps them until here

    @variant(label)
    def products_of_shifts(
        a, a_image, a_channel, a_rows, length, x, x_image, x_channel, rows, seen, images, taps,
        room, grid, other, products,
    ):  # fmt: skip
        groups, sums, terms = products.shape[0], products.shape[1], products.shape[2]
        offsets = np.zeros(terms, np.int64)
        offsets_of(taps, seen, room, offsets)
        grid[:] = 0
        products[:] = 0
        grid_at, offsets_at, other_at = grid.ctypes.data, offsets.ctypes.data, other.ctypes.data
        for n in range(images):
            for g in range(groups):
                start = n * x_image + g * seen * x_channel
                place_group(x, start, x_channel, rows, len(rows), grid, room, seen)
                for i in range(sums):
                    start = n * a_image + (g * sums + i) * a_channel
                    place(a, start, a_rows, len(a_rows), other, 0, 0)
                    line, k = products.ctypes.data + size * (g * sums + i) * terms, 0
                    while k + 9 <= terms:
                        products_nine(other_at, grid_at, offsets_at + 8 * k, line + size * k, length)
                        k += 9
                    while k + 3 <= terms:
                        products_three(other_at, grid_at, offsets_at + 8 * k, line + size * k, length)
                        k += 3
                    while k < terms:
                        products_one(other_at, grid_at, offsets_at + 8 * k, line + size * k, length)
                        k += 1
        return offsets[:1]  # which keeps them until here

    @variant(label, fastmath={"contract", "reassoc", "nsz"})
    def row_sums(x, width, sums):
        for r in range(len(sums)):
            total = sums[r]
            for t in range(width):
                total += x[_U(r * width + t)]
            sums[r] = total

    return sum_of_shifts, products_of_shifts, row_sums


# --- many channels: tiles of sums in registers


def tile_loops(dtype, tiles, vectors, several, label):
    """The loops for groups of many channels.

    Parameters
    ----------
    dtype : str
        ``"float32"`` or ``"float64"``.
    tiles : Tiles
        The tiles' shapes.
    vectors : int
        The vectors of a tile of `products_of_shifts`.
    several : int
        The number of positions whose cotangents are transposed to columns at a time.
    label : str
        See above.

    Returns
    -------
    pack, sum_of_shifts, products_of_shifts
        Compiled functions.
    """
    size = np.dtype(dtype).itemsize
    lanes = tiles.bytes // size
    tall_rows, tall_vectors, flat_rows, flat_vectors = *tiles.tall, *tiles.flat
    tall, tall_end, flat, flat_end = (
        sum_tile(dtype, lanes, *shape)
        for shape in ((tall_rows, tall_vectors), (tall_rows, 1), (flat_rows, flat_vectors), (flat_rows, 1))
    )
    tile_rows = tiles.products[vectors - 1]
    tile_products, turn = product_tile(dtype, lanes, tile_rows, vectors), turn_tile(dtype, lanes)
    stretch_of, _, place_group, crop, offsets_of = _moves(dtype, lanes, label)

    @variant(label)
    def pack(w, by_group, by_sum, by_seen, by_tap, groups, sums, seen, taps, panels):
        at = 0
        for g in range(groups):
            first = 0
            while first < sums:
                rows = tall_rows if sums - first > flat_rows else flat_rows
                for j in range(seen):
                    for k in range(len(taps)):
                        source = g * by_group + first * by_sum + j * by_seen + taps[k] * by_tap
                        for m in range(rows):
                            panels[_U(at + m)] = w[_U(source + m * by_sum)] if first + m < sums else 0
                        at += rows
                first += rows

    @variant(label, forceinline=True)
    def tiles_of(height, panel, grid_at, offsets_at, count, total_at, line, here):
        t = 0
        if height == tall_rows:
            while t + tall_vectors * lanes <= here:
                tall(panel, grid_at + t * size, offsets_at, count, total_at + t * size, line)
                t += tall_vectors * lanes
            while t < here:
                tall_end(panel, grid_at + t * size, offsets_at, count, total_at + t * size, line)
                t += lanes
        else:
            while t + flat_vectors * lanes <= here:
                flat(panel, grid_at + t * size, offsets_at, count, total_at + t * size, line)
                t += flat_vectors * lanes
            while t < here:
                flat_end(panel, grid_at + t * size, offsets_at, count, total_at + t * size, line)
                t += lanes

    @variant(label)
    def sum_of_shifts(
        x, x_image, x_channel, rows, seen, parts, taps, wanted, panels, groups, sums,
        begin, end, stretch, room, grid, total, bias, y, y_image, y_channel, images,
    ):  # fmt: skip
        placed, kept = np.empty_like(rows), np.empty_like(wanted)
        offsets = np.zeros(seen * len(taps), np.int64)
        first_tap = 0
        for part in range(len(parts)):
            last_tap = first_tap + parts[part, 1]
            offsets_of(taps[first_tap:last_tap], seen, room, offsets[seen * first_tap :])
            first_tap = last_tap
        line, flat_total = total.shape[1], total.reshape(total.size)
        grid_at, total_at = grid.ctypes.data, total.ctypes.data
        padded = sums // tall_rows * tall_rows
        padded += 0 if sums == padded else flat_rows if sums - padded <= flat_rows else tall_rows
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
                        panel = panels.ctypes.data + (parts[part, 0] + g * padded * count) * size
                        last_row = first_row + parts[part, 2]
                        rows_here = stretch_of(wanted[first_row:last_row], low, here, kept)
                        first = 0
                        while first < sums:
                            height = tall_rows if sums - first > flat_rows else flat_rows
                            tiles_of(height, panel, grid_at, offsets_at, count, total_at, line, here)
                            for m in range(min(height, sums - first)):
                                o = g * sums + first + m
                                target = n * y_image + o * y_channel + parts[part, 3]
                                crop(flat_total, m * line, kept, rows_here, bias[o], y, target)
                            panel += height * count * size
                            first += height
                        offsets_at += count * 8
                        first_row = last_row
        return offsets[:1]  # which keeps them until here

    @variant(label)
    def turn_rows(a, source, a_channel, channels, count, columns, to, width):
        """A row of each channel as a column: in squares, and what is left one by one."""
        squares = count // lanes * lanes
        for i in range(0, channels, lanes):
            done = squares if i + lanes <= channels else 0
            for p in range(0, done, lanes):
                start, end = source + i * a_channel + p, to + p * width + i
                turn(a.ctypes.data + start * size, a_channel, columns.ctypes.data + end * size, width)
            for k in range(i, min(i + lanes, channels)):
                for p in range(done, count):
                    columns[_U(to + p * width + k)] = a[_U(source + k * a_channel + p)]

    @variant(label)
    def products_of_shifts(
        a, a_image, a_channel, a_rows, length, x, x_image, x_channel, rows, seen, images, taps,
        stretch, room, grid, columns, totals, results,
    ):  # fmt: skip
        groups, sums, width = results.shape[0], results.shape[1], vectors * lanes
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
                        for t in range(0, here, several):
                            count = min(several, here - t)
                            columns[:] = 0
                            for r in range(stretch_of(a_rows, low + t, count, turned)):
                                source, to = start + turned[r, 0], turned[r, 1] * width
                                turn_rows(a, source, a_channel, channels, turned[r, 2], columns, to, width)
                            for k in range(0, height, tile_rows):
                                target = totals_at + (block * height + k) * width * size
                                tile_products(
                                    grid_at + t * size, offsets_at + k * 8, columns_at, count, target, width
                                )
            for i in range(sums):
                for k in range(results.shape[2]):
                    results[g, i, k] = totals[i // width, k, i % width]
        return offsets[:1]  # which keeps them until here

    return pack, sum_of_shifts, products_of_shifts
