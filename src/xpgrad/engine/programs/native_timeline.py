"""The rows of sequences of uneven lengths, compiled: which they are, and how they move; needs numba.

`_timeline` says what rows are. Here the lengths come with each call of a program. `schedule` finds the order
of the batch, the steps of the time loops, the rows of each chunk and the cuts between threads, and writes
them into a table. Then it completes the program, some of whose integers are *quantities* that lengths decide.
`move_rows` brings arrays over time and batch into the order of the rows, and back.
"""

from xpgrad.engine.compiled.native import elements, inlined, inside, words
from xpgrad.engine.compiled.records import (
    Addition,
    ChunkQuantities,
    ChunkRequest,
    CutRequest,
    MoveKind,
    MoveRows,
    ProgramHead,
    Quantities,
    Schedule,
    length,
    positions,
)
from xpgrad.engine.formulas.formula import Span

__all__ = ["move_rows", "schedule"]

_FAR = 1 << 60
_SCHEDULE, _MOVE_ROWS, _MOVE = positions(Schedule), positions(MoveRows), positions(MoveKind)
_SPAN, _QUANTITIES, _CHUNK = positions(Span), positions(Quantities), positions(ChunkQuantities)
_CHUNK_REQUEST, _CUT_REQUEST, _ADDITION = positions(ChunkRequest), positions(CutRequest), positions(Addition)
_PROGRAM = positions(ProgramHead)
_REQUESTS = length(Schedule)  # where those for chunks and cuts begin


@inlined
def _vector(address):
    return words(address, _FAR)


@inside()
def _fill(steps, order, place, ordered, starts):
    """The same as `_sort` for a full batch, whose lengths are all `steps`."""
    batch = len(order)
    for n in range(batch):
        order[n], place[n], ordered[n] = n, n, steps
    for step in range(steps + 1):
        starts[step] = step * batch
    return steps if batch else 0


@inside()
def _sort(lengths, steps, order, place, ordered, starts):
    """The batch by falling length, and the first row of each step; returns how many steps there are."""
    batch = len(order)
    starts[: steps + 2] = 0
    most = 0
    for n in range(batch):
        length = min(max(lengths[n], 0), steps)
        most = max(most, length)
        starts[length + 1] += 1  # how many have this length, one place further
    # the first place of each length, the longest first: a sum from behind
    before = 0
    for length in range(steps, -1, -1):
        same = starts[length + 1]
        starts[length + 1] = before
        before += same
    for n in range(batch):
        length = min(max(lengths[n], 0), steps)
        p = starts[length + 1]
        starts[length + 1] += 1
        order[p], place[n], ordered[p] = n, p, length
    # now starts[length + 1] is how many have at least this length: the rows of step length - 1
    row = 0
    for step in range(steps):
        count = starts[step + 2]
        starts[step] = row
        row += count
    starts[steps] = row
    return most


@inlined
def _row(step, is_turned, starts, steps):
    """The first row of a step. Of a full batch, rows may have the order of time, against which steps run."""
    return starts[steps - 1 - step] if is_turned else starts[step]


@inlined
def _write_span(span, step, is_turned, starts, steps, start):
    """A step, as the engines' Span has it; `start` is the chunk's first row."""
    now = _row(step, is_turned, starts, steps)
    span[_SPAN.rows], span[_SPAN.now] = starts[step + 1] - starts[step], now
    span[_SPAN.before], span[_SPAN.local] = (
        _row(step - 1, is_turned, starts, steps) if step else 0,
        now - start,
    )


@inside()
def _write_spans(spans, is_turned, starts, steps):
    """The steps from first to last."""
    for step in range(steps):
        _write_span(spans[len(_SPAN) * step :], step, is_turned, starts, steps, 0)


