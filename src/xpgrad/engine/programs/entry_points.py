"""Where a program enters compiled code: C functions by their addresses."""

from __future__ import annotations

from xpgrad.engine.compiled.formula_code import c_function
from xpgrad.engine.compiled.register_tiles import tiles

_PART = "int64 data, int64 part"
_INSTRUCTIONS = "int64 code, int64 begin, int64 end"


def compiled_executor() -> int:
    """The address of native_program.execute, as ``(code, begin, end)``."""
    call = "execute(code, begin, end)"
    return c_function("program", "programs.native_program", _INSTRUCTIONS, call)


def compiled_share_of_program() -> int:
    """The address of native_program.execute_share, as ``function(data, part)``."""
    call = "execute_share(fields(data), part)"
    return c_function("program_share", "programs.native_program", _PART, call)


def compiled_guarded_executor() -> int:
    """The address of native_guard.execute_guarded, as `compiled_executor`."""
    call = "execute_guarded(code, begin, end)"
    return c_function("guarded_program", "programs.native_guard", _INSTRUCTIONS, call)


def compiled_guard(name: str) -> int:
    """The address of native_guard.before or after, as ``(code, number)``."""
    call = f"{name}(fields(code), number)"
    return c_function(f"guard_{name}", "programs.native_guard", "int64 code, int64 number", call)


def compiled_linker() -> int:
    """The address of native_program.link_and_execute.

    It takes ``(code, begin, end, links, count, addresses)``.
    """
    names = ("code", "begin", "end", "links", "count", "addresses")
    call = f"link_and_execute({', '.join(names)})"
    arguments = ", ".join(f"int64 {name}" for name in names)
    return c_function("linked_program", "programs.native_program", arguments, call)


def compiled_arithmetic(dtype: str) -> int:
    """The address of native_arithmetic.arithmetic for arrays of a dtype, as ``function(data, part)``."""
    made = f"arithmetic({dtype!r}, {tiles().lanes(dtype)})"
    label, module = f"arithmetic_{dtype}", "programs.native_arithmetic"
    return c_function(label, module, _PART, "made(fields(data), part)", made)


def compiled_schedule() -> int:
    """The address of native_timeline.schedule, as ``function(data, part)``."""
    return c_function("schedule", "programs.native_timeline", _PART, "schedule(fields(data))")


def compiled_rows(dtype: str) -> int:
    """The address of native_timeline.move_rows for arrays of a dtype, as ``function(data, part)``."""
    call = f"move_rows(fields(data), part, np.{dtype})"
    return c_function(f"rows_{dtype}", "programs.native_timeline", _PART, call)


def compiled_task() -> int:
    """The address of native_foreign.task."""
    return c_function("host_task", "programs.native_foreign", "int64 crew", "task(crew)")


def compiled_parallel() -> int:
    """The address of native_foreign.parallel, which is called as ``GOMP_parallel`` is."""
    arguments = "int64 share, int64 work, int32 threads, int32 flags"
    call = "parallel(fields(work))"
    return c_function("host_threads", "programs.native_foreign", arguments, call)


def compiled_wait() -> int:
    """The address of native_foreign.wait."""
    return c_function("waiting_thread", "programs.native_foreign", "int64 waiting", "wait(waiting)")
