"""The floor of every implementation: operations over the product rate, bytes over the bandwidth."""

import concurrent.futures
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

PRODUCTS = ((512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (64, 512, 2048))
COPY = 32 << 20  # bytes of the copied array, larger than the cores' own caches


def schedulable_cores() -> int:
    """The number of cores for this process; of all cores if the system does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Floor(NamedTuple):
    """The least time in seconds, and its cause: "products" or "memory"."""

    seconds: float
    bound: str


def floor(operations: float, traffic: float, rate: float, bandwidth: float) -> Floor:
    """The roofline: the longer of operations over their rate and bytes (`traffic`) over the bandwidth."""
    products, memory = operations / rate, traffic / bandwidth
    return Floor(products, "products") if products >= memory else Floor(memory, "memory")


def best_rate(make: Callable[[int, int, int], Callable[[], Any]], seconds: float = 1.0) -> float:
    """The highest rate of a matrix product, over several sizes, in operations per second.

    `make(m, k, n)` returns a function that multiplies (m, k) by (k, n).
    """
    return max(2 * m * k * n / _best(make(m, k, n), seconds / len(PRODUCTS)) for m, k, n in PRODUCTS)


def bandwidth(seconds: float = 0.5) -> float:
    """Bytes per second that all cores together read and write in a copy."""
    cores = schedulable_cores()
    source, target = (np.ones(COPY // 8) for _ in range(2))
    parts = list(zip(np.array_split(target, cores), np.array_split(source, cores), strict=True))
    with concurrent.futures.ThreadPoolExecutor(cores) as pool:
        fastest = _best(lambda: list(pool.map(lambda pair: np.copyto(*pair), parts)), seconds)
    return 2 * COPY / fastest


def _best(function: Callable[[], Any], seconds: float) -> float:
    function()
    fastest, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        function()
        fastest = min(fastest, time.perf_counter() - start)
    return fastest
