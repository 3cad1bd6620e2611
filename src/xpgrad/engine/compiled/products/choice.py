"""Whose matrix products are faster on this machine, ours or a BLAS's: measured once, and remembered.

Three classes of sizes in each dtype: *few rows* and a weight that serves at every step of a time loop, a
thread each; and in all threads *narrow* products, with short sums or few columns, and *many rows*, which are
all others, weight gradients among them. The answer depends on the processor, the BLAS and the versions; it is
kept in the cache folder, and stays what it is while a process lives. What other processes disturbed is
measured again in the next process, a few times at most. ``XPGRAD_PRODUCTS`` set to ``own`` or ``blas``
decides instead.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xpgrad.engine.compiled import folder
from xpgrad.engine.compiled.products import matrix as products
from xpgrad.engine.process.blas import Blas, multiply, pack
from xpgrad.engine.process.locks import LastingLock

if TYPE_CHECKING:
    from xpgrad.engine.compiled.machine import Machine

CLASSES = ("few rows", "narrow", "many rows")
_NARROW = range(32, 129)  # elements of a sum, or columns
_WAYS = ("own", "blas")
_FILE = "products.json"
# A BLAS has to be so much faster: the same code then runs everywhere but where that costs something. It is
# measured alone; within a kernel, threads of its own and ours take turns, and OpenBLAS lost there at 1.15.
_ADVANTAGE, _ADVANTAGE_OF_OWN_THREADS = 1.05, 1.2
_ROUNDS = 8
# Our threads compute all the time: with less of it on processors than this, others had these.
_SHARE = 0.75
_TRIES = 5
# Rows of a thread, elements of a sum, columns: of a time loop's products.
_FEW_SIZES = ((16, 64, 256), (16, 256, 1024), (10, 650, 2600))
# Rows, elements of a sum, columns, and whether the first factor is by columns: inputs times a weight, a
# weight's gradient. Narrow products make or read rows that are in no near cache.
_OTHER_SIZES = {
    "narrow": ((8192, 64, 512, False), (4096, 512, 64, False)),
    "many rows": ((768, 256, 512, False), (512, 768, 256, True)),
}


class Measured(NamedTuple):
    """By how many times a BLAS is as fast as ours, and whether no other process took the cores meanwhile."""

    ratio: float
    is_steady: bool


class Choice(NamedTuple):
    """Which way was taken for a class of products, ``"own"`` or ``"blas"``, and why, in a few words."""

    way: str
    why: str


def is_own(engine: Machine, dtype: str, kind: str) -> bool:
    """Whether a class of the engine's products is our own."""
    return choice(engine, dtype, kind).way == "own"


def kind_of(inner: int, columns: int, by_rows: bool) -> str:
    """The class of a product in all threads; `by_rows` tells how its first factor is stored."""
    return "narrow" if by_rows and min(inner, columns) in _NARROW else "many rows"


def choice(engine: Machine, dtype: str, kind: str) -> Choice:
    """What was chosen for a dtype and one of `CLASSES`, or is now."""
    blas = engine.blas
    if blas is None:
        return Choice("own", "no BLAS was found")
    key = dtype, kind, blas.gemm[dtype]
    return _chosen.get(key) or _choose(key, engine, blas)


_chosen: dict[tuple, Choice] = {}
_choosing = LastingLock()


def _choose(key: tuple, engine: Machine, blas: Blas) -> Choice:
    with _choosing:
        if key not in _chosen:
            found = _find(engine, blas, *key[:2])
            _chosen.setdefault(key, found)  # a signal handler may have chosen meanwhile
        return _chosen[key]


def _find(engine: Machine, blas: Blas, dtype: str, kind: str) -> Choice:
    """Asked for, remembered, or measured."""
    asked = os.environ.get("XPGRAD_PRODUCTS")
    if asked:
        if asked not in _WAYS:
            raise ValueError(f"XPGRAD_PRODUCTS is {asked!r}, expected 'own' or 'blas'")
        return Choice(asked, "XPGRAD_PRODUCTS says so")
    name = _name(blas, engine.team.size(), dtype, kind)
    known = _remembered().get(name)
    found = _from_ratio(known, blas)
    if found is None:
        ratio = _settled(engine, blas, dtype, kind, name, known if isinstance(known, list) else [])
        found = _from_ratio(ratio, blas)
    return found or Choice("own", "nothing could be measured")


