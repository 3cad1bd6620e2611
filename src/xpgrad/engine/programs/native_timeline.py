"""Compiled functions for the rows of sequences of uneven lengths; needs llvmlite.

`timeline` defines rows. Here each call of a program brings its lengths. `schedule` writes tables: the order
of the batch, the steps of the time loops, the rows of each chunk, and the cuts between threads. Then it
writes the *quantities*, integers that the lengths decide, into the program. `unpack_rows`, `fetch_rows` and
`move_states` bring arrays over time and batch into the order of the rows, and back. Each takes a part of a
MoveRowsRecord, every `parts`-th step or sequence, and a constant kind, so that only that kind is compiled.
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

__all__ = ["fetch_rows", "move_states", "schedule", "unpack_rows"]

_FAR = 1 << 60
_SCHEDULE, _MOVE_ROWS, _MOVE = positions(ScheduleRecord), positions(MoveRowsRecord), positions(MoveKind)
_SPAN, _QUANTITIES, _CHUNK = positions(Span), positions(Quantities), positions(ChunkQuantities)
_CHUNK_REQUEST, _CUT_REQUEST, _ADDITION = positions(ChunkRequest), positions(CutRequest), positions(Addition)
_PROGRAM = positions(ProgramHead)
_REQUESTS = length(ScheduleRecord)  # the place of the first request


@inside()
def _vector(address):
    return words(address, _FAR)


@inside()
def _fill(batch, steps, order, place, ordered, starts):
    """Do the same as `_sort` for a full batch, whose lengths are all `steps`."""
    for n in range(batch):
        order[n], place[n], ordered[n] = n, n, steps
    for step in range(steps + 1):
        starts[step] = step * batch
    return steps if batch else 0


@inside()
def _sort(lengths, apart, batch, steps, order, place, ordered, starts):
    """Find the batch's order by falling length, and each step's first row; return the number of steps.

    Consecutive lengths are `apart` numbers apart.
    """
    starts[: steps + 2] = 0
    most = 0
    for n in range(batch):
        length = min(max(lengths[apart * n], 0), steps)
        most = max(most, length)
        starts[length + 1] += 1  # the number of sequences of this length
    # replaced by the first place of each length: the sum of the numbers of longer sequences
    before = 0
    for length in range(steps, -1, -1):
        same = starts[length + 1]
        starts[length + 1] = before
        before += same
    for n in range(batch):
        length = min(max(lengths[apart * n], 0), steps)
        p = starts[length + 1]
        starts[length + 1] += 1
        order[p], place[n], ordered[p] = n, p, length
    # now starts[length + 1] is the number of sequences of at least this length: the rows of step length - 1
    row = 0
    for step in range(steps):
        count = starts[step + 2]
        starts[step] = row
        row += count
    starts[steps] = row
    return most


@inside()
def _row(step, is_turned, starts, steps):
    """The first row of a step. With `is_turned`, the rows of a full batch run against the steps."""
    return starts[steps - 1 - step] if is_turned else starts[step]


@inside()
def _write_marks(marks, reverse, is_turned, lengths, apart, order, ordered, starts, steps):
    """Mark what resets cut each row off from; a sequence's resets follow its length."""
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
    """Write a step as a Span; `start` is the chunk's first row."""
    now = _row(step, is_turned, starts, steps)
    span[_SPAN.rows], span[_SPAN.now], span[_SPAN.local] = starts[step + 1] - starts[step], now, now - start
    span[_SPAN.before] = _row(step - 1, is_turned, starts, steps) if step else 0


@inside()
def _write_spans(spans, is_turned, starts, steps):
    """Write the steps from first to last."""
    for step in range(steps):
        _write_span(spans[len(_SPAN) * step :], step, is_turned, starts, steps, 0)


