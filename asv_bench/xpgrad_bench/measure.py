"""Measures the groups; the results are JSON types."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .cores import distance
from .floor import floor
from .groups import GROUPS, Group
from .load import DISTURBED, quietest
from .processes import MissingError, Worker, Workers, peak_memory, prepare, times_in_turns
from .recurrent import Recurrent

SMALL = (2, 1, 2, 2)  # the shape that warms up a process before its memory is measured


class Effort(NamedTuple):
    """The durations of measurements."""

    seconds: float
    """Seconds for a case, all implementations together."""
    turn: float
    """Seconds of one implementation's turn."""
    rounds: int
    """The least number of turns of each."""
    rates: float
    """Seconds for the rate of each implementation's products."""
    patience: float
    """Seconds in which a disturbed measurement is repeated; the quietest attempt counts."""


USUAL = Effort(2.0, 0.1, 3, 1.0, 8.0)
QUICK = Effort(0.0, 0.0, 1, 0.1, 0.0)


class Rates(NamedTuple):
    """The machine's limits: operations per second by dtype, bytes per second."""

    products: dict[str, float]
    bandwidth: float


def works_of(group: Group, quick: bool) -> Sequence[Any]:
    """All works, or the quickest one."""
    if not quick:
        return group.works
    return [min(group.works, key=lambda work: (work.operations("step"), work.traffic("step")))]


def rates(workers: Workers, names: Iterable[str], dtypes: Iterable[str], effort: Effort) -> Rates:
    """The rate of the best available matrix product, and of NumPy's copy."""
    names = list(names)
    products = {}
    for dtype in dtypes:
        found = [_rate(workers.get(name), dtype, effort.rates) for name in names]
        products[dtype] = max(rate for rate in found if rate is not None)
    copier = workers.get("xpgrad-numpy")
    if copier is None:
        raise RuntimeError(f"NumPy does not run: {workers.missing['xpgrad-numpy']}")
    return Rates(products, copier.ask("bandwidth", seconds=effort.rates))


def best(*measured: Rates) -> Rates:
    """The maximum of each rate."""
    dtypes = dict.fromkeys(dtype for rates in measured for dtype in rates.products)
    products = {dtype: max(rates.products.get(dtype, 0.0) for rates in measured) for dtype in dtypes}
    return Rates(products, max(rates.bandwidth for rates in measured))


def _rate(worker: Worker | None, dtype: str, seconds: float) -> Any:
    return None if worker is None else worker.ask("product_rate", dtype=dtype, seconds=seconds)


def ours_of(group: Group, workers: Workers) -> Worker:
    """The first of our implementations that runs here."""
    for name in group.ours:
        worker = workers.get(name)
        if worker is not None:
            return worker
    raise RuntimeError("; ".join(f"{name}: {workers.missing[name]}" for name in group.ours))


def measure(group: Group, work: Any, workers: Workers, effort: Effort) -> dict[str, Any]:
    """A row: one case with ours and with the peer.

    ``ours`` and ``peer`` have ``median``, ``low``, ``high`` (quartiles) and ``calls``, in seconds, for memory
    in bytes. ``ratio`` is peer over ours, ``path`` the functions that the peer really calls, ``missing`` the
    reason for no peer, ``others`` the share of the cores' time that other processes took, ``distance`` the
    nanoseconds between two cores.
    """
    by = _memory if group.what == "memory" else _times
    row = {"work": work.label, **by(group, work, workers, effort)}
    ours, peer = row["ours"], row["peer"]
    row["ratio"] = peer["median"] / ours["median"] if peer and ours["median"] else None
    if group.what != "memory":
        row |= {"operations": work.operations(group.what), "traffic": work.traffic(group.what)}
    return row | {"dtype": work.dtype}