@inside()
def _write_chunks(limit, most, is_turned, chunks, spans, starts, steps):
    """The quantities of chunks of about `limit` rows, from the last one to the first, and their steps.

    `most` chunks are there, as many as the longest sequences need. Where fewer are needed, the last ones
    written are empty: a product that starts a sum must not be empty, it would only write zeros.
    """
    at, rows = _CHUNK, starts[steps]
    used = max(1, -(-rows // limit))
    high = steps
    for number in range(most):
        cut = used - 1 - number
        low = max(high - 1, 0) if cut > 0 else 0
        while low > 0 and starts[low - 1] * used >= cut * rows:
            low -= 1
        middle = max(low, min(high, 1))
        start = starts[steps - high] if is_turned else starts[low]
        values = chunks[len(at) * number :]
        values[at.low], values[at.middle], values[at.high] = low, middle, high
        values[at.start], values[at.count] = start, starts[high] - starts[low]
        values[at.later], values[at.first] = high - middle, middle - low
        values[at.later_place], values[at.first_place] = steps - high, steps - middle
        for step in range(low, high):
            span = spans[len(_SPAN) * (steps - 1 - step) :]
            _write_span(span, step, is_turned, starts, steps, start)
        high = low


@inside()
def _write_cuts(cuts, parts, ordered, low, high, count):
    """Where to cut the rows of the steps from low to high into parts of nearly equal work.

    A row belongs to the part in which the middle of its work is, so the cuts are the nearest to equal work.
    """
    total = 0
    for p in range(count):
        total += min(ordered[p], high) - low
    part, done = 1, 0
    cuts[0] = 0
    for p in range(count):
        work = min(ordered[p], high) - low
        done += work
        while part < parts and (2 * done - work) * parts > 2 * total * part:
            cuts[part] = p
            part += 1
    for rest in range(part, parts + 1):
        cuts[rest] = count


@inside()
def schedule(data):
    """Write the tables of a program's Timeline, and complete the program; see `schedule.Schedule.data`."""
    at = _SCHEDULE
    lengths, batch = _vector(data[at.lengths]), data[at.known.batch]
    tables, code = _vector(data[at.known.tables]), _vector(data[at.code])
    steps = code[_PROGRAM.steps]
    if not steps:
        steps = data[at.known.steps]
    order, place = tables[data[at.known.order] :][:batch], tables[data[at.known.place] :]
    ordered, starts = tables[data[at.known.ordered] :], tables[data[at.known.starts] :]
    quantities, additions = tables[data[at.quantities] :], _vector(data[at.additions])
    if data[at.lengths]:
        longest = _sort(lengths, steps, order, place, ordered, starts)
    else:
        longest = _fill(steps, order, place, ordered, starts)
    if data[at.spans] >= 0:
        _write_spans(tables[data[at.spans] :], False, starts, longest)
    if data[at.turned_spans] >= 0:
        _write_spans(tables[data[at.turned_spans] :], True, starts, longest)
    of = _QUANTITIES
    quantities[of.zero], quantities[of.rows] = 0, starts[longest]
    quantities[of.padded], quantities[of.steps] = steps, longest
    quantities[of.first] = min(longest, 1)
    quantities[of.later] = longest - quantities[of.first]
    i, asked = _REQUESTS, _CHUNK_REQUEST
    for _ in range(data[at.chunk_count]):
        limit, most = data[i + asked.limit], data[i + asked.most]
        chunks, spans = quantities[data[i + asked.quantities] :], tables[data[i + asked.spans] :]
        _write_chunks(limit, most, data[i + asked.is_turned], chunks, spans, starts, longest)
        i += len(asked)
    cut = _CUT_REQUEST
    for _ in range(data[at.cut_count]):
        parts, low, high = data[i + cut.parts], quantities[data[i + cut.low]], quantities[data[i + cut.high]]
        count = starts[low + 1] - starts[low] if high > low else 0
        _write_cuts(tables[data[i + cut.table] :], parts, ordered, low, high, count)
        i += len(cut)
    one = _ADDITION
    for k in range(0, len(one) * data[at.addition_count], len(one)):
        place, added = additions[k + one.place], quantities[additions[k + one.quantity]]
        code[place] = code[place] * additions[k + one.kept] + added * additions[k + one.factor]


@inlined
def _strided(data, at):
    """The address and the distances of an array, whose record stands at `at`."""
    return data[at.address], data[at.outer], data[at.row], data[at.column]


@inlined
def _copy_row(target, y, source, x, width):
    if y == 1 and x == 1:
        for j in range(width):
            target[j] = source[j]
    else:
        for j in range(width):
            target[j * y] = source[j * x]


@inlined
def _clear_row(target, y, width):
    for j in range(width):
        target[j * y] = 0


@inside()
def move_rows(data, part, one):
    """One part of a MoveRows: every `parts`-th step, or sequence."""
    at, tables = _MOVE_ROWS, _vector(data[_MOVE_ROWS.known.tables])
    kind, parts, reverse = data[at.kind], data[at.parts], data[at.reverse]
    batch = data[at.known.batch]
    order, place = tables[data[at.known.order] :], tables[data[at.known.place] :]
    ordered, starts = tables[data[at.known.ordered] :], tables[data[at.known.starts] :]
    first, width, steps = data[at.first], data[at.width], data[at.steps]
    target, y0, y1, y2 = _strided(data, at.target)
    source, x0, x1, x2 = _strided(data, at.source)
    initial, _, z1, z2 = _strided(data, at.initial)
    if kind == _MOVE.unpack:  # rows to time and batch
        for time in range(part, data[at.high], parts):
            for n in range(batch):
                to, p = elements(target, y0 * time + y1 * n, one), place[n]
                if time < ordered[p]:
                    step = ordered[p] - 1 - time if reverse else time
                    _copy_row(to, y2, elements(source, x1 * (starts[step] + p), one), x2, width)
                else:
                    _clear_row(to, y2, width)
        return
    if kind == _MOVE.sort or kind == _MOVE.unsort or kind == _MOVE.last:  # states
        for p in range(part, batch, parts):
            n = order[p]
            of_batch, of_rows = elements(target, y1 * n, one), elements(source, x1 * p, one)
            if kind == _MOVE.sort:
                _copy_row(elements(target, y1 * p, one), y2, elements(source, x1 * n, one), x2, width)
            elif kind == _MOVE.unsort:
                _copy_row(of_batch, y2, of_rows, x2, width)
            elif ordered[p]:
                last = elements(source, x1 * (_row(ordered[p] - 1, reverse, starts, steps) + p), one)
                _copy_row(of_batch, y2, last, x2, width)
            else:
                _copy_row(of_batch, y2, elements(initial, z1 * p, one), z2, width)
        return
    for step in range(data[at.low] + part, data[at.high], parts):
        for p in range(starts[step + 1] - starts[step]):
            other = ordered[p] - 1 - step
            if kind == _MOVE.previous:
                to = elements(target, y1 * (_row(step, reverse, starts, steps) - first + p), one)
            else:
                to = elements(target, y1 * (starts[step] - first + p), one)
            if kind == _MOVE.pack:  # time and batch to rows
                time = other if reverse else step
                _copy_row(to, y2, elements(source, x0 * time + x1 * order[p], one), x2, width)
            elif kind == _MOVE.turn:  # rows of one direction to those of the other
                _copy_row(to, y2, elements(source, x1 * (starts[other] + p), one), x2, width)
            elif step:  # the row of the step before
                before = _row(step - 1, reverse, starts, steps) + p
                _copy_row(to, y2, elements(source, x1 * before, one), x2, width)
            else:
                _copy_row(to, y2, elements(initial, z1 * p, one), z2, width)
