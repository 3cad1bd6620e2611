"""Programs for a host: another runtime, which calls C functions and knows no Python while it computes.

A kernel is recorded for a `ForeignMachine` and becomes a `ForeignProgram`. The host calls compiled code with
the addresses of the kernel's arrays and results (`native_foreign.run`). Independent parts run in the host's
own threads. Needs llvmlite.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from xpgrad.engine.compiled import records
from xpgrad.engine.compiled.cache import load
from xpgrad.engine.compiled.folder import versions
from xpgrad.engine.compiled.formula_code import c_function
from xpgrad.engine.compiled.machine import Machine
from xpgrad.engine.process.locks import LastingLock
from xpgrad.engine.process.memory import address_of
from xpgrad.engine.process.settings import jit_enabled, thread_count
from xpgrad.engine.process.team import Team
from xpgrad.engine.programs.instructions import HOST, Address
from xpgrad.engine.programs.program import Program

SLOTS = 8
_slots = np.zeros(SLOTS, dtype=np.int64)  # addresses of arenas that wait for their next run


class HostTeam(Team):
    """The threads of the host that will run a program; they do not exist while the program is recorded."""

    grain = 8

    @property
    def addresses(self) -> tuple[int, Any, int]:  # type: ignore[override]
        """Of `native_foreign.parallel`, which is called as ``GOMP_parallel`` is, the host, and `task`."""
        module, arguments = "programs.native_foreign", "int64 share, int64 work, int32 threads, int32 flags"
        parallel = c_function("host_threads", module, arguments, "parallel(fields(work))")
        return parallel, Address(HOST, 0), c_function("host_task", module, "int64 crew", "task(crew)")

    def size(self) -> int:
        """The number of threads."""
        return thread_count()


class ForeignMachine(Machine):
    """What programs for a host run on: the host's threads."""

    name = "foreign"
    team = HostTeam()


class ForeignProgram:
    """A program recorded for a ForeignMachine, and its description for compiled code.

    `memories` gives each input and then each result of the program its number among the host's memories:
    the call's arrays in their order, then the call's results. `address` is the address of the description
    that `native_foreign.run` takes, `count` is the number of the host's memories, and `shapes` has a tuple of
    int or None for each result.
    """

    def __init__(self, program: Program, memories: Sequence[int]) -> None:
        self._program = program
        own_code, self.shapes = program.of_call()
        name, function = ("guard", "execute_guarded") if program.watch else ("program", "execute")
        label = "guarded_program" if program.watch else "program"
        arguments = "int64 code, int64 begin, int64 end"
        executor = c_function(label, f"programs.native_{name}", arguments, f"{function}(code, begin, end)")
        self.count = count = max(memories, default=-1) + 1
        # after the host's own memories come the arena, the code and the host
        renamed = np.asarray([*memories, count, count + 1, count + 2], dtype=np.int64)
        code, where, memory = self._kept = own_code, program.where, renamed[program.memory]
        description = records.ForeignProgramRecord(
            code=address_of(code),
            code_length=len(code),
            where=address_of(where),
            memory=address_of(memory),
            places=len(where),
            arena=program.arena_bytes,
            executor=executor,
            begin=program.begin,
            end=program.end,
            slots=address_of(_slots),
            count=count,
            guard=program.watch.finding if program.watch else 0,
            finding=records.Finding(*[0] * records.length(records.Finding)),
        )
        self._description = np.asarray(records.flat(description), dtype=np.int64)
        self.address = address_of(self._description)

    def finding(self) -> str | None:
        """What a guard found in the last run in which it found something; None for nothing."""
        first = records.positions(records.ForeignProgramRecord).finding.instruction
        watch = self._program.watch
        return watch.describe(self._description[first:]) if watch else None


def host_functions(name: str, module: ModuleType, signatures: Mapping[str, str]) -> Any:
    """Compile functions of an adapter's module as C functions of these signatures, for a host."""
    own = hashlib.sha256(Path(str(module.__file__)).read_bytes()).hexdigest()[:20]
    lines = [
        f"# {name}, {own}; generated, {versions()}",
        "from xpgrad.engine.compiled.cache import cfunc",
        f"import {module.__name__} as module",
    ]
    for function, signature in signatures.items():
        given = ", ".join(f"a{k}" for k in range(signature.count(",") + 1))
        answer = "" if signature.startswith("void") else "return "
        lines += ["", "", f'@cfunc("{signature}")', f"def {function}({given}):"]
        lines.append(f"    {answer}module.{function}({given})")
    return load(name, "\n".join([*lines, ""]))


_failures: dict[Callable[[], None], str | None] = {}
_registering = LastingLock()


def why_no_host(register: Callable[[], None]) -> str | None:
    """Why a host cannot call programs now; None if it can. The first call registers them with the host.

    Other threads wait for it: TensorFlow ends the process if an operation is registered twice.
    """
    if not jit_enabled():
        return "llvmlite or our source files are missing, or XPGRAD_JIT is 0"
    if register not in _failures:
        with _registering.own:
            if register not in _failures:
                _failures[register] = _failure_of(register)
    return _failures[register]


def _failure_of(register: Callable[[], None]) -> str | None:
    try:
        register()
    except Exception as error:  # any error of another version of llvmlite, the host or the system
        return f"{type(error).__name__}: {error}"
    return None
