"""The engine for graph arrays: a loop over time is one Scan, a convolution Conv or ConvTranspose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xpgrad.engine import AdapterEngine, Elementwise, Product
from xpgrad_onnx import _convolutions, _loops, _namespace
from xpgrad_onnx._arrays import GraphArray


class OnnxEngine(AdapterEngine):
    """Writes kernels as nodes of an ONNX graph; T, N and the sizes of images may be symbols."""

    name = "xpgrad_onnx"
    counts_steps = False

    def __init__(self) -> None:
        super().__init__(_namespace)
        self._waiting: tuple[Any, Any] | None = None

    def is_traced(self, array: Any) -> bool:
        """See `Adapter`: no array of a graph has values."""
        return isinstance(array, GraphArray)

    def describe(self) -> str:
        """See `Adapter`."""
        return "graphs of ONNX: standard operators, one Scan for a loop over time"

    # --- row buffers

    def wrap(self, array: Any) -> Any:
        """See `TimeLoops`."""
        return _loops.GraphRows(array.shape[1], array, array)

    def rows(self, count: int, width: int, like: Any) -> Any:
        """See `TimeLoops`."""
        return _loops.GraphRows(width, like)

    def carry(self, array: Any) -> Any:
        """See `TimeLoops`."""
        return self.wrap(array)

    def columns(self, rows: Any, start: int, stop: int) -> Any:
        """See `TimeLoops`."""
        return _loops.GraphColumns(rows, start, stop)

    def array(self, rows: Any) -> Any:
        """See `TimeLoops`."""
        return rows.whole()

    def scan(self, stages: Sequence[Elementwise | Product], steps: Any) -> None:
        """See `TimeLoops`: the first step and the later steps are one loop, written when both are known."""
        if self._waiting is None:
            self._waiting = stages, steps
            return
        (others, before), self._waiting = self._waiting, None
        first, later = (others, stages) if before.is_first else (stages, others)
        _loops.run(self, first, later, steps)

    # --- images

    def whole(
        self, compute: Callable[..., Any], arrays: Sequence[Any], shape: Sequence[int], key: tuple[Any, ...]
    ) -> Any:
        """See `Images`: ONNX's operators compute all three sums."""
        sums, _, geometry = key
        return getattr(_convolutions, sums)(geometry, *arrays)
