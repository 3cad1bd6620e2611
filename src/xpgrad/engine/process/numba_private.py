"""What compiled code uses of numba and llvmlite beyond what their documentation promises: all of it is here.

Either may drop or rename such a name in any version. So each is looked up when this module is imported, which
is before anything is compiled. `LACKING` names the first one that is missing and has no substitute; formulas
are evaluated without numba then (see `settings.jit_enabled`). Needs numba.
"""

from __future__ import annotations

import importlib
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
    "numba.core.codegen:CPUCodegen": ("magic_tuple",),
    "numba.core.registry": ("cpu_target",),
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
    from numba.core import cgutils, registry

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


def replace_cache(function: Any, guard: Callable[[Any], Any]) -> None:
    """Put ``guard(cache)`` in the place of a compiled function's cache, if that is of the known kind."""
    cache = getattr(function, "_cache", None)
    if hasattr(cache, "load_overload") and hasattr(cache, "save_overload"):
        function._cache = guard(cache)
