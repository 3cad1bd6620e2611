"""Times in turns, and what is said of them."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Times(NamedTuple):
    """What a series of times comes to, in seconds."""

    median: float
    low: float
    """The quarter of all times below."""
    high: float
    """The quarter of all times above."""
    calls: int

    @property
    def spread(self) -> float:
        """From quartile to quartile, as a part of the median."""
        return (self.high - self.low) / self.median


def summary(times: Sequence[float]) -> Times:
    """The median, the quartiles and the number of times."""
    if len(times) == 1:
        return Times(times[0], times[0], times[0], 1)
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return Times(median, low, high, len(times))


def turn(function: Callable[[], Any], seconds: float) -> list[float]:
    """Times of one call after another for a while, at least one, after a first call that does not count.

    The first one finds its data in no cache, because another implementation had its turn.
    """
    function()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return times


def ratio(ours: Callable[[], Any], peer: Callable[[], Any], seconds: float = 1.0, least: int = 5) -> float:
    """The median time of ours over the peer's, both timed in turns, so that drift hits them alike."""
    ours(), peer()
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while len(times[0]) < least or time.perf_counter() < end:
        for function, record in zip((ours, peer), times, strict=True):
            start = time.perf_counter()
            function()
            record.append(time.perf_counter() - start)
    return statistics.median(times[0]) / statistics.median(times[1])
