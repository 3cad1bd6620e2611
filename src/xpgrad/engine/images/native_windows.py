"""The compiled loops of `compiled_windows`: sets of windows that fit the first-level cache; needs numba.

The cells of a set are vectors, one for each element of a window, in one array at constant distances. Each
transform is a pass over them (`compiled.native_loops`).
"""

import numpy as np
from numba import types
from numba.extending import intrinsic

from xpgrad.engine.compiled.native import variant
from xpgrad.engine.compiled.native_loops import Vectors
from xpgrad.engine.compiled.tracing import Emitter
from xpgrad.engine.process import numba_private

_VECTOR = 64  # windows in a vector; two arrays of 36 such vectors of float32 are 18 KB
_U = np.uintp  # for numba a signed index may count from the end, and this prevents vectorization


def _transform(function, taken, made, real, in_place):
    """An intrinsic ``run(source, step, target, target_step, count)``: a formula on `count` elements.

    `source` is the address of the first of its operands' vectors, `step` how many elements the next one is
    further on; `target` has its results. In place both are the same vectors.
    """

    @intrinsic
    def run(typingctx, source, step, target, target_step, count):
        def codegen(context, builder, signature, arguments):
            source, step, target, target_step, count = arguments
            emitter = Emitter(context, builder, real)
            operands = [("operand", k) for k in range(taken)]
            results = [("operand" if in_place else "result", k) for k in range(made)]
            begins = {}
            for keys, address, distance in ((operands, source, step), (results, target, target_step)):
                pointer = builder.inttoptr(address, emitter.type.as_pointer())
                for key in keys:
                    begins[key] = builder.gep(pointer, [builder.mul(distance, distance.type(key[1]))])
            vectors = Vectors(emitter, begins)
            with numba_private.for_range(builder, count) as element:
                vectors.element(function, operands, results, begins, element.index)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), codegen

    return run


def from_windows(function, taken, made, step, real, label):
    """The function that transforms the windows of images.

    Parameters
    ----------
    function : callable
        The formula, on traced numbers.
    taken, made : int
        Elements of a window's side before and after.
    step : int
        Distance from one window to the next.
    real : numpy scalar type
        That of the arrays.
    label : str
        Of this variant: see `native.variant`.
    """
    side, size = max(taken, made), np.dtype(real).itemsize
    transform = _transform(function, taken, made, real, True)

    @variant(label)
    def loop(
        x, images, channels, height, width, by_image, by_channel, by_row, top, left, rows, columns,
        m, by_point, by_line,
    ):  # fmt: skip
        cells = np.empty(side * side * _VECTOR, real)
        cells_at = cells.ctypes.data
        group = max(1, _VECTOR // columns)
        for c in range(channels):
            for n in range(images):
                for first_row in range(0, rows, group):
                    for first in range(0, columns, _VECTOR):
                        across = min(_VECTOR, columns - first)
                        begin = first * step - left
                        # windows from low to high lie within the image's columns
                        low = min(across, max(0, (-begin + step - 1) // step))
                        high = max(low, min(across, (width - begin - taken) // step + 1))
                        count = 0
                        for r in range(first_row, min(rows, first_row + group)):
                            for i in range(taken):
                                h = r * step + i - top
                                at = i * side * _VECTOR + count
                                if h < 0 or h >= height:
                                    for j in range(taken):
                                        for t in range(across):
                                            cells[at + j * _VECTOR + t] = 0
                                    continue
                                source = n * by_image + c * by_channel + h * by_row + begin
                                for t in range(low, high):
                                    for j in range(taken):
                                        cells[at + j * _VECTOR + t] = x[_U(source + step * t + j)]
                                for edge in range(across - high + low):
                                    t = edge if edge < low else edge - low + high
                                    for j in range(taken):
                                        w = begin + step * t + j
                                        to = at + j * _VECTOR + t
                                        inside = w >= 0 and w < width
                                        cells[to] = x[_U(source - begin + w)] if inside else 0
                            count += across
                        line = size * _VECTOR
                        for j in range(taken):
                            column = cells_at + line * j
                            transform(column, side * _VECTOR, column, side * _VECTOR, count)
                        for i in range(made):
                            row = cells_at + line * side * i
                            transform(row, _VECTOR, row, _VECTOR, count)
                        to = c * by_line + (n * rows + first_row) * columns + first
                        for i in range(made):
                            for j in range(made):
                                at = (i * side + j) * _VECTOR
                                place = to + (i * made + j) * by_point
                                for t in range(count):
                                    m[_U(place + t)] = cells[at + t]

    return loop


def to_windows(function, taken, made, step, real, label):
    """The function that makes images of transformed windows; for the parameters see `from_windows`."""
    side, size = max(taken, made), np.dtype(real).itemsize
    from_points = _transform(function, taken, made, real, False)
    transform = _transform(function, taken, made, real, True)

    @variant(label)
    def loop(
        m, by_point, by_line, rows, columns, bias,
        y, images, channels, height, width, by_image, by_channel, by_row,
    ):  # fmt: skip
        cells = np.empty(side * side * _VECTOR, real)
        cells_at, m_at = cells.ctypes.data, m.ctypes.data
        group = max(1, _VECTOR // columns)
        for c in range(channels):
            b = bias[c]
            for n in range(images):
                for first_row in range(0, rows, group):
                    for first in range(0, columns, _VECTOR):
                        across = min(_VECTOR, columns - first)
                        count = across * min(group, rows - first_row)
                        source = c * by_line + (n * rows + first_row) * columns + first
                        line = size * _VECTOR
                        for j in range(taken):
                            points = m_at + size * (j * by_point + source)
                            from_points(points, taken * by_point, cells_at + line * j, side * _VECTOR, count)
                        for i in range(made):
                            row = cells_at + line * side * i
                            transform(row, _VECTOR, row, _VECTOR, count)
                        whole = max(0, min(across, width // step - first))
                        end = min(across * step, width - first * step)
                        for r in range(first_row, min(rows, first_row + group)):
                            for i in range(min(step, height - r * step)):
                                at = i * side * _VECTOR + (r - first_row) * across
                                to = n * by_image + c * by_channel + (r * step + i) * by_row + first * step
                                for t in range(whole):
                                    for j in range(made):
                                        y[_U(to + step * t + j)] = cells[at + j * _VECTOR + t] + b
                                for w in range(whole * step, end):
                                    y[_U(to + w)] = cells[at + (w % step) * _VECTOR + w // step] + b

    return loop
