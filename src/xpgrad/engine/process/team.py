"""Threads for independent parts: the process's OpenMP threads, or else our own.

Idle OpenMP threads spin for milliseconds and take a core from any other pool. So in a process with OpenMP
(torch's), parts run in OpenMP's own team.
"""

from __future__ import annotations

import _thread
import contextlib
import contextvars
import ctypes
import functools
import os
import struct
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Protocol
from weakref import WeakSet

from xpgrad.engine.compiled.records import SharedWork
from xpgrad.engine.process.blas import symbol
from xpgrad.engine.process.settings import thread_count

_REAL, _INTEGER = struct.Struct("d"), struct.Struct("q")


class _Workers:
    """Threads that each take the next function, which must not raise, and call it.

    A queue, its threads and a list's methods are C. An interrupt (Ctrl-C) within the locks of a
    `ThreadPoolExecutor`, which are Python, could leave one taken, and the next call waited for ever.
    """

    def __init__(self) -> None:
        self._todo: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._started: list[None] = []

    def put(self, function: Callable[[], None], threads: int) -> None:
        """Let so many threads call the function; fewer, or none, where the system starts no more."""
        with contextlib.suppress(RuntimeError):  # a limit on processes or memory; a later call tries again
            while len(self._started) < threads:
                _thread.start_new_thread(self._serve, ())
                # afterwards: an interrupt must not count a thread that is not there
                self._started.append(None)
        for _ in range(min(threads, len(self._started))):
            self._todo.put(function)

    def _serve(self) -> None:
        while True:
            self._todo.get()()


_workers = _Workers()
_forked = False


def _forget_threads() -> None:
    """After a fork: the child has none of its parent's threads, and an OpenMP team would wait for them."""
    global _forked, _workers
    _forked, _workers = True, _Workers()


def forked() -> bool:
    """Whether this process is a forked child, which lacks the threads of its parent's frameworks."""
    return _forked


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def integers(values: Sequence[int]) -> ctypes.Array:
    """Integers in memory for compiled code; faster to make than a NumPy array."""
    return (ctypes.c_int64 * len(values))(*values)


def bits(number: float) -> int:
    """The 64 bits of a real number as an integer, so that compiled code finds both in one memory."""
    (same,) = _INTEGER.unpack(_REAL.pack(number))
    return same


_busy = threading.local()  # `mapping`: whether the thread runs an item of `Team.map`
_MISSING = object()


class Team:
    """Threads for independent parts."""

    addresses: tuple[int, int, int] | None = None
    """For compiled code that starts the threads itself, see `OpenMPTeam`; None if it cannot."""
    grain = 1
    """A factor for the least work that a product or a copy must have to use these threads: sleeping threads
    start later than an OpenMP team, whose threads look for work."""

    def size(self) -> int:
        """The number of threads."""
        raise NotImplementedError

    def is_quick(self) -> bool:
        """Whether compiled code can start them very often, as for each stage of a time loop."""
        return self.addresses is not None

    def free(self) -> int:
        """The number of threads for new work: within `map` the other threads are busy."""
        return 1 if getattr(_busy, "mapping", False) else self.size()

    def run(self, function: int, data: int, parts: int) -> None:
        """Call the compiled ``function(data, part)`` for each part; `data` is an address."""
        raise NotImplementedError

    def _together(self, work: Callable[[], None], threads: int) -> None:
        """Call `work`, which must not raise, in `threads` threads."""
        raise NotImplementedError

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Apply the function to each item, in threads, with the caller's context variables."""
        threads = min(self.free(), len(items))
        if threads < 2:
            return [function(item) for item in items]
        results: list[Any] = [_MISSING] * len(items)
        errors: list[BaseException] = []
        waiting = iter(range(len(items)))  # taking the next one is atomic
        contexts = [contextvars.copy_context() for _ in items]

        def work() -> None:
            before = getattr(_busy, "mapping", False)
            try:
                _busy.mapping = True
                for number in waiting:
                    try:
                        results[number] = contexts[number].run(function, items[number])
                    except BaseException as error:  # no exception may leave a thread
                        errors.append(error)
            finally:
                _busy.mapping = before

        self._together(work, threads)
        if errors:
            raise errors[0]
        if any(result is _MISSING for result in results):
            raise KeyboardInterrupt  # an interrupt between two items could not be raised in its thread
        return results


class OneThread(Team):
    """The caller's thread: only for plans, which then have one part."""

    def size(self) -> int:
        """One."""
        return 1


