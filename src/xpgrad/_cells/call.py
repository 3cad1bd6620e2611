"""A checked call of a cell."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from xpgrad._calls.plans import Asked
from xpgrad._operators.arguments import check_rank, check_shape
from xpgrad._recurrent.call import RecurrentCall
from xpgrad._recurrent.checked_call import units

PARAMETERS = ("W", "R", "v")


class CellCall(RecurrentCall):
    """A checked call of a cell; see `RecurrentCall`, also for the options.

    Parameters
    ----------
    blocks : mapping of str to int
        The numbers of blocks of W, R and v.
    over_time : sequence of str
        The names of cotangents (T, D, N, H), which may be left out.
    columns : int
        The number of values that have a cotangent in the gradient.
    inputs : mapping of str to int
        The number of blocks of each input besides X; 0 for a single value.
    names : mapping of str to str
        The call's own names for W, R and v.
    """

    state_options = ()  # an input may have the name of an option

    def __init__(
        self,
        asked: Asked,
        blocks: Mapping[str, int],
        over_time: Sequence[str] = (),
        columns: int = 0,
        inputs: Mapping[str, int] = MappingProxyType({}),
        heads: int = 1,
        names: Mapping[str, str] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        self._counts, self._optional, self._column_count = blocks, over_time, columns
        self.heads, self._input_blocks, self._names = heads, inputs, names
        attributes = ("clip", "activations", "activation_alpha", "activation_beta")
        plain: dict[str, Any] = {**dict.fromkeys(attributes), "defaults": ()}
        all_arrays = {**dict.fromkeys(PARAMETERS), **asked.arrays}  # a cell may have no such parameters
        super().__init__(
            asked._replace(arrays=all_arrays), blocks["W"], **(plain | options), cell_names=names
        )
        self.order = tuple(range(self.gates))  # a cell's blocks keep their order
        self.vector_blocks = blocks["v"]

    @property
    def recurrent_blocks(self) -> int:
        """The number of R's blocks."""
        return self._counts["R"]

    def _columns(self) -> int:
        return self._column_count

    def _needed(self) -> Sequence[str]:
        return ("X", *(name for name in PARAMETERS if self._counts[name]), *self._input_blocks)

    def _inputs(self) -> Collection[str]:
        return ("X", *self._input_blocks)

    def _check_shapes(
        self, direction: str, floats: dict[str, Any], widths: Mapping[str, int], states: Sequence[str]
    ) -> None:
        operator, blocks, X, W = self.operator, self._counts, floats["X"], floats["W"]
        check_rank(operator, "X", X, "N, T, I" if self.layout else "T, N, I")
        self.T, self.N = (X.shape[1], X.shape[0]) if self.layout else X.shape[:2]
        self.I = X.shape[2]
        kind = next(name for name in PARAMETERS if blocks[name])
        tail = {"W": ", I", "R": ", H" if self.heads == 1 else f", H/{self.heads}", "v": ""}
        check_rank(operator, kind, floats[kind], f"D, {units(blocks[kind])}{tail[kind]}")
        self.H = self.state_width = floats[kind].shape[1] // blocks[kind]
        self.D = 2 if direction == "bidirectional" else 1
        N, H, D = self.N, self.H, self.D
        if H % self.heads:
            raise ValueError(f"{operator}: H is {H}, expected a multiple of heads = {self.heads}")
        rows = {name: (f"D, {units(count)}", (D, count * H)) for name, count in blocks.items()}
        if blocks["W"]:
            check_shape(operator, "W", W, f"{rows['W'][0]}, I", (*rows["W"][1], self.I))
        if blocks["R"]:
            expected = (*rows["R"][1], H // self.heads)
            check_shape(operator, "R", floats["R"], f"{rows['R'][0]}{tail['R']}", expected)
        self._check_inputs(floats)
        if blocks["v"]:
            check_shape(operator, self._names.get("v", "v"), floats["v"], *rows["v"])
        check_shape(operator, "sample_weight", floats.get("sample_weight"), "N,", (N,))
        self._check_states(floats, {**widths, **dict.fromkeys(self._optional, 1)}, states)

    def _check_inputs(self, floats: Mapping[str, Any]) -> None:
        """Raise ValueError unless each input besides X has the shape (T, N, blocks H), or (T, N, 1)."""
        lead = ("N, T", (self.N, self.T)) if self.layout else ("T, N", (self.T, self.N))
        for name, count in self._input_blocks.items():
            one = (*lead[1], 1)
            if not count and tuple(floats[name].shape) == one:
                continue
            expected = (*lead[1], max(1, count) * self.H)
            other = "" if count else f" or ({lead[0]}, 1) = {one}"
            if tuple(floats[name].shape) != expected:
                raise ValueError(
                    f"{self.operator}: {name} has shape {tuple(floats[name].shape)}, expected "
                    f"({lead[0]}, {units(max(1, count))}) = {expected}{other}"
                )
