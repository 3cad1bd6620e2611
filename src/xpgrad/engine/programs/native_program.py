"""The compiled functions that execute a program's instructions; needs llvmlite. See `program`."""

from xpgrad.engine.compiled.native import call_with_numbers, fields, inside
from xpgrad.engine.compiled.records import (
    InstructionHead,
    Kind,
    LoopHead,
    ProgramHead,
    RepetitionRecord,
    Shares,
    WorkRecord,
    length,
    positions,
)

_WORK = positions(WorkRecord)
_PROGRAM, _HEAD, _HEAD_LENGTH = positions(ProgramHead), positions(InstructionHead), length(InstructionHead)
_KIND = positions(Kind)
_LOOP, _SHARES = positions(LoopHead), positions(Shares)
_REPETITION, _MOVES = positions(RepetitionRecord), length(RepetitionRecord)


@inside()
def _work(code, i):
    """Run a work: a single part in this thread, several parts in the team's threads."""
    at = _WORK.shared
    parts = code[i + at.parts]
    if parts == 1:
        call_with_numbers(code[i + at.function], (code[i + at.data], 0))
    else:
        call_with_numbers(code[_PROGRAM.team], (code[_PROGRAM.share], code[i + _WORK.address], parts, 0))


@inside()
def _steps(code, i):
    """Run a time loop whose parts are columns: they wait for one another after each stage of each step."""
    loop = fields(code[i + _WORK.shared.data])
    for step in range(loop[_LOOP.steps]):
        for stage in range(loop[_LOOP.stages]):
            loop[_LOOP.step], loop[_LOOP.stage] = step, stage
            _work(code, i)


@inside()
def execute(address, begin, end):
    """Run the instructions from `begin` to `end` in the program's array at the address."""
    code, i = fields(address), begin
    while i < end:
        kind, record = code[i + _HEAD.kind], i + _HEAD_LENGTH
        if kind == _KIND.steps:
            _steps(code, record)
        else:
            _work(code, record)
        i += code[i + _HEAD.length]


@inside()
def execute_share(data, part):
    """Run the instructions of a thread's share; see `records.Shares`."""
    code, bounds = fields(data[_SHARES.code]), fields(data[_SHARES.bounds])
    i = bounds[part]
    while i < bounds[part + 1]:
        at = i + _HEAD_LENGTH
        call_with_numbers(code[at + _WORK.shared.function], (code[at + _WORK.shared.data], 0))
        i += code[i + _HEAD.length]


@inside()
def repeat(data):
    """Run instructions several times, on other addresses each time; see `records.RepetitionRecord`."""
    code = fields(data[_REPETITION.code])
    for time in range(data[_REPETITION.count]):
        if time > 0:
            for k in range(_MOVES, _MOVES + 2 * data[_REPETITION.moves], 2):
                code[data[k]] += data[k + 1]
        execute(data[_REPETITION.code], data[_REPETITION.begin], data[_REPETITION.end])


@inside()
def link_and_execute(address, begin, end, links, count, addresses):
    """Write addresses into a program's array, then run instructions.

    `links` holds three arrays of `count` integers: places in the program's array, the numbers of memories in
    `addresses`, and distances from the beginning of these memories.
    """
    code, begins, places = fields(address), fields(addresses), fields(links)
    memories, distances = fields(links + 8 * count), fields(links + 16 * count)
    for k in range(count):
        code[places[k]] = distances[k] + begins[memories[k]]
    execute(address, begin, end)
