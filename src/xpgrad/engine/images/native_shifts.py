"""The compiled loops of `compiled_shifts`, each a function ``(data, part)`` of a record; needs llvmlite.

A row of an image in the grid is given by five numbers: its first element in the image and in the grid, its
length, its stride in the image, and the grid's layer. Rows are short: views of them would cost more than
their elements.
"""

from typing import NamedTuple

import numpy as np

from xpgrad.engine.compiled.llvm_code import loop
from xpgrad.engine.compiled.native import (
    array_at,
    elements,
    fields,
    generated,
    inside,
    numbers,
    release,
    scratch,
    words,
)
from xpgrad.engine.compiled.native_loops import UnorderedSum, Vectors
from xpgrad.engine.compiled.records import (
    PatchRows,
    RowSums,
    ShiftedProducts,
    ShiftedSums,
    TapPacking,
    positions,
)
from xpgrad.engine.compiled.register_tiles import Tiles, product_tile, sum_tile, turn_tile
from xpgrad.engine.compiled.tracing import Emitter, Number
from xpgrad.engine.images.row_tiles import row_tile

_SUMS, _PRODUCTS = positions(ShiftedSums), positions(ShiftedProducts)
_PACKING, _ROWS, _PATCHES = positions(TapPacking), positions(RowSums), positions(PatchRows)
_FAR = 1 << 60
_STRETCH = 1024  # elements of a sum that stay in the first-level cache while terms are added


@inside()
def _total(table, column):
    """The sum of a column."""
    total = 0
    for row in range(len(table)):
        total += table[row, column]
    return total


@inside()
def _tables_of_sums(data):
    """The images' rows, the parts, their taps and wanted rows, the threads' first items: of a ShiftedSums."""
    at = _SUMS
    rows = numbers(data[at.rows.address], data[at.rows.rows], 5)
    parts = numbers(data[at.parts.address], data[at.parts.rows], 5)
    taps = numbers(data[at.taps], _total(parts, 1), 2)
    wanted = numbers(data[at.wanted], _total(parts, 2), 5)
    return rows, parts, taps, wanted, fields(data[at.shared.bounds])


@inside()
def _tables_of_products(data):
    """The rows of both factors, the taps, and the threads' first items: of a ShiftedProducts."""
    at = _PRODUCTS
    rows = numbers(data[at.rows.address], data[at.rows.rows], 5)
    a_rows = numbers(data[at.a_rows.address], data[at.a_rows.rows], 5)
    taps = numbers(data[at.taps.address], data[at.taps.rows], 2)
    return rows, a_rows, taps, fields(data[at.shared.bounds])


@inside()
def _offsets_of(taps, channels_in, room, offsets):
    """Where the grid's element 0 for each channel and tap is."""
    for c in range(channels_in):
        for k in range(len(taps)):
            offsets[c * len(taps) + k] = (taps[k, 0] * channels_in + c) * room + taps[k, 1]


@inside()
def _offsets_of_parts(parts, taps, channels_in, room):
    """Those of all parts, one behind the other."""
    offsets, first = scratch(channels_in * _total(parts, 1), np.int64), 0
    for p in range(len(parts)):
        last = first + parts[p, 1]
        _offsets_of(taps[first:last], channels_in, room, offsets[channels_in * first :])
        first = last
    return offsets


@inside()
def _image_of(data, at, n, channel, size):
    """The address of an item's image from this channel on; `at` says where in the record the images are."""
    return data[at.address] + size * (n * data[at.image] + channel * data[at.channel])


class _Moves(NamedTuple):
    """Compiled functions that move rows of images."""

    vector: object
    stretch_of: object
    place_row: object
    place_group: object
    crop: object


