"""LSTM: training steps and backward passes, on NumPy arrays, on torch tensors, and torch.nn.LSTM."""

from .common import IMPLEMENTATIONS, SHAPES, make, make_lengths, make_peephole, ratio

OURS = [name for name in IMPLEMENTATIONS if name != "torch"]
# Uneven lengths and peepholes: the shapes where a loop over time in Python is not all that is measured.
FEW = ["50x32x64x64", "50x32x256x256"]


class Step:
    """Forward and backward for all gradients."""

    params = ([*SHAPES], [*IMPLEMENTATIONS])
    param_names = ("T x N x I x H", "impl")
    make = staticmethod(make)

    def setup(self, shape, impl):
        self.run = self.make(impl, SHAPES[shape])
        self.run.step()  # compiles, packs, fills the workspaces

    def time_step(self, shape, impl):
        self.run.step()

    def peakmem_step(self, shape, impl):
        self.run.step()


class Backward:
    """The backward alone, on saved arrays."""

    params = ([*SHAPES], [*IMPLEMENTATIONS])
    param_names = ("T x N x I x H", "impl")

    def setup(self, shape, impl):
        self.run = make(impl, SHAPES[shape])
        self.run.backward()

    def time_backward(self, shape, impl):
        self.run.backward()


class Lengths(Step):
    """A step on sequences of uneven length; the peer is torch.nn.LSTM on a packed sequence."""

    params = (FEW, [*IMPLEMENTATIONS])
    make = staticmethod(make_lengths)


class Peephole(Step):
    """A step with peepholes; the peer is a loop over time in torch, as users write it."""

    params = (FEW, [*IMPLEMENTATIONS])
    make = staticmethod(make_peephole)


class Ratio:
    """Median time of ours over the peer's, both timed in turns in one process: below 1 is faster."""

    params = ([*SHAPES], OURS)
    param_names = ("T x N x I x H", "impl")
    unit = "ours / peer"
    make = staticmethod(make)

    def setup(self, shape, impl):
        self.peer = self.make("torch", SHAPES[shape])
        self.ours = self.make(impl, SHAPES[shape])

    def track_step(self, shape, impl):
        return ratio(self.ours.step, self.peer.step)


class BackwardRatio(Ratio):
    """The same for the backward alone."""

    def track_step(self, shape, impl):
        return ratio(self.ours.backward, self.peer.backward)


class LengthsRatio(Ratio):
    """The same for sequences of uneven length."""

    params = (FEW, OURS)
    make = staticmethod(make_lengths)


class PeepholeRatio(Ratio):
    """The same with peepholes."""

    params = (FEW, OURS)
    make = staticmethod(make_peephole)
