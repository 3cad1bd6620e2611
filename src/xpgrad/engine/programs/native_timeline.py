"""The rows of sequences of uneven lengths, compiled: which they are, and how they move; needs llvmlite.

`timeline` says what rows are. Here the lengths come with each call of a program. `schedule` finds the order
of the batch, the steps of the time loops, the rows of each chunk and the cuts between threads, and writes
them into a table. Then it completes the program, some of whose integers are *quantities* that lengths decide.
`move_rows` brings arrays over time and batch into the order of the rows, and back.
"""

from xpgrad.engine.compiled.native import elements, inside, words
from xpgrad.engine.compiled.records import (
    NOTHING_AFTER,
    NOTHING_BEFORE,
    Addition,
    ChunkQuantities,
    ChunkRequest,
    CutRequest,
    MoveKind,
    MoveRowsRecord,
    ProgramHead,
    Quantities,
    ScheduleRecord,
    length,
    positions,
)
from xpgrad.engine.formulas.formula import Span

__all__ = ["move_rows", "schedule"]

_FAR = 1 << 60
_SCHEDULE, _MOVE_ROWS, _MOVE = positions(ScheduleRecord), positions(MoveRowsRecord), positions(MoveKind)
_SPAN, _QUANTITIES, _CHUNK = positions(Span), positions(Quantities), positions(ChunkQuantities)
_CHUNK_REQUEST, _CUT_REQUEST, _ADDITION = positions(ChunkRequest), positions(CutRequest), positions(Addition)
_PROGRAM = positions(ProgramHead)
_REQUESTS = length(ScheduleRecord)  # where those for chunks and cuts begin


@inside()
def _vector(address):
    return words(address, _FAR)


@inside()
def _bounded(length, steps):
    return min(max(length, 0), steps)


@inside()
def _fill(batch, steps, order, place, ordered, starts):
    """The same as `_sort` for a full batch, whose lengths are all `steps`."""
    for n in range(batch):
        order[n], place[n], ordered[n] = n, n, steps
    for step in range(steps + 1):
        starts[step] = step * batch
    return steps if batch else 0


@inside()
def _sort(lengths, apart, batch, steps, order, place, ordered, starts):
    """The batch by falling length, and the first row of each step; returns how many steps there are.

    The lengths stand so many numbers `apart`.
    """
    starts[: steps + 2] = 0
    most = 0
    for n in range(batch):
        length = _bounded(lengths[apart * n], steps)
        most = max(most, length)
        starts[length + 1] += 1  # how many have this length, one place further
    # the first place of each length, the longest first: a sum from behind
    before = 0
    for length in range(steps, -1, -1):
        same = starts[length + 1]
        starts[length + 1] = before
        before += same
    for n in range(batch):
        length = _bounded(lengths[apart * n], steps)
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


@inside()
def _row(step, is_turned, starts, steps):
    """The first row of a step. Of a full batch, rows may have the order of time, against which steps run."""
    return starts[steps - 1 - step] if is_turned else starts[step]


@inside()
def _write_marks(marks, reverse, is_turned, lengths, apart, order, ordered, starts, steps):
    """Of each row, what resets cut it off from; they stand behind their sequence's length."""
    for step in range(steps):
        first = _row(step, is_turned, starts, steps)
        for p in range(starts[step + 1] - starts[step]):
            own, length = lengths[apart * order[p] :], ordered[p]
            time = length - 1 - step if reverse else step
            earlier, later = own[1 + time] != 0, time + 1 < length and own[2 + time] != 0
            nothing_before, nothing_after = earlier, later
            if reverse:
                nothing_before, nothing_after = later, time > 0 and earlier
            marks[first + p] = NOTHING_BEFORE * nothing_before + NOTHING_AFTER * nothing_after


@inside()
def _write_span(span, step, is_turned, starts, steps, start):
    """A step, as the engines' Span has it; `start` is the chunk's first row."""
    now = _row(step, is_turned, starts, steps)
    span[_SPAN.rows], span[_SPAN.now], span[_SPAN.local] = starts[step + 1] - starts[step], now, now - start
    span[_SPAN.before] = _row(step - 1, is_turned, starts, steps) if step else 0


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
    """Write the tables of a program's Timeline, and complete the program; see `schedule.Schedule.numbers`."""
    at = _SCHEDULE
    lengths, batch = _vector(data[at.lengths]), data[at.known.batch]
    tables, code = _vector(data[at.known.tables]), _vector(data[at.code])
    steps = code[_PROGRAM.steps]
    if not steps:
        steps = data[at.known.steps]
    ordered, starts = tables[data[at.known.ordered] :], tables[data[at.known.starts] :]
    quantities, additions = tables[data[at.quantities] :], _vector(data[at.additions])
    order, place = tables[data[at.known.order] :], tables[data[at.known.place] :]
    resets = data[at.known.resets]
    apart = 1 + steps if resets else 1
    if data[at.lengths] and resets != 2:
        longest = _sort(lengths, apart, batch, steps, order, place, ordered, starts)
    else:
        longest = _fill(batch, steps, order, place, ordered, starts)
    if data[at.known.marks] >= 0:
        marks = tables[data[at.known.marks] :]
        _write_marks(marks, False, False, lengths, apart, order, ordered, starts, longest)
    if data[at.known.reverse_marks] >= 0:
        marks = tables[data[at.known.reverse_marks] :]
        _write_marks(marks, True, resets == 2, lengths, apart, order, ordered, starts, longest)
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


