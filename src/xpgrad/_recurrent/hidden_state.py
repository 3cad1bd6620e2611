"""Between a step's output and the next step: a projection, zoneout, and a mask before R.

With h' the state before a step and y the step's output::

    h = z h' + (1 - z) S y          zoneout_h = z; S projects; both may be left out
    R multiplies m h'               recurrent_mask = m, the same at every step

Backwards, with dp the cotangent from the product with R::

    dh += m dp + the cotangent of h' without a product
    d(S y) = (1 - z) dh        dy = S^T d(S y)        dS = the sum of d(S y) y^T        dh' = z dh + ...

Every recurrent operator may use it: its stages go around the operator's own. Without any of the options there
is no stage.

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
from xpgrad._recurrent.call import RecurrentCall
from xpgrad._recurrent.checked_call import STATE_OPTIONS, Direction
from xpgrad._recurrent.gradient_sums import GradientSums
from xpgrad._recurrent.timeline import Chunk
from xpgrad.engine import Elementwise, Formula, Operand, Product


def masks(hidden: str = "H") -> dict[str, UnitArray]:
    """What a declaration says of the masks, for a state with this axis."""
    return {
        "recurrent_mask": UnitArray(
            f"D N {hidden}", "Multiplies the hidden state on its way into R, {}.", False
        ),
        "zoneout_h": UnitArray(
            f"T D N {hidden}", "Share of the old hidden state that stays at each step, {}.", False
        ),
    }


def masked_state(xp: Any, h: Any, mask: Any) -> tuple:
    """The input of R's product."""
    return (h * mask,)


def state_handed_on(xp: Any, new: Any, old: Any, kept: Any) -> tuple:
    """The state from a step's output and the previous state, of which the share `kept` stays."""
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
    """The cotangent of the initial state, from those of the first step."""
    if mask is not None:
        product = product * mask
    if direct is not None:
        passed = passed + direct
    return (passed + product,)


def _mask(call: RecurrentCall, direction: Direction) -> Operand:
    mask = call.state_option("recurrent_mask", direction)
    return Operand(None if mask is None else call.engine.wrap(direction.timeline.sort_each(mask)), 1, "first")


def _kept(call: RecurrentCall, direction: Direction) -> Operand:
    has_zoneout = call.state_option("zoneout_h", direction) is not None
    return Operand(call.wrapped("zoneout_h", direction) if has_zoneout else None)


class StateForward:
    """The stages before a step's product and after its formula.

    Parameters
    ----------
    call, direction
        The call, and one direction of it.
    h_rows : row buffer
        Where the states go.

    Attributes
    ----------
    output : Operand
        Where the step's formula puts its output.
    mask : Operand
        The mask before R; it has no rows if there is none.
    """

    def __init__(self, call: RecurrentCall, direction: Direction, h_rows: Any) -> None:
        engine, zeros = call.engine, direction.timeline.zeros
        self._h_rows = h_rows
        self.mask, self._kept = _mask(call, direction), _kept(call, direction)
        self._masked = None if self.mask.rows is None else engine.carry(zeros(call.state_width))
        S = call.state_option("S", direction)
        self._projection: Any = None
        if S is not None:
            self._projection = engine.loop_weight(S.T, call.T), engine.carry(zeros(call.state_width))
        self._is_plain = S is None and self._kept.rows is None
        self.output = Operand(h_rows) if self._is_plain else Operand(engine.carry(zeros(call.H)), 1, "first")

    def into_product(self, h_prev: Operand) -> tuple[list, Operand]:
        """Stages, and the rows that R then multiplies, for the rows of the previous state."""
        if self._masked is None:
            return [], h_prev
        masked = Operand(self._masked, 1, "first")
        return [Elementwise(Formula(masked_state), [h_prev, self.mask], [masked])], masked

    def hand_on(self, h_prev: Operand) -> list:
        """Stages from the step's output to the state."""
        if self._is_plain:
            return []
        stages: list = []
        made = self.output
        if self._projection is not None:
            S_T, projected = self._projection
            stages.append(Product(made, S_T, projected))
            made = Operand(projected, 1, "first")
        old = Operand(None) if self._kept.rows is None else h_prev
        formula = Formula(state_handed_on)
        return [*stages, Elementwise(formula, [made, old, self._kept], [Operand(self._h_rows)])]


