"""What convolutions ask of an engine, written down: compiled functions on images, and products.

Fourier transforms have no instruction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any

from xpgrad.engine.images.compiled_images import CompiledImages
from xpgrad.engine.images.in_place import BLOCK_ELEMENTS
from xpgrad.engine.images.padding import Index
from xpgrad.engine.images.parts import (
    Alike,
    InTurn,
    Part,
    images_at_once,
    in_alike_parts,
    in_parts,
    indices,
    size_of,
    without_first,
)
from xpgrad.engine.process import guard, sharing
from xpgrad.engine.process.memory import line_of
from xpgrad.engine.process.team import OneThread, Team
from xpgrad.engine.programs.alike import Pattern
from xpgrad.engine.programs.instructions import parts_for
from xpgrad.engine.programs.recorded import CannotRecordError, Recorded, check_fixed
from xpgrad.engine.programs.recorded_arithmetic import RecordedArithmetic
from xpgrad.engine.programs.shares import Share
from xpgrad.engine.symbols import are_same, smaller

if TYPE_CHECKING:
    from xpgrad.engine.images.compiled_shifts import ShiftPlan

_MOST = 4096  # instructions for the products of a stack


def _unwritable(what: str) -> Callable[..., Any]:
    def method(*_: Any, **__: Any) -> Any:
        raise CannotRecordError(what)

    return method


class RecordedImages(RecordedArithmetic, CompiledImages):
    """The part of the recorder for convolutions; threads share images, or the work of an instruction."""

    @property
    def team(self) -> Team:
        """The threads that will run the next instructions."""
        return self._team

    def compiles(self) -> bool:
        """True: programs are compiled."""
        return True

    def can_transform(self) -> bool:
        """True, so that a convolution for which a Fourier transform is fastest is not recorded."""
        return True

    rfft = irfft = fft = ifft = _unwritable("Fourier transforms")

    def distances(self, array: Recorded) -> Sequence[int]:
        """The strides."""
        return array.strides

    def parts(self, size: int) -> int:
        """The number of threads for this many elements."""
        return parts_for(size, self.team)

    def run_plan(self, plan: ShiftPlan, arrays: Sequence[Recorded]) -> None:
        """Write the call down, with memory of the program."""
        memory = self.fresh((-(-plan.workspaces.total // self.dtype.itemsize),))
        memory.block.zones += plan.workspaces.zones()

        def numbers(addresses: Sequence[Any]) -> Sequence[Any]:
            return plan.numbers(addresses[:-1], addresses[-1])

        operands = [*arrays, memory]
        self.run_planned(plan.function, plan.parts, numbers, operands, plan.kept, plan.multiplications)

    def blocks(
        self, count: int, size: int, most: int | None = None, least: int = 0, fits: int = 0
    ) -> Sequence[Part]:
        """Blocks that stay in a cache: as many for each thread, and the rest of the batch for all threads."""
        threads = self._threads()
        own = count // threads
        shared = threads > 1 and own * size >= max(sharing.OWN_IMAGES, least // 2)
        room = max(BLOCK_ELEMENTS // 4, BLOCK_ELEMENTS // threads) if shared else BLOCK_ELEMENTS
        at_once = images_at_once(count, size, max(room, least), most)
        in_turn = fits and threads > 1 and threads * smaller(least, at_once * size) > fits
        rounds = -(-(own if shared and not in_turn else count) // at_once)
        # under a guard, and within other parts, no part is repeated
        may_be_empty = not guard.on and not self.moving
        if threads == 1 or in_turn:
            return InTurn(in_alike_parts(count, rounds, 0, may_be_empty))
        if not shared:  # `map` shares the slices
            return in_parts(count, rounds)
        shares = [in_alike_parts(own, rounds, own * number, may_be_empty) for number in range(threads)]
        left = count - own * threads
        rest = in_alike_parts(left, -(-left // at_once), own * threads, may_be_empty)
        return [*chain(*shares), *rest[: threads - 1]]  # fewer images than threads: of one there is no rest

    def _threads(self) -> int:
        """The number of threads that can share images."""
        return 1 if self.team.addresses is None else self.team.size()

    def _shares(self, items: Sequence[Any]) -> tuple[list[Sequence[Any]], Sequence[Any]]:
        """As many items for each thread, and the rest; no shares for one thread, few items, or `InTurn`."""
        threads = self._threads()
        own = len(items) // threads
        if threads < 2 or not own or isinstance(items, InTurn):
            return [], items
        shares = [items[own * number : own * (number + 1)] for number in range(threads)]
        return shares, items[own * threads :]

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """Each thread has as many items, if their work is about equal; all threads together do the rest."""
        todo = items if isinstance(items, InTurn) else [*items]
        shares, rest = self._shares(todo)
        work = [sum(size_of(one) for one in share if isinstance(one, Part)) for share in shares]
        if not shares or 2 * max(work) > 3 * min(work):
            return super().map(function, todo)
        results, team, draft = [], self._team, self._draft
        region = len(draft.shares)
        self._team = OneThread()
        for number, share in enumerate(shares):
            draft.share = Share(region, number)
            results += [function(item) for item in share]
        self._team, draft.share = team, None
        return results + super().map(function, rest)

    def map_alike(self, function: Callable[[Any], Any], parts: Sequence[Any]) -> list[Any]:
        """Parts of one size are recorded once."""
        return self.map(self._repeating(function), parts)

    def _repeating(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The function of parts that are alike; only the first one of each size is recorded by it."""
        patterns: list[tuple[Any, Pattern]] = []

        def once(part: slice | Sequence[Part], size: int | None = None) -> tuple[Any, Pattern | None]:
            group = [part] if isinstance(part, slice) else part
            moving = {id(index): size or own for one in group for index, own in indices(one)}
            if self.moving and not moving.keys() <= self.moving.keys():  # other parts are being recorded
                return function(part), None
            key = self._team, *([size] if size is not None else map(size_of, group))
            start = indices(group[0])[0][0].start
            for known, pattern in patterns:
                if are_same(known, key):
                    return pattern.repeat(start), pattern
            pattern, around = Pattern(self._draft, start), self.moving
            self.moving = around or moving
            result = function(part)
            self.moving = around
            if not pattern.complete(result):
                return result, None
            patterns.append((key, pattern))
            return result, pattern

        def of(part: Part | Sequence[Part]) -> Any:
            if not isinstance(part, Alike):
                return once(part)[0]
            result, pattern = once(part.first, part.size)
            if pattern is None or not pattern.runs_again(part.size, part.count - 1):
                if not int(part.count):
                    raise CannotRecordError("work on no images")
                _, *others = part.each()
                around = self.moving
                if id(part.first) in around:  # they move with an outer part too
                    self.moving = {**around, **{id(one): part.size for one in others}}
                for one in others:
                    once(one, part.size)
                self.moving = around
            return result

        return of

    def _total(
        self, function: Callable[[slice, list[Any] | None], list[Any]], blocks: Sequence[Part]
    ) -> list[Any]:
        """All blocks but the first one are added to totals, and are alike."""
        first, others = without_first(blocks)
        return self._added(function, function(first, None), others)

    def _added(
        self,
        function: Callable[[slice, list[Any] | None], list[Any]],
        totals: list[Any],
        blocks: Sequence[Part],
    ) -> list[Any]:
        """The totals, to which blocks are added that are alike."""

        def add(block: slice) -> None:
            if any(new is not old for new, old in zip(function(block, totals), totals, strict=True)):
                raise CannotRecordError("totals in new memory")

        repeating = self._repeating(add)
        for block in blocks:
            repeating(block)
        return totals

    def accumulate(
        self, function: Callable[[slice, list[Any] | None], list[Any]], blocks: Sequence[Part], size: int = 0
    ) -> list[Any]:
        """Each thread has totals of its own, if they are small."""
        shares, rest = self._shares(blocks)
        if not shares or size * len(shares) > BLOCK_ELEMENTS:
            return self._total(function, blocks)
        return self._added(function, self._sum_of_shares(function, shares), rest)

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
        place = target[places]
        if part.size:
            self.copy(place, part if part.shape == place.shape else self.broadcast(part, place.shape))

    def _is_in(self, part: Recorded, place: Recorded) -> bool:
        if part.block is not place.block or part.offset != place.offset:
            return False
        each = zip(part.shape, part.strides, place.strides, strict=True)
        return all(own == other or size == 1 for size, own, other in each)

    def _split_last(self, array: Recorded, sizes: Sequence[int]) -> Recorded:
        return array.split_last(tuple(sizes))
