"""Programs for a host that calls C functions: another runtime, which knows no Python while it computes.

A kernel is recorded for a `ForeignMachine`, and what it asked for is kept as a `ForeignProgram`. The host
calls compiled code with the addresses of the kernel's arrays and results (`native_foreign.run`); threads for
independent parts are the host's own. Needs llvmlite.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from xpgrad.engine.compiled import records
from xpgrad.engine.compiled.machine import Machine
from xpgrad.engine.process.memory import address_of
from xpgrad.engine.process.settings import jit_enabled, thread_count
from xpgrad.engine.process.team import Team
from xpgrad.engine.programs.instructions import HOST, Address
from xpgrad.engine.programs.program import Program


class HostTeam(Team):
    """The threads of the host that runs a program; they are not there while it is written."""

    grain = 8

    @property
    def addresses(self) -> tuple[int, Any, int]:  # type: ignore[override]
        """For compiled code: what starts the threads, and where the host is."""
        from xpgrad.engine.programs.entry_points import compiled_parallel, compiled_task

        return compiled_parallel(), Address(HOST, 0), compiled_task()

    def size(self) -> int:
        """How many threads."""
        return thread_count()

    def run(self, function: int, data: int, parts: int) -> None:
        """See Team."""
        raise RuntimeError("programs for a host run in the host")

    def _together(self, work: Callable[[], None], threads: int) -> None:
        raise RuntimeError("programs for a host run in the host")


class ForeignMachine(Machine):
    """What programs for a host run on: the host's threads."""

    name = "foreign"

    def __init__(self) -> None:
        super().__init__()
        self._own_team = HostTeam()


class ForeignProgram:
    """A program, written for a ForeignMachine, and what compiled code has to know of it.

    `memories` has a number for each of the program's inputs, and behind them for its results: which of the
    host's memories it is. Those of the call's arrays come in their order, then those of the results.
    `address` is that of the description that `native_foreign.run` takes, `count` is how many memories of the
    host it takes, and `shapes` has a tuple of int or None for each result.
    """

    def __init__(self, program: Program, memories: Sequence[int]) -> None:
        from xpgrad.engine.programs.entry_points import compiled_executor, compiled_guarded_executor

        self._program = program
        executor = compiled_guarded_executor if program.watch else compiled_executor
        count = max(memories, default=-1) + 1
        # behind the host's own memories come the arena, the code and the host
        renamed = np.asarray([*memories, count, count + 1, count + 2], dtype=np.int64)
        code, where, memory = self._kept = program.code, program.where, renamed[program.memory]
        description = records.flat(
            records.ForeignProgramRecord(
                code=address_of(code),
                code_length=len(code),
                where=address_of(where),
                memory=address_of(memory),
                places=len(where),
                arena=program.arena_bytes,
                executor=executor(),
                begin=program.begin,
                end=program.end,
                slots=address_of(_slots()),
                count=count,
                guard=program.watch.finding if program.watch else 0,
                finding=records.Finding(*[0] * records.length(records.Finding)),
            )
        )
        self._description = np.asarray(description, dtype=np.int64)
        self.count = count
        self.shapes = program.shapes(0)
        self.address = address_of(self._description)

    def finding(self) -> str | None:
        """What a guard found in the last run in which it found something; None for nothing."""
        first = records.positions(records.ForeignProgramRecord).finding.instruction
        watch = self._program.watch
        return watch.describe(self._description[first:]) if watch else None


@functools.cache
def _slots() -> np.ndarray:
    """Arenas of this process that wait for their next run."""
    from xpgrad.engine.programs.native_foreign import SLOTS

    return np.zeros(SLOTS, dtype=np.int64)


def host_functions(name: str, module: ModuleType, signatures: Mapping[str, str]) -> Any:
    """Functions of an adapter's module, compiled, as C functions of these signatures that a host can call."""
    from xpgrad.engine.compiled.cache import load
    from xpgrad.engine.compiled.folder import versions

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


def why_no_host(register: Callable[[], None]) -> str | None:
    """Why a host cannot call programs now; None if it can. The first call registers them with the host."""
    return _failure_of(register) if jit_enabled() else "llvmlite is not there, or XPGRAD_JIT is 0"


@functools.cache
def _failure_of(register: Callable[[], None]) -> str | None:
    try:
        register()
    except Exception as error:  # any error of another version of llvmlite, the host or the system
        return f"{type(error).__name__}: {error}"
    return None
