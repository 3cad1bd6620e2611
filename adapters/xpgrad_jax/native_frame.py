"""How compiled code reads XLA's call of a foreign function, and answers it; needs numba.

The layouts are those of XLA's ``xla/ffi/api/c_api.h``, in the version below, on 64-bit machines. Addresses
are integers, and a structure is read word by word, by the names of a record.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from xpgrad.engine.compiled.native import inlined, inside, pointer, words
from xpgrad.engine.compiled.records import ForeignProgram, HostWords, length, positions
from xpgrad.engine.process import numba_private
from xpgrad.engine.programs.native_foreign import GUARD, OUT_OF_MEMORY, advise, run

MAJOR, MINOR = 0, 3
MOST = 40  # arrays and results of a call
PROCESS = "xpgrad_jax_process"
"""The symbol of two words: the addresses of the table of programs (`_ffi.Registry`) and of `schedule`."""

_METADATA, _EXECUTE, _SCALAR, _INT64_TYPE = 1, 3, 3, 5
_INVALID_ARGUMENT, _RESOURCE_EXHAUSTED, _INTERNAL = 3, 8, 13  # codes of XLA

_INT64 = ir.IntType(64)


class Values(NamedTuple):
    """The arguments or the results of a call: how many, and the addresses of their types and of theirs."""

    struct_size: Any
    extension: Any
    count: Any
    types: Any
    values: Any


class FrameAttributes(NamedTuple):
    """The attributes of a call, with names."""

    struct_size: Any
    extension: Any
    count: Any
    types: Any
    names: Any
    values: Any


class CallFrame(NamedTuple):
    """A call of a foreign function; `stage` has 32 bits."""

    struct_size: Any
    extension: Any
    functions: Any
    context: Any
    stage: Any
    arguments: Values
    results: Values
    attributes: FrameAttributes


class FrameBuffer(NamedTuple):
    """An argument or result."""

    struct_size: Any
    extension: Any
    dtype: Any
    data: Any
    rank: Any
    dimensions: Any


_FRAME, _BUFFER = positions(CallFrame), positions(FrameBuffer)
_PROGRAM, _HOST = positions(ForeignProgram), positions(HostWords)
_FRAME_WORDS, _BUFFER_WORDS, _HOST_WORDS = length(CallFrame), length(FrameBuffer), length(HostWords)
_PROGRAM_WORDS = length(ForeignProgram)
# XLA's functions, by their places in its table
_CREATE_ERROR, _DESTROY_ERROR, _SCHEDULE_TASK = 6, 8, 17


def _text(message):
    return np.frombuffer(message.encode() + b"\0", dtype=np.uint8)


_NO_PROGRAM = _text(
    "xpgrad: this executable was compiled by another process, and this one has no such program yet: "
    "trace (jit, lower) the same call here before the executable runs"
)
_WRONG_CALL = _text("xpgrad: the call's arrays, results or attributes are not those of its program")
_NO_MEMORY = _text("xpgrad: out of memory")
_GUARD = _text("xpgrad: the guard found something wrong; xpgrad_jax._ffi.registry().findings() tells what")


@intrinsic(prefer_literal=True)
def _stack(typingctx, count):
    """The address of `count` words that live as long as the function's call."""
    size = count.literal_value

    def codegen(context, builder, signature, args):
        slot = numba_private.alloca_once(builder, ir.ArrayType(_INT64, size))
        return builder.ptrtoint(slot, _INT64)

    return types.int64(types.IntegerLiteral(size)), codegen


@intrinsic
def _process_words(typingctx):
    """The address of the two words of the process."""

    def codegen(context, builder, signature, args):
        word = builder.module.globals.get(PROCESS) or ir.GlobalVariable(builder.module, _INT64, PROCESS)
        return builder.ptrtoint(word, _INT64)

    return types.int64(), codegen


@intrinsic
def _call(typingctx, address, argument):
    """Call a function of XLA's, which takes and returns one pointer."""

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(_INT64, [_INT64])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])

    return types.int64(types.int64, types.int64), codegen


@inlined
def _halves(address, count):
    return carray(pointer(address), (count,), np.int32)


@inside()
def _error(api, message, code):
    arguments = words(_stack(4), 4)
    arguments[0], arguments[1], arguments[2], arguments[3] = 28, 0, message.ctypes.data, code
    return _call(words(api, _CREATE_ERROR + 1)[_CREATE_ERROR], arguments.ctypes.data)


