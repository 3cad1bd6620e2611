"""Between a step's output and the next step: a projection, zoneout, and a mask before R.

With h' the state before a step and y the step's output::

    h = z h' + (1 - z) S y          zoneout_h = z; S projects; both may be left out
    R multiplies m h'               recurrent_mask = m, the same at every step

Backwards, with dp the cotangent from the product with R::

    dh += m dp + the cotangent of h' without a product
    d(S y) = (1 - z) dh        dy = S^T d(S y)        dS = the sum of d(S y) y^T        dh' = z dh + ...

Every recurrent operator may use it: its stages go around the operator's own stages. Without the options there
are no stages.

References
----------
Sak, Senior and Beaufays, "Long short-term memory recurrent neural network architectures for large scale
acoustic modeling" (2014), for the projection. Krueger et al., "Zoneout: regularizing RNNs by randomly
preserving hidden activations" (2017). Gal and Ghahramani, "A theoretically grounded application of dropout in
recurrent neural networks" (2016), for the mask.
"""

from __future__ import annotations

from typing import Any

from xpgrad._operators.units import UnitArray
from xpgrad._recurrent.checked_call import STATE_OPTIONS
from xpgrad._recurrent.plan import Buffer, stage
from xpgrad._recurrent.timeline import Chunk
from xpgrad.engine import Elementwise, Formula, Operand, Product

ZONEOUT = (
    "Share of the old {} state that each step keeps, {{}}, 0 to 1: random masks of 0 and 1 in training, "
    "their expectation otherwise."
)


def masks(hidden: str = "H") -> dict[str, UnitArray]:
    """The declaration of the masks of a state with this axis."""
    mask = "Multiplies the state before the product with R, {}, the same at every step: recurrent dropout."
    return {
        "recurrent_mask": UnitArray(f"D N {hidden}", f"{mask} The caller scales it.", False),
        "zoneout_h": UnitArray(f"T D N {hidden}", ZONEOUT.format("hidden"), False),
    }


def masked_state(xp: Any, h: Any, mask: Any) -> tuple:
    """The input of R's product."""
    return (h * mask,)


def state_handed_on(xp: Any, new: Any, old: Any, kept: Any) -> tuple:
    """The state from a step's output and the previous state; the share `kept` of the latter stays."""
    if kept is not None:
        new = kept * old + (1 - kept) * new
    return (new,)


def state_handed_on_pullback(
    xp: Any, dy: Any, direct: Any, product: Any, mask: Any, passed: Any, kept: Any
) -> tuple:
    """Cotangents of a step's output, and of the previous state through zoneout.

    dy is the cotangent of the output. From the step after come `direct` without a product, `product` through
    R, and `passed` through zoneout; `passed` includes the cotangent of the final state.
    """
    if mask is not None:
        product = product * mask
    dh = passed + product
    if direct is not None:
        dh = dh + direct
    if dy is not None:
        dh = dh + dy
    if kept is None:
        passed = xp.zeros_like(dh)
    else:
        passed = kept * dh
        dh = (1 - kept) * dh
    return dh, passed


def initial_state_pullback(xp: Any, direct: Any, product: Any, mask: Any, passed: Any) -> tuple:
    """The cotangent of the initial state, from the cotangents of the first step."""
    if mask is not None:
        product = product * mask
    if direct is not None:
        passed = passed + direct
    return (passed + product,)


class _HiddenState:
    """The options' operands in a loop, for both directions of differentiation.

    Methods get the loop: a reference to it would be a circle, which keeps arrays until it is collected.
    """

    def __init__(self, loop: Any) -> None:
        call, direction, wrap = loop.call, loop.direction, loop.engine.wrap
        self._width = call.state_width
        own = dict.fromkeys(STATE_OPTIONS) | {n: call.part(n, direction) for n in call.state_options}
        mask: Any = own["recurrent_mask"]
        self.has_mask, self.has_zoneout = mask is not None, own["zoneout_h"] is not None
        self.is_plain = all(array is None for array in own.values())
        self._S: Any = own["S"]
        mask = None if mask is None else wrap(direction.timeline.sort_each(mask))
        loop.operands["mask"] = Operand(mask, 1, "first")
        loop.operands["kept_h"] = Operand(call.wrapped("zoneout_h", direction) if self.has_zoneout else None)
        loop.operands["none"] = Operand(None)

    def _carried(self, loop: Any, name: str, rows: Any = None) -> None:
        """Memory of the state's width that every step rewrites; zeros by default."""
        rows = loop.timeline.zeros(self._width) if rows is None else rows
        loop.carried(Buffer(name, 1, "first"), rows)

    def _project(self, loop: Any, source: str, weight: Any, target: str) -> Product:
        operands = loop.operands
        return Product(operands[source], weight, operands[target].rows)


