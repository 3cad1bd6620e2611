"""Machine code, which LLVM makes for this machine and links into this process; needs llvmlite."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
from typing import Any

import numpy as np
from llvmlite import binding, ir

from xpgrad.engine.compiled.llvm_code import SYSTEM
from xpgrad.engine.compiled.records import SystemCalls
from xpgrad.engine.process.blas import symbol

CPU, FEATURES = "XPGRAD_CPU", "XPGRAD_CPU_FEATURES"
"""Environment variables: another CPU than this machine's, by LLVM's name, and its features."""


def target() -> tuple[str, str, str]:
    """The machine for which code is made: its triple, its CPU, and its features for LLVM.

    CPU and features are the host's, or given by the variables `CPU` and `FEATURES`, in LLVM's words:
    ``"haswell"``, ``"+avx2,-avx512f"``. A CPU without features has the features that LLVM knows.
    """
    triple = binding.get_process_triple()
    cpu, features = os.environ.get(CPU, ""), os.environ.get(FEATURES, "")
    if cpu or features:
        for word in features.split(","):
            if word and word[0] not in "+-":  # LLVM would end the process
                raise ValueError(f"{FEATURES} has {word!r}, expected + or - before each feature")
        # with a name that LLVM does not know it would end the process; so it says so, and makes general code
        least = "+64bit" if triple.startswith("x86_64") else ""
        return triple, cpu or binding.get_host_cpu_name(), features or least
    return triple, binding.get_host_cpu_name(), _host_features()


def features() -> frozenset[str]:
    """The processor's features for compiled code, by LLVM's names."""
    words = target()[2].split(",")
    return frozenset(word[1:] for word in words if word.startswith("+"))


@functools.cache
def _host_features() -> str:
    """The host's features; empty if LLVM does not know the host."""
    try:
        return binding.get_host_cpu_features().flatten()
    except RuntimeError:
        return ""


def _system_calls() -> SystemCalls:
    """The functions of this system, by their addresses; 0 for each that it lacks.

    Compiled code cannot call them by name: linking a name that the system lacks would end the process. Python
    has memory on every system. The numbers of ``madvise`` depend on the system, and compiled code knows
    Linux's.
    """
    python = (ctypes.pythonapi.PyMem_RawMalloc, ctypes.pythonapi.PyMem_RawFree)
    malloc, free = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in python)
    names = ("ucrtbase", "kernel32") if sys.platform == "win32" else (None,)
    libraries = [ctypes.CDLL(name) for name in names]

    def first(*names: str) -> int:
        addresses = (symbol(library, name) for name in names for library in libraries)
        return next((address for address in addresses if address), 0)

    advise = first("madvise") if sys.platform == "linux" else 0
    return SystemCalls(malloc, free, first("sched_yield", "SwitchToThread"), advise, mmap.PAGESIZE)


class _Linker:
    """Makes machine code, and keeps linked code in the process."""

    def __init__(self, triple: str, cpu: str, features: str) -> None:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        self._triple = triple
        # as LLVM's JIT needs it on x86
        reloc = "static" if triple.startswith(("x86", "i386", "i686")) else "default"
        kind = binding.Target.from_triple(triple)
        options = {"opt": 3, "reloc": reloc, "codemodel": "jitdefault", "jit": True}
        self._machine = kind.create_target_machine(cpu=cpu, features=features, **options)
        self._calls = np.asarray(_system_calls(), dtype=np.int64)
        name_memory(SYSTEM, self._calls.ctypes.data)
        backing = binding.parse_assembly(f'target triple = "{triple}"')
        self._engine = binding.create_mcjit_compiler(backing, self._machine)

    def compiled(self, module: ir.Module) -> bytes:
        """The object file of a module."""
        module.triple, module.data_layout = self._triple, str(self._machine.target_data)
        parsed = binding.parse_assembly(str(module))
        self.optimize(parsed)
        return self._machine.emit_object(parsed)

    def optimize(self, module: binding.ModuleRef) -> None:
        """Optimize a module.

        Level 3 makes first calls take a fifth longer, unrolling a quarter, and nothing faster: our loops are
        written as vectors, or LLVM interleaves two.
        """
        tuning = binding.create_pipeline_tuning_options(speed_level=2)
        tuning.loop_vectorization = tuning.loop_interleaving = True
        tuning.loop_unrolling = False
        passes = binding.create_pass_builder(self._machine, tuning)
        passes.getModulePassManager().run(module, passes)

    def link(self, code: bytes) -> None:
        """Link an object file into the process."""
        self._engine.add_object_file(binding.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """The address of a linked function."""
        return int(self._engine.get_function_address(name))


_linker = functools.cache(_Linker)  # never cleared: functions are called until the process ends


def linker() -> Any:
    """The linker for `target`."""
    return _linker(*target())


def name_memory(name: str, address: int) -> None:
    """Give integers of this process a name for compiled code; see `llvm_code.words_by_name`."""
    binding.add_symbol(name, address)