def _times(group: Group, work: Any, workers: Workers, effort: Effort) -> dict[str, Any]:
    ours, peer = ours_of(group, workers), workers.get(group.peer)
    prepare(ours, work, group.what)
    missing, path = workers.missing.get(group.peer), None
    if peer:
        try:
            path = prepare(peer, work, group.what)
        except (MissingError, RuntimeError) as reason:
            peer, missing = None, str(reason)
    pair = [ours, peer] if peer else [ours]
    found, others = quietest(
        lambda: times_in_turns(pair, effort.seconds, turn=effort.turn, rounds=effort.rounds),
        [worker.pid for worker in pair],
        effort.patience,
    )
    sides = [times._asdict() for times in found] + [None]
    return {
        "ours": sides[0], "peer": sides[1], "path": path, "missing": missing, "others": others,
        "distance": distance(),
    }  # fmt: skip


def _memory(group: Group, work: Recurrent, workers: Workers, effort: Effort) -> dict[str, Any]:
    def peak(name: str) -> dict[str, Any]:
        worker = workers.fresh(name)
        try:
            size = peak_memory(worker, work._replace(shape=SMALL), work)
        finally:
            worker.close()
        return {"median": size, "low": size, "high": size, "calls": 1}

    missing = None if workers.get(group.peer) else workers.missing[group.peer]
    ours = peak(ours_of(group, workers).name)
    theirs = None if missing else peak(group.peer)
    return {"ours": ours, "peer": theirs, "path": None, "missing": missing, "others": None, "distance": None}


def outcome(group: Group, ours: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A group's result: its fields, ``rows``, and ``ratio``, ``lowest``, ``highest`` of the undisturbed rows.

    ``ours`` is the implementation that ran.
    """
    ratios = [row["ratio"] for row in counted(rows) if row["ratio"] is not None]
    said = {name: value for name, value in group._asdict().items() if name != "works"}
    ends = {"lowest": min(ratios, default=None), "highest": max(ratios, default=None)}
    return {**said, "ours": ours, "ratio": _mean(ratios), **ends, "rows": list(rows)}


def counted(rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The rows that other processes did not disturb; all rows if none is left."""
    return [row for row in rows if (row["others"] or 0.0) <= DISTURBED] or rows


def with_floors(group: dict[str, Any], machine: Rates) -> dict[str, Any]:
    """An outcome with ``floor`` in seconds and its ``bound`` in each row; memory has none.

    Over the rows it has ``ours_to_floor`` and ``peer_to_floor``, means of multiples of the floor.
    """
    rows = group["rows"]
    if group["what"] != "memory":
        rows = [row | _floor(row, machine) for row in rows]
    distances = {f"{side}_to_floor": _distance(rows, side) for side in ("ours", "peer")}
    return {**group, **distances, "rows": rows}


def merge(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge reports of several runs on one machine: all groups in order, with the highest rates.

    Of a group in several reports the last one counts.
    """
    machine = best(*(Rates(**report["rates"]) for report in reports))
    measured = max(report["measured"] for report in reports)
    merged = {
        **reports[0],
        "measured": measured,
        "rates": machine._asdict(),
        "implementations": {},
        "missing": {},
    }
    for report in reports:
        merged["implementations"] |= report["implementations"]
        merged["missing"] |= report["missing"]
    there = merged["implementations"]
    merged["missing"] = {name: why for name, why in merged["missing"].items() if name not in there}
    groups = {group["title"]: group for report in reports for group in report["groups"]}
    known = [groups[group.title] for group in GROUPS if group.title in groups]
    merged["groups"] = [with_floors(group, machine) for group in known]
    return merged


def _floor(row: dict[str, Any], machine: Rates) -> dict[str, Any]:
    least = floor(row["operations"], row["traffic"], machine.products[row["dtype"]], machine.bandwidth)
    return {"floor": least.seconds, "bound": least.bound}


def _distance(rows: Sequence[dict[str, Any]], side: str) -> float | None:
    measured = [row for row in counted(rows) if row[side] and "floor" in row]
    return _mean([row[side]["median"] / row["floor"] for row in measured])


def _mean(values: Sequence[float]) -> float | None:
    return statistics.geometric_mean(values) if values else None