@inside()
def _strided(data, at):
    """The address and the distances of an array, whose record stands at `at`."""
    return data[at.address], data[at.outer], data[at.row], data[at.column]


@inside()
def _copy_row(target, y, source, x, width):
    if y == 1 and x == 1:
        for j in range(width):
            target[j] = source[j]
    else:
        for j in range(width):
            target[j * y] = source[j * x]


@inside()
def _clear_row(target, y, width):
    for j in range(width):
        target[j * y] = 0


@inside()
def _source(data):
    """The address of the source's first element, and the distances of its last two axes."""
    source, _, x1, x2 = _strided(data, _MOVE_ROWS.source)
    return source, x1, x2


@inside()
def _unpack(data, part, real):
    """Rows to time and batch; padding is 0."""
    at = _MOVE_ROWS
    tables, known = _vector(data[at.known.tables]), at.known
    batch, steps, reverse, width = data[known.batch], data[at.high], data[at.reverse], data[at.width]
    ordered, starts, place = (
        tables[data[known.ordered] :],
        tables[data[known.starts] :],
        tables[data[known.place] :],
    )
    target, y0, y1, y2 = _strided(data, at.target)
    source, x1, x2 = _source(data)
    for time in range(part, steps, data[at.parts]):
        for n in range(batch):
            to, p = elements(target, y0 * time + y1 * n, real), place[n]
            if time < ordered[p]:
                step = ordered[p] - 1 - time if reverse else time
                _copy_row(to, y2, elements(source, x1 * (starts[step] + p), real), x2, width)
            else:
                _clear_row(to, y2, width)


@inside()
def _is_cut_off(data, row):
    """Whether a reset stands between a row and the step before it."""
    at = _MOVE_ROWS
    place = data[at.known.reverse_marks if data[at.reverse] else at.known.marks]
    return place >= 0 and _vector(data[at.known.tables])[place + row] & NOTHING_BEFORE != 0


@inside()
def _move_states(data, part, real):
    """States of sequences to the order of the rows, and back; or the rows of the last steps.

    A state that a reset cuts off gets nothing back.
    """
    at = _MOVE_ROWS
    tables, known, kind = _vector(data[at.known.tables]), at.known, data[at.kind]
    order, ordered = tables[data[known.order] :], tables[data[known.ordered] :]
    starts, width = tables[data[known.starts] :], data[at.width]
    target, _, y1, y2 = _strided(data, at.target)
    source, x1, x2 = _source(data)
    initial, _, z1, z2 = _strided(data, at.initial)
    is_turned, steps = data[at.is_turned], data[at.steps]
    for p in range(part, data[known.batch], data[at.parts]):
        n = order[p]
        of_batch, of_rows = elements(target, y1 * n, real), elements(source, x1 * p, real)
        if kind == _MOVE.sort:
            _copy_row(elements(target, y1 * p, real), y2, elements(source, x1 * n, real), x2, width)
        elif kind == _MOVE.unsort:
            if ordered[p] and _is_cut_off(data, _row(0, is_turned, starts, steps) + p):
                _clear_row(of_batch, y2, width)
            else:
                _copy_row(of_batch, y2, of_rows, x2, width)
        elif ordered[p]:
            row = _row(ordered[p] - 1, is_turned, starts, steps) + p
            _copy_row(of_batch, y2, elements(source, x1 * row, real), x2, width)
        else:
            _copy_row(of_batch, y2, elements(initial, z1 * p, real), z2, width)


@inside()
def _by_steps(data, part, real):
    """The rows of some steps: from time and batch, of the other direction, or of the step before."""
    at = _MOVE_ROWS
    tables, known, kind, reverse = _vector(data[at.known.tables]), at.known, data[at.kind], data[at.reverse]
    order, ordered = tables[data[known.order] :], tables[data[known.ordered] :]
    starts, first, width = tables[data[known.starts] :], data[at.first], data[at.width]
    is_turned, steps = data[at.is_turned], data[at.steps]
    target, _, y1, y2 = _strided(data, at.target)
    source, x0, x1, x2 = _strided(data, at.source)
    initial, _, z1, z2 = _strided(data, at.initial)
    for step in range(data[at.low] + part, data[at.high], data[at.parts]):
        for p in range(starts[step + 1] - starts[step]):
            row = _row(step, is_turned, starts, steps) + p
            to, other = elements(target, y1 * (row - first), real), ordered[p] - 1 - step
            if kind == _MOVE.pack:  # time and batch to rows
                time = other if reverse else step
                _copy_row(to, y2, elements(source, x0 * time + x1 * order[p], real), x2, width)
            elif kind == _MOVE.turn:  # rows of one direction to those of the other
                _copy_row(to, y2, elements(source, x1 * (starts[other] + p), real), x2, width)
            elif _is_cut_off(data, row):
                _clear_row(to, y2, width)
            elif step:  # the row of the step before
                before = _row(step - 1, is_turned, starts, steps) + p
                _copy_row(to, y2, elements(source, x1 * before, real), x2, width)
            else:
                _copy_row(to, y2, elements(initial, z1 * p, real), z2, width)


@inside()
def move_rows(data, part, real):
    """One part of a MoveRowsRecord: every `parts`-th step or sequence."""
    kind, at = data[_MOVE_ROWS.kind], _MOVE
    if kind == at.unpack:
        _unpack(data, part, real)
    elif kind == at.sort or kind == at.unsort or kind == at.last:
        _move_states(data, part, real)
    else:
        _by_steps(data, part, real)
