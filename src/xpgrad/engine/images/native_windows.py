"""The compiled loops of `compiled_windows`: sets of windows that fit the first-level cache; needs llvmlite.

The cells of a set are lines of elements, one for each element of a window, in one array at equal distances.
Rows of images become lines, and lines rows, by vector instructions (`row_tiles`); each transform is a pass
over lines (`compiled.native_loops`). Passes and tiles take whole vectors: behind a set's last window there is
room for one, and what stands there is a number, but not used.
"""

import numpy as np

from xpgrad.engine.compiled.llvm_code import loop
from xpgrad.engine.compiled.native import elements, generated, inside, release, scratch
from xpgrad.engine.compiled.native_loops import Vectors
from xpgrad.engine.compiled.records import FromWindows, ToWindows, positions
from xpgrad.engine.compiled.tracing import Emitter
from xpgrad.engine.images.row_tiles import row_tile, split_tile, weave_tile

_FROM, _TO = positions(FromWindows), positions(ToWindows)
_NARROW = 4  # windows of a row up to which short vectors are faster
_WINDOWS = 64  # of a set; two arrays of 36 such lines of float32 are 18 KB


@inside()
def _images(data, at):
    """The numbers of a WindowImages."""
    return (
        data[at.address], data[at.count], data[at.slices], data[at.channels], data[at.height], data[at.width],
        data[at.by_image], data[at.by_slice], data[at.by_channel], data[at.by_row],
    )  # fmt: skip


@inside()
def _points(data, at):
    """The numbers of a WindowPoints."""
    return (
        data[at.address], data[at.by_point], data[at.by_line], data[at.by_phase], data[at.rows],
        data[at.columns],
    )  # fmt: skip