class StateForward(_HiddenState):
    """The stages before a step's product and after its formula.

    Their operands are `taken`, the previous state as R multiplies it, and `output`, the place of the output
    of the step's formula.
    """

    def __init__(self, loop: Any) -> None:
        super().__init__(loop)
        call = loop.call
        self._weight = None if self._S is None else call.engine.loop_weight(self._S.T, call.T)
        if self.has_mask:
            self._carried(loop, "taken")
        if self._S is not None:
            self._carried(loop, "projected")
        loop.operands["output"] = loop.operands["after0"]
        if self._S is not None or self.has_zoneout:
            loop.carried(Buffer("output", 1, "first"))

    def into_product(self, loop: Any) -> list:
        """Stages before the products of the previous state."""
        if self.has_mask:
            return [loop.stage(stage(Formula(masked_state), "before0 mask", "taken"))]
        loop.operands["taken"] = loop.operands["before0"]
        return []

    def hand_on(self, loop: Any) -> list:
        """Stages from the step's output to the state."""
        if self._S is None and not self.has_zoneout:
            return []
        made = "output" if self._S is None else "projected"
        old = "before0" if self.has_zoneout else "none"
        last = loop.stage(stage(Formula(state_handed_on), f"{made} {old} kept_h", "after0"))
        return [last] if self._S is None else [self._project(loop, "output", self._weight, "projected"), last]


class StateBackward(_HiddenState):
    """The stages before a step's pullback, and after the first step, for calls with options.

    Their operands are `output`, the cotangent of the step's output, and `back0`, for the product with R.
    """

    def enter(self, loop: Any) -> None:
        """Enter the operands."""
        call = loop.call
        self._carried(loop, "back0")
        self._carried(loop, "passed", call.initial("grad_H_t", loop.direction))
        self._weight = None if self._S is None else call.engine.loop_weight(self._S, call.T)
        loop.carried(Buffer("output", 1, "first"))
        self._direct = "carry0" if "carry0" in loop.operands else "none"

    def stages(self, loop: Any) -> list:
        """Stages from the state's cotangents to the cotangent of the step's output."""
        state = "output" if self._S is None else "projected"
        if self._S is not None:
            loop.put(Buffer("projected", 1, "local"), loop.sums.scratch("projected", self._width))
        inputs = f"given0 {self._direct} back0 mask passed kept_h"
        first = loop.stage(stage(Formula(state_handed_on_pullback), inputs, f"{state} passed"))
        return (
            [first] if self._S is None else [first, self._project(loop, "projected", self._weight, "output")]
        )

    def add_projection(self, loop: Any, chunk: Chunk, made: Any) -> None:
        """Add the chunk's share to the gradient of S, from rows of its steps' outputs."""
        loop.sums.add_weight("S", loop.sums.weighted(chunk, loop.local_rows("projected", chunk)), made)

    def to_initial(self, loop: Any) -> Elementwise:
        """The stage after the first step that completes the initial state's cotangent, in `passed`."""
        inputs = f"{self._direct} back0 mask passed"
        return loop.stage(stage(Formula(initial_state_pullback), inputs, "passed"))

    def masked_before(self, loop: Any, chunk: Chunk, h_rows: Any, h_start: Any) -> Any:
        """For each row of a chunk the masked previous state, which R multiplied; None without a mask."""
        if not self.has_mask:
            return None
        formula = Formula(masked_state)
        rows = loop.sums.scratch("masked", self._width)
        for source, steps in ((h_rows, chunk.later), (h_start, chunk.first)):
            inputs = [Operand(source, 1, "before"), loop.operands["mask"]]
            loop.engine.scan([Elementwise(formula, inputs, [Operand(rows, 1, "local")])], steps)
        return loop.engine.array(rows)[: chunk.rows, :]