@inside()
def schedule(host, task, data):
    """Let one of XLA's threads run a task; 0 where it will.

    `host` is the address of two words, those of XLA's functions and of the call's context.
    """
    api, context = words(host, 2)
    functions = words(api, _SCHEDULE_TASK + 1)
    arguments = words(_stack(5), 5)
    arguments[0], arguments[1], arguments[2], arguments[3], arguments[4] = 40, 0, context, task, data
    error = _call(functions[_SCHEDULE_TASK], arguments.ctypes.data)
    if error == 0:
        return 0
    arguments[0], arguments[1], arguments[2] = 24, 0, error
    _call(functions[_DESTROY_ERROR], arguments.ctypes.data)
    return 1


@inside()
def _describe(extension):
    """Answer the question for the version by which this was written."""
    metadata = words(words(extension, 4)[3], 5)
    version = _halves(metadata.ctypes.data + 24, 2)
    version[0], version[1] = MAJOR, MINOR
    metadata[4] = 0
    return 0


@inside()
def _integer(types_of, values, number):
    """An attribute: whether it is an integer, and which."""
    if _halves(types_of, number + 1)[number] != _SCALAR:
        return False, 0
    scalar = words(words(values, number + 1)[number], 2)
    if _halves(scalar.ctypes.data, 1)[0] != _INT64_TYPE:
        return False, 0
    return True, words(scalar[1], 1)[0]


@inside()
def _find(table, first, second):
    """The address of the program of a key, 0 where there is none."""
    mask = words(table, 1)[0]
    place = first
    while True:
        row = words(table + 32 * (1 + (place & mask)), 3)
        if row[2] == 0 or (row[0] == first and row[1] == second):
            return row[2]
        place += 1


@inside()
def _least_bytes(buffer):
    """How large a buffer is, if its elements have four bytes."""
    form, size = words(buffer, _BUFFER_WORDS), 4
    rank = form[_BUFFER.rank]
    dimensions = words(form[_BUFFER.dimensions], rank)
    for k in range(rank):
        size *= dimensions[k]
    return size


@inside()
def handle(frame):
    """Run the program that the attributes name on the call's buffers; 0, or an error of XLA's.

    The attributes come in alphabetical order: the two words of its key.
    """
    at, call = _FRAME, words(frame, _FRAME_WORDS)
    extension, api = call[at.extension], call[at.functions]
    if extension != 0 and _halves(extension + 8, 1)[0] == _METADATA:
        return _describe(extension)
    if _halves(frame + 8 * at.stage, 1)[0] != _EXECUTE:
        return 0
    given, made = call[at.arguments.count], call[at.results.count]
    if call[at.attributes.count] != 2 or given + made > MOST:
        return _error(api, _WRONG_CALL, _INVALID_ARGUMENT)
    table, schedule_address = words(_process_words(), 2)
    types_of, values = call[at.attributes.types], call[at.attributes.values]
    known, first = _integer(types_of, values, 0)
    also_known, second = _integer(types_of, values, 1)
    if not (known and also_known):
        return _error(api, _WRONG_CALL, _INVALID_ARGUMENT)
    program = _find(table, first, second)
    if program == 0:
        return _error(api, _NO_PROGRAM, _INVALID_ARGUMENT)
    if words(program, _PROGRAM_WORDS)[_PROGRAM.count] != given + made:
        return _error(api, _WRONG_CALL, _INVALID_ARGUMENT)
    addresses = words(_stack(MOST), MOST)
    arguments, results = words(call[at.arguments.values], given), words(call[at.results.values], made)
    for k in range(given):
        addresses[k] = words(arguments[k], _BUFFER_WORDS)[_BUFFER.data]
    for k in range(made):
        addresses[given + k] = words(results[k], _BUFFER_WORDS)[_BUFFER.data]
        advise(addresses[given + k], _least_bytes(results[k]))
    xla, host = words(_stack(2), 2), words(_stack(_HOST_WORDS), _HOST_WORDS)
    xla[0], xla[1] = api, call[at.context]
    host[_HOST.schedule], host[_HOST.host], host[_HOST.crew] = schedule_address, xla.ctypes.data, 0
    status = run(program, addresses, given + made, host.ctypes.data)
    if status == OUT_OF_MEMORY:
        return _error(api, _NO_MEMORY, _RESOURCE_EXHAUSTED)
    if status == GUARD:
        return _error(api, _GUARD, _INTERNAL)
    return 0
