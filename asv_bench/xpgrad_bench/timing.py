"""Times in turns, and their statistics."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class Times(NamedTuple):
    """Statistics of a series of times, in seconds."""

    median: float
    low: float
    """The lower quartile."""
    high: float
    """The upper quartile."""
    calls: int

    @property
    def spread(self) -> float:
        """The distance between the quartiles, as a share of the median."""
        return (self.high - self.low) / self.median


def summary(times: Sequence[float]) -> Times:
    """The median, the quartiles and the number of times."""
    if len(times) == 1:
        return Times(times[0], times[0], times[0], 1)
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return Times(median, low, high, len(times))


def turn(function: Callable[[], Any], seconds: float) -> list[float]:
    """Times of repeated calls without the first call, or of the first call only if it takes all the time.

    The first call finds cold caches after another implementation's turn. For a long call this matters little.
    """
    times = [_time(function)]
    if times[0] >= seconds:
        return times
    end = time.perf_counter() + seconds
    while len(times) == 1 or time.perf_counter() < end:
        times.append(_time(function))
    return times[1:]


def _time(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def in_turns(
    ways: Mapping[str, Callable[[], Any]], seconds: float = 0.0, least: int = 1, *, warm: bool = False
) -> dict[str, list[float]]:
    """The times of each function by name, in turns, so that drift affects all equally.

    It runs for `seconds`, and at least `least` rounds. Each function first has an untimed call. With `warm`
    an untimed call precedes every timed call, which then finds the function's own data in the caches.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    end, done = time.perf_counter() + seconds, 0
    while done < least or time.perf_counter() < end:
        for name, way in ways.items():
            if warm:
                way()
            times[name].append(_time(way))
        done += 1
    return times


def ratio(ours: Callable[[], Any], peer: Callable[[], Any], seconds: float = 1.0, least: int = 5) -> float:
    """The median time of ours over the peer's, timed in turns."""
    own, other = map(statistics.median, in_turns({"ours": ours, "peer": peer}, seconds, least).values())
    return own / other
