"""The compiled functions with which a host runs a program. Needs llvmlite; see `foreign`.

Several threads may run a program at the same time, and nothing here takes a lock: memory is taken and given
back by single exchanges of words.
"""

from llvmlite import ir

from xpgrad.engine.compiled.native import (
    allocate,
    call_for_int,
    call_for_number,
    call_with_numbers,
    free,
    generated,
    inside,
    stack,
    system,
    words,
)
from xpgrad.engine.compiled.records import (
    Finding,
    ForeignProgramRecord,
    HostWords,
    SharedWork,
    SystemCalls,
    WaitingRecord,
    length,
    positions,
)
from xpgrad.engine.process.memory import LINE
from xpgrad.engine.programs.foreign import SLOTS

KEPT = 1 << 25  # bytes: a larger arena goes back to the system after its run
OUT_OF_MEMORY, GUARD = 1, 2  # errors that `run` returns
_SPINS = 2000  # a caller's looks at the other threads' work before it yields the processor
_IDLE = 30_000  # a thread's looks for more work, some 30 us, before it goes back to the host
_HUGE = 1 << 21  # bytes of a huge page
_WORTH_HUGE = 1 << 20  # the least bytes of memory that gets huge pages
_ADVISE_HUGE = 14  # Linux' MADV_HUGEPAGE

_SHARED, _HOST, _PROGRAM = positions(SharedWork), positions(HostWords), positions(ForeignProgramRecord)
_HOST_WORDS, _PROGRAM_WORDS, _FINDING = length(HostWords), length(ForeignProgramRecord), length(Finding)
_CALLS, _WAITING = positions(SystemCalls), positions(WaitingRecord)

_INT64 = ir.IntType(64)


def _on_word(instruction):
    """The function ``(address, ...)`` that is one instruction on a word that other threads change."""

    def write(code, given):
        return instruction(code.builder, code.builder.inttoptr(given[0], _INT64.as_pointer()), *given[1:])

    return generated(write)


def _change(operation):
    """Change a word atomically, and return its old value."""
    return _on_word(lambda builder, word, value: builder.atomic_rmw(operation, word, value, "seq_cst"))


def _put(builder, word, value):
    pair = builder.cmpxchg(word, _INT64(0), value, "seq_cst", "seq_cst")
    return builder.zext(builder.extract_value(pair, 1), _INT64)


_look = _on_word(lambda builder, word: builder.load_atomic(word, "acquire", 8))
_exchange, add_to_word = _change("xchg"), _change("add")
# write a word if it is 0, and return whether it was
_put_if_zero = _on_word(_put)


# --- memory: a block begins with its size, in a cache line of its own


