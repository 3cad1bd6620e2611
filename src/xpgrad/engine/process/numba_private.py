"""What compiled code uses of numba and llvmlite beyond what their documentation promises: all of it is here.

Either may drop or rename such a name in any version. So each is looked up when this module is imported, which
is before anything is compiled. `LACKING` names the first one that is missing and has no substitute; formulas
are evaluated without numba then (see `settings.jit_enabled`). Needs numba.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_NEEDED = {
    "numba.core.cgutils": (
        "alloca_once", "alloca_once_value", "for_range", "for_range_slice", "get_or_insert_function",
        "unpack_tuple",
    ),
    "numba.core.base:BaseContext": (
        "add_linking_libs", "get_dummy_value", "get_function", "get_value_type",
    ),
    "numba.core.caching": ("CompileResultCacheImpl", "FunctionCache"),
    "numba.core.ccallback": ("CFunc",),
    "numba.core.codegen:CPUCodegen": ("magic_tuple",),
    "numba.core.registry": ("cpu_target",),
    "numba.core.sigutils": ("normalize_signature",),
    "numba.core.typing.context:BaseContext": ("resolve_function_type", "resolve_value_type"),
}  # fmt: skip


def _lacking() -> Iterator[str]:
    """Names that are needed and missing."""
    for place, names in _NEEDED.items():
        module, _, owner = place.partition(":")
        try:
            found: Any = importlib.import_module(module)
        except ImportError:
            yield module
            continue
        if owner:
            found = getattr(found, owner, None)
        yield from (f"{place.replace(':', '.')}.{name}" for name in names if not hasattr(found, name))


LACKING: str | None = next(_lacking(), None)

if LACKING is None:
    from numba import njit
    from numba.core import caching, ccallback, cgutils, registry, sigutils

    alloca_once: Callable[..., Any] = cgutils.alloca_once
    alloca_once_value: Callable[..., Any] = cgutils.alloca_once_value
    for_range: Callable[..., Any] = cgutils.for_range
    for_range_slice: Callable[..., Any] = cgutils.for_range_slice
    get_or_insert_function: Callable[..., Any] = cgutils.get_or_insert_function
    unpack_tuple: Callable[..., Any] = cgutils.unpack_tuple


def target() -> tuple[str, str]:
    """The triple of the machine for which numba compiles, and the features that LLVM may use there.

    These are the host's, or what NUMBA_CPU_FEATURES says, or those that numba leaves of the host's. They are
    written as LLVM has them: ``"+avx2,-avx512f"``; empty where LLVM does not know the host.
    """
    triple, _, features = registry.cpu_target.target_context.codegen().magic_tuple()
    return triple, features


def call_compiled(
    context: Any, builder: Any, function: Any, kinds: Sequence[Any], values: Sequence[Any]
) -> Any:
    """The LLVM value of a call, from code that is being generated, of a function that numba compiles.

    `context` and `builder` are as numba passes them to a code generator, `kinds` numba's types of the values.
    """
    typing = context.typing_context
    signature = typing.resolve_function_type(typing.resolve_value_type(function), tuple(kinds), {})
    implementation = context.get_function(typing.resolve_value_type(function), signature)
    result = implementation(builder, values)
    context.add_linking_libs(getattr(implementation, "libs", ()))
    return result


def set_attribute(function: Any, attribute: str) -> bool:
    """Give an LLVM function an attribute that llvmlite does not know; False where that can't be done.

    llvmlite passes on what is in its set of attributes, but adds to it only those that it knows.
    """
    attributes = getattr(function, "attributes", None)
    if not isinstance(attributes, set):
        return False
    set.add(attributes, attribute)
    return True


class _Beside:
    """Where numba's files of a function are: in ``__pycache__`` beside its text.

    numba's own answer to that depends on whether it can write there, so files of a folder that is only for
    reading would not be found. The name of our texts holds their hash: in numba's place of the text's time,
    which the layers of an image round, it stands for what the files were made of.
    """

    def __init__(self, function: Any, file: str) -> None:
        self._py_file, self._line = file, function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, function: Any, file: str) -> _Beside:
        return cls(function, file)

    def ensure_cache_path(self) -> None:
        """Whoever writes finds out whether that is possible."""

    def get_cache_path(self) -> str:
        return os.path.join(os.path.dirname(self._py_file), "__pycache__")

    def get_source_stamp(self) -> str:
        return os.path.basename(self._py_file)

    def get_disambiguator(self) -> str:
        return str(self._line)


if LACKING is None:

    class _Results(caching.CompileResultCacheImpl):
        def __init__(self, function: Any) -> None:
            self._locator_classes = [_Beside]
            super().__init__(function)

    class FilesBeside(caching.FunctionCache):
        """The files of a function's machine code, beside its text."""

        _impl_class = _Results

        def __init__(self, function: Any) -> None:
            super().__init__(function)
            self.stem = os.path.splitext(os.path.basename(function.__code__.co_filename))[0]


def c_function(function: Any, signature: Any, options: dict[str, Any], files: Any) -> Any:
    """``numba.cfunc`` with the `files` of machine code given; with None they are not kept."""
    made: Any = ccallback.CFunc(function, sigutils.normalize_signature(signature), locals={}, options=options)
    made._cache = files or made._cache
    made.compile()
    return made


def jitted(function: Any, signature: Any, options: dict[str, Any], files: Any) -> Any:
    """``numba.njit``, likewise; with a signature it is compiled for that alone, at once."""
    made = njit(**options)(function)
    made._cache = files or made._cache
    if signature is not None:
        made.compile(signature)
        made.disable_compile()
    return made
