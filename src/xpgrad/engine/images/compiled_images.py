"""Sums over images by compiled functions: a NumPy engine calls them, a recorder writes the calls down.

A function gets one record of integers. All of it is known before the call, except the arrays' addresses.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from xpgrad.engine.compiled.records import RowSums, flat
from xpgrad.engine.images.in_place import InPlaceImages
from xpgrad.engine.images.shifts import Embedding, Shifts
from xpgrad.engine.images.windows import Transform, Windows, memory_order
from xpgrad.engine.process.team import Team

if TYPE_CHECKING:
    from xpgrad.engine.images.compiled_shifts import ShiftPlan

Numbers = Callable[[Sequence[Any]], Sequence[Any]]
"""From the addresses of arrays to the integers that a compiled function reads."""


class CompiledImages(InPlaceImages):
    """The compiled methods of `Images`; subclasses have the arrays, and call or record the functions."""

    @property
    @abstractmethod
    def team(self) -> Team:
        """The threads."""

    @abstractmethod
    def contiguous(self, array: Any) -> Any:
        """The array, or a copy whose elements follow one another."""

    @abstractmethod
    def distances(self, array: Any) -> Sequence[int]:
        """The number of elements from one to the next along each axis."""

    @abstractmethod
    def parts(self, size: int) -> int:
        """The number of threads for a loop over so many elements."""

    @abstractmethod
    def run_planned(
        self, function: int, parts: int, numbers: Numbers, arrays: Sequence[Any], kept: Any = None
    ) -> None:
        """Call the compiled ``function(data, part)`` for each part; `kept` is other memory that it reads."""

    @abstractmethod
    def run_plan(self, plan: ShiftPlan, arrays: Sequence[Any]) -> None:
        """Call a plan's function, with memory for its work."""

    def has_two_units(self) -> bool:
        """By the machine's name and features, if loops are compiled."""
        if not self.compiles():
            return False
        from xpgrad.engine.compiled.register_tiles import has_two_units

        return has_two_units()

    def last_axis_sums(self, array: Any) -> Any:
        """In one pass, in threads."""
        from xpgrad.engine.images.compiled_shifts import row_sums_loop

        rows, sums = self.contiguous(array), self.room(array.shape[:-1], array)
        parts = min(self.parts(rows.size), max(1, sums.size))
        self.run_planned(
            row_sums_loop(rows.dtype), parts,
            lambda at: RowSums(at[0], sums.size, rows.shape[-1], at[1], parts), [rows, sums],
        )  # fmt: skip
        return sums

    # --- shifted images

    def pack_taps(self, weights: Any, taps: Sequence[Sequence[int]]) -> Any:
        """As `PackedTaps`."""
        if not self.compiles():
            return super().pack_taps(weights, taps)
        from xpgrad.engine.images.compiled_shifts import PackedTaps, packed_starts

        if min(self.distances(weights)) < 0:
            weights = self.contiguous(weights)
        many, starts, size = packed_starts(weights.dtype, weights.shape, taps)
        memory = self.room((size,), weights)
        for part, start in zip(taps, starts, strict=True):
            if many:
                self._pack_for_tiles(memory[start:], weights, part)
                continue
            sizes = (*weights.shape[:3], len(part))
            target = self.xp.reshape(memory[start : start + prod(sizes)], sizes)
            if [*part] == [*range(weights.shape[3])]:
                self._write(target, (...,), weights)
                continue
            for number, tap in enumerate(part):
                self._write(target[..., number], (...,), weights[..., tap])
        return PackedTaps(memory, starts, weights.shape[:3])

    def _pack_for_tiles(self, target: Any, weights: Any, part: Sequence[int]) -> None:
        from xpgrad.engine.images.compiled_shifts import tap_packing

        parts, by = self.parts(weights.size), self.distances(weights)
        function, record, kept = tap_packing(weights.dtype, weights.shape, by, part, parts)
        self.run_planned(
            function, parts, lambda at: record._replace(weights=at[0], target=at[1]), [weights, target], kept
        )

    def sum_of_shifts(self, images: Any, weights: Any, shifts: Shifts, B: Any = None) -> Any:
        """By a plan."""
        from xpgrad.engine.images.compiled_shifts import Setting, plan_for, plan_of_sums

        images, made = self.contiguous(images), weights.shape[0] * weights.shape[1]
        forms = images.dtype, images.shape, weights.shape, weights.starts
        plan = plan_for(plan_of_sums, *forms, shifts, Setting.of(self.team))
        Y = self.room((images.shape[0], made, *shifts.size), images)
        bias = self._zeros((made,), images) if B is None else self.contiguous(B)
        if not plan.complete:
            self._write(Y, (...,), self.xp.reshape(bias, (1, made, *[1] * len(shifts.size))))
        self.run_plan(plan, [images, weights.memory, bias, Y])
        return Y

    def products_of_shifts(
        self, a: Any, images: Any, places: Sequence[Embedding], taps: Sequence[tuple[int, int]], group: int
    ) -> Any:
        """By a plan; each thread adds up some images."""
        from xpgrad.engine.images.compiled_shifts import Setting, plan_for, plan_of_products

        a, images = self.contiguous(a), self.contiguous(images)
        forms = a.dtype, a.shape, images.shape, tuple(places), tuple(taps), group
        plan = plan_for(plan_of_products, *forms, Setting.of(self.team))
        sizes = group, a.shape[1] // group, images.shape[1] // group, len(taps)
        products = self.room((plan.parts, *sizes), a)
        self.run_plan(plan, [a, images, products])
        return products[0, ...] if plan.parts == 1 else self.xp.sum(products, axis=0)

    # --- patches

    def patches(self, images: Any, places: Sequence[Embedding], group: int) -> Any:
        """Rows of images that are rows of a matrix."""
        if not self.compiles():
            return super().patches(images, places, group)
        n, channels = images.shape[:2]
        P = self.room((group, channels // group * len(places), n * prod(places[0].grid)), images)
        self._patch_rows("patches", self.contiguous(images), places, P, True)
        return P

    def add_patches(
        self, total: Any, P: Any, places: Sequence[Embedding], shape: Sequence[int], B: Any = None,
        target: Any = None,
    ) -> Any:  # fmt: skip
        """In the memory of the total or of the target."""
        images = total if total is not None else self.room(shape, P) if target is None else target
        bias = self._zeros((shape[1],), P) if B is None else self.contiguous(B)
        self._patch_rows("add_patches", images, places, self.contiguous(P), total is None, bias)
        return images

    def _patch_rows(
        self, kind: str, images: Any, places: Sequence[Embedding], P: Any, begins: bool, *bias: Any
    ) -> None:
        from xpgrad.engine.images.compiled_shifts import patch_work

        parts = self.parts(P.size)
        function, record, kept = patch_work(kind, images.dtype, images.shape, tuple(places), parts, begins)

        def numbers(at: Sequence[Any]) -> Sequence[Any]:
            own = record.images._replace(address=at[0])
            return flat(record._replace(images=own, patches=at[1], bias=at[2] if bias else 0))

        self.run_planned(function, parts, numbers, [images, P, *bias], kept)

    # --- windows

    def from_windows(self, X: Any, windows: Windows, transform: Transform, target: Any = None) -> Any:
        """See `compiled_windows`."""
        if not self.compiles():
            return super().from_windows(X, windows, transform)
        from xpgrad.engine.images.compiled_windows import Layout, can_be_read, work_from_windows

        if not can_be_read(X.shape, self.distances(X), windows):
            X = self.contiguous(X)
        columns = max(1, windows.slices) * X.shape[0] * windows.rows * windows.columns
        M = self.room(transform.shape(X.shape[1], columns), X) if target is None else target
        parts = max(1, min(X.shape[1], self.parts(M.size)))
        source, made = Layout(0, X.shape, self.distances(X)), Layout(0, M.shape, self.distances(M))
        function, record = work_from_windows(source, windows, transform, made, X.dtype, parts)
        self._run_windows(function, record, X, M)
        return M

    def to_windows(
        self, M: Any, windows: Windows, transform: Transform, B: Any, shape: Sequence[int], target: Any = None
    ) -> Any:
        """See `compiled_windows`."""
        if not self.compiles():
            return super().to_windows(M, windows, transform, B, shape)
        from xpgrad.engine.images.compiled_windows import Layout, can_be_written, work_to_windows

        Y = target
        if Y is None or not can_be_written(Y.shape, self.distances(Y), windows):
            Y = self.room(memory_order(shape, windows), M)
            if len(shape) == 5 and not windows.slices:
                Y = self.xp.permute_dims(Y, (0, 1, 3, 2, 4))
        bias = self._zeros((Y.shape[1],), Y) if B is None else self.contiguous(B)
        parts = max(1, min(Y.shape[1], self.parts(M.size)))
        source, made = Layout(0, M.shape, self.distances(M)), Layout(0, Y.shape, self.distances(Y))
        function, record = work_to_windows(source, windows, transform, 0, made, M.dtype, parts)
        self._run_windows(function, record, Y, M, bias)
        return Y

    def _run_windows(self, function: int, record: Any, images: Any, points: Any, *bias: Any) -> None:
        """Call a function of windows; its record lacks the arrays' addresses."""

        def numbers(at: Sequence[Any]) -> Sequence[Any]:
            own = record.images._replace(address=at[0]), record.points._replace(address=at[1])
            more = {"bias": at[2]} if bias else {}
            return flat(record._replace(images=own[0], points=own[1], **more))

        self.run_planned(function, record.parts, numbers, [images, points, *bias])
