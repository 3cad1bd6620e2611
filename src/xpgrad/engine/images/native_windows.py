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
_WINDOWS = 64  # of a set; two arrays of 36 such lines of float32 are 18 KB


@inside()
def _images(data, at):
    """The numbers of a WindowImages."""
    return (
        data[at.address], data[at.count], data[at.channels], data[at.height], data[at.width],
        data[at.by_image], data[at.by_channel], data[at.by_row],
    )  # fmt: skip


@inside()
def _points(data, at):
    """The numbers of a WindowPoints."""
    return data[at.address], data[at.by_point], data[at.by_line], data[at.rows], data[at.columns]


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

    return generated(write, *["int64"] * 3)


def from_windows(function, taken, made, step, dtype, lanes):
    """The function ``(data, part)`` that transforms the windows of images by a formula on traced numbers.

    For its integers see `records.FromWindows`. A window's side has `taken` elements before and `made` after,
    and `step` is the distance from one window to the next. `lanes` are the elements of a vector.
    """
    real, size, side = np.dtype(dtype).type, np.dtype(dtype).itemsize, max(taken, made)
    line = _WINDOWS + lanes
    transform = _transform(function, taken, made, real, lanes)
    split_whole, split_some = (split_tile(dtype, lanes, step, taken, whole) for whole in (True, False))
    move, nothing = row_tile(dtype, lanes, 1, 1), real(-0.0)  # which changes no number that it is added to
    reach = -(-(step * (lanes - 1) + taken) // lanes) * lanes

    @inside("contract")
    def run(data, part):
        x, images, channels, height, width, by_image, by_channel, by_row = _images(data, _FROM.images)
        m, by_point, by_line, rows, columns = _points(data, _FROM.points)
        top, left, parts = data[_FROM.top], data[_FROM.left], data[_FROM.parts]
        cells = scratch(side * side * line, real)
        cells[:] = 0
        cells_at = cells.ctypes.data
        group = max(1, _WINDOWS // columns)
        for c in range(channels * part // parts, channels * (part + 1) // parts):
            for first_row in range(0, images * rows, group):
                for first in range(0, columns, _WINDOWS):
                    across, begin, count = min(_WINDOWS, columns - first), first * step - left, 0
                    for row in range(first_row, min(images * rows, first_row + group)):
                        n, r = row // rows, row % rows
                        for i in range(taken):
                            h = r * step + i - top
                            high = width if h >= 0 and h < height else 0
                            source = n * by_image + c * by_channel + h * by_row
                            for t in range(0, across, lanes):
                                w = begin + step * t
                                at = x + size * (source + w)
                                to = cells_at + size * (i * side * line + count + t)
                                if w >= 0 and w + reach <= high:
                                    split_whole(at, 0, 0, to, line)
                                else:
                                    split_some(at, -w, high - w, to, line)
                        count += across
                    vectors = (count + lanes - 1) // lanes
                    for j in range(taken):
                        transform(cells_at + size * line * j, side * line, vectors)
                    for i in range(made):
                        transform(cells_at + size * line * side * i, line, vectors)
                    to = c * by_line + first_row * columns + first
                    for i in range(made):
                        for j in range(made):
                            place = m + size * (to + (i * made + j) * by_point)
                            move(cells_at + size * line * (i * side + j), place, count, nothing)
        release(cells)

    return run


def to_windows(function, taken, made, step, dtype, lanes):
    """The function that makes images of transformed windows, see `records.ToWindows` and `from_windows`."""
    real, size, side = np.dtype(dtype).type, np.dtype(dtype).itemsize, max(taken, made)
    line = _WINDOWS + lanes
    transform = _transform(function, taken, made, real, lanes)
    weave_whole, weave_some = (weave_tile(dtype, lanes, step, whole) for whole in (True, False))
    move, nothing = row_tile(dtype, lanes, 1, 1), real(-0.0)

    @inside("contract")
    def run(data, part):
        y, images, channels, height, width, by_image, by_channel, by_row = _images(data, _TO.images)
        m, by_point, by_line, rows, columns = _points(data, _TO.points)
        parts = data[_TO.parts]
        cells, added = scratch(side * side * line, real), elements(data[_TO.bias], 0, real)
        cells[:] = 0
        cells_at = cells.ctypes.data
        group = max(1, _WINDOWS // columns)
        for c in range(channels * part // parts, channels * (part + 1) // parts):
            for first_row in range(0, images * rows, group):
                for first in range(0, columns, _WINDOWS):
                    across, last_row = min(_WINDOWS, columns - first), min(images * rows, first_row + group)
                    count = across * (last_row - first_row)
                    source = c * by_line + first_row * columns + first
                    for i in range(taken):
                        for j in range(taken):
                            place = m + size * (source + (i * taken + j) * by_point)
                            move(place, cells_at + size * line * (i * side + j), count, nothing)
                    vectors = (count + lanes - 1) // lanes
                    for j in range(taken):
                        transform(cells_at + size * line * j, side * line, vectors)
                    for i in range(made):
                        transform(cells_at + size * line * side * i, line, vectors)
                    end = min(across * step, width - first * step)
                    for row in range(first_row, last_row):
                        n, r = row // rows, row % rows
                        for i in range(min(step, height - r * step)):
                            at = i * side * line + (row - first_row) * across
                            to = n * by_image + c * by_channel + (r * step + i) * by_row + first * step
                            for t in range(0, across, lanes):
                                lines, place = cells_at + size * (at + t), y + size * (to + step * t)
                                if end - step * t >= step * lanes:
                                    weave_whole(lines, line, place, 0, added[c])
                                else:
                                    weave_some(lines, line, place, end - step * t, added[c])
        release(cells)

    return run
