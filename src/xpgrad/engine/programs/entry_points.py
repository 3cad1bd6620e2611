"""Where a program enters compiled code: C functions by their addresses."""

from __future__ import annotations

import functools

from xpgrad.engine.compiled.cache import load
from xpgrad.engine.compiled.records import Arithmetic, MoveRows, length
from xpgrad.engine.compiled.source import versions


@functools.cache
def compiled_executor(dtype: str) -> int:
    """The address of native_program.execute for arrays of a dtype, as ``(code, begin, end)``."""
    text = f"""# walks through a program's instructions on {dtype}; generated, {versions()}
from numba import cfunc
import numpy as np

from xpgrad.engine.programs.native_program import execute

one = np.{dtype}(1)


@cfunc("void(int64, int64, int64)", cache=True, error_model="numpy")
def run(code, begin, end):
    execute(code, begin, end, one)
"""
    return load(f"program_{dtype}", text).run.address


@functools.cache
def compiled_linker(dtype: str) -> int:
    """The address of native_program.link, which then runs instructions on arrays of a dtype.

    It takes ``(code, begin, end, links, count, addresses)``.
    """
    text = f"""# adds addresses to a program on {dtype} and runs it; generated, {versions()}
from numba import cfunc
import numpy as np

from xpgrad.engine.programs.native_program import execute, link

one = np.{dtype}(1)


@cfunc("void({", ".join(["int64"] * 6)})", cache=True, error_model="numpy")
def run(code, begin, end, links, count, addresses):
    link(code, links, count, addresses)
    if end > begin:
        execute(code, begin, end, one)
"""
    return load(f"linked_program_{dtype}", text).run.address


@functools.cache
def compiled_arithmetic(dtype: str) -> int:
    """The address of native_program.arithmetic for arrays of a dtype, as ``function(data, part)``."""
    text = f"""# part of an array's arithmetic in {dtype}; generated, {versions()}
from numba import carray, cfunc
import numpy as np

from xpgrad.engine.programs.native_program import arithmetic

one = np.{dtype}(1)


@cfunc("void(voidptr, int64)", cache=True, error_model="numpy")
def run(data, part):
    arithmetic(carray(data, ({length(Arithmetic)},), np.int64), part, one)
"""
    return load(f"arithmetic_{dtype}", text).run.address


@functools.cache
def compiled_schedule() -> int:
    """The address of native_timeline.schedule, as ``function(data, part)``."""
    text = f"""# what sequences' lengths decide; generated, {versions()}
from numba import carray, cfunc
import numpy as np

from xpgrad.engine.programs.native_timeline import schedule


@cfunc("void(voidptr, int64)", cache=True)
def run(data, part):
    schedule(carray(data, (1 << 60,), np.int64))
"""
    return load("schedule", text).run.address


@functools.cache
def compiled_rows(dtype: str) -> int:
    """The address of native_timeline.move_rows for arrays of a dtype, as ``function(data, part)``."""
    text = f"""# part of the rows of {dtype} that change their order; generated, {versions()}
from numba import carray, cfunc
import numpy as np

from xpgrad.engine.programs.native_timeline import move_rows

one = np.{dtype}(1)


@cfunc("void(voidptr, int64)", cache=True, error_model="numpy")
def run(data, part):
    move_rows(carray(data, ({length(MoveRows)},), np.int64), part, one)
"""
    return load(f"rows_{dtype}", text).run.address
