"""What convolutions ask of an engine, written down: the compiled loops over images, and products.

Fourier transforms have no instruction.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from xpgrad.engine.compiled.machine import Machine
from xpgrad.engine.compiled.records import RowSums, flat
from xpgrad.engine.images.in_place import BLOCK_ELEMENTS, InPlaceImages, slices
from xpgrad.engine.images.methods import Images
from xpgrad.engine.images.padding import Index
from xpgrad.engine.images.shifts import Embedding, Shifts
from xpgrad.engine.images.windows import Transform, Windows, memory_order
from xpgrad.engine.process import sharing
from xpgrad.engine.process.memory import line_of
from xpgrad.engine.process.team import OneThread
from xpgrad.engine.programs.instructions import parts_for
from xpgrad.engine.programs.recorded import CannotRecordError, Recorded, check_fixed
from xpgrad.engine.programs.recorded_arithmetic import RecordedArithmetic
from xpgrad.engine.programs.shares import Share

if TYPE_CHECKING:
    from xpgrad.engine.images.compiled_shifts import ShiftPlan

_MOST = 4096  # instructions for the products of a stack


class _Alone:
    """A host with one thread."""

    team = OneThread()


_ONE_THREAD = Machine(lambda: _Alone())


def _unwritable(what: str) -> Callable[..., Any]:
    def method(*_: Any, **__: Any) -> Any:
        raise CannotRecordError(what)

    return method


class RecordedBatches(RecordedArithmetic, InPlaceImages):
    """Batches of images in a program's memory: blocks, stacks of products, parts that become a whole."""

    def blocks(self, count: int, size: int, most: int | None = None, least: int = 0) -> list[slice]:
        """As many images as stay in a cache: as many blocks for each thread, and what is left for all."""
        threads = self._threads()
        own = count // threads
        shared = threads > 1 and own * size >= max(sharing.IMAGES, least // 2)
        room = max(BLOCK_ELEMENTS // 4, 2 * BLOCK_ELEMENTS // threads) if shared else BLOCK_ELEMENTS
        at_once = min(max(1, max(room, least) // max(1, size)), most or count)
        if not shared:
            return slices(count, at_once)
        cuts = sharing.cuts(own, -(-own // at_once))
        blocks = [
            slice(first + low, first + high)
            for first in range(0, own * threads, own)
            for low, high in itertools.pairwise(cuts)
        ]
        left = own * threads
        return blocks + [slice(left + s.start, left + s.stop) for s in slices(count - left, at_once)]

    def _threads(self) -> int:
        """How many threads can share what comes next."""
        team = self._machine.team
        return 1 if team.addresses is None else team.size()

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """Each thread has as many items; all of them together do what is left."""
        todo, threads = [*items], self._threads()
        own = len(todo) // threads
        if threads < 2 or not own:
            return super().map(function, todo)
        results, machine, draft = [], self._machine, self._draft
        region = len(draft.shares)
        self._machine = _ONE_THREAD
        for number in range(threads):
            draft.share = Share(region, number)
            results += [function(item) for item in todo[own * number : own * (number + 1)]]
        self._machine, draft.share = machine, None
        return results + super().map(function, todo[own * threads :])

    def accumulate(
        self, function: Callable[[slice, list[Any] | None], list[Any]], blocks: Sequence[slice], size: int = 0
    ) -> list[Any]:
        """Each thread has totals of its own, if they are small."""
        threads = self._threads()
        own = len(blocks) // threads
        if threads < 2 or not own or size * threads > BLOCK_ELEMENTS:
            return super().accumulate(function, blocks, size)
        shares = [blocks[own * number : own * (number + 1)] for number in range(threads)]
        totals, *others = self.map(lambda share: Images.accumulate(self, function, share, size), shares)
        for other in others:
            totals = [self.add(total, one, total) for total, one in zip(totals, other, strict=True)]
        for block in blocks[own * threads :]:
            totals = function(block, totals)
        return totals

    @contextlib.contextmanager
    def temporary(self, shape: Sequence[int], like: Any) -> Iterator[Recorded]:
        """New memory; what is later written may use it again."""
        (count, *sizes), own = shape, prod(shape[1:])
        lines = self.fresh((count, line_of(own, self.dtype.itemsize)))
        yield lines[:, :own].split_last(tuple(sizes))

    def room(self, shape: Sequence[int], like: Any) -> Recorded:
        """New memory."""
        return self.fresh(tuple(shape))

    def product(
        self, a: Recorded, b: Recorded, target: Recorded | None = None, add: bool = False
    ) -> Recorded:
        """Each matrix of the stacks with its own, those of the smaller stack again and again."""
        if a.ndim > 2 or b.ndim > 2:
            check_fixed(a, b)
        lead = max(a.shape[:-2], b.shape[:-2], key=len)
        result = self.fresh((*lead, a.sizes[-2], b.sizes[-1])) if target is None else target
        if not result.size or (prod(lead) > 1 and self.multiply_stack(result, a, b, add)):
            return result
        if prod(lead) > _MOST:
            raise CannotRecordError("products of many matrices")
        for number in range(prod(lead)):
            index: list[int] = []
            for size in reversed(lead):
                index.insert(0, number % size)
                number //= size
            to, left, right = (x[(*index[len(lead) - x.ndim + 2 :], ...)] for x in (result, a, b))
            self.multiply(to, left, right, add)
        return result

    def add(self, a: Recorded, b: Recorded, target: Recorded | None = None) -> Recorded:
        """The sum; b has as many axes as a behind its first ones, or 1 in their places."""
        result = self.fresh(a.shape) if target is None else target
        while b.ndim < a.ndim:
            b = self.xp.expand_dims(b, axis=0)
        self.emit_arithmetic("add", result, [a, self.broadcast(b, a.shape)])
        return result

    def _zeros(self, shape: Sequence[int], like: Any) -> Recorded:
        result = self.room(shape, like)
        self._clear(result)
        return result

    def _clear(self, target: Recorded) -> None:
        self.emit_arithmetic("zero", target, [])

    def _write(self, target: Recorded, places: Index, part: Recorded) -> None:
        if part.size:
            self.copy(target[places], part)

    def _is_in(self, part: Recorded, place: Recorded) -> bool:
        each = zip(part.shape, part.strides, place.strides, strict=True)
        is_same = all(size == 1 or own == other for size, own, other in each)
        return is_same and (part.block, part.offset) == (place.block, place.offset)

    def _split_last(self, array: Recorded, sizes: Sequence[int]) -> Recorded:
        return array.split_last(tuple(sizes))


class RecordedImages(RecordedBatches):
    """The part of the recorder for convolutions; threads share the work of each instruction."""

    def compiles(self) -> bool:
        """True: programs are compiled."""
        return True

    def can_transform(self) -> bool:
        """True, so that a convolution for which a Fourier transform is fastest is not recorded."""
        return True

    rfft = irfft = fft = ifft = _unwritable("Fourier transforms")

    def last_axis_sums(self, array: Recorded) -> Recorded:
        """Compiled."""
        from xpgrad.engine.images.compiled_shifts import row_sums_loop

        check_fixed(array)
        rows, sums = self.contiguous(array), self.fresh(array.shape[:-1])
        parts = min(parts_for(rows.size, self._machine.team), max(1, sums.size))
        record = RowSums(0, sums.size, rows.shape[-1], 0, parts)

        def numbers(addresses: Sequence[Any]) -> Sequence[Any]:
            return record._replace(rows=addresses[0], sums=addresses[1])

        self.run_planned(row_sums_loop(self.dtype), parts, numbers, [rows, sums])
        return sums

    def pack_taps(self, weights: Recorded, taps: Sequence[Sequence[int]]) -> Any:
        """See `compiled_shifts`."""
        from xpgrad.engine.images.compiled_shifts import PackedTaps, packed_starts

        if min(weights.strides) < 0:
            weights = self.contiguous(weights)
        many, starts, size = packed_starts(weights.shape, taps)
        memory = self.fresh((size,))
        for part, start in zip(taps, starts, strict=True):
            if many:
                self._pack_part(memory[start:], weights, part)
            else:
                self._write_part(memory, start, weights, part)
        return PackedTaps(memory, starts, weights.shape[:3])

    def _pack_part(self, target: Recorded, weights: Recorded, part: Sequence[int]) -> None:
        """A part's weights for tiles."""
        from xpgrad.engine.images.compiled_shifts import tap_packing

        parts = parts_for(weights.size, self._machine.team)
        function, record, kept = tap_packing(self.dtype, 0, weights.shape, weights.strides, part, 0, parts)

        def numbers(addresses: Sequence[Any]) -> Sequence[Any]:
            return record._replace(weights=addresses[0], target=addresses[1])

        self.run_planned(function, parts, numbers, [weights, target], kept)

    def _write_part(self, memory: Recorded, start: int, weights: Recorded, part: Sequence[int]) -> None:
        """A part's weights one behind the other."""
        count = prod(weights.shape[:3])
        target = self.xp.reshape(memory[start : start + count * len(part)], (*weights.shape[:3], len(part)))
        if [*part] == [*range(weights.shape[3])]:
            self.copy(target, weights)
            return
        for number, tap in enumerate(part):
            self.copy(target[..., number], weights[..., tap])

    def sum_of_shifts(
        self, images: Recorded, weights: Any, shifts: Shifts, B: Recorded | None = None
    ) -> Recorded:
        """See `compiled_shifts`."""
        from xpgrad.engine.images.compiled_shifts import plan_of_sums

        images, made = self.contiguous(images), weights.shape[0] * weights.shape[1]
        plan = plan_of_sums(self._machine, self.dtype, images.shape, weights, shifts)
        Y = self.fresh((images.shape[0], made, *shifts.size))
        bias = self._zeros((made,), like=images) if B is None else self.contiguous(B)
        if not plan.complete:
            each = self.xp.reshape(bias, (1, made, *[1] * len(shifts.size)))
            self.copy(Y, self.broadcast(each, Y.shape))
        self._run_plan(plan, [images, weights.memory, bias, Y])
        return Y

    def products_of_shifts(
        self,
        a: Recorded,
        images: Recorded,
        places: Sequence[Embedding],
        taps: Sequence[tuple[int, int]],
        group: int,
    ) -> Recorded:
        """See `compiled_shifts`."""
        from xpgrad.engine.images.compiled_shifts import plan_of_products

        a, images, machine = self.contiguous(a), self.contiguous(images), self._machine
        plan = plan_of_products(machine, self.dtype, a.shape, images.shape, tuple(places), tuple(taps), group)
        sizes = group, a.shape[1] // group, images.shape[1] // group, len(taps)
        products = self.fresh((plan.parts, prod(sizes)))
        self._run_plan(plan, [a, images, products])
        whole = products if plan.parts == 1 else self.column_sums(products)
        return self.xp.reshape(whole, sizes)

    def patches(self, images: Recorded, places: Sequence[Embedding], group: int) -> Recorded:
        """See `compiled_patches`."""
        n, channels, positions = *images.shape[:2], prod(places[0].grid)
        P = self.fresh((group, channels // group * len(places), n * positions))
        self._patch_work("patches", self.contiguous(images), places, P, None, True)
        return P

    def add_patches(
        self,
        total: Recorded | None,
        P: Recorded,
        places: Sequence[Embedding],
        shape: Sequence[int],
        B: Recorded | None = None,
        target: Recorded | None = None,
    ) -> Recorded:
        """In the memory of the total or of the target; see `compiled_patches`."""
        images = total if total is not None else self.fresh(tuple(shape)) if target is None else target
        if B is None:
            B = self._zeros((shape[1],), like=P)
        self._patch_work("add_patches", images, places, self.contiguous(P), self.contiguous(B), total is None)
        return images

    def _patch_work(
        self, kind: str, images: Recorded, places: Sequence[Embedding], P: Recorded, B: Recorded | None,
        begins: bool,
    ) -> None:  # fmt: skip
        from xpgrad.engine.images.compiled_patches import patch_work, with_addresses

        parts = parts_for(P.size, self._machine.team)
        function, record, kept = patch_work(kind, self.dtype, images.shape, tuple(places), parts, begins)

        def numbers(addresses: Sequence[Any]) -> Sequence[Any]:
            return flat(with_addresses(record, *addresses, *[0] * (3 - len(addresses))))

        self.run_planned(function, parts, numbers, [x for x in (images, P, B) if x is not None], kept)

    def _run_plan(self, plan: ShiftPlan, arrays: Sequence[Recorded]) -> None:
        """A plan's function on arrays, with memory."""
        memory = self.fresh((-(-plan.workspaces.total // self.dtype.itemsize),))
        memory.block.zones += plan.workspaces.zones()

        def numbers(addresses: Sequence[Any]) -> Sequence[Any]:
            return plan.numbers(addresses[:-1], addresses[-1])

        operands = [*arrays, memory]
        self.run_planned(plan.function, plan.parts, numbers, operands, plan, plan.multiplications)

    def from_windows(
        self, X: Recorded, windows: Windows, transform: Transform, target: Recorded | None = None
    ) -> Recorded:
        """See `compiled_windows`."""
        from xpgrad.engine.images.compiled_windows import Layout, can_be_read, work_from_windows

        if not can_be_read(X.shape, X.strides, windows):
            X = self.contiguous(X)
        columns = max(1, windows.slices) * X.shape[0] * windows.rows * windows.columns
        M = self.fresh(transform.shape(X.shape[1], columns)) if target is None else target
        parts = self._parts_of_channels(X.shape[1], M)

        def work(x: Any, m: Any) -> Any:
            places = Layout(x, X.shape, X.strides), windows, transform, Layout(m, M.shape, M.strides)
            return work_from_windows(*places, self.dtype, parts)

        self._run_work(parts, work, [X, M])
        return M

    def to_windows(
        self,
        M: Recorded,
        windows: Windows,
        transform: Transform,
        B: Recorded | None,
        shape: Sequence[int],
        target: Recorded | None = None,
    ) -> Recorded:
        """See `compiled_windows`."""
        from xpgrad.engine.images.compiled_windows import Layout, can_be_written, work_to_windows

        Y = target
        if Y is None or not can_be_written(Y.shape, Y.strides, windows):
            Y = self.fresh(memory_order(shape, windows))
            if len(shape) == 5 and not windows.slices:
                Y = self.xp.permute_dims(Y, (0, 1, 3, 2, 4))
        bias = self._zeros((Y.shape[1],), like=Y) if B is None else self.contiguous(B)
        parts = self._parts_of_channels(Y.shape[1], M)

        def work(m: Any, b: Any, y: Any) -> Any:
            places = Layout(m, M.shape, M.strides), windows, transform, b, Layout(y, Y.shape, Y.strides)
            return work_to_windows(*places, self.dtype, parts)

        self._run_work(parts, work, [M, bias, Y])
        return Y

    def _parts_of_channels(self, channels: int, points: Recorded) -> int:
        return max(1, min(channels, parts_for(points.size, self._machine.team)))

    def _run_work(
        self, parts: int, work: Callable[..., tuple[int, tuple]], arrays: Sequence[Recorded]
    ) -> None:
        """A compiled function, found with its record for the addresses of the arrays."""
        function, _ = work(*[0] * len(arrays))
        self.run_planned(function, parts, lambda addresses: flat(work(*addresses)[1]), arrays)
