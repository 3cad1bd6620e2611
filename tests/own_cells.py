"""Cells for tests: of each kind that a step can be, the smallest."""

from __future__ import annotations

from typing import Any

from xpgrad import Cell
from xpgrad.cells import activation, layer_norm, mean, sigmoid, with_pullback


def minimal_gated_unit(xp: Any, x: Any, h: Any, W: Any, R: Any, v: Any) -> Any:
    """A product of what a gate let through: two stages. Zhou and others (2016)."""
    f = sigmoid(xp, W.f(x) + R.f(h) + v.f)
    n = xp.tanh(W.n(x) + R.n(f * h) + v.n)
    return h + f * (n - h)


def simple_recurrent_unit(xp: Any, x: Any, h: Any, c: Any, W: Any, v: Any) -> Any:
    """No recurrent product, and an output that the next step does not read."""
    f = sigmoid(xp, W.f(x) + v.pf * c + v.f)
    r = sigmoid(xp, W.r(x) + v.pr * c + v.r)
    c = f * c + (1 - f) * W.c(x)
    return r * c + (1 - r) * W.x(x), c


def peephole_lstm(xp: Any, x: Any, h: Any, c: Any, W: Any, R: Any, v: Any) -> Any:
    """Two states, cotangents of both over time, a vector that multiplies the new state."""
    i = sigmoid(xp, W.i(x) + R.i(h) + v.i + v.pi * c)
    f = sigmoid(xp, W.f(x) + R.f(h) + v.f + v.pf * c)
    c = f * c + i * xp.tanh(W.c(x) + R.c(h) + v.c)
    o = sigmoid(xp, W.o(x) + R.o(h) + v.o + v.po * c)
    return o * xp.tanh(c), c


def gated_recurrent_unit(xp: Any, x: Any, h: Any, W: Any, R: Any, v: Any) -> Any:
    """The reset behind the product: its cotangent is not the input's. R's blocks are in another order."""
    z = sigmoid(xp, W.z(x) + R.z(h) + v.z)
    r = sigmoid(xp, W.r(x) + R.r(h) + v.r)
    n = xp.tanh(W.n(x) + v.n + r * (R.n(h) + v.m))
    return n + z * (h - n)


def two_products(xp: Any, x: Any, h: Any, W: Any, R: Any) -> Any:
    """Products in a row: three stages, with a value of the first one that the last one needs."""
    a = xp.tanh(W.a(x) + R.a(h))
    b = xp.exp(-(R.b(a * h) ** 2))
    return xp.tanh(R.c(b - a) + a * b)


def centered(xp: Any, x: Any, h: Any, W: Any, R: Any, v: Any) -> Any:
    """Row means of two levels, and numbers of rows among values."""
    z = W.z(x) + R.z(h)
    d = z - mean(xp, z)
    return xp.tanh(v.scale * d / xp.sqrt(mean(xp, d * d) + 0.1) + v.shift)


def all_functions(xp: Any, x: Any, h: Any, c: Any, W: Any, R: Any, v: Any) -> tuple:
    """Every function that a step may call."""
    a = xp.exp(-abs(W.a(x))) + xp.log1p(xp.square(R.a(h))) - xp.expm1(-xp.abs(c)) / 2
    b = xp.log(a * a + 1.5) * xp.minimum(a, xp.sqrt(1 + c * c)) + xp.maximum(h, v.b)
    low = (b > -4) & (b < 3) | (c >= 9)
    return xp.tanh(xp.where(low, b, 0.3 * c) / 2), softsign(xp, +c - 0.25 * b) * (2 / (1 + a**2)) ** 0.5


def _scaled_tanh_pullback(xp: Any, da: Any, db: Any, x: Any, y: Any, a: Any, b: Any) -> tuple:
    return y * (1 - b * b) * da + (1 - b * b) * db, b * da


@with_pullback(_scaled_tanh_pullback)
def _scaled_tanh(xp: Any, x: Any, y: Any) -> tuple:
    """Two results of two operands."""
    b = xp.tanh(x)
    return y * b, b


def own_pullback(xp: Any, x: Any, h: Any, W: Any, R: Any) -> Any:
    """A function whose pullback is written, of two results."""
    a, b = _scaled_tanh(xp, W.z(x) + R.z(h), W.y(x))
    return a - 0.5 * b * h


