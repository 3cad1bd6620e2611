"""LSTM, GRU and RNN: training steps and backward passes, ours on NumPy and torch, and torch's own."""

from xpgrad_bench.implementations import make
from xpgrad_bench.recurrent import SHAPES, Recurrent

from . import IMPLEMENTATIONS, OURS, ratio, settle

# Uneven lengths and variants: shapes at which a Python loop over time does not dominate.
FEW = ["50x32x64x64", "50x32x256x256"]
OPERATORS = ["lstm", "gru", "rnn"]
VARIANTS = ["lstm-peephole", "gru-reset-before"]
CELLS = ["lstm-cell", "gru-cell"]
NAMES = ("T x N x I x H", "operator", "impl")


def even(operator, shape):
    return Recurrent(operator, SHAPES[shape])


def uneven(operator, shape):
    """Lengths from a fifth of T to T."""
    T, *sizes = SHAPES[shape]
    return Recurrent(operator, (T, *sizes), (max(1, T // 5), T))


def double(operator, shape):
    return Recurrent(operator, SHAPES[shape], dtype="float64")


class Step:
    """Forward and backward for all gradients."""

    params = ([*SHAPES], OPERATORS, [*IMPLEMENTATIONS])
    param_names = NAMES
    work = staticmethod(even)

    def setup(self, shape, operator, impl):
        self.run = make(impl, self.work(operator, shape))
        self.run.step()  # compiles, packs, fills the workspaces
        settle()

    def time_step(self, shape, operator, impl):
        self.run.step()

    def peakmem_step(self, shape, operator, impl):
        self.run.step()


class Backward:
    """Only the backward, on saved arrays."""

    params = ([*SHAPES], OPERATORS, [*IMPLEMENTATIONS, "ort"])
    param_names = NAMES

    def setup(self, shape, operator, impl):
        self.run = make(impl, even(operator, shape))
        self.run.backward()
        settle()

    def time_backward(self, shape, operator, impl):
        self.run.backward()


class Lengths(Step):
    """A step on sequences of uneven length; the peer is torch's module on a packed sequence."""

    params = (FEW, OPERATORS, [*IMPLEMENTATIONS])
    work = staticmethod(uneven)


class Double(Step):
    """A step in float64."""

    params = (FEW, OPERATORS, [*IMPLEMENTATIONS])
    work = staticmethod(double)


class Variants(Step):
    """A step of variants without a torch module; the peer is a loop over time in torch, as users write it."""

    params = (FEW, VARIANTS, [*IMPLEMENTATIONS])


class Cells(Step):
    """Single steps in a user's loop."""

    params = (FEW, CELLS, ["xpgrad-torch", "torch"])


class Ratio:
    """Median time of ours over the peer's, both timed in turns in one process: below 1 is faster."""

    params = ([*SHAPES], OPERATORS, [*OURS])
    param_names = NAMES
    unit = "ours / peer"
    work = staticmethod(even)

    def setup(self, shape, operator, impl):
        work = self.work(operator, shape)
        self.peer, self.ours = make("torch", work), make(impl, work)

    def track_ratio_step(self, shape, operator, impl):
        return ratio(self.ours.step, self.peer.step)


class BackwardRatio(Ratio):
    """The same for the backward only."""

    def track_ratio_step(self, shape, operator, impl):
        return ratio(self.ours.backward, self.peer.backward)


class LengthsRatio(Ratio):
    """The same for sequences of uneven length."""

    params = (FEW, OPERATORS, [*OURS])
    work = staticmethod(uneven)


class DoubleRatio(Ratio):
    """The same in float64."""

    params = (FEW, OPERATORS, [*OURS])
    work = staticmethod(double)


class VariantsRatio(Ratio):
    """The same for variants without a torch module."""

    params = (FEW, VARIANTS, [*OURS])


class CellsRatio(Ratio):
    """The same for single steps in a loop."""

    params = (FEW, CELLS, ["xpgrad-torch"])


class InsideJax:
    """A step inside ``jax.jit``: our programs, and a ``lax.scan``."""

    params = ([*SHAPES], ["lstm", "gru"], ["xpgrad-jax", "jax"])
    param_names = NAMES
    work = staticmethod(even)
    setup, time_step = Step.setup, Step.time_step
