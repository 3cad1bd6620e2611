"""LSTM and GRU: training steps and backward passes, ours on NumPy and torch beside torch's own."""

import functools

from .common import IMPLEMENTATIONS, SHAPES, make, ratio

OURS = [name for name in IMPLEMENTATIONS if name != "torch"]
# Uneven lengths and variants: the shapes where a loop over time in Python is not all that is measured.
FEW = ["50x32x64x64", "50x32x256x256"]
OPERATORS = ["lstm", "gru"]
VARIANTS = ["lstm-peephole", "gru-reset-before"]
make_uneven = functools.partial(make, uneven=True)
NAMES = ("T x N x I x H", "operator", "impl")


class Step:
    """Forward and backward for all gradients."""

    params = ([*SHAPES], OPERATORS, [*IMPLEMENTATIONS])
    param_names = NAMES
    make = staticmethod(make)

    def setup(self, shape, operator, impl):
        self.run = self.make(impl, operator, SHAPES[shape])
        self.run.step()  # compiles, packs, fills the workspaces

    def time_step(self, shape, operator, impl):
        self.run.step()

    def peakmem_step(self, shape, operator, impl):
        self.run.step()


class Backward:
    """The backward alone, on saved arrays."""

    params = Step.params
    param_names = NAMES

    def setup(self, shape, operator, impl):
        self.run = make(impl, operator, SHAPES[shape])
        self.run.backward()

    def time_backward(self, shape, operator, impl):
        self.run.backward()


class Lengths(Step):
    """A step on sequences of uneven length; the peer is torch's module on a packed sequence."""

    params = (FEW, OPERATORS, [*IMPLEMENTATIONS])
    make = staticmethod(make_uneven)


class Variants(Step):
    """A step of what torch has no module for; the peer is a loop over time in torch, as users write it."""

    params = (FEW, VARIANTS, [*IMPLEMENTATIONS])


class Ratio:
    """Median time of ours over the peer's, both timed in turns in one process: below 1 is faster."""

    params = ([*SHAPES], OPERATORS, OURS)
    param_names = NAMES
    unit = "ours / peer"
    make = staticmethod(make)

    def setup(self, shape, operator, impl):
        self.peer = self.make("torch", operator, SHAPES[shape])
        self.ours = self.make(impl, operator, SHAPES[shape])

    def track_step(self, shape, operator, impl):
        return ratio(self.ours.step, self.peer.step)


class BackwardRatio(Ratio):
    """The same for the backward alone."""

    def track_step(self, shape, operator, impl):
        return ratio(self.ours.backward, self.peer.backward)


class LengthsRatio(Ratio):
    """The same for sequences of uneven length."""

    params = (FEW, OPERATORS, OURS)
    make = staticmethod(make_uneven)


class VariantsRatio(Ratio):
    """The same for what torch has no module for."""

    params = (FEW, VARIANTS, OURS)