def _place_of_point(side, phases):
    """The function ``(i, j, by_point, by_phase)``: where a point is that has these numbers on each side."""
    own = side // phases

    @inside()
    def place_of_point(i, j, by_point, by_phase):
        return (i % own * own + j % own) * by_point + (i // own * phases + j // own) * by_phase

    return place_of_point


def _transform(function, taken, made, real, lanes):
    """The function ``(first, step, vectors)``: a formula on whole vectors of lines, in place.

    `first` is the address of the first of its operands' lines, `step` how many elements the next one is
    further on; the results take the place of the operands.
    """

    def write(code, arguments):
        builder, (first, step, count) = code.builder, arguments
        emitter = Emitter(code, real)
        pointer = builder.inttoptr(first, emitter.type.as_pointer())
        lines = range(max(taken, made))
        begins = {k: builder.gep(pointer, [builder.mul(step, step.type(k))]) for k in lines}
        passed = Vectors(emitter, begins)
        with loop(builder, count) as vector:
            begin = builder.mul(vector, step.type(lanes))
            # so LLVM knows that only whole vectors are left
            with loop(builder, step.type(lanes)) as element:
                index = builder.add(begin, element)
                passed.element(function, lines[:taken], lines[:made], begins, index)

    return generated(write)


def _place_windows(dtype, lanes, apart, taken):
    """The function ``(row, begin, high, count, cells, line)``: a row's windows, from element `begin` on.

    The row's elements below 0 and from number `high` on are 0. Each of a window's elements has a line.
    """
    size, reach = np.dtype(dtype).itemsize, -(-(apart * (lanes - 1) + taken) // lanes) * lanes
    split_whole, split_some = (split_tile(dtype, lanes, apart, taken, whole) for whole in (True, False))

    @inside()
    def place_windows(row, begin, high, count, cells, line):
        for t in range(0, count, lanes):
            w = begin + apart * t
            if w >= 0 and w + reach <= high:
                split_whole(row + size * w, 0, 0, cells + size * t, line)
            else:
                split_some(row + size * w, -w, high - w, cells + size * t, line)

    return place_windows


def _weave_windows(dtype, lanes, step):
    """The function ``(cells, line, row, count, end, more)``: lines of windows as the elements of a row."""
    size = np.dtype(dtype).itemsize
    weave_whole, weave_some = (weave_tile(dtype, lanes, step, whole) for whole in (True, False))

    @inside()
    def weave_windows(cells, line, row, count, end, more):
        for t in range(0, count, lanes):
            if end - step * t >= step * lanes:
                weave_whole(cells + size * t, line, row + size * step * t, 0, more)
            else:
                weave_some(cells + size * t, line, row + size * step * t, end - step * t, more)

    return weave_windows


def from_windows(function, taken, made, phases, flat, step, apart, dtype, lanes):
    """The function ``(data, part)`` that transforms the windows of images by a formula on traced numbers.

    For its integers see `records.FromWindows`. A window's side has `taken` elements before and `made` after,
    those of so many phases; a `flat` one has one row. `step` is the distance from one window to the one
    below, and `apart` to the next in memory. `lanes` are the elements of a vector.
    """
    real, size, side = np.dtype(dtype).type, np.dtype(dtype).itemsize, max(taken, made)
    down, read, rows_made = (1, 1, 1) if flat else (step, taken, made)
    line, place_of_point = _WINDOWS + lanes, _place_of_point(made, phases)
    transform = _transform(function, taken, made, real, lanes)
    place_wide, place_narrow = (
        _place_windows(dtype, own, apart, taken) for own in (lanes, min(lanes, _NARROW))
    )
    move, nothing = row_tile(dtype, lanes, 1, 1), real(-0.0)  # which changes no number that it is added to

    @inside("contract")
    def run(data, part):
        x, count_of, slices, channels, height, width, by_image, by_slice, by_channel, by_row = _images(
            data, _FROM.images
        )
        images = count_of * slices
        m, by_point, by_line, by_phase, rows, columns = _points(data, _FROM.points)
        top, left, parts = data[_FROM.top], data[_FROM.left], data[_FROM.parts]
        cells = scratch(max(read, rows_made) * side * line, real)
        cells[:] = 0
        cells_at = cells.ctypes.data
        group = max(1, _WINDOWS // columns)
        for c in range(channels * part // parts, channels * (part + 1) // parts):
            for first_row in range(0, images * rows, group):
                for first in range(0, columns, _WINDOWS):
                    across, begin, count = min(_WINDOWS, columns - first), first * apart - left, 0
                    for row in range(first_row, min(images * rows, first_row + group)):
                        n, r = row // rows, row % rows
                        for i in range(read):
                            h = r * down + i - top
                            high = width if h >= 0 and h < height else 0
                            own = n % count_of * by_image + n // count_of * by_slice
                            source = x + size * (own + c * by_channel + h * by_row)
                            to = cells_at + size * (i * side * line + count)
                            if across <= _NARROW:
                                place_narrow(source, begin, high, across, to, line)
                            else:
                                place_wide(source, begin, high, across, to, line)
                        count += across
                    vectors = (count + lanes - 1) // lanes
                    for j in range(0 if flat else taken):
                        transform(cells_at + size * line * j, side * line, vectors)
                    for i in range(rows_made):
                        transform(cells_at + size * line * side * i, line, vectors)
                    to = c * by_line + first_row * columns + first
                    for i in range(rows_made):
                        for j in range(made):
                            place = m + size * (to + place_of_point(i, j, by_point, by_phase))
                            move(cells_at + size * line * (i * side + j), place, count, nothing)
        release(cells)

    return run


def _read_points(dtype, lanes, taken, phases, side, rows):
    """The function ``(source, by_point, by_phase, cells, line, count)``: rows of points into cells."""
    size, place_of_point = np.dtype(dtype).itemsize, _place_of_point(taken, phases)
    move, nothing = row_tile(dtype, lanes, 1, 1), np.dtype(dtype).type(-0.0)

    @inside()
    def read_points(source, by_point, by_phase, cells, line, count):
        for i in range(rows):
            for j in range(taken):
                place = source + size * place_of_point(i, j, by_point, by_phase)
                move(place, cells + size * line * (i * side + j), count, nothing)

    return read_points


def to_kernels(function, taken, made, phases, flat, step, dtype, lanes):
    """The function that makes kernels of transformed ones, each with its elements behind one another.

    A kernel is a window of an image that has one row of them; see `to_windows`.
    """
    real, size, side = np.dtype(dtype).type, np.dtype(dtype).itemsize, max(taken, made)
    read, rows_made = (1, 1) if flat else (taken, made)
    line, all_of_it = _WINDOWS + lanes, rows_made * step
    transform, read_points = (
        _transform(function, taken, made, real, lanes),
        _read_points(dtype, lanes, taken, phases, side, read),
    )
    weave, move, nothing = _weave_windows(dtype, lanes, all_of_it), row_tile(dtype, lanes, 1, 1), real(-0.0)

    @inside("contract")
    def run(data, part):
        y, _, _, channels, _, _, _, _, by_channel, _ = _images(data, _TO.images)
        m, by_point, by_line, by_phase, _, columns = _points(data, _TO.points)
        parts, added = data[_TO.parts], elements(data[_TO.bias], 0, real)
        own = max(read, rows_made) * side * line
        cells = scratch(own + all_of_it * line, real)
        cells[:] = 0
        cells_at = cells.ctypes.data
        lines_at = cells_at + size * own
        for c in range(channels * part // parts, channels * (part + 1) // parts):
            for first in range(0, columns, _WINDOWS):
                count = min(_WINDOWS, columns - first)
                read_points(m + size * (c * by_line + first), by_point, by_phase, cells_at, line, count)
                vectors = (count + lanes - 1) // lanes
                for j in range(0 if flat else taken):
                    transform(cells_at + size * line * j, side * line, vectors)
                for i in range(rows_made):
                    transform(cells_at + size * line * side * i, line, vectors)
                    for j in range(made):
                        at, to = cells_at + size * line * (i * side + j), size * line * (i * made + j)
                        move(at, lines_at + to, vectors * lanes, nothing)
                row = y + size * (c * by_channel + first * all_of_it)
                weave(lines_at, line, row, count, count * all_of_it, added[c])
        release(cells)

    return run


def to_windows(function, taken, made, phases, flat, step, dtype, lanes):
    """The function that makes images of transformed windows, see `records.ToWindows` and `from_windows`."""
    real, size, side = np.dtype(dtype).type, np.dtype(dtype).itemsize, max(taken, made)
    read, rows_made, high = (1, 1, 1) if flat else (taken, made, step)
    line, read_points = _WINDOWS + lanes, _read_points(dtype, lanes, taken, phases, side, read)
    transform = _transform(function, taken, made, real, lanes)
    weave_wide, weave_narrow = (_weave_windows(dtype, own, step) for own in (lanes, min(lanes, _NARROW)))

    @inside("contract")
    def run(data, part):
        y, count_of, slices, channels, height, width, by_image, by_slice, by_channel, by_row = _images(
            data, _TO.images
        )
        images = count_of * slices
        m, by_point, by_line, by_phase, rows, columns = _points(data, _TO.points)
        parts = data[_TO.parts]
        cells = scratch(max(read, rows_made) * side * line, real)
        added = elements(data[_TO.bias], 0, real)
        cells[:] = 0
        cells_at = cells.ctypes.data
        group = max(1, _WINDOWS // columns)
        for c in range(channels * part // parts, channels * (part + 1) // parts):
            for first_row in range(0, images * rows, group):
                for first in range(0, columns, _WINDOWS):
                    across, last_row = min(_WINDOWS, columns - first), min(images * rows, first_row + group)
                    count = across * (last_row - first_row)
                    source = c * by_line + first_row * columns + first
                    read_points(m + size * source, by_point, by_phase, cells_at, line, count)
                    vectors = (count + lanes - 1) // lanes
                    for j in range(0 if flat else taken):
                        transform(cells_at + size * line * j, side * line, vectors)
                    for i in range(rows_made):
                        transform(cells_at + size * line * side * i, line, vectors)
                    end = min(across * step, width - first * step)
                    for row in range(first_row, last_row):
                        n, r = row // rows, row % rows
                        for i in range(min(high, height - r * high)):
                            at = cells_at + size * (i * side * line + (row - first_row) * across)
                            own = n % count_of * by_image + n // count_of * by_slice
                            to = own + c * by_channel + (r * high + i) * by_row + first * step
                            if across <= _NARROW:
                                weave_narrow(at, line, y + size * to, across, end, added[c])
                            else:
                                weave_wide(at, line, y + size * to, across, end, added[c])
        release(cells)

    return run