@inside()
def advise(address, size):
    """Ask for huge pages, which need fewer page faults, for memory that may be written for the first time.

    The advice does not change memory that has its pages already. A host puts buffers next to one another in
    large memory of its own, so pages that contain only a part of the buffer count too.
    """
    calls = system()
    if size >= _WORTH_HUGE and calls[_CALLS.advise] != 0:
        first = address // _HUGE * _HUGE
        pages = -(-(address + size - first) // _HUGE) * _HUGE
        call_for_number(calls[_CALLS.advise], (first, pages, _ADVISE_HUGE))


@inside()
def _take(slots, size):
    """The address of a block of at least `size` bytes; 0 if there is no memory."""
    for k in range(SLOTS):
        block = _exchange(slots + 8 * k, 0)
        if block != 0:
            if words(block, 1)[0] >= size:
                return block
            free(block)
    block = allocate(size + 2 * LINE)
    if block != 0:
        advise(block, size)
        words(block, 1)[0] = size
    return block


@inside()
def _give_back(slots, block):
    if words(block, 1)[0] <= KEPT:
        for k in range(SLOTS):
            if _put_if_zero(slots + 8 * k, block) != 0:
                return
    free(block)


# --- threads: a run's crew. Its words:
#
# - LEFT: the number of parts of the current work that no thread has begun; it may fall below 0
# - FUNCTION, DATA: this work
# - DONE: the number of its parts that are done
# - USERS: the number of threads that use these words; the last one frees their memory
# - OVER: 1 when the run is over
# - THERE: the number of the host's threads that were called and have not left
#
# A thread reads FUNCTION and DATA after it has taken a part: they do not change before all parts are done.

LEFT, FUNCTION, DATA, DONE, USERS, OVER, THERE = range(7)
_CREW = THERE + 1


@inside()
def _take_parts(crew):
    """Run parts of the current work until all have begun."""
    here = crew.ctypes.data
    while _look(here) > 0:
        part = add_to_word(here, -1) - 1
        if part < 0:
            return
        call_with_numbers(crew[FUNCTION], (crew[DATA], part))
        add_to_word(here + 8 * DONE, 1)


@inside()
def _let_go(crew):
    if add_to_word(crew.ctypes.data + 8 * USERS, -1) == 1:
        free(crew.ctypes.data)


@inside()
def task(address):
    """Run parts of a run's work in a thread of the host, until the run is over or has no work for a while.

    The thread waits for more work because calling a thread often takes longer than the work.
    """
    crew, looks = words(address, _CREW), 0
    while looks < _IDLE and _look(address + 8 * OVER) == 0:
        looks += 1
        if _look(address) > 0:
            _take_parts(crew)
            looks = 0
    add_to_word(address + 8 * THERE, -1)
    _let_go(crew)


@inside()
def _crew_of(host):
    """The crew of a run, made at its first use; 0 if there is no memory."""
    if host[_HOST.crew] == 0:
        address = allocate(8 * _CREW)
        if address == 0:
            return 0
        crew = words(address, _CREW)
        crew[:] = 0
        crew[USERS] = 1
        host[_HOST.crew] = address
    return host[_HOST.crew]


@inside()
def _dismiss(host):
    """Tell a run's crew that the run is over."""
    address = words(host, _HOST_WORDS)[_HOST.crew]
    if address != 0:
        _exchange(address + 8 * OVER, 1)
        _let_go(words(address, _CREW))


@inside()
def parallel(work):
    """Run the parts of a program's work here and in the host's threads.

    `work` holds a SharedWork, whose last words are the addresses of a HostWords and of `task`. The caller
    runs all parts that no other thread has begun, so it only waits for running threads. A thread may arrive
    when all parts are done.
    """
    function, data, parts = work[_SHARED.function], work[_SHARED.data], work[_SHARED.parts]
    host, task_address = words(work[_SHARED.team_first], _HOST_WORDS), work[_SHARED.team_second]
    address = _crew_of(host)
    if address == 0:
        for part in range(parts):
            call_with_numbers(function, (data, part))
        return
    crew = words(address, _CREW)
    crew[FUNCTION], crew[DATA], crew[DONE] = function, data, 0
    _exchange(address, parts)
    for _ in range(parts - 1 - _look(address + 8 * THERE)):
        add_to_word(address + 8 * USERS, 1)
        add_to_word(address + 8 * THERE, 1)
        if call_for_number(host[_HOST.schedule], (host[_HOST.host], task_address, address)) != 0:
            add_to_word(address + 8 * USERS, -1)
            add_to_word(address + 8 * THERE, -1)
    _take_parts(crew)
    looks, give_way = 0, system()[_CALLS.give_way]
    while _look(address + 8 * DONE) < parts:
        looks += 1
        if looks > _SPINS and give_way != 0:
            call_for_int(give_way)


# --- threads that wait for tasks, for a host that lends no threads; see `waiting.WaitingThreads`


@inside()
def lend(waiting, task_address, data):
    """Let a waiting thread run the task on `data`; return 0 if it will. The task is always `task`."""
    about = words(waiting, length(WaitingRecord))
    for k in range(about[_WAITING.places]):
        if _put_if_zero(about[_WAITING.tasks] + 8 * k, data) != 0:
            call_with_numbers(about[_WAITING.post], (about[_WAITING.semaphore],))
            return 0
    return 1


@inside()
def wait(waiting):
    """Wait for tasks and run them, as long as the process lives."""
    about = words(waiting, length(WaitingRecord))
    while about[_WAITING.post] != 0:
        call_with_numbers(about[_WAITING.wait], (about[_WAITING.semaphore],))
        for k in range(about[_WAITING.places]):
            data = _exchange(about[_WAITING.tasks] + 8 * k, 0)
            if data != 0:
                task(data)


# --- programs


@inside()
def run(program, addresses, count, schedule, context):
    """Run a program on `count` memories of a host; return 0 or an error.

    `program` is the address of a ForeignProgramRecord, and `schedule` the address of the host's function
    ``schedule(context, task, data)``, which lends a thread.
    """
    words_of_host = stack(_HOST_WORDS)
    words_of_host[_HOST.schedule], words_of_host[_HOST.host], words_of_host[_HOST.crew] = schedule, context, 0
    host = words_of_host.ctypes.data
    at, about = _PROGRAM, words(program, _PROGRAM_WORDS)
    code_length, places = about[at.code_length], about[at.places]
    arena, slots = about[at.arena], about[at.slots]
    block = _take(slots, arena + 8 * code_length)
    if block == 0:
        return OUT_OF_MEMORY
    start = (block // LINE + 2) * LINE
    own = start + arena
    source, target = words(about[at.code], code_length), words(own, code_length)
    target[:] = source
    where, number = words(about[at.where], places), words(about[at.memory], places)
    for k in range(places):
        m = number[k]
        if m < count:
            base = addresses[m]
        elif m == count:
            base = start
        elif m == count + 1:
            base = own
        else:
            base = host
        target[where[k]] += base
    call_with_numbers(about[at.executor], (own, about[at.begin], about[at.end]))
    _dismiss(host)
    status = 0
    if about[at.guard] != 0 and target[about[at.guard]] != 0:
        status = GUARD
        for k in range(_FINDING):
            about[at.finding.instruction + k] = target[about[at.guard] + k]
    _give_back(slots, block)
    return status
