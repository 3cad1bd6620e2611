"""The compiled functions that run a program as a kernel of TensorFlow; needs llvmlite.

They call TensorFlow's C functions (``tensorflow/c/kernels.h``) by address. Addresses are integers, and our
structures are read word by word, by the names of a record.
"""

from collections import namedtuple

import numpy as np

from xpgrad.engine.compiled.llvm_code import INT64, words_by_name
from xpgrad.engine.compiled.native import call_for_number, call_with_numbers, inside, stack, text_at, words
from xpgrad.engine.compiled.records import holds, length, positions
from xpgrad.engine.compiled.translate import Intrinsic
from xpgrad.engine.programs.native_foreign import GUARD, OUT_OF_MEMORY, add_to_word, advise, lend, run

PROCESS = "xpgrad_tensorflow_process"
"""The symbol of the integers of a `ProcessRecord`."""
MOST = 40  # the most arrays and results of a call
MOST_SIZES = 160  # the most sizes of its arrays, with each array's number of axes
INT_MASK = 0xFFFFFFFF  # the bits of a nonnegative number that a C function returns

_INVALID_ARGUMENT, _RESOURCE_EXHAUSTED, _INTERNAL = 3, 8, 13  # codes of TensorFlow


Functions = namedtuple(
    "Functions",
    "new_status delete_status code_of set_status attribute refuse fail take allocate data rank size delete",
)
"""Addresses of TensorFlow's functions; `_NAMES` in `_programs` has their names."""

ProcessRecord = namedtuple("ProcessRecord", "functions number find compute lend waiting")
"""The compiled code's data of the process.

Only this process's operations have its `number`. `find` is the address of a Python function,
``find(call, sizes, count)``, which returns the address of the form of a call's arrays, or minus the address
of an error's text. `compute` is the address of ``compute(form, addresses)``, which computes a form without a
program and returns 0 or minus the address of a text. `waiting` is the address of a WaitingRecord.
"""
holds(ProcessRecord, functions=Functions)

CallRecord = namedtuple("CallRecord", "first running given made dtype")
"""A kernel for arrays of any sizes.

`first` is the address of its first FormRecord, or 0. So many threads are `running` it: they may use any form.
`given` and `made` are the numbers of arrays and results, `dtype` is TensorFlow's number of the results'
dtype.
"""

FormRecord = namedtuple("FormRecord", "next sizes count program results")
"""The sizes of a call's arrays, and the address of the program for them, or 0.

`next` is the address of another form of the same call, or 0. At `sizes` are `count` integers: the number of
axes and the sizes of each array. At `results` is a ResultRecord for each result.
"""

ResultRecord = namedtuple("ResultRecord", "sizes rank bytes")
"""A result: the address of its sizes, their number, and its bytes."""

_AT, _CALL, _FORM, _RESULT = map(positions, (ProcessRecord, CallRecord, FormRecord, ResultRecord))
_CALL_WORDS, _FORM_WORDS, _RESULT_WORDS = map(length, (CallRecord, FormRecord, ResultRecord))


_OTHER_PROCESS = (
    "xpgrad: this graph was made by another process, expected one of this process; "
    "xpgrad_keras.unswap(model) has Keras' layers, which can be written into a file"
)
_NO_MEMORY = "xpgrad: out of memory"
_GUARD = "xpgrad: the guard found something wrong; xpgrad_keras._programs.findings() tells what"
_INTERRUPTED = "KeyboardInterrupt"
_TOO_MANY = "xpgrad: the call has too many arrays"
_PROCESS_NAME, _CALL_NAME = "process", "call"


@Intrinsic
def _process(code):
    """The integers of the ProcessRecord."""
    word = words_by_name(code.module, PROCESS)
    return code.memory(code.builder.ptrtoint(word, INT64), np.int64, length(ProcessRecord))


@inside()
def _fails(status):
    return call_for_number(_process()[_AT.functions.code_of], (status,)) & INT_MASK != 0


@inside()
def _attribute(construction, name, status):
    """An operation's integer attribute."""
    place = stack(1)
    place[0] = 0
    call_with_numbers(_process()[_AT.functions.attribute], (construction, name, place.ctypes.data, status))
    return place[0]


@inside()
def create(construction):
    """Return the address of an operation's call, which `compute` gets; 0 if the operation is refused."""
    process = _process()
    status, call = call_for_number(process[_AT.functions.new_status], ()), 0
    number = _attribute(construction, text_at(_PROCESS_NAME), status)
    if number == process[_AT.number]:
        call = _attribute(construction, text_at(_CALL_NAME), status)
    else:
        message = text_at(_OTHER_PROCESS)
        call_with_numbers(process[_AT.functions.set_status], (status, _INVALID_ARGUMENT, message))
    if _fails(status):
        call = 0
        call_with_numbers(process[_AT.functions.refuse], (construction, status))
    call_with_numbers(process[_AT.functions.delete_status], (status,))
    return call


