"""What runs a program for a host that calls C functions, compiled; needs numba. See `foreign` for who asks.

Several threads may run one program at a time, and nothing here takes a lock: memory is taken and given back
by single exchanges of words.
"""

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

from xpgrad.engine.compiled.native import call_with_part, pointer

KEPT = 1 << 25  # bytes: a larger arena goes back to the system after its run
SLOTS = 8  # arenas that are kept for later runs
OUT_OF_MEMORY = 1
_LINE = 64
_SPINS = 2000  # looks at the other threads' work before the processor is offered to somebody else

_VOID, _BYTE, _INT32, _INT64 = ir.VoidType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)


@intrinsic
def _malloc(typingctx, size):
    return types.int64(types.int64), _library_call("malloc", _INT64, 1)


@intrinsic
def _free(typingctx, address):
    return types.int64(types.int64), _library_call("free", _VOID, 1)


@intrinsic
def _yield(typingctx):
    return types.int64(), _library_call("sched_yield", _INT32, 0)


def _library_call(name, result, arguments):
    """How a call of a function of the C library is written; pointers and sizes are integers."""

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(result, [_INT64] * arguments)
        function = builder.module.globals.get(name)
        if function is None:
            function = ir.Function(builder.module, kind, name)
        value = builder.call(builder.bitcast(function, kind.as_pointer()), list(args))
        return value if result is _INT64 else ir.Constant(_INT64, 0)

    return codegen


def _word(builder, address):
    return builder.inttoptr(address, _INT64.as_pointer())


def _changer(operation):
    @intrinsic
    def change(typingctx, address, value):
        """Change a word at once for all threads; what stood there before is returned."""

        def codegen(context, builder, signature, args):
            return builder.atomic_rmw(operation, _word(builder, args[0]), args[1], "seq_cst")

        return types.int64(types.int64, types.int64), codegen

    return change


_exchange, _add = _changer("xchg"), _changer("add")


@intrinsic
def _put_if_zero(typingctx, address, value):
    """Write a word where 0 stands; whether it did."""

    def codegen(context, builder, signature, args):
        zero = ir.Constant(_INT64, 0)
        pair = builder.cmpxchg(_word(builder, args[0]), zero, args[1], "seq_cst", "seq_cst")
        return builder.zext(builder.extract_value(pair, 1), _INT64)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def call_for_number(typingctx, address, first, second, third):
    """Call the C function ``int64(int64, int64, int64)`` at the address."""

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(_INT64, [_INT64] * 3)
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), list(args[1:]))

    return types.int64(*[types.int64] * 4), codegen


@intrinsic
def _execute(typingctx, address, code, begin, end):
    """Call what walks through instructions, ``void(int64, int64, int64)``."""

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(_VOID, [_INT64] * 3)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), list(args[1:]))
        return ir.Constant(_INT64, 0)

    return types.int64(*[types.int64] * 4), codegen


@njit(forceinline=True)
def words(address, count):
    """Integers at an address."""
    return carray(pointer(address), (count,), np.int64)


# --- memory: a block begins with its size, in a line of its own


@njit
def _take(slots, size):
    """The address of a block of at least so many bytes, 0 where there is no memory."""
    for k in range(SLOTS):
        block = _exchange(slots + 8 * k, 0)
        if block != 0:
            if words(block, 1)[0] >= size:
                return block
            _free(block)
    block = _malloc(size + 2 * _LINE)
    if block != 0:
        words(block, 1)[0] = size
    return block


@njit
def _give_back(slots, block):
    if words(block, 1)[0] <= KEPT:
        for k in range(SLOTS):
            if _put_if_zero(slots + 8 * k, block) != 0:
                return
    _free(block)


# --- threads


@njit
def _take_parts(job):
    """Run parts of a job until none is left."""
    function, data, parts = job[0], job[1], job[2]
    while True:
        part = _add(job.ctypes.data + 24, 1)
        if part >= parts:
            return
        call_with_part(function, data, part)
        _add(job.ctypes.data + 32, 1)


@njit
def _let_go(job):
    if _add(job.ctypes.data + 40, -1) == 1:
        _free(job.ctypes.data)


@njit
def task(address):
    """What a thread of the host does: some of a job's parts."""
    job = words(address, 6)
    _take_parts(job)
    _let_go(job)


@njit
def parallel(work):
    """Run the parts of a program's work here and in the host's threads, as many of these as come.

    `work` holds a compiled ``function(data, part)``, its data, how many parts there are, where two words for
    the host are, and the address of `task`. The words are the address of ``schedule(host, task, data)``,
    which returns 0 where the host will run the task some time, and what it takes as the host. The caller runs
    whatever no other thread has begun, and so waits for running threads alone. A thread may come when all is
    done: whoever lets go of the job last frees its memory.
    """
    function, data, parts, host = work[0], work[1], work[2], words(work[3], 2)
    address = _malloc(48)
    if address == 0:
        for part in range(parts):
            call_with_part(function, data, part)
        return
    job = words(address, 6)
    job[0], job[1], job[2], job[3], job[4], job[5] = function, data, parts, 0, 0, parts
    for _ in range(parts - 1):
        if call_for_number(host[0], host[1], work[4], address) != 0:
            _add(address + 40, -1)
    _take_parts(job)
    looks = 0
    while _add(address + 32, 0) < parts:
        looks += 1
        if looks > _SPINS:
            _yield()
    _let_go(job)


# --- programs


@njit
def run(program, addresses, count, host):
    """Run a program on `count` memories of a host; 0, or what went wrong.

    `program` is the address of its description: the code, how long it is, where in it distances stand, from
    which memory each, how many, the bytes of the arena, what executes it, where the instructions begin and
    end, the slots, and how many memories.
    """
    code, length, where, memory, places, arena, executor, begin, end, slots = words(program, 10)
    block = _take(slots, arena + 8 * length)
    if block == 0:
        return OUT_OF_MEMORY
    start = (block // _LINE + 2) * _LINE
    own = start + arena
    source, target = words(code, length), words(own, length)
    target[:] = source
    at, number = words(where, places), words(memory, places)
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
        target[at[k]] += base
    _execute(executor, own, begin, end)
    _give_back(slots, block)
    return 0
