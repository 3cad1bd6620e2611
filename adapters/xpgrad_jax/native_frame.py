"""How compiled code reads XLA's call of a foreign function, and answers it; needs llvmlite.

The layouts come from XLA's ``xla/ffi/api/c_api.h``, in the version below, on 64-bit machines. Addresses are
integers, and a structure is read word by word, by the names of a record.
"""

from collections import namedtuple

import numpy as np

from xpgrad.engine.compiled.llvm_code import INT64, words_by_name
from xpgrad.engine.compiled.native import array_at, call_for_number, inside, stack, text_at, words
from xpgrad.engine.compiled.records import ForeignProgramRecord, holds, length, positions
from xpgrad.engine.compiled.translate import Intrinsic
from xpgrad.engine.programs.native_foreign import GUARD, OUT_OF_MEMORY, advise, run

MAJOR, MINOR = 0, 3
MOST = 40  # arrays and results of a call
PROCESS = "xpgrad_jax_process"
"""The symbol of two words: the addresses of the table of programs (`_ffi.Registry`) and of `schedule`."""

_METADATA, _EXECUTE, _SCALAR, _INT64_TYPE = 1, 3, 3, 5
_INVALID_ARGUMENT, _RESOURCE_EXHAUSTED, _INTERNAL = 3, 8, 13  # codes of XLA

Values = namedtuple("Values", "struct_size extension count types values")
"""The arguments or the results of a call: their number, the addresses of their types, and their own."""

FrameAttributes = namedtuple("FrameAttributes", "struct_size extension count types names values")
"""The attributes of a call, with names."""

CallFrame = namedtuple(
    "CallFrame", "struct_size extension functions context stage arguments results attributes"
)
"""A call of a foreign function; `stage` has 32 bits."""
holds(CallFrame, arguments=Values, results=Values, attributes=FrameAttributes)

FrameBuffer = namedtuple("FrameBuffer", "struct_size extension dtype data rank dimensions")
"""An argument or result."""

_FRAME, _BUFFER = positions(CallFrame), positions(FrameBuffer)
_PROGRAM, _PROGRAM_WORDS = positions(ForeignProgramRecord), length(ForeignProgramRecord)
_FRAME_WORDS, _BUFFER_WORDS = length(CallFrame), length(FrameBuffer)
# XLA's functions, by their places in its table
_CREATE_ERROR, _DESTROY_ERROR, _SCHEDULE_TASK = 6, 8, 17

_NO_PROGRAM = (
    "xpgrad: this executable was compiled by another process, and this one has no such program yet: "
    "trace (jit, lower) the same call here before the executable runs"
)
_WRONG_CALL = "xpgrad: the call's arrays, results or attributes are not those of its program"
_NO_MEMORY = "xpgrad: out of memory"
_GUARD = "xpgrad: the guard found something wrong; xpgrad_jax._ffi.registry().findings() tells what"


@Intrinsic
def _process_words(code):
    """The two words of the process."""
    word = words_by_name(code.module, PROCESS)
    return code.memory(code.builder.ptrtoint(word, INT64), np.int64, 2)


@inside()
def _error(api, message, code):
    arguments = stack(4)
    arguments[0], arguments[1], arguments[2], arguments[3] = 28, 0, text_at(message), code
    return call_for_number(words(api, _CREATE_ERROR + 1)[_CREATE_ERROR], (arguments.ctypes.data,))


@inside()
def schedule(host, task, data):
    """Let one of XLA's threads run a task; return 0 if it will.

    `host` is the address of two words: the addresses of XLA's functions and of the call's context.
    """
    api, context = words(host, 2)
    functions = words(api, _SCHEDULE_TASK + 1)
    arguments = stack(5)
    arguments[0], arguments[1], arguments[2], arguments[3], arguments[4] = 40, 0, context, task, data
    error = call_for_number(functions[_SCHEDULE_TASK], (arguments.ctypes.data,))
    if error == 0:
        return 0
    arguments[0], arguments[1], arguments[2] = 24, 0, error
    call_for_number(functions[_DESTROY_ERROR], (arguments.ctypes.data,))
    return 1


@inside()
def _describe(extension):
    """Answer the question for the version of this interface."""
    metadata = words(words(extension, 4)[3], 5)
    version = array_at(metadata.ctypes.data + 24, np.int32, 2)
    version[0], version[1] = MAJOR, MINOR
    metadata[4] = 0
    return 0


@inside()
def _integer(types_of, values, number):
    """An attribute: whether it is an integer, and its value."""
    if array_at(types_of, np.int32, number + 1)[number] != _SCALAR:
        return False, 0
    scalar = words(words(values, number + 1)[number], 2)
    if array_at(scalar.ctypes.data, np.int32, 1)[0] != _INT64_TYPE:
        return False, 0
    return True, words(scalar[1], 1)[0]


@inside()
def _find(table, first, second):
    """The address of the program of a key; 0 if it does not exist."""
    mask = words(table, 1)[0]
    place = first
    while True:
        row = words(table + 32 * (1 + (place & mask)), 3)
        if row[2] == 0 or (row[0] == first and row[1] == second):
            return row[2]
        place += 1


@inside()
def _least_bytes(buffer):
    """The size of a buffer, if its elements have four bytes."""
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
    if extension != 0 and array_at(extension + 8, np.int32, 1)[0] == _METADATA:
        return _describe(extension)
    if array_at(frame + 8 * at.stage, np.int32, 1)[0] != _EXECUTE:
        return 0
    given, made = call[at.arguments.count], call[at.results.count]
    if call[at.attributes.count] != 2 or given + made > MOST:
        return _error(api, _WRONG_CALL, _INVALID_ARGUMENT)
    table, schedule_address = _process_words()
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
    addresses = stack(MOST)
    arguments, results = words(call[at.arguments.values], given), words(call[at.results.values], made)
    for k in range(given):
        addresses[k] = words(arguments[k], _BUFFER_WORDS)[_BUFFER.data]
    for k in range(made):
        addresses[given + k] = words(results[k], _BUFFER_WORDS)[_BUFFER.data]
        advise(addresses[given + k], _least_bytes(results[k]))
    xla = stack(2)
    xla[0], xla[1] = api, call[at.context]
    status = run(program, addresses, given + made, schedule_address, xla.ctypes.data)
    if status == OUT_OF_MEMORY:
        return _error(api, _NO_MEMORY, _RESOURCE_EXHAUSTED)
    if status == GUARD:
        return _error(api, _GUARD, _INTERNAL)
    return 0