class StateBackward:
    """Backwards: stages before a step's pullback, and after the first step.

    Parameters
    ----------
    call, direction
        The call, and one direction of it.
    sums : GradientSums
        Takes the projection's gradient.

    Attributes
    ----------
    output : Operand
        Cotangent of the step's output.
    product : row buffer
        Where the product of the cotangents with R goes.
    mask : Operand
        The mask before R; it has no rows if there is none.
    """

    def __init__(self, call: RecurrentCall, direction: Direction, sums: GradientSums) -> None:
        engine, zeros, width = call.engine, direction.timeline.zeros, call.state_width
        self._call, self._sums = call, sums
        self.mask, self._kept = _mask(call, direction), _kept(call, direction)
        self._dy = Operand(call.wrapped("grad_H_all", direction))
        self.product = engine.carry(zeros(width))
        self._passed = engine.carry(call.initial("grad_H_t", direction))
        S = call.state_option("S", direction)
        self._S = None if S is None else engine.loop_weight(S, call.T)
        self.output = Operand(engine.carry(zeros(call.H)), 1, "first")

    def stages(self, direct: Operand) -> list:
        """Stages from the cotangents of the state to that of the step's output."""
        passed, state = Operand(self._passed, 1, "first"), self.output
        if self._S is not None:
            state = Operand(self._projected, 1, "local")
        inputs = [self._dy, direct, Operand(self.product, 1, "first"), self.mask, passed, self._kept]
        stages: list = [Elementwise(Formula(state_handed_on_pullback), inputs, [state, passed])]
        if self._S is not None:
            stages.append(Product(state, self._S, self.output.rows))
        return stages

    @property
    def _projected(self) -> Any:
        """Rows of the chunk's cotangents of S y."""
        return self._sums.scratch("projected", self._call.state_width)

    def add_projection(self, chunk: Chunk, made: Any) -> None:
        """Add the chunk's share to the gradient of S, from rows of its steps' outputs."""
        rows = self._call.engine.array(self._projected)[: chunk.rows, :]
        self._sums.add_weight("S", self._sums.weighted(chunk, rows), made)

    def to_initial(self, direct: Operand) -> Elementwise:
        """The stage after the first step that completes the initial state's cotangent."""
        passed = Operand(self._passed, 1, "first")
        inputs = [direct, Operand(self.product, 1, "first"), self.mask, passed]
        return Elementwise(Formula(initial_state_pullback), inputs, [passed])

    def initial_gradient(self) -> Any:
        """The initial state's cotangent, after the last chunk."""
        return self._call.engine.array(self._passed)

    def masked_before(self, chunk: Chunk, h_rows: Any, h_start: Any) -> Any:
        """For each row of a chunk the masked previous state, which R multiplied; None without a mask."""
        if self.mask.rows is None:
            return None
        engine = self._call.engine
        rows = self._sums.scratch("masked", self._call.state_width)
        for source, steps in ((h_rows, chunk.later), (h_start, chunk.first)):
            inputs = [Operand(source, 1, "before"), self.mask]
            engine.scan([Elementwise(Formula(masked_state), inputs, [Operand(rows, 1, "local")])], steps)
        return engine.array(rows)[: chunk.rows, :]


def state_backward(call: RecurrentCall, direction: Direction, sums: GradientSums) -> StateBackward | None:
    """The stages for a call with one of the options; None without."""
    has_options = any(call.state_option(name, direction) is not None for name in STATE_OPTIONS)
    return StateBackward(call, direction, sums) if has_options else None