@inside()
def _write_chunks(limit, most, is_turned, chunks, spans, starts, steps):
    """Write the quantities and steps of chunks of about `limit` rows, from the last chunk to the first.

    The program has `most` chunks, which the longest sequences need. If a call needs fewer, the chunks that
    come last are empty: the first chunk starts a sum, and an empty product would only write zeros.
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
    """Cut the rows of the steps from low to high into parts of nearly equal work.

    A row belongs to the part that contains the middle of its work.
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
def schedule(data, is_full, resets):
    """Write a program's tables, and the quantities into the program; see `schedule.Schedule.numbers`.

    `is_full` and `resets` are constants: what they exclude is not compiled.
    """
    at = _SCHEDULE
    lengths, batch = _vector(data[at.lengths]), data[at.known.batch]
    tables, code = _vector(data[at.known.tables]), _vector(data[at.code])
    steps = code[_PROGRAM.steps]
    if not steps:
        steps = data[at.known.steps]
    ordered, starts = tables[data[at.known.ordered] :], tables[data[at.known.starts] :]
    quantities, additions = tables[data[at.quantities] :], _vector(data[at.additions])
    order, place = tables[data[at.known.order] :], tables[data[at.known.place] :]
    apart = 1 + steps if resets else 1
    if is_full:
        longest = _fill(batch, steps, order, place, ordered, starts)
    else:
        longest = _sort(lengths, apart, batch, steps, order, place, ordered, starts)
    if resets and data[at.known.marks] >= 0:
        marks = tables[data[at.known.marks] :]
        _write_marks(marks, False, False, lengths, apart, order, ordered, starts, longest)
    if resets and data[at.known.reverse_marks] >= 0:
        marks = tables[data[at.known.reverse_marks] :]
        _write_marks(marks, True, is_full, lengths, apart, order, ordered, starts, longest)
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
    """The address and the strides of an array, from its record at `at`."""
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
def unpack_rows(data, part, real, kind):
    """Move rows to time and batch; padding is 0."""
    at = _MOVE_ROWS
    tables, known = _vector(data[at.known.tables]), at.known
    batch, steps, reverse, width = data[known.batch], data[at.high], data[at.reverse], data[at.width]
    ordered, starts = tables[data[known.ordered] :], tables[data[known.starts] :]
    place = tables[data[known.place] :]
    target, y0, y1, y2 = _strided(data, at.target)
    source, _, x1, x2 = _strided(data, at.source)
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
    """Whether a reset separates a row from the step before it."""
    at = _MOVE_ROWS
    place = data[at.known.reverse_marks if data[at.reverse] else at.known.marks]
    return place >= 0 and _vector(data[at.known.tables])[place + row] & NOTHING_BEFORE != 0


@inside()
def move_states(data, part, real, kind):
    """Move sequences' states to the order of the rows, or back; or the rows of the last steps.

    A state that a reset cuts off gets zeros back.
    """
    at = _MOVE_ROWS
    tables, known = _vector(data[at.known.tables]), at.known
    order, ordered = tables[data[known.order] :], tables[data[known.ordered] :]
    starts, width = tables[data[known.starts] :], data[at.width]
    target, _, y1, y2 = _strided(data, at.target)
    source, _, x1, x2 = _strided(data, at.source)
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
def fetch_rows(data, part, real, kind):
    """Fetch the rows of some steps: from time and batch, the other direction, or the step before."""
    at = _MOVE_ROWS
    tables, known, reverse = _vector(data[at.known.tables]), at.known, data[at.reverse]
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
            if kind == _MOVE.pack:  # from time and batch
                time = other if reverse else step
                _copy_row(to, y2, elements(source, x0 * time + x1 * order[p], real), x2, width)
            elif kind == _MOVE.turn:  # from the other direction
                _copy_row(to, y2, elements(source, x1 * (starts[other] + p), real), x2, width)
            elif _is_cut_off(data, row):
                _clear_row(to, y2, width)
            elif step:  # the row of the step before
                before = _row(step - 1, is_turned, starts, steps) + p
                _copy_row(to, y2, elements(source, x1 * before, real), x2, width)
            else:
                _copy_row(to, y2, elements(initial, z1 * p, real), z2, width)
