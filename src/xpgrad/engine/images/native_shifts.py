"""The compiled loops of `compiled_shifts`, each a function ``(data, part)`` of a record; needs llvmlite.

Five numbers describe a row of an image in the grid: its first element in the image, its first element in the
grid, its length, its stride in the image, and the grid's layer.
"""

import numpy as np

from xpgrad.engine.compiled.llvm_code import loop
from xpgrad.engine.compiled.native import (
    array_at,
    elements,
    fields,
    generated,
    inside,
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
from xpgrad.engine.compiled.register_tiles import Tiles, product_tile, sum_tile, turn_tile, turned_tile
from xpgrad.engine.compiled.tracing import Emitter, Number
from xpgrad.engine.images.row_tiles import row_tile

_SUMS, _PRODUCTS = positions(ShiftedSums), positions(ShiftedProducts)
_PACKING, _ROWS, _PATCHES = positions(TapPacking), positions(RowSums), positions(PatchRows)
_STRETCH = 1024  # elements of a sum that stay in the first-level cache while terms are added
_PIECE = 16384  # products of a partial sum: one sum of an image of millions of positions would lose digits


@inside()
def _total(table, column):
    """The sum of a column of integers."""
    total = 0
    for row in range(len(table)):
        total += table[row, column]
    return total


@inside()
def _tables_of_sums(data):
    """The tables of a ShiftedSums: images' rows, parts, taps, wanted rows, and the threads' first items."""
    at = _SUMS
    rows = words(data[at.rows.address], data[at.rows.rows], 5)
    parts = words(data[at.parts.address], data[at.parts.rows], 5)
    taps = words(data[at.taps], _total(parts, 1), 2)
    wanted = words(data[at.wanted], _total(parts, 2), 5)
    return rows, parts, taps, wanted, fields(data[at.shared.bounds])


@inside()
def _tables_of_products(data):
    """The tables of a ShiftedProducts: the rows of both factors, taps, and the threads' first items."""
    at = _PRODUCTS
    rows = words(data[at.rows.address], data[at.rows.rows], 5)
    a_rows = words(data[at.a_rows.address], data[at.a_rows.rows], 5)
    taps = words(data[at.taps.address], data[at.taps.rows], 2)
    return rows, a_rows, taps, fields(data[at.shared.bounds])


@inside()
def _offsets_of(taps, channels_in, room, offsets):
    """The offset in the grid of element 0, for each channel and tap."""
    for c in range(channels_in):
        for k in range(len(taps)):
            offsets[c * len(taps) + k] = (taps[k, 0] * channels_in + c) * room + taps[k, 1]


@inside()
def _offsets_of_parts(parts, taps, channels_in, room):
    """The offsets of all parts, one part behind the other."""
    offsets, first = scratch(channels_in * _total(parts, 1), np.int64), 0
    for p in range(len(parts)):
        last = first + parts[p, 1]
        _offsets_of(taps[first:last], channels_in, room, offsets[channels_in * first :])
        first = last
    return offsets


@inside()
def _image_of(data, at, n, channel, size):
    """The address of a channel of image n; `at` are the places of the images' numbers in the record."""
    return data[at.address] + size * (n * data[at.image] + channel * data[at.channel])


def _row_tile(dtype, lanes, from_step, to_step, adds=False):
    """A `row_tile` with shorter vectors for short rows, which are faster."""
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
    """Cut rows to `count` elements of the grid from `low` on, counted from there; the number of rows left."""
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


def _placing(dtype, lanes):
    """Two functions: `place_row` copies a row of an image into a grid, `place_group` a group's channels."""
    real, size = np.dtype(dtype).type, np.dtype(dtype).itemsize
    nothing = real(-0.0)  # added to a number, it changes nothing
    move_row, gather_row = (_row_tile(dtype, lanes, step, 1) for step in (1, 2))

    @inside("contract")
    def place_row(source, to, count, step):
        if step == 1:
            move_row(source, to, count, nothing)
        elif step == 2:
            gather_row(source, to, count, nothing)
        else:
            x, cells = array_at(source, real), array_at(to, real)
            for t in range(count):
                cells[t] = x[step * t]

    @inside("contract")
    def place_group(data, images, n, g, rows, count, grid, room, channels):
        for c in range(channels):
            image = _image_of(data, images, n, g * channels + c, size)
            for r in range(count):
                to = c * room + rows[r, 1] + rows[r, 4] * channels * room
                place_row(image + size * rows[r, 0], grid + size * to, rows[r, 2], rows[r, 3])

    return place_row, place_group


def _collecting(dtype, lanes, adds=False):
    """The function that writes rows of a grid plus a number into an image, or `adds` them to the image."""
    real, size = np.dtype(dtype).type, np.dtype(dtype).itemsize
    move_row, spread_row = (_row_tile(dtype, lanes, 1, step, adds) for step in (1, 2))

    @inside("contract")
    def collect(grid, rows, count, more, image):
        x, y = array_at(grid, real), array_at(image, real)
        for r in range(count):
            to, source, step = rows[r, 0], rows[r, 1], rows[r, 3]
            if step == 1:
                move_row(grid + size * source, image + size * to, rows[r, 2], more)
            elif step == 2:
                spread_row(grid + size * source, image + size * to, rows[r, 2], more)
            elif adds:
                for t in range(rows[r, 2]):
                    y[to + step * t] += x[source + t]
            else:
                for t in range(rows[r, 2]):
                    y[to + step * t] = x[source + t] + more

    return collect


# --- few channels: a stretch of a sum stays in the cache while terms are added to it


def _stretches(emitter, grid, offsets, count):
    """Pointers to the first elements of `count` stretches, from the address of their offsets."""
    builder, integer = emitter.builder, offsets.type
    begin = builder.inttoptr(grid, emitter.type.as_pointer())
    table = builder.inttoptr(offsets, integer.as_pointer())
    return [builder.gep(begin, [builder.load(builder.gep(table, [integer(i)]))]) for i in range(count)]


def _terms(real, count, add):
    """The function ``(weights, grid, offsets, total, length)`` that adds weighted stretches to a sum.

    It takes addresses: of `count` weights, of the grid's element for the sum's first element, of the
    stretches' offsets from there, and of the sum. Without `add` these terms replace the sum.
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

    return generated(write)


def _inner_products(real, count):
    """The function ``(results, grid, offsets, a, length)`` that adds the inner products of a with stretches.

    It takes addresses: of `count` results, of the grid, of the stretches' offsets in it, and of a.
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

    return generated(write)


def _in_nines(size, function_of):
    """The function that takes terms from number k on, nine at a time, then three, then one."""
    nine, three, one = (function_of(count) for count in (9, 3, 1))

    @inside()
    def run(k, terms, line, grid, offsets, other, length):
        while k + 9 <= terms:
            nine(line + size * k, grid, offsets + 8 * k, other, length)
            k += 9
        while k + 3 <= terms:
            three(line + size * k, grid, offsets + 8 * k, other, length)
            k += 3
        while k < terms:
            one(line + size * k, grid, offsets + 8 * k, other, length)
            k += 1

    return run


def sums_by_positions(dtype, lanes):
    """The function ``(data, part)`` of a ShiftedSums, for groups of few channels.

    It adds up to nine terms at a time, so it reads and writes a sum once per nine multiplications.
    """
    real, size = np.dtype(dtype).type, np.dtype(dtype).itemsize
    (_, place_group), collect = _placing(dtype, lanes), _collecting(dtype, lanes)
    first, add_terms = _terms(real, 9, False), _in_nines(size, lambda count: _terms(real, count, True))

    @inside("contract")
    def weighted(line, source, offsets_at, terms, total, total_at, length):
        """One sum, with the weights at `line`."""
        for start in range(0, length, _STRETCH):
            stretch = min(_STRETCH, length - start)
            begin, part, k = source + size * start, total_at + size * start, 0
            if terms >= 9:
                first(line, begin, offsets_at, part, stretch)
                k = 9
            else:
                total[start : start + stretch] = 0
            add_terms(k, terms, line, begin, offsets_at, part, stretch)

    @inside("contract")
    def sum_of_shifts(data, part):
        at, images, made = _SUMS, _SUMS.images, _SUMS.results
        rows, parts, taps, wanted, bounds = _tables_of_sums(data)
        groups, channels_in, sums, room = data[at.groups], data[at.channels_in], data[at.sums], data[at.room]
        grid_at = data[at.shared.memory] + part * data[at.shared.bytes]
        bias = array_at(data[at.bias], real)
        total_at = grid_at + size * data[at.grid]
        array_at(grid_at, real, data[at.grid])[:] = 0
        total = array_at(total_at, real, data[at.line])
        offsets = _offsets_of_parts(parts, taps, channels_in, room)
        for item in range(bounds[part], bounds[part + 1]):
            n, g = item // groups, item % groups
            place_group(data, images, n, g, rows, len(rows), grid_at, room, channels_in)
            offsets_at, first_row = offsets.ctypes.data, 0
            for p in range(len(parts)):
                terms, last_row = channels_in * parts[p, 1], first_row + parts[p, 2]
                kept = wanted[first_row:last_row]
                for o in range(g * sums, (g + 1) * sums):
                    line = data[at.weights] + size * (parts[p, 0] + o * terms)
                    weighted(line, grid_at, offsets_at, terms, total, total_at, parts[p, 4])
                    image = _image_of(data, made, n, o, size) + size * parts[p, 3]
                    collect(total_at, kept, len(kept), bias[o], image)
                offsets_at, first_row = offsets_at + 8 * terms, last_row
        release(offsets)

    return sum_of_shifts


def products_by_positions(dtype, lanes):
    """The function ``(data, part)`` of a ShiftedProducts, for groups of few channels."""
    real, size = np.dtype(dtype).type, np.dtype(dtype).itemsize
    _, place_group = _placing(dtype, lanes)
    add_products = _in_nines(size, lambda count: _inner_products(real, count))

    @inside("contract")
    def products_of_shifts(data, part):
        at, images, a = _PRODUCTS, _PRODUCTS.images, _PRODUCTS.a
        rows, a_rows, taps, bounds = _tables_of_products(data)
        groups, channels_in, sums, room = data[at.groups], data[at.channels_in], data[at.sums], data[at.room]
        terms, length = channels_in * len(taps), data[at.length]
        grid_at = data[at.shared.memory] + part * data[at.shared.bytes]
        other_at = grid_at + size * data[at.grid]
        array_at(grid_at, real, data[at.grid] + length)[:] = 0
        results = data[at.results] + part * size * groups * sums * terms
        array_at(results, real, groups * sums * terms)[:] = 0
        offsets = scratch(terms, np.int64)
        _offsets_of(taps, channels_in, room, offsets)
        offsets_at = offsets.ctypes.data
        for item in range(bounds[part], bounds[part + 1]):
            g, n = item // data[at.count], item % data[at.count]
            place_group(data, images, n, g, rows, len(rows), grid_at, room, channels_in)
            for o in range(g * sums, (g + 1) * sums):
                place_group(data, a, n, o, a_rows, len(a_rows), other_at, 0, 1)
                line = results + size * o * terms
                for low in range(0, length, _PIECE):
                    low_at, here = size * low, min(_PIECE, length - low)
                    add_products(0, terms, line, grid_at + low_at, offsets_at, other_at + low_at, here)
        release(offsets)

    return products_of_shifts


@inside("contract", "reassoc", "nsz")
def row_sums(data, part, real):
    """One part of a RowSums; `real` is the dtype."""
    count, width, parts = data[_ROWS.count], data[_ROWS.width], data[_ROWS.parts]
    sums = elements(data[_ROWS.sums], 0, real)
    for r in range(count * part // parts, count * (part + 1) // parts):
        row, total = elements(data[_ROWS.rows], r * width, real), real(0)
        for low in range(0, width, _PIECE):
            piece = real(0)
            for t in range(low, min(low + _PIECE, width)):
                piece += row[t]
            total += piece
        sums[r] = total


# --- many channels: tiles of sums in registers


def _sums_along_grid(dtype, tiles):
    """The function for tiles side by side, whose vectors have positions: all those of a stretch.

    `left` sums of the group are left, the panel's among them. It returns the panel's height.
    """
    size, lanes = np.dtype(dtype).itemsize, tiles.lanes(dtype)
    tall_rows, flat_rows = tiles.tall[0], tiles.flat[0]

    def of_shape(height, vectors):
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

    tall, flat = of_shape(*tiles.tall), of_shape(*tiles.flat)

    @inside("contract")
    def run(panel, left, grid_at, offsets_at, count, here, kept, rows, total_at, line):
        if left > flat_rows:
            tall(panel, grid_at, offsets_at, count, total_at, line, here)
            return tall_rows
        flat(panel, grid_at, offsets_at, count, total_at, line, here)
        return flat_rows

    return run


def _sums_along_rows(dtype, tiles, vectors):
    """As `_sums_along_grid` for tiles whose vectors have sums, for the positions in rows of the grid only."""
    size, lanes, most = np.dtype(dtype).itemsize, tiles.lanes(dtype), tiles.turned[vectors - 1]
    width = vectors * lanes
    tile, turn = turned_tile(dtype, lanes, most, vectors), turn_tile(dtype, lanes)

    @inside("contract")
    def run(panel, left, grid_at, offsets_at, count, here, kept, rows, total_at, line):
        tile_at = total_at + width * line * size
        for r in range(rows):
            begin, length = kept[r, 1], kept[r, 2]
            pieces = (length + most - 1) // most
            each = (length + pieces - 1) // pieces
            for q in range(pieces):
                # the last piece ends with the row: it may compute some positions again
                t = begin + min(q * each, length - each)
                tile(panel, grid_at + t * size, offsets_at, count, tile_at, each)
                for p in range(0, each, lanes):
                    for v in range(0, width, lanes):
                        square = tile_at + (p * width + v) * size
                        turn(square, width, total_at + (v * line + t + p) * size, line)
        return width

    return run


def sums_by_tiles(dtype, tiles, vectors):
    """The function ``(data, part)`` of a ShiftedSums, for groups of many channels; `tiles` are a `Tiles`.

    Vectors have sums if so many `vectors` are in a tile, else positions.
    """
    real, size, tiles = np.dtype(dtype).type, np.dtype(dtype).itemsize, Tiles(*tiles)
    lanes = tiles.lanes(dtype)
    of_panel = _sums_along_rows(dtype, tiles, vectors) if vectors else _sums_along_grid(dtype, tiles)
    (_, place_group), collect = _placing(dtype, lanes), _collecting(dtype, lanes)

    @inside("contract")
    def sum_of_shifts(data, part):
        at, images, made = _SUMS, _SUMS.images, _SUMS.results
        rows, parts, taps, wanted, bounds = _tables_of_sums(data)
        groups, channels_in, sums, room = data[at.groups], data[at.channels_in], data[at.sums], data[at.room]
        grid_at = data[at.shared.memory] + part * data[at.shared.bytes]
        bias, grid = array_at(data[at.bias], real), array_at(grid_at, real, data[at.grid])
        line, total_at = data[at.line], grid_at + size * data[at.grid]
        placed, kept = scratch(len(rows), np.int64, 5), scratch(len(wanted), np.int64, 5)
        offsets = _offsets_of_parts(parts, taps, channels_in, room)
        for item in range(bounds[part], bounds[part + 1]):
            n, g = item // data[at.stretches] // groups, item // data[at.stretches] % groups
            low = data[at.begin] + item % data[at.stretches] * data[at.stretch]
            here = min(data[at.stretch], data[at.end] - low)
            grid[:] = 0
            count = _stretch_of(rows, low, room, placed)
            place_group(data, images, n, g, placed, count, grid_at, room, channels_in)
            offsets_at, first_row = offsets.ctypes.data, 0
            for p in range(len(parts)):
                count = channels_in * parts[p, 1]
                panel = data[at.weights] + (parts[p, 0] + g * data[at.panel_rows] * count) * size
                last_row = first_row + parts[p, 2]
                rows_here = _stretch_of(wanted[first_row:last_row], low, here, kept)
                first = 0
                while first < sums:
                    height = of_panel(
                        panel, sums - first, grid_at, offsets_at, count, here, kept, rows_here, total_at, line
                    )  # fmt: skip
                    for m in range(min(height, sums - first)):
                        o = g * sums + first + m
                        image = _image_of(data, made, n, o, size) + size * parts[p, 3]
                        collect(total_at + size * m * line, kept, rows_here, bias[o], image)
                    panel += height * count * size
                    first += height
                offsets_at += count * 8
                first_row = last_row
        release(offsets)
        release(placed)
        release(kept)

    return sum_of_shifts


def _turning(dtype, lanes):
    """The function that writes a row of each channel as a column: in squares, and the rest one by one."""
    real, size, turn = np.dtype(dtype).type, np.dtype(dtype).itemsize, turn_tile(dtype, lanes)

    @inside("contract")
    def turn_rows(source, by_channel, channels, count, columns, width):
        squares, a, turned = count // lanes * lanes, array_at(source, real), array_at(columns, real)
        for i in range(0, channels, lanes):
            done = squares if i + lanes <= channels else 0
            for p in range(0, done, lanes):
                to = columns + (p * width + i) * size
                turn(source + (i * by_channel + p) * size, by_channel, to, width)
            for k in range(i, min(i + lanes, channels)):
                for p in range(done, count):
                    turned[p * width + k] = a[k * by_channel + p]

    return turn_rows


def _columns_of_rows(dtype, lanes):
    """The function that writes each position in rows of a grid as a column, and its place, and counts them.

    The rows' position 0 has the place `low`. Positions between rows have no column.
    """
    size, turn_rows = np.dtype(dtype).itemsize, _turning(dtype, lanes)

    @inside("contract")
    def fill(image, by_channel, channels, rows, count, low, columns, width, places):
        found = 0
        for r in range(count):
            source, to = image + size * rows[r, 0], columns + size * width * found
            turn_rows(source, by_channel, channels, rows[r, 2], to, width)
            for q in range(rows[r, 2]):
                places[found + q] = low + rows[r, 1] + q
            found += rows[r, 2]
        return found

    return fill


def products_by_tiles(dtype, tiles, vectors, several):
    """The function ``(data, part)`` of a ShiftedProducts, for groups of many channels.

    A tile has so many `vectors`; `several` is the number of positions whose cotangents become columns at a
    time.
    """
    real, size, tiles = np.dtype(dtype).type, np.dtype(dtype).itemsize, Tiles(*tiles)
    lanes, tile_rows = tiles.bytes // size, tiles.products[vectors - 1]
    tile, fill = product_tile(dtype, lanes, tile_rows, vectors), _columns_of_rows(dtype, lanes)
    _, place_group = _placing(dtype, lanes)

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
        grid, columns = array_at(grid_at, real, data[at.grid]), array_at(columns_at, real, several * width)
        totals = array_at(totals_at, real, blocks * height * width)
        own_results = data[at.results] + part * size * groups * sums * terms
        results = array_at(own_results, real, groups * sums * terms)
        results[:] = 0
        offsets = scratch(height, np.int64)
        offsets[:] = 0
        _offsets_of(taps, channels_in, room, offsets)
        placed, turned = scratch(len(rows), np.int64, 5), scratch(len(a_rows), np.int64, 5)
        places = scratch(several, np.int64)
        offsets_at, places_at = offsets.ctypes.data, places.ctypes.data
        columns[:] = 0  # a block with fewer channels leaves the others' elements, which no result has
        item = bounds[part]
        while item < bounds[part + 1]:
            g = item // by_group
            end = min(bounds[part + 1], (g + 1) * by_group)
            totals[:] = 0
            while item < end:
                n, low = item % by_group // data[at.stretches], item % data[at.stretches] * data[at.stretch]
                here = min(data[at.stretch], data[at.length] - low)
                grid[:] = 0
                count = _stretch_of(rows, low, room, placed)
                place_group(data, images, n, g, placed, count, grid_at, room, channels_in)
                for block in range(blocks):
                    channels = min(width, sums - block * width)
                    image = _image_of(data, a, n, g * sums + block * width, size)
                    for t in range(0, here, several):
                        count = _stretch_of(a_rows, low + t, min(several, here - t), turned)
                        count = fill(
                            image, data[a.channel], channels, turned, count, t, columns_at, width, places
                        )  # fmt: skip
                        for k in range(0, height, tile_rows):
                            target, own = totals_at + (block * height + k) * width * size, offsets_at + k * 8
                            tile(grid_at, own, places_at, columns_at, count, target, width)
                item += 1
            for i in range(sums):
                for k in range(terms):
                    found = totals[(i // width * height + k) * width + i % width]
                    results[(g * sums + i) * terms + k] = found
        release(offsets)
        release(placed)
        release(turned)
        release(places)

    return products_of_shifts


def tap_packing(dtype, lanes):
    """The function ``(data, part)`` of a TapPacking."""
    real, turn_rows = np.dtype(dtype).type, _turning(dtype, lanes)
    size = np.dtype(dtype).itemsize

    @inside("contract")
    def pack(data, part):
        at, taps = _PACKING, words(data[_PACKING.taps], data[_PACKING.count])
        w, panels = elements(data[at.weights], 0, real), elements(data[at.target], 0, real)
        channels_in, sums, height = data[at.channels_in], data[at.sums], data[at.height]
        each = (data[at.panel_rows] + height - 1) // height  # panels of a group
        count, parts = data[at.groups] * each, data[at.parts]
        for panel in range(count * part // parts, count * (part + 1) // parts):
            g, first = panel // each, panel % each * height
            to, left = (g * data[at.panel_rows] + first) * channels_in * len(taps), sums - first
            rows = min(height, data[at.panel_rows] - first)
            source = g * data[at.by_group] + first * data[at.by_sum]
            if data[at.lines] and rows <= left:
                begin, target = data[at.weights] + source * size, data[at.target] + to * size
                turn_rows(begin, data[at.by_sum], rows, channels_in * len(taps), target, rows)
                continue
            for j in range(channels_in):
                for k in range(len(taps)):
                    here = source + j * data[at.by_channel_in] + taps[k] * data[at.by_tap]
                    for m in range(rows):
                        panels[to + m] = w[here + m * data[at.by_sum]] if m < left else 0
                    to += rows

    return pack


# --- patches


def patches(dtype, lanes):
    """The function ``(data, part)`` that writes the patches of a PatchRows."""
    real, size = np.dtype(dtype).type, np.dtype(dtype).itemsize
    place_row, _ = _placing(dtype, lanes)

    @inside()
    def clear(first, columns, low, high, length):
        """Set the lines of some taps to 0."""
        for k in range(low, high):
            array_at(first + size * k * columns, real, length)[:] = 0

    @inside()
    def patches(data, part):
        at, count, columns = _PATCHES, data[_PATCHES.count], data[_PATCHES.columns]
        length = data[at.positions]
        rows, items = words(data[at.rows.address], data[at.rows.rows], 5), count * data[at.channels]
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
    nothing, add_rows = real(-0.0), _collecting(dtype, lanes, True)

    @inside()
    def add_patches(data, part):
        at, count, columns = _PATCHES, data[_PATCHES.count], data[_PATCHES.columns]
        rows, items = words(data[at.rows.address], data[at.rows.rows], 5), count * data[at.channels]
        bias = array_at(data[at.bias], real)
        for item in range(items * part // data[at.parts], items * (part + 1) // data[at.parts]):
            n, c = item % count, item // count
            first = data[at.patches] + size * (c * data[at.taps] * columns + n * data[at.positions])
            image = _image_of(data, at.images, n, c, size)
            if data[at.begins]:
                array_at(image, real, data[at.size])[:] = bias[c]
            add_rows(first, rows, len(rows), nothing, image)

    return add_patches
