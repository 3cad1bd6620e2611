"""The process of one implementation: it answers requests, one JSON object per line, until its input ends."""

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import IO, Any

from . import implementations, memory, timing
from .convolutions import Convolution
from .elementwise import Elementwise, Loss
from .floor import bandwidth
from .keras_models import KerasStep
from .recurrent import Recurrent

WORKS: dict[str, Any] = {
    kind.__name__: kind for kind in (Recurrent, Convolution, Elementwise, Loss, KerasStep)
}


def encode(work: Any) -> list[Any]:
    """A work in JSON types."""
    return [type(work).__name__, *work]


def decode(given: list[Any]) -> Any:
    """The inverse of `encode`."""
    name, *fields = given
    return WORKS[name](*(tuple(field) if isinstance(field, list) else field for field in fields))


class Session:
    """The requests to a worker: its public methods."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._run: Callable[[], Any] = lambda: None

    def describe(self) -> str:
        """A line about the implementation; loads it."""
        return str(implementations.module_of(self._name).describe())

    def prepare(self, work: list[Any], what: str) -> str | None:
        """Prepare a work and drop the last one; returns the functions that a call runs, if known."""
        self._run, decoded = lambda: None, decode(work)
        self._run = getattr(implementations.make(self._name, decoded), what)
        self._run()  # compiles, packs, fills workspaces
        path = getattr(implementations.module_of(self._name), "path", None)
        if path is None:
            return None
        brief = decoded.brief() if isinstance(decoded, Recurrent) else decoded
        return str(path(implementations.make(self._name, brief), what))

    def turn(self, seconds: float) -> list[float]:
        """Times of calls."""
        return timing.turn(self._run, seconds)

    def peak(self, small: list[Any], work: list[Any]) -> int:
        """Peak bytes of a step of a work, after a step of a small one."""
        first, second = (implementations.make(self._name, decode(given)) for given in (small, work))
        return memory.peak(first.step, second.step)

    def product_rate(self, dtype: str, seconds: float) -> float | None:
        """Operations per second of its matrix product; None if it has none of its own."""
        measure = getattr(implementations.module_of(self._name), "product_rate", None)
        return measure(dtype, seconds) if measure else None

    def bandwidth(self, seconds: float) -> float:
        """Bytes per second of a copy."""
        return bandwidth(seconds)


def answer(session: Session, request: dict[str, Any]) -> dict[str, Any]:
    """The result of a method of the session, or what it lacks, or how it failed."""
    arguments = dict(request)
    method = getattr(session, arguments.pop("do"))
    try:
        return {"result": method(**arguments)}
    except NotImplementedError as missing:
        return {"missing": str(missing)}
    except Exception:
        return {"error": traceback.format_exc()}


def serve(name: str, requests: IO[str], answers: IO[str]) -> None:
    """Answer until the requests end."""
    session = Session(name)
    for line in requests:
        print(json.dumps(answer(session, json.loads(line))), file=answers, flush=True)


def main() -> None:
    """Answer on the original standard output; the output of libraries goes to the error stream."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.argv[-1], sys.stdin, answers)