def _row_tile(dtype, lanes, from_step, to_step, adds=False):
    """A `row_tile` that takes short rows in short vectors, which are faster."""
    half = max(lanes // 2, min(lanes, 4))
    long, short = (row_tile(dtype, own, from_step, to_step, adds) for own in (lanes, half))

    @inside()
    def tile(source, target, count, more):
        if count <= half:
            short(source, target, count, more)
        else:
            long(source, target, count, more)

    return tile


@inside("contract")
def _stretch_of(rows, low, count, clipped):
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


def _moves(dtype, lanes):
    """The functions that move rows of images into the grid, and rows of sums out of it; all by addresses."""
    real = np.dtype(dtype).type
    size, nothing = np.dtype(dtype).itemsize, real(-0.0)  # which changes no number that it is added to
    move_row, gather_row, spread_row = (_row_tile(dtype, lanes, *steps) for steps in ((1, 1), (2, 1), (1, 2)))

    @inside()
    def vector(address, count):
        """So many numbers at an address."""
        return array_at(address, real, count)

    @inside("contract")
    def place_row(source, to, count, step):
        """A row with this stride in the image to its place in the grid."""
        if step == 1:
            move_row(source, to, count, nothing)
        elif step == 2:
            gather_row(source, to, count, nothing)
        else:
            x, cells = vector(source, _FAR), vector(to, _FAR)
            for t in range(count):
                cells[t] = x[step * t]

    @inside("contract")
    def place_group(image, by_channel, rows, count, grid, room, channels):
        """The images of a group's channels into their parts of the grid."""
        for c in range(channels):
            start, base = c * by_channel, c * room
            for r in range(count):
                source, to = start + rows[r, 0], base + rows[r, 1] + rows[r, 4] * channels * room
                place_row(image + size * source, grid + size * to, rows[r, 2], rows[r, 3])

    @inside("contract")
    def crop(total, rows, count, b, image):
        """The wanted rows of a sum into a result's image."""
        sums, y = vector(total, _FAR), vector(image, _FAR)
        for r in range(count):
            source, to, step = rows[r, 1], rows[r, 0], rows[r, 3]
            if step == 1:
                move_row(total + size * source, image + size * to, rows[r, 2], b)
            elif step == 2:
                spread_row(total + size * source, image + size * to, rows[r, 2], b)
            else:
                for t in range(rows[r, 2]):
                    y[to + step * t] = sums[source + t] + b

    return _Moves(vector, _stretch_of, place_row, place_group, crop)


# --- few channels: a stretch of a sum stays in the cache while terms are added to it


def _stretches(emitter, grid, offsets, count):
    """Pointers to the elements of `count` stretches, whose offsets stand at an address."""
    builder, integer = emitter.builder, offsets.type
    begin = builder.inttoptr(grid, emitter.type.as_pointer())
    table = builder.inttoptr(offsets, integer.as_pointer())
    return [builder.gep(begin, [builder.load(builder.gep(table, [integer(i)]))]) for i in range(count)]


def _terms(real, count, add):
    """The function ``(weights, grid, offsets, total, length)`` that adds weighted stretches to a sum.

    It takes the addresses of `count` weights, of the element of the grid that belongs to the sum's first, of
    the stretches' offsets from there, and of the sum. Without `add` the sum begins with these terms.
    """

    def write(code, arguments):
        builder, (weights, grid, offsets, total, length) = code.builder, arguments
        emitter = Emitter(code, real)
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
        with loop(builder, length) as element:
            vectors.element(added, operands, ["total"], begins, element)

    return generated(write, *["int64"] * 5)


def _inner_products(real, count):
    """The function ``(results, grid, offsets, a, length)`` that adds the inner products of a with stretches.

    It takes the addresses of `count` results, of the grid, of the stretches' offsets in it, and of a.
    """

    def write(code, arguments):
        builder, (results, grid, offsets, a, length) = code.builder, arguments
        emitter = Emitter(code, real)
        begins = dict(enumerate(_stretches(emitter, grid, offsets, count)))
        begins["a"] = builder.inttoptr(a, emitter.type.as_pointer())
        sums = [UnorderedSum(emitter) for _ in range(count)]
        for one in sums:
            one.begin()
        vectors = Vectors(emitter, begins)
        with loop(builder, length) as element:
            vectors.element(
                lambda a, *elements: [a * x for x in elements],
                ["a", *range(count)], sums, begins, element,
            )  # fmt: skip
        table = builder.inttoptr(results, emitter.type.as_pointer())
        for i, one in enumerate(sums):
            place = builder.gep(table, [length.type(i)])
            builder.store((Number(emitter, builder.load(place)) + one.result()).value, place)

    return generated(write, *["int64"] * 5)


def sums_by_positions(dtype, lanes):
    """The function ``(data, part)`` of a ShiftedSums, for groups of few channels.

    Up to nine terms are added at a time, so a sum is read and written once per nine multiplications.
    """
    real, size = np.dtype(dtype).type, np.dtype(dtype).itemsize
    vector, _, _, place_group, crop = _moves(dtype, lanes)
    first, nine, three, one = (_terms(real, *how) for how in ((9, False), (9, True), (3, True), (1, True)))

    @inside("contract")
    def weighted(line, source, offsets_at, terms, total, total_at, length):
        """One sum, from weights at `line`."""
        for start in range(0, length, _STRETCH):
            stretch = min(_STRETCH, length - start)
            begin, part, k = source + size * start, total_at + size * start, 0
            if terms >= 9:
                first(line, begin, offsets_at, part, stretch)
                k = 9
            else:
                total[start : start + stretch] = 0
            while k + 9 <= terms:
                nine(line + size * k, begin, offsets_at + 8 * k, part, stretch)
                k += 9
            while k + 3 <= terms:
                three(line + size * k, begin, offsets_at + 8 * k, part, stretch)
                k += 3
            while k < terms:
                one(line + size * k, begin, offsets_at + 8 * k, part, stretch)
                k += 1

    @inside("contract")
    def sum_of_shifts(data, part):
        at, images, made = _SUMS, _SUMS.images, _SUMS.results
        rows, parts, taps, wanted, bounds = _tables_of_sums(data)
        groups, channels_in, sums, room = data[at.groups], data[at.channels_in], data[at.sums], data[at.room]
        grid_at = data[at.shared.memory] + part * data[at.shared.bytes]
        bias = vector(data[at.bias], groups * sums)
        total_at = grid_at + size * data[at.grid]
        vector(grid_at, data[at.grid])[:] = 0
        total = vector(total_at, data[at.line])
        offsets = _offsets_of_parts(parts, taps, channels_in, room)
        for item in range(bounds[part], bounds[part + 1]):
            n, g = item // groups, item % groups
            image = _image_of(data, images, n, g * channels_in, size)
            place_group(image, data[images.channel], rows, len(rows), grid_at, room, channels_in)
            offsets_at, first_row = offsets.ctypes.data, 0
            for p in range(len(parts)):
                terms, last_row = channels_in * parts[p, 1], first_row + parts[p, 2]
                kept = wanted[first_row:last_row]
                for o in range(g * sums, (g + 1) * sums):
                    line = data[at.weights] + size * (parts[p, 0] + o * terms)
                    weighted(line, grid_at, offsets_at, terms, total, total_at, parts[p, 4])
                    image = _image_of(data, made, n, o, size) + size * parts[p, 3]
                    crop(total_at, kept, len(kept), bias[o], image)
                offsets_at, first_row = offsets_at + 8 * terms, last_row
        release(offsets)

    return sum_of_shifts


def products_by_positions(dtype, lanes):
    """The function ``(data, part)`` of a ShiftedProducts, for groups of few channels."""
    real, size = np.dtype(dtype).type, np.dtype(dtype).itemsize
    vector, _, _, place_group, _ = _moves(dtype, lanes)
    nine, three, one = (_inner_products(real, count) for count in (9, 3, 1))

    @inside("contract")
    def products_of_shifts(data, part):
        at, images, a = _PRODUCTS, _PRODUCTS.images, _PRODUCTS.a
        rows, a_rows, taps, bounds = _tables_of_products(data)
        groups, channels_in, sums, room = data[at.groups], data[at.channels_in], data[at.sums], data[at.room]
        terms, length = channels_in * len(taps), data[at.length]
        grid_at = data[at.shared.memory] + part * data[at.shared.bytes]
        other_at = grid_at + size * data[at.grid]
        vector(grid_at, data[at.grid] + length)[:] = 0
        results = data[at.results] + part * size * groups * sums * terms
        vector(results, groups * sums * terms)[:] = 0
        offsets = scratch(terms, np.int64)
        _offsets_of(taps, channels_in, room, offsets)
        offsets_at = offsets.ctypes.data
        for item in range(bounds[part], bounds[part + 1]):
            g, n = item // data[at.count], item % data[at.count]
            image = _image_of(data, images, n, g * channels_in, size)
            place_group(image, data[images.channel], rows, len(rows), grid_at, room, channels_in)
            for o in range(g * sums, (g + 1) * sums):
                place_group(_image_of(data, a, n, o, size), 0, a_rows, len(a_rows), other_at, 0, 1)
                line, k = results + size * o * terms, 0
                while k + 9 <= terms:
                    nine(line + size * k, grid_at, offsets_at + 8 * k, other_at, length)
                    k += 9
                while k + 3 <= terms:
                    three(line + size * k, grid_at, offsets_at + 8 * k, other_at, length)
                    k += 3
                while k < terms:
                    one(line + size * k, grid_at, offsets_at + 8 * k, other_at, length)
                    k += 1
        release(offsets)

    return products_of_shifts


@inside("contract", "reassoc", "nsz")
def row_sums(data, part, real):
    """One part of a RowSums, of a dtype."""
    count, width, parts = data[_ROWS.count], data[_ROWS.width], data[_ROWS.parts]
    sums = elements(data[_ROWS.sums], 0, real)
    for r in range(count * part // parts, count * (part + 1) // parts):
        row, total = elements(data[_ROWS.rows], r * width, real), real(0)
        for t in range(width):
            total += row[t]
        sums[r] = total


# --- many channels: tiles of sums in registers


def _row_of_tiles(dtype, lanes, shape):
    """The function ``(panel, grid, offsets, count, totals, line, here)``: tiles of a height, side by side."""
    size, (height, vectors) = np.dtype(dtype).itemsize, shape
    tile, end = sum_tile(dtype, lanes, height, vectors), sum_tile(dtype, lanes, height, 1)

    @inside("contract")
    def row(panel, grid_at, offsets_at, count, total_at, line, here):
        t = 0
        while t + vectors * lanes <= here:
            tile(panel, grid_at + t * size, offsets_at, count, total_at + t * size, line)
            t += vectors * lanes
        while t < here:
            end(panel, grid_at + t * size, offsets_at, count, total_at + t * size, line)
            t += lanes

    return row


def sums_by_tiles(dtype, tiles):
    """The function ``(data, part)`` of a ShiftedSums, for groups of many channels; `tiles` are a `Tiles`."""
    size, tiles = np.dtype(dtype).itemsize, Tiles(*tiles)
    lanes = tiles.bytes // size
    tall_rows, flat_rows = tiles.tall[0], tiles.flat[0]
    tall, flat = (_row_of_tiles(dtype, lanes, shape) for shape in (tiles.tall, tiles.flat))
    vector, stretch_of, _, place_group, crop = _moves(dtype, lanes)

    @inside("contract")
    def sum_of_shifts(data, part):
        at, images, made = _SUMS, _SUMS.images, _SUMS.results
        rows, parts, taps, wanted, bounds = _tables_of_sums(data)
        groups, channels_in, sums, room = data[at.groups], data[at.channels_in], data[at.sums], data[at.room]
        grid_at = data[at.shared.memory] + part * data[at.shared.bytes]
        bias = vector(data[at.bias], groups * sums)
        grid, line, total_at = vector(grid_at, data[at.grid]), data[at.line], grid_at + size * data[at.grid]
        placed, kept = scratch(len(rows), np.int64, 5), scratch(len(wanted), np.int64, 5)
        offsets = _offsets_of_parts(parts, taps, channels_in, room)
        for item in range(bounds[part], bounds[part + 1]):
            n, g = item // data[at.stretches] // groups, item // data[at.stretches] % groups
            low = data[at.begin] + item % data[at.stretches] * data[at.stretch]
            here = min(data[at.stretch], data[at.end] - low)
            grid[:] = 0
            count = stretch_of(rows, low, room, placed)
            image = _image_of(data, images, n, g * channels_in, size)
            place_group(image, data[images.channel], placed, count, grid_at, room, channels_in)
            offsets_at, first_row = offsets.ctypes.data, 0
            for p in range(len(parts)):
                count = channels_in * parts[p, 1]
                panel = data[at.weights] + (parts[p, 0] + g * data[at.panel_rows] * count) * size
                last_row = first_row + parts[p, 2]
                rows_here = stretch_of(wanted[first_row:last_row], low, here, kept)
                first = 0
                while first < sums:
                    height = tall_rows if sums - first > flat_rows else flat_rows
                    if height == tall_rows:
                        tall(panel, grid_at, offsets_at, count, total_at, line, here)
                    else:
                        flat(panel, grid_at, offsets_at, count, total_at, line, here)
                    for m in range(min(height, sums - first)):
                        o = g * sums + first + m
                        image = _image_of(data, made, n, o, size) + size * parts[p, 3]
                        crop(total_at + size * m * line, kept, rows_here, bias[o], image)
                    panel += height * count * size
                    first += height
                offsets_at += count * 8
                first_row = last_row
        release(offsets)
        release(placed)
        release(kept)

    return sum_of_shifts


def _turning(dtype, lanes):
    """The function that makes rows of channels columns."""
    size, turn = np.dtype(dtype).itemsize, turn_tile(dtype, lanes)
    real = np.dtype(dtype).type

    @inside("contract")
    def turn_rows(source, by_channel, channels, count, columns, width):
        """A row of each channel as a column: in squares, and what is left one by one."""
        squares, a, turned = (
            count // lanes * lanes,
            array_at(source, real, _FAR),
            array_at(columns, real, _FAR),
        )
        for i in range(0, channels, lanes):
            done = squares if i + lanes <= channels else 0
            for p in range(0, done, lanes):
                turn(
                    source + (i * by_channel + p) * size, by_channel, columns + (p * width + i) * size, width
                )
            for k in range(i, min(i + lanes, channels)):
                for p in range(done, count):
                    turned[p * width + k] = a[k * by_channel + p]

    return turn_rows


def products_by_tiles(dtype, tiles, vectors, several):
    """The function ``(data, part)`` of a ShiftedProducts, for groups of many channels.

    `vectors` are the vectors of a tile; `several` is the number of positions whose cotangents are transposed
    to columns at a time.
    """
    size, tiles = np.dtype(dtype).itemsize, Tiles(*tiles)
    lanes, tile_rows = tiles.bytes // size, tiles.products[vectors - 1]
    tile, turn_rows = product_tile(dtype, lanes, tile_rows, vectors), _turning(dtype, lanes)
    vector, stretch_of, _, place_group, _ = _moves(dtype, lanes)

    @inside("contract")
    def products_of_shifts(data, part):
        at, images, a = _PRODUCTS, _PRODUCTS.images, _PRODUCTS.a
        rows, a_rows, taps, bounds = _tables_of_products(data)
        groups, channels_in, sums, room = data[at.groups], data[at.channels_in], data[at.sums], data[at.room]
        terms, width, by_group = channels_in * len(taps), vectors * lanes, data[at.count] * data[at.stretches]
        blocks, height = -(-sums // width), -(-terms // tile_rows) * tile_rows
        grid_at = data[at.shared.memory] + part * data[at.shared.bytes]
        columns_at = grid_at + size * data[at.grid]
        totals_at = columns_at + size * several * width
        grid, columns = vector(grid_at, data[at.grid]), vector(columns_at, several * width)
        totals = vector(totals_at, blocks * height * width)
        results = vector(data[at.results] + part * size * groups * sums * terms, groups * sums * terms)
        results[:] = 0
        offsets = scratch(height, np.int64)
        offsets[:] = 0
        _offsets_of(taps, channels_in, room, offsets)
        placed, turned = scratch(len(rows), np.int64, 5), scratch(len(a_rows), np.int64, 5)
        offsets_at = offsets.ctypes.data
        item = bounds[part]
        while item < bounds[part + 1]:
            g = item // by_group
            end = min(bounds[part + 1], (g + 1) * by_group)
            totals[:] = 0
            while item < end:
                n, low = item % by_group // data[at.stretches], item % data[at.stretches] * data[at.stretch]
                here = min(data[at.stretch], data[at.length] - low)
                grid[:] = 0
                count = stretch_of(rows, low, room, placed)
                image = _image_of(data, images, n, g * channels_in, size)
                place_group(image, data[images.channel], placed, count, grid_at, room, channels_in)
                for block in range(blocks):
                    channels = min(width, sums - block * width)
                    image = _image_of(data, a, n, g * sums + block * width, size)
                    for t in range(0, here, several):
                        count = min(several, here - t)
                        columns[:] = 0
                        for r in range(stretch_of(a_rows, low + t, count, turned)):
                            source, to = image + size * turned[r, 0], columns_at + size * width * turned[r, 1]
                            turn_rows(source, data[a.channel], channels, turned[r, 2], to, width)
                        for k in range(0, height, tile_rows):
                            target = totals_at + (block * height + k) * width * size
                            tile(grid_at + t * size, offsets_at + k * 8, columns_at, count, target, width)
                item += 1
            for i in range(sums):
                for k in range(terms):
                    found = totals[(i // width * height + k) * width + i % width]
                    results[(g * sums + i) * terms + k] = found
        release(offsets)
        release(placed)
        release(turned)

    return products_of_shifts


def tap_packing(dtype, kinds):
    """The compiled ``pack(data, part)`` of the integers of a TapPacking, for tiles of these kinds."""
    real, (_, (tall_rows, _), _, _) = np.dtype(dtype).type, kinds

    @inside("contract")
    def pack(data, part):
        at, taps = _PACKING, words(data[_PACKING.taps], data[_PACKING.count])
        w, panels = elements(data[at.weights], 0, real), elements(data[at.target], 0, real)
        channels_in, sums = data[at.channels_in], data[at.sums]
        each = (data[at.panel_rows] + tall_rows - 1) // tall_rows  # panels of a group
        count, parts = data[at.groups] * each, data[at.parts]
        for panel in range(count * part // parts, count * (part + 1) // parts):
            g, first = panel // each, panel % each * tall_rows
            to, left = (g * data[at.panel_rows] + first) * channels_in * len(taps), sums - first
            rows = min(tall_rows, data[at.panel_rows] - first)
            for j in range(channels_in):
                for k in range(len(taps)):
                    source = g * data[at.by_group] + first * data[at.by_sum]
                    source += j * data[at.by_channel_in] + taps[k] * data[at.by_tap]
                    for m in range(rows):
                        panels[to + m] = w[source + m * data[at.by_sum]] if m < left else 0
                    to += rows

    return pack


# --- patches


def patches(dtype, lanes):
    """The function ``(data, part)`` that writes the patches of a PatchRows."""
    size = np.dtype(dtype).itemsize
    vector, _, place_row, _, _ = _moves(dtype, lanes)

    @inside()
    def clear(first, columns, low, high, length):
        """The lines of some taps."""
        for k in range(low, high):
            vector(first + size * k * columns, length)[:] = 0

    @inside()
    def patches(data, part):
        at, count, columns = _PATCHES, data[_PATCHES.count], data[_PATCHES.columns]
        length = data[at.positions]
        rows, items = numbers(data[at.rows.address], data[at.rows.rows], 5), count * data[at.channels]
        for item in range(items * part // data[at.parts], items * (part + 1) // data[at.parts]):
            n, c = item % count, item // count
            first = data[at.patches] + size * (c * data[at.taps] * columns + n * length)
            image, done = _image_of(data, at.images, n, c, size), 0 if data[at.begins] else data[at.taps]
            for r in range(len(rows)):
                if done <= rows[r, 4]:
                    clear(first, columns, done, rows[r, 4] + 1, length)
                    done = rows[r, 4] + 1
                place_row(image + size * rows[r, 0], first + size * rows[r, 1], rows[r, 2], rows[r, 3])
            clear(first, columns, done, data[at.taps], length)

    return patches


def add_patches(dtype, lanes):
    """The function ``(data, part)`` that adds the patches of a PatchRows to images."""
    real, size = np.dtype(dtype).type, np.dtype(dtype).itemsize
    vector, nothing = _moves(dtype, lanes).vector, real(-0.0)
    add_row, spread_row = (_row_tile(dtype, lanes, 1, step, True) for step in (1, 2))

    @inside()
    def add_patches(data, part):
        at, count, columns = _PATCHES, data[_PATCHES.count], data[_PATCHES.columns]
        rows, items = numbers(data[at.rows.address], data[at.rows.rows], 5), count * data[at.channels]
        bias = vector(data[at.bias], data[at.channels])
        for item in range(items * part // data[at.parts], items * (part + 1) // data[at.parts]):
            n, c = item % count, item // count
            first = data[at.patches] + size * (c * data[at.taps] * columns + n * data[at.positions])
            image_at = _image_of(data, at.images, n, c, size)
            image, elements = vector(image_at, data[at.size]), vector(first, _FAR)
            if data[at.begins]:
                image[:] = bias[c]
            for r in range(len(rows)):
                source, to, step = rows[r, 1], rows[r, 0], rows[r, 3]
                if step == 1:
                    add_row(first + size * source, image_at + size * to, rows[r, 2], nothing)
                elif step == 2:
                    spread_row(first + size * source, image_at + size * to, rows[r, 2], nothing)
                else:
                    for t in range(rows[r, 2]):
                        image[to + step * t] += elements[source + t]

    return add_patches