class _Others:
    """Work of a pool's threads that help the caller; the caller does not return before they finish.

    A thread that has not begun when the caller finishes does nothing: waking a thread can take as long as the
    work. An interrupt (Ctrl-C) reaches only the caller, at any point, while the other threads still write to
    the caller's arrays. So there is no lock, which an interrupt could leave taken.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work, self._closed = work, False
        self._begun: list[object] = []
        self._ended: list[object] = []
        self._messages: SimpleQueue[None] = SimpleQueue()

    def work(self) -> None:
        """Run in a thread of the pool."""
        own = object()
        self._begun.append(own)  # before the look: else the caller could miss a thread that works
        try:
            if not self._closed:
                self._work()
        finally:
            self._ended.append(own)
            self._messages.put(None)

    def close(self) -> None:
        """Wait for the threads that have begun; exceptions that arrive meanwhile are raised afterwards."""
        arrived: BaseException | None = None
        while not (self._closed and self._have_ended()):
            try:
                self._closed = True
                if not self._have_ended():
                    self._messages.get()  # one that an interrupt loses is of a thread that has ended
            except BaseException as error:
                arrived = error
        if arrived is not None:
            raise arrived

    def _have_ended(self) -> bool:
        return set(self._begun) <= set(self._ended)


class PoolTeam(Team):
    """Our own threads."""

    def size(self) -> int:
        """The number of threads."""
        return thread_count()

    def _together(self, work: Callable[[], None], threads: int) -> None:
        others = _Others(work)
        try:
            _workers.put(others.work, threads - 1)
            work()  # the caller is one of the threads: it already runs
            others.close()
        except BaseException:
            others.close()
            raise

    def run(self, function: int, data: int, parts: int) -> None:
        """See Team."""
        call = compiled_function(function)
        if parts == 1:
            call(data, 0)
        else:
            self.map(lambda part: call(data, part), range(parts))


class _Caller:
    """A mark of a thread that called a team; it dies with the thread."""


class OpenMPTeam(Team):
    """The team of an OpenMP runtime in this process, through GCC's entry point.

    `parallel`, `thread_number` and `team_size` are the addresses of ``GOMP_parallel``, ``omp_get_thread_num``
    and ``omp_get_num_threads``; `threads` returns the number of threads to use.
    """

    addresses: tuple[int, int, int]

    def __init__(self, parallel: int, thread_number: int, team_size: int, threads: Callable[[], int]) -> None:
        self._parallel = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint
        )(parallel)
        self.addresses = parallel, thread_number, team_size
        self._threads = threads
        self._thread = threading.local()
        self._callers: WeakSet[_Caller] = WeakSet()

    def size(self) -> int:
        """The number of threads."""
        return 1 if _forked else self._threads()

    def is_quick(self) -> bool:
        """See Team: only while a single living thread calls. Teams of several callers make threads sleep."""
        if not hasattr(self._thread, "caller"):
            self._thread.caller = _Caller()
            self._callers.add(self._thread.caller)
        return len(self._callers) == 1

    def _together(self, work: Callable[[], None], threads: int) -> None:
        callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: work())
        self._parallel(ctypes.cast(callback, ctypes.c_void_p), None, threads, 0)

    def run(self, function: int, data: int, parts: int) -> None:
        """See Team."""
        if parts == 1 or self.size() < 2:
            for part in range(parts):
                compiled_function(function)(data, part)
            return
        work = SharedWork(function, data, parts, *self.addresses[1:])
        self._parallel(compiled_share(), integers(work), parts, 0)


@functools.cache
def compiled_share() -> int:
    """The address of `native.share_parts`, which each thread of an OpenMP team runs."""
    from xpgrad.engine.compiled.formula_code import c_function

    return c_function("share", "compiled.native", "int64 work", "share_parts(fields(work))")


class Host(Protocol):
    """A framework whose threads all engines of the process use, so that no two pools compete."""

    @property
    def team(self) -> Team:
        """The framework's threads."""


def find_openmp(extension: str, threads: Callable[[], int]) -> OpenMPTeam | None:
    """The team of the OpenMP runtime that an extension module is linked with; None if there is none."""
    try:
        library = ctypes.CDLL(extension)
    except OSError:
        return None
    names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
    parallel, number, size = (symbol(library, name) for name in names)
    return OpenMPTeam(parallel, number, size, threads) if parallel and number and size else None


@functools.cache
def compiled_function(address: int) -> Callable[[int, int], None]:
    """The compiled ``(data, part)`` at an address. ctypes passes integers fastest as pointers."""
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address)
