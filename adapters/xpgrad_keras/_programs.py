"""Programs in TensorFlow: an operation whose kernel is compiled code, without Python.

It is registered with TensorFlow's C functions (``tensorflow/c/ops.h`` and ``kernels.h``). An operation names
a call: a kernel and its options. When it runs, compiled code finds the program for the arrays' sizes, and
asks Python for a program that does not exist yet.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from xpgrad._operators.for_adapters import write_program
from xpgrad.engine.compiled.records import flat, positions
from xpgrad.engine.process.blas import symbol
from xpgrad.engine.process.locks import LastingLock
from xpgrad.engine.process.memory import address_of
from xpgrad.engine.programs.foreign import ForeignMachine, ForeignProgram, host_functions, why_no_host
from xpgrad.engine.programs.instructions import CannotRecordError
from xpgrad_keras._private import apply_operation, framework_library, registered

OPERATION = "XpgradProgram"

Kernel = Callable[..., Any]

_lock = LastingLock()
_machine = ForeignMachine()


class SizedCall(NamedTuple):
    """A call for arrays of these shapes: its program, or None, and its record for compiled code."""

    shapes: list[tuple[int, ...]]
    program: ForeignProgram | None
    results: list[tuple[int, ...]]
    record: np.ndarray
    kept: list[np.ndarray]


class OperationCall:
    """A kernel with its options, for arrays of any sizes. It lives forever: operations have its address.

    ``kernel(**arrays, **options)`` returns an array or a tuple of arrays and None, `made` results in all.
    `names` and `dtypes` describe its arrays, in the operation's order. New forms replace the oldest ones,
    which are freed when no thread runs the call but the one that asks for a form.
    """

    MOST = 512  # forms

    def __init__(
        self, kernel: Kernel, names: Sequence[str], dtypes: Sequence[Any], options: Mapping[str, Any],
        made: int,
    ) -> None:  # fmt: skip
        from xpgrad_keras.native_kernel import CallRecord

        self._kernel, self._names, self._options = kernel, tuple(names), dict(options)
        self._dtypes, self.made = [np.dtype(dtype) for dtype in dtypes], made
        self.dtype = tf.as_dtype(self._dtypes[0])
        self._forms: dict[tuple[int, ...], SizedCall] = {}
        self._replaced: list[SizedCall] = []
        number = self.dtype.as_datatype_enum
        self._record = np.asarray(CallRecord(0, 0, len(self._names), made, number), dtype=np.int64)
        self.address = address_of(self._record)

    def found(self, sizes: Sequence[int]) -> int:
        """The address of the form for these sizes: for each array its number of axes, then their sizes."""
        shapes, rest = [], list(sizes)
        while rest:
            rank = rest[0]
            shapes.append(tuple(rest[1 : 1 + rank]))
            rest = rest[1 + rank :]
        with _lock.own:
            self._free_replaced()
            form = self._forms.get(key := tuple(sizes))
            if form is None:  # in this order an interrupt leaves no form that is freed and in use
                form = self._written(shapes, sizes)
                _forms[address_of(form.record)] = self, form
                self._record[0] = address_of(form.record)  # from now on compiled code uses the form
                self._forms[key] = form
                self._replace_oldest()
            return address_of(form.record)

    def _replace_oldest(self) -> None:
        """Take the oldest form off compiled code's list, whose last one it is, if there are too many."""
        if len(self._forms) > self.MOST:
            oldest, last = itertools.islice(self._forms, 2)
            self._forms[last].record[0] = 0
            self._replaced.append(self._forms[oldest])
            del self._forms[oldest]

    def _free_replaced(self) -> None:
        """Free the forms that an earlier call replaced, unless another thread may still use one."""
        from xpgrad_keras.native_kernel import CallRecord

        if self._record[positions(CallRecord).running] == 1:
            for form in self._replaced:
                _forms.pop(address_of(form.record), None)
            self._replaced.clear()

    def _written(self, shapes: list[tuple[int, ...]], sizes: Sequence[int]) -> SizedCall:
        from xpgrad_keras.native_kernel import FormRecord, ResultRecord

        program, results = self._program(shapes)
        width = self._dtypes[0].itemsize
        axes = [np.asarray(shape, dtype=np.int64) for shape in results]
        rows = [
            ResultRecord(address_of(one) if len(one) else 0, len(one), int(one.prod()) * width)
            for one in axes
        ]
        table, own = np.asarray(rows, dtype=np.int64), np.asarray(sizes, dtype=np.int64)
        address = program.address if program else 0
        about = FormRecord(int(self._record[0]), address_of(own), len(own), address, address_of(table))
        record = np.asarray(about, dtype=np.int64)
        return SizedCall(shapes, program, results, record, [*axes, table, own])

    def _program(
        self, shapes: Sequence[tuple[int, ...]]
    ) -> tuple[ForeignProgram | None, list[tuple[int, ...]]]:
        """The program, or None, and the shapes of its results."""
        forms = dict(zip(self._names, zip(shapes, self._dtypes, strict=True), strict=True))
        if all(0 not in shape for shape in shapes):
            try:
                program = write_program(self._kernel, _machine, forms, self._options, several=True)
            except CannotRecordError:
                pass
            else:
                return program, [shape for shape in program.shapes if shape is not None]
        zeros = [np.zeros(shape, dtype) for shape, dtype in forms.values()]
        return None, [result.shape for result in self.computed(zeros)]

    def computed(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results for NumPy's arrays."""
        made = self._kernel(**dict(zip(self._names, arrays, strict=True)), **self._options)
        results = made if isinstance(made, tuple) else (made,)
        return [np.asarray(result, self._dtypes[0]) for result in results if result is not None]

    def compute_at(self, form: SizedCall, addresses: Sequence[int]) -> None:
        """Compute a form without a program; the arrays and results are at these addresses."""
        shapes = [*form.shapes, *form.results]
        dtypes = [*self._dtypes, *[self._dtypes[0]] * len(form.results)]
        arrays = [_array_at(*one) for one in zip(addresses, shapes, dtypes, strict=True)]
        count = len(form.shapes)
        for target, result in zip(arrays[count:], self.computed(arrays[:count]), strict=True):
            target[...] = result


def _array_at(address: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if 0 in shape:
        return np.zeros(shape, dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory: Any = (ctypes.c_char * size).from_address(address)
    return np.frombuffer(memory, dtype).reshape(shape)


_calls: dict[tuple, OperationCall] = {}
_by_address: dict[int, OperationCall] = {}
_forms: dict[int, tuple[OperationCall, SizedCall]] = {}
_texts: dict[str, Any] = {}


def call_of(
    kernel: Kernel, names: Sequence[str], dtypes: Sequence[Any], options: Mapping[str, Any], made: int
) -> OperationCall:
    """The one call of a kernel with these options."""
    key = kernel, tuple(names), tuple(dtypes), repr(sorted(options.items()))
    with _lock.own:
        if key not in _calls:
            call = _calls[key] = OperationCall(kernel, names, dtypes, options, made)
            _by_address[call.address] = call
        return _calls[key]


def run(call: OperationCall, tensors: Sequence[Any]) -> list[Any]:
    """The results of a call, as tensors."""
    attributes = {"process": _number(), "call": call.address, "made": [call.dtype] * call.made}
    try:
        return apply_operation(OPERATION, tensors, attributes)
    except tf.errors.InternalError as error:
        if KeyboardInterrupt.__name__ in error.message:  # TensorFlow knows no interrupts
            raise KeyboardInterrupt from None
        raise


def findings() -> list[str]:
    """The guard's findings in any program."""
    programs = [form.program for _, form in [*_forms.values()] if form.program is not None]
    return [found for program in programs if (found := program.finding())]


# --- functions that compiled code calls: they return a positive number


def _safely(function: Callable[..., int]) -> Callable[..., int]:
    """A function that returns minus the address of the error's text if `function` raises."""

    @functools.wraps(function)
    def run(*arguments: int) -> int:
        try:
            return function(*arguments)
        except BaseException as error:  # no exception may enter compiled code
            text = f"{type(error).__name__}: {error}"
            kept = _texts.setdefault(text, ctypes.create_string_buffer(text.encode()))
            return -ctypes.addressof(kept)

    return run


@_safely
def _find(call: int, sizes: int, count: int) -> int:
    return _by_address[call].found((ctypes.c_int64 * count).from_address(sizes)[:])


@_safely
def _compute(address: int, addresses: int) -> int:
    call, form = _forms[address]
    count = len(form.shapes) + len(form.results)
    call.compute_at(form, (ctypes.c_int64 * count).from_address(addresses)[:])
    return 1


# --- registration with TensorFlow

_NAMES = {
    "new_status": "TF_NewStatus",
    "delete_status": "TF_DeleteStatus",
    "code_of": "TF_GetCode",
    "set_status": "TF_SetStatus",
    "attribute": "TF_OpKernelConstruction_GetAttrInt64",
    "refuse": "TF_OpKernelConstruction_Failure",
    "fail": "TF_OpKernelContext_Failure",
    "take": "TF_GetInput",
    "allocate": "TF_AllocateOutput",
    "data": "TF_TensorData",
    "rank": "TF_NumDims",
    "size": "TF_Dim",
    "delete": "TF_DeleteTensor",
}


def why_not() -> str | None:
    """Why programs cannot run as TensorFlow's kernels; None if they can, and are registered."""
    return why_no_host(_register)


@functools.cache
def _number() -> int:
    """The number of this process, which no other process has."""
    return secrets.randbits(62)


@functools.cache
def _process() -> tuple[np.ndarray, list[Any]]:
    """The integers of the ProcessRecord, and objects that must stay alive."""
    from xpgrad.engine.programs.waiting import waiting_threads
    from xpgrad_keras.native_kernel import Functions, ProcessRecord

    library = framework_library()
    addresses = {name: symbol(library, there) for name, there in _NAMES.items()}
    missing = [_NAMES[name] for name, address in addresses.items() if not address]
    if missing:
        raise RuntimeError(f"TensorFlow has no {', '.join(missing)}")
    integer = ctypes.c_int64
    find = ctypes.CFUNCTYPE(integer, integer, integer, integer)(_find)
    compute = ctypes.CFUNCTYPE(integer, integer, integer)(_compute)
    found, computed = (ctypes.cast(one, ctypes.c_void_p).value for one in (find, compute))
    about = ProcessRecord(Functions(**addresses), _number(), found, computed, 0, waiting_threads().address)
    return np.asarray(flat(about), dtype=np.int64), [find, compute]


def _register() -> None:
    from xpgrad.engine.compiled.machine_code import name_memory
    from xpgrad_keras import native_kernel

    if sys.platform == "win32":
        raise RuntimeError("TensorFlow for Windows exports no C functions")
    process, _ = _process()
    name_memory(native_kernel.PROCESS, address_of(process))
    signatures = {
        "lend": "int64(int64, int64, int64)", "create": "int64(int64)", "compute": "void(int64, int64)"
    }  # fmt: skip
    functions = host_functions("tensorflow_kernel", native_kernel, signatures)
    process[positions(native_kernel.ProcessRecord).lend] = functions.lend.address
    # an earlier call may have been interrupted (Ctrl-C)
    with contextlib.suppress(KeyError):  # kernels have their gradients from tf.custom_gradient
        tf.no_gradient(OPERATION)
    has_operation, has_kernel = registered(OPERATION)
    if not has_operation:
        _declare(framework_library())
    if not has_kernel:
        _declare_kernel(framework_library(), functions.create.address, functions.compute.address)


def _declare(library: ctypes.CDLL) -> None:
    """Register the operation."""
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    builder = _function(library, "TF_NewOpDefinitionBuilder", pointer, text)(OPERATION.encode())
    for what, spec in (
        ("Attr", b"given: list({float, double, int64})"),
        ("Attr", b"made: list({float, double})"),
        ("Attr", b"process: int"),
        ("Attr", b"call: int"),
        ("Input", b"inputs: given"),
        ("Output", b"outputs: made"),
    ):
        _function(library, f"TF_OpDefinitionBuilderAdd{what}", None, pointer, text)(builder, spec)
    unknown = symbol(library, "TF_ShapeInferenceContextSetUnknownShape")
    set_shapes = "TF_OpDefinitionBuilderSetShapeInferenceFunction"
    _function(library, set_shapes, None, pointer, pointer)(builder, unknown)
    _checked(library, lambda status: _function(
        library, "TF_RegisterOpDefinition", None, pointer, pointer)(builder, status))  # fmt: skip


def _declare_kernel(library: ctypes.CDLL, create: int, compute: int) -> None:
    """Register the operation's kernel for CPUs."""
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    make = _function(library, "TF_NewKernelBuilder", pointer, text, text, pointer, pointer, pointer)
    builder = make(OPERATION.encode(), b"CPU", create, compute, None)
    register = _function(library, "TF_RegisterKernelBuilder", None, text, pointer, pointer)
    _checked(library, lambda status: register(OPERATION.encode(), builder, status))


def _checked(library: ctypes.CDLL, call: Callable[[int], None]) -> None:
    """Call a function with a status; raise RuntimeError with the message of an error in it."""
    pointer = ctypes.c_void_p
    status = _function(library, "TF_NewStatus", pointer)()
    try:
        call(status)
        if _function(library, "TF_GetCode", ctypes.c_int, pointer)(status):
            message = _function(library, "TF_Message", ctypes.c_char_p, pointer)(status)
            raise RuntimeError(message.decode())
    finally:
        _function(library, "TF_DeleteStatus", None, pointer)(status)


def _function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """A C function of a library."""
    address = symbol(library, name)
    if not address:
        raise RuntimeError(f"TensorFlow has no {name}")
    return ctypes.CFUNCTYPE(result, *arguments)(address)