def _settled(engine: Machine, blas: Blas, dtype: str, kind: str, name: str, before: list[Any]) -> float:
    """Measure, and remember: one ratio, or the disturbed ones so far. A BLAS has to win every time."""
    ratio, is_steady = _measure(engine, blas, dtype, kind)
    if ratio > _advantage(blas):
        again = _measure(engine, blas, dtype, kind)
        ratio, is_steady = min(ratio, again.ratio), is_steady and again.is_steady
    tries = [one for one in before if isinstance(one, float) and one > 0]
    tries = [round(ratio, 3)] if is_steady else [*tries, round(ratio, 3)]
    least = min(tries)
    _remember(name, least if is_steady or len(tries) >= _TRIES else tries)
    return least


def _advantage(blas: Blas) -> float:
    return _ADVANTAGE_OF_OWN_THREADS if blas.has_pool else _ADVANTAGE


def _from_ratio(ratio: Any, blas: Blas) -> Choice | None:
    """By how many times as fast a BLAS is; None where that is no such number."""
    if not isinstance(ratio, float) or not 0 < ratio < float("inf"):
        return None
    return Choice("own" if ratio <= _advantage(blas) else "blas", f"a BLAS is {ratio:.2f} times as fast")


def describe(engine: Machine) -> dict[str, str]:
    """What is known of each class, in a line each; nothing is measured for it."""
    blas, lines = engine.blas, {}
    for dtype in ("float32", "float64"):
        for kind in CLASSES:
            known = _known(engine, blas, dtype, kind)
            line = "measured when they are first asked for" if known is None else ": ".join(known)
            lines[f"{engine.name}, {kind}, {dtype}"] = line
    return lines


def _known(engine: Machine, blas: Blas | None, dtype: str, kind: str) -> Choice | None:
    if blas is None:
        return Choice("own", "no BLAS was found")
    asked = os.environ.get("XPGRAD_PRODUCTS")
    chosen = _chosen.get((dtype, kind, blas.gemm[dtype]))
    if chosen or asked:
        return chosen or Choice(asked or "", "XPGRAD_PRODUCTS says so")
    return _from_ratio(_remembered().get(_name(blas, engine.team.size(), dtype, kind)), blas)


# --- what was measured before


# What makes compiled code, or a BLAS, another one than the machine's best.
_TOLD = (
    "XPGRAD_CPU", "XPGRAD_CPU_FEATURES", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS",
    "OPENBLAS_CORETYPE",
)  # fmt: skip


def _name(blas: Blas, threads: int, dtype: str, kind: str) -> str:
    """All that a measurement depends on, in short."""
    from llvmlite import binding

    parts = [binding.get_host_cpu_name(), _processor(), folder.versions()]
    parts += [blas.extension, blas.size, threads]
    parts += [f"{name}={os.environ[name]}" for name in _TOLD if name in os.environ]
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:20]
    return f"{kind} {dtype} {digest}"


@functools.cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith("model name")), "")


def _path() -> Path:
    return folder.cache_folder() / _FILE