def normalized(xp: Any, x: Any, h: Any, c: Any, W: Any, R: Any, v: Any) -> tuple[Any, Any]:
    """Two blocks normalized together, and the state on its own: means of means."""
    a, b = layer_norm(xp, [W.a(x) + R.a(h), W.b(x) + R.b(h)], 1e-3)
    c = sigmoid(xp, v.a * a) * c + xp.tanh(b + v.b)
    (n,) = layer_norm(xp, [c], 1e-3)
    return xp.tanh(v.c * n), c


softsign = activation("Softsign")
CELLS = {
    "minimal gated unit": Cell(minimal_gated_unit, W="f n", R="f n", v="f n"),
    "simple recurrent unit": Cell(simple_recurrent_unit, W="f r c x", v="f r pf pr"),
    "peephole LSTM": Cell(peephole_lstm, W="i o f c", R="i o f c", v="i o f c pi po pf"),
    "GRU": Cell(gated_recurrent_unit, W="z r n", R="n z r", v="z r n m"),
    "two products": Cell(two_products, W="a", R="a b c"),
    "centered": Cell(centered, W="z", R="z", v="scale shift"),
    "normalized": Cell(normalized, W="a b", R="a b", v="a b c"),
    "all functions": Cell(all_functions, W="a", R="a", v="b"),
    "own pullback": Cell(own_pullback, W="z y", R="z"),
}


# --- sums of parameters, and states that are values with another use ------------------------------------


def two_biases(xp: Any, x: Any, h: Any, W: Any, R: Any, v: Any) -> Any:
    """Vectors of one sum have one cotangent; those of two sums stand between one another."""
    r = sigmoid(xp, W.r(x) + v.rw + R.r(h) + v.rr)
    return xp.tanh(W.n(x) + v.nw + r * (R.n(h) + v.nr))


def sum_of_vectors(xp: Any, x: Any, h: Any, W: Any, R: Any, v: Any) -> Any:
    """A vector added twice, a difference, a product, and three of them in a sum."""
    z = W.a(x) + R.a(h) + (v.a + v.a) + (v.b - v.c)
    return xp.tanh(z + v.a * v.b) + (v.d + v.e + v.f)


def repeated_blocks(xp: Any, x: Any, h: Any, W: Any, R: Any) -> Any:
    """Blocks of W and R that are added to one another, and twice."""
    return xp.tanh(W.a(x) + W.a(x) + W.b(x) + R.a(h) + R.b(h) + R.a(h)) + h + h


def block_as_state(xp: Any, x: Any, h: Any, w: Any, W: Any, R: Any) -> tuple:
    """A state that is a block of the input, and goes into a product."""
    new = W.a(x)
    return xp.tanh(R.a(new)) + 0.5 * h * w, new


def product_as_state(xp: Any, x: Any, h: Any, c: Any, W: Any, R: Any) -> tuple:
    """A state that is a product of the step."""
    new = R.a(h)
    return xp.tanh(R.b(new)) + W.a(x) + c, new


def crossed_states(xp: Any, x: Any, h: Any, c: Any, W: Any, R: Any) -> tuple:
    """Each state goes on to the other."""
    return c + W.a(x), h * xp.tanh(R.a(c))


def shift_register(xp: Any, x: Any, h: Any, c: Any, e: Any, W: Any, R: Any) -> tuple:
    """States that are an old one as it is."""
    return c, e, xp.tanh(W.a(x) + R.a(h))


def kept_state(xp: Any, x: Any, h: Any, c: Any, W: Any, R: Any) -> tuple:
    """A state that never changes."""
    return xp.tanh(W.a(x) + R.a(h) + c), c


def one_for_two_states(xp: Any, x: Any, h: Any, c: Any, W: Any, R: Any) -> tuple:
    """One value that is two states."""
    new = xp.tanh(W.a(x) + R.a(h)) + c
    return new, new


SHARING = {
    "two biases": Cell(two_biases, W="r n", R="r n", v="rw nw rr nr"),
    "sum of vectors": Cell(sum_of_vectors, W="a", R="a", v="a b c d e f"),
    "repeated blocks": Cell(repeated_blocks, W="a b", R="a b"),
    "block as state": Cell(block_as_state, W="a", R="a"),
    "product as state": Cell(product_as_state, W="a", R="a b"),
    "crossed states": Cell(crossed_states, W="a", R="a"),
    "shift register": Cell(shift_register, W="a", R="a"),
    "kept state": Cell(kept_state, W="a", R="a"),
    "one for two states": Cell(one_for_two_states, W="a", R="a"),
}
