"""Gradients without recurrence: sums over all rows, chunk by chunk after the time loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from xpgrad._recurrent.call import RecurrentCall
from xpgrad._recurrent.checked_call import PARAMETERS, Direction
from xpgrad._recurrent.per_sample import square_norms_of_products
from xpgrad._recurrent.timeline import Chunk


def columns_of(array: Any, columns: slice) -> Any:
    """Some columns, or all."""
    return array if columns == slice(None) else array[:, columns]


class GradientSums:
    """The wanted gradients of one direction, added up over chunks of rows.

    The products of a chunk follow its part of the loop, while its cotangents are in the cache. The next chunk
    reuses their memory. Per-sample gradients take all rows at once. For norms, vectors have per-sample
    gradients, and weights have squared norms.
    """

    def __init__(
        self, call: RecurrentCall, direction: Direction, wanted: frozenset[str], per_sample: bool | str
    ) -> None:
        self.call, self.direction, self.per_sample = call, direction, per_sample
        self.wanted = wanted
        weight = call.arrays.get("sample_weight") if wanted & PARAMETERS else None
        self._factors = None if weight is None else self._factor_rows(weight)
        self._sums: dict[str, Any] = {}
        self._scratch: dict[str, Any] = {}
        self._most, self._like = 0, None
        self._dX: Any = None  # rows that chunks fill
        self._whole_dX: Any = None  # if there is a single chunk

    def chunks(self, width: int, like: Any) -> Iterator[tuple[Chunk, Any]]:
        """Chunks from last to first, each with memory for its cotangents, `width` columns wide."""
        engine, timeline = self.call.engine, self.direction.timeline
        limit = None if self.per_sample else engine.chunk(width, like)
        chunks = list(timeline.chunks(limit))
        self._most = max(chunk.most for chunk in chunks)  # a single step may have more than the limit
        self._like = like
        rows = self.scratch("cotangents", width)
        for chunk in chunks:
            yield chunk, rows

    def scratch(self, name: str, width: int) -> Any:
        """Scratch rows by name; every chunk reuses them."""
        if name not in self._scratch:
            self._scratch[name] = self.call.engine.scratch(self._most, width, self._like)
        return self._scratch[name]

    def add_input(self, chunk: Chunk, *factors: tuple[Any, Any]) -> None:
        """Set the chunk's rows of dX, the cotangents times W; several factors need a single chunk."""
        engine = self.call.engine
        if len(factors) > 1:
            for d, W in factors:
                self._whole_dX = engine.add_product(self._whole_dX, d, W)
            return
        [(d, W)] = factors
        if self._dX is None:
            self._dX = engine.rows(self.direction.timeline.rows, W.shape[1], like=W)
        if chunk.rows:
            engine.write_product(d, W, self._dX, chunk.start)

    def _factor_rows(self, weight: Any) -> Any:
        """The samples' weights (N,) as rows (S, 1)."""
        call, timeline = self.call, self.direction.timeline
        alone = call.xp.reshape(weight, (1, call.N, 1))
        return timeline.pack(call.engine.broadcast(alone, (call.T, call.N, 1)))

    def weighted(self, chunk: Chunk, d: Any) -> Any:
        """The chunk's cotangents for the parameters' gradients, times the samples' weights."""
        if self._factors is None:
            return d
        return self.call.engine.scale(d, self._factors[chunk.part, :])

    def add_weight(self, name: str, d: Any, x: Any) -> None:
        """Add to the gradient (out, in) of a weight: rows of cotangents times rows of inputs.

        It is (in, out) if the caller's weights have their axes swapped. Per sample (N, out, in) it is a
        batched product over time; padding is zero in both factors.
        """
        engine, xp = self.call.engine, self.call.xp
        a, b = (x, d) if self._axis(name) else (d, x)
        if self.per_sample:
            a, b = self.direction.timeline.unpack(a), self.direction.timeline.unpack(b)
        if self.per_sample == "norm":
            self._sums[name] = square_norms_of_products(engine, a, b)
        elif self.per_sample:
            self._sums[name] = engine.matmul(xp.permute_dims(a, (1, 2, 0)), xp.permute_dims(b, (1, 0, 2)))
        else:
            self._sums[name] = engine.add_product(self._sums.get(name), a.T, b)

    def _axis(self, name: str) -> int:
        """The gates' axis in a weight's gradient; a part's name begins with the weight's name."""
        return int(name.split(" ")[0] in self.call.swapped)

    def add_weights_before(
        self, parts: Mapping[str, tuple[slice, slice]], d: Any, chunk: Chunk, rows: Any, initial: Any
    ) -> None:
        """Like `add_weight`, with the rows of the previous step, or the initial state at the first step.

        `parts` has columns of the cotangents and of the rows for each part of the weight.
        """
        timeline = self.direction.timeline
        zero = initial is None
        initial = timeline.zeros(rows.shape[1]) if zero else timeline.sort(initial)
        pieces = None if self.per_sample else timeline.pieces_before(rows, initial, chunk)
        if pieces is None:
            pieces = [(slice(None), timeline.previous(rows, initial, chunk))]
        for part, x in pieces:
            of_zeros = x is initial and zero
            for name, (own, columns) in parts.items():
                needless = of_zeros and (len(pieces) > 1 or name in self._sums)
                if not needless:
                    self.add_weight(name, columns_of(d[part, :], own), columns_of(x, columns))

    def add_rows(self, name: str, d: Any) -> None:
        """The sum over all rows (width,), or over the rows of each sample (N, width)."""
        if self.per_sample:
            self._sums[name] = self.call.xp.sum(self.direction.timeline.unpack(d), axis=0)
        else:
            self._add(name, self.call.engine.column_sums(d))

    def add_dots(self, name: str, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Like `add_rows`, for the elementwise product of each pair, concatenated."""
        engine, xp, unpack = self.call.engine, self.call.xp, self.direction.timeline.unpack
        if self.per_sample:
            self._sums[name] = xp.concat([xp.sum(unpack(a * b), axis=0) for a, b in pairs], axis=-1)
        else:
            self._add(name, xp.concat([engine.column_dots(a, b) for a, b in pairs]))

    def _add(self, name: str, sums: Any) -> None:
        self._sums[name] = self._sums[name] + sums if name in self._sums else sums

    def __getitem__(self, name: str) -> Any:
        """A sum, after the last chunk."""
        return self._sums[name]

    def weight(self, *names: str, shift: int = 0) -> Any:
        """The gradient of a weight with these sums as blocks of the gates, rolled by `shift` along them."""
        xp, parts = self.call.xp, [self._sums[name] for name in names]
        if self.per_sample == "norm":
            return sum(parts[1:], start=parts[0])
        axis = self._axis(names[0]) + (1 if self.per_sample else 0)
        whole = parts[0] if len(parts) == 1 else xp.concat(parts, axis=axis)
        return xp.roll(whole, shift, axis=axis) if shift else whole

    def input_rows(self) -> Any:
        """Rows of dX, after the last chunk."""
        return self.call.engine.array(self._dX) if self._whole_dX is None else self._whole_dX