def _remembered() -> dict[str, Any]:
    """By name how many times as fast a BLAS was; empty where nothing can be read."""
    try:
        known = json.loads(_path().read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _remember(name: str, ratio: float | list[float]) -> None:
    """Where the folder cannot be written, the next process measures again."""
    path = _path()
    try:
        folder.make(path.parent)
        folder.write(path, json.dumps(_remembered() | {name: ratio}, indent=1).encode())
    except OSError:
        return


# --- measuring


Way = Callable[[], float | None]
"""Computes a product; returns the seconds that count, None for all that it took."""
Pair = tuple[Way, Way]
"""Ours and a BLAS's, of one product."""


def _measure(engine: Machine, blas: Blas, dtype: str, kind: str) -> Measured:
    """How many times as fast as ours the BLAS is, the geometric mean over the sizes of a class."""
    sizes = _OTHER_SIZES.get(kind)
    pairs = _few_rows(engine, blas, dtype) if sizes is None else _in_all_threads(engine, blas, dtype, sizes)
    ratios, processor, clock = zip(*(_ratio(*pair) for pair in pairs), strict=True)
    share = sum(processor) / (sum(clock) * engine.team.size())
    return Measured(float(prod(ratios) ** (1 / len(ratios))), share >= _SHARE)


def _ratio(ours: Way, theirs: Way) -> tuple[float, float, float]:
    """The shortest time of ours over the shortest of theirs, taken in turns; seconds of ours.

    These are the seconds on processors and by the clock, of all rounds.
    """
    best, processor, clock = [float("inf"), float("inf")], 0.0, 0.0
    for number in range(1 + _ROUNDS):
        for which, function in enumerate((ours, theirs)):
            used, start = time.process_time(), time.perf_counter()
            own = function()
            whole = time.perf_counter() - start
            if not number:  # it finds cold caches, and threads that sleep
                continue
            best[which] = min(best[which], whole if own is None else own)
            if function is ours:
                processor, clock = processor + time.process_time() - used, clock + whole
    return best[0] / best[1], processor, clock


def _few_rows(engine: Machine, blas: Blas, dtype: str) -> list[Pair]:
    """Products of a time loop: each thread with its own rows, the weight packed before."""
    threads = engine.team.size()
    pairs: list[Pair] = []
    for rows, inner, columns in _FEW_SIZES:
        a, b, c = _matrices(dtype, rows * threads, inner, columns)
        panels, times = products.packed(b), max(2, (1 << 23) // (rows * inner * columns))
        parts = [(a[k * rows : (k + 1) * rows], c[k * rows : (k + 1) * rows]) for k in range(threads)]
        ours = functools.partial(_by_panels, panels, times)
        theirs = functools.partial(_by_blas, blas, b, _packed_by_blas(engine, b), times)
        run = functools.partial(_in_team, engine, blas, parts)
        pairs.append((functools.partial(run, ours), functools.partial(run, theirs)))
    return pairs


def _in_team(engine: Machine, blas: Blas, parts: list[tuple], way: Callable[[tuple], None]) -> float:
    """The seconds of the fastest thread: another may have had to wait for a core."""

    def timed(part: tuple) -> float:
        start = time.perf_counter()
        way(part)
        return time.perf_counter() - start

    with blas.in_one_thread():
        return min(engine.team.map(timed, parts))


def _by_panels(panels: np.ndarray, times: int, part: tuple) -> None:
    product = products.packed_product(part[0], panels, part[1])
    for _ in range(times):
        product()


def _packed_by_blas(engine: Machine, b: np.ndarray) -> np.ndarray | None:
    """A weight as the BLAS packs it for a time loop, if that pays."""
    functions = engine.packing(b.dtype, b.size, True, 1 << 10)
    return None if functions is None else pack(np.asfortranarray(b), functions).memory


def _by_blas(blas: Blas, b: np.ndarray, packed: np.ndarray | None, times: int, part: tuple) -> None:
    name = b.dtype.name
    function = blas.gemm[name] if packed is None else blas.packed[name].compute
    for _ in range(times):
        multiply(function, part[0], b, part[1], packed)


def _in_all_threads(engine: Machine, blas: Blas, dtype: str, sizes: Iterable[tuple]) -> list[Pair]:
    """Products beside a time loop, ours in the team's threads and the BLAS's in its own."""
    pairs: list[Pair] = []
    for rows, inner, columns, turned in sizes:
        a, b, c = _matrices(dtype, rows, inner, columns)
        if turned:
            a = np.asfortranarray(a)
        pairs.append(
            (
                functools.partial(products.multiply, engine.team, a, b, c),
                functools.partial(multiply, blas.gemm[dtype], a, b, c),
            )
        )
    return pairs


def _matrices(dtype: str, rows: int, inner: int, columns: int) -> list[np.ndarray]:
    shapes = ((rows, inner), (inner, columns), (rows, columns))
    return [np.full(shape, 0.5, dtype=dtype) for shape in shapes]