@inside()
def _same(form, sizes, count):
    """1 if a form has these sizes, else 0."""
    about = words(form, _FORM_WORDS)
    if about[_FORM.count] != count:
        return 0
    known = words(about[_FORM.sizes], count)
    for k in range(count):
        if known[k] != sizes[k]:
            return 0
    return 1


@inside()
def _form_of(call, sizes, count):
    """The address of the form of these sizes; after an error, what `_error_of` takes."""
    form = words(call, _CALL_WORDS)[_CALL.first]
    while form != 0:
        if _same(form, sizes, count) != 0:
            return form
        form = words(form, _FORM_WORDS)[_FORM.next]
    return call_for_number(_process()[_AT.find], (call, sizes.ctypes.data, count))


@inside()
def _error_of(answer):
    """The address of an error's text, from the answer of a function of Python's.

    It is minus that address, or 0 after an interrupt (Ctrl-C) in its first or last steps.
    """
    return -answer if answer != 0 else text_at(_INTERRUPTED)


@inside()
def _take(context, count, tensors, addresses, sizes, status):
    """Take the arrays of a call; return the number of their sizes, or -1 after an error."""
    process, place, total = _process(), stack(1), 0
    for k in range(count):
        call_with_numbers(process[_AT.functions.take], (context, k, place.ctypes.data, status))
        if _fails(status):
            return -1
        tensor = place[0]
        tensors[k] = tensor
        addresses[k] = call_for_number(process[_AT.functions.data], (tensor,))
        rank = call_for_number(process[_AT.functions.rank], (tensor,)) & INT_MASK
        if total + rank + 1 > MOST_SIZES:
            call_with_numbers(
                process[_AT.functions.set_status], (status, _INVALID_ARGUMENT, text_at(_TOO_MANY))
            )
            return -1
        sizes[total] = rank
        for axis in range(rank):
            sizes[total + 1 + axis] = call_for_number(process[_AT.functions.size], (tensor, axis))
        total += rank + 1
    return total


@inside()
def _allocate(context, about, form, tensors, addresses, status):
    """Allocate the results of a call; return whether this worked."""
    process, given = _process(), about[_CALL.given]
    results = words(form, _FORM_WORDS)[_FORM.results]
    for k in range(about[_CALL.made]):
        result = words(results + 8 * _RESULT_WORDS * k, _RESULT_WORDS)
        tensor = call_for_number(
            process[_AT.functions.allocate],
            (context, k, about[_CALL.dtype], result[_RESULT.sizes], result[_RESULT.rank],
             result[_RESULT.bytes], status),
        )  # fmt: skip
        if _fails(status):
            return False
        tensors[given + k] = tensor
        addresses[given + k] = call_for_number(process[_AT.functions.data], (tensor,))
        advise(addresses[given + k], result[_RESULT.bytes])
    return True


@inside()
def _run(form, addresses, count):
    """Compute a call; return an error's TensorFlow code and the address of its text, or zeros."""
    process, program = _process(), words(form, _FORM_WORDS)[_FORM.program]
    if program == 0:
        computed = call_for_number(process[_AT.compute], (form, addresses.ctypes.data))
        return _INTERNAL, 0 if computed > 0 else _error_of(computed)
    status = run(program, addresses, count, process[_AT.lend], process[_AT.waiting])
    if status == OUT_OF_MEMORY:
        return _RESOURCE_EXHAUSTED, text_at(_NO_MEMORY)
    if status == GUARD:
        return _INTERNAL, text_at(_GUARD)
    return 0, 0


@inside()
def _computed(call, context, tensors, status):
    """Compute a call; an error goes into the status. `tensors` gets all tensors of the call."""
    process, about = _process(), words(call, _CALL_WORDS)
    addresses, sizes = stack(MOST), stack(MOST_SIZES)
    count = _take(context, about[_CALL.given], tensors, addresses, sizes, status)
    if count < 0:
        return
    form, code, message = _form_of(call, sizes, count), _INTERNAL, 0
    if form <= 0:
        message = _error_of(form)
    else:
        if not _allocate(context, about, form, tensors, addresses, status):
            return
        code, message = _run(form, addresses, about[_CALL.given] + about[_CALL.made])
    if message != 0:
        call_with_numbers(process[_AT.functions.set_status], (status, code, message))


@inside()
def compute(call, context):
    """Run the program of a call on the arrays of an operation."""
    process, tensors = _process(), stack(MOST)
    tensors[:] = 0
    status = call_for_number(process[_AT.functions.new_status], ())
    add_to_word(call + 8 * _CALL.running, 1)
    _computed(call, context, tensors, status)
    add_to_word(call + 8 * _CALL.running, -1)
    if _fails(status):
        call_with_numbers(process[_AT.functions.fail], (context, status))
    for k in range(MOST):
        if tensors[k] != 0:
            call_with_numbers(process[_AT.functions.delete], (tensors[k],))
    call_with_numbers(process[_AT.functions.delete_status], (status,))


__all__ = ["compute", "create", "lend"]
