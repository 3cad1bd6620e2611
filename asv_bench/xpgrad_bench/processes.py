"""Worker processes as their caller sees them: one for each implementation, measured in turns."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from .implementations import environment
from .timing import Times, summary
from .worker import encode

START = "import sys; sys.path.append(sys.argv[1]); from xpgrad_bench.worker import main; main()"
PACKAGES = Path(__file__).parents[1]
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "XPGRAD_NUM_THREADS")
REST = 0.05  # seconds for a pool's idle threads to stop spinning before the next turn


class MissingError(Exception):
    """An implementation is not installed, or lacks an operator; the message says which."""


class Worker:
    """A process that runs one implementation, by this or another interpreter.

    `threads` is its number of threads, and on Linux of cores; by default the libraries choose.
    """

    def __init__(self, name: str, python: str | None = None, threads: int | None = None) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - close
        self._process = subprocess.Popen(
            [python or sys.executable, "-c", START, str(PACKAGES), name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, encoding="utf-8",
            env=os.environ | environment(name) | dict.fromkeys(THREADS if threads else (), str(threads)),
        )  # fmt: skip
        self._requests = cast("IO[str]", self._process.stdin)  # pipes, as requested
        self._answers = cast("IO[str]", self._process.stdout)
        if threads is not None and hasattr(os, "sched_setaffinity"):
            cores = sorted(os.sched_getaffinity(0))[:threads]
            os.sched_setaffinity(self._process.pid, cores)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def ask(self, do: str, **arguments: Any) -> Any:
        """The result of a method of the worker's session.

        MissingError means that the implementation lacks it. RuntimeError has the worker's output.
        """
        try:
            print(json.dumps({"do": do, **arguments}), file=self._requests, flush=True)
            line = self._answers.readline()
        except OSError:  # a broken pipe; Windows calls it an invalid argument
            line = ""
        if not line:
            raise RuntimeError(f"{self.name} ended while it was asked for {do}: {self._printed()}")
        answer = json.loads(line)
        if "missing" in answer:
            raise MissingError(answer["missing"])
        if "error" in answer:
            raise RuntimeError(f"{self.name} failed at {do}:\n{answer['error']}")
        return answer["result"]

    def _printed(self) -> str:
        self._process.wait()
        self._log.seek(0)
        return self._log.read().strip()[-2000:] or f"status {self._process.returncode}"

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):  # it has already ended
            self._requests.close()
        self._process.wait()
        self._answers.close()
        self._log.close()


class Workers:
    """Workers by implementation, started at their first use; `pythons` are other interpreters."""

    def __init__(self, pythons: Mapping[str, str] | None = None, threads: int | None = None) -> None:
        self._pythons = dict(pythons or {})
        self._threads = threads
        self._started: dict[str, Worker] = {}
        self.described: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self.absent: set[str] = set()
        """The missing implementations that are not installed; the others fail."""

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._started.values():
            worker.close()

    def fresh(self, name: str) -> Worker:
        """Another process of an implementation; the caller closes it."""
        return Worker(name, self._pythons.get(name), self._threads)

    def get(self, name: str) -> Worker | None:
        """The worker of an implementation, or None if it is missing; `missing` says why.

        A worker that has ended, perhaps without memory, is started again.
        """
        if name in self._started and self._started[name].has_ended:
            self._started.pop(name).close()
        if name not in self._started and name not in self.missing:
            worker = self.fresh(name)
            try:
                self.described[name] = worker.ask("describe")
            except (MissingError, RuntimeError) as reason:
                self.missing[name] = str(reason)
                self.absent |= {name} if isinstance(reason, MissingError) else set()
                worker.close()
            else:
                self._started[name] = worker
        return self._started.get(name)


def times_in_turns(
    workers: Sequence[Worker], seconds: float, *, turn: float = 0.1, rounds: int = 3
) -> list[Times]:
    """Time the workers' prepared calls, each for `turn` seconds, in at least `rounds` rounds."""
    times: list[list[float]] = [[] for _ in workers]
    end = time.perf_counter() + seconds
    done = 0
    while done < rounds or time.perf_counter() < end:
        for worker, record in zip(workers, times, strict=True):
            record.extend(worker.ask("turn", seconds=turn))
            if len(workers) > 1:
                time.sleep(REST)
        done += 1
    return [summary(record) for record in times]


def peak_memory(worker: Worker, small: Any, work: Any) -> int:
    """Peak bytes of a step in a fresh worker."""
    return int(worker.ask("peak", small=encode(small), work=encode(work)))


def prepare(worker: Worker, work: Any, what: str) -> str | None:
    """Prepare a call; returns the functions that it calls, if known."""
    path: str | None = worker.ask("prepare", work=encode(work), what=what)
    return path
