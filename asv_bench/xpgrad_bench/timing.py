"""Times in turns, and their statistics."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Times(NamedTuple):
    """Statistics of a series of times, in seconds."""

    median: float
    low: float
    """The quarter of all times below."""
    high: float
    """The quarter of all times above."""
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
    """Times of repeated calls without the first, or only of the first if it takes all the time.

    At the first call the caches are cold, because another implementation had its turn. For a long call that
    matters little.
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


def ratio(ours: Callable[[], Any], peer: Callable[[], Any], seconds: float = 1.0, least: int = 5) -> float:
    """The median time of ours over the peer's, timed in turns, so drift affects both equally."""
    ours(), peer()
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while len(times[0]) < least or time.perf_counter() < end:
        for function, record in zip((ours, peer), times, strict=True):
            record.append(_time(function))
    return statistics.median(times[0]) / statistics.median(times[1])
