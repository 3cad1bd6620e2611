"""What a thread of a team runs, compiled: its share of the parts."""

from __future__ import annotations

import functools

from xpgrad.engine.compiled.cache import load
from xpgrad.engine.compiled.records import SharedWork, length
from xpgrad.engine.compiled.source import versions


@functools.cache
def compiled_share() -> int:
    """The address of native.share_parts, with the integers that it takes behind a pointer."""
    text = f"""# one thread's share of a team's work; generated, {versions()}
from numba import carray, cfunc
import numpy as np

from xpgrad.engine.compiled.native import share_parts


@cfunc("void(voidptr)", cache=True)
def share(work):
    share_parts(carray(work, ({length(SharedWork)},), np.int64))
"""
    return load("share", text).share.address
