"""Convolutions: training steps and backward passes, ours on NumPy and torch beside torch's and ORT's own."""

import functools

from .common import ratio
from .convolution_runs import BACKWARDS, CONVOLUTIONS, STEPS, TRANSPOSED, make

make_transposed = functools.partial(make, transposed=True)
NAMES = ("N x C x size, O of kernel", "impl")
OURS = [name for name in STEPS if name.startswith("xpgrad")]


class Convolutions:
    """Forward and backward for all gradients."""

    params = ([*CONVOLUTIONS], [*STEPS])
    param_names = NAMES
    make = staticmethod(make)

    def setup(self, convolution, impl):
        self.run = self.make(impl, convolution)
        self.run.step()  # compiles

    def time_step(self, convolution, impl):
        self.run.step()

    def peakmem_step(self, convolution, impl):
        self.run.step()


class TransposedConvolutions(Convolutions):
    """The same for transposed convolutions."""

    params = ([*TRANSPOSED], [*STEPS])
    make = staticmethod(make_transposed)


class ConvolutionBackward:
    """The backward alone; ONNX Runtime has only that."""

    params = ([*CONVOLUTIONS], [*BACKWARDS])
    param_names = NAMES

    def setup(self, convolution, impl):
        self.run = make(impl, convolution)
        self.run.backward()

    def time_backward(self, convolution, impl):
        self.run.backward()

    def peakmem_backward(self, convolution, impl):
        self.run.backward()


class ConvolutionRatio:
    """Median time of ours over torch's, both timed in turns in one process: below 1 is faster."""

    params = ([*CONVOLUTIONS], OURS)
    param_names = NAMES
    unit = "ours / peer"
    make = staticmethod(make)

    def setup(self, convolution, impl):
        self.peer = self.make("torch", convolution)
        self.ours = self.make(impl, convolution)

    def track_step(self, convolution, impl):
        return ratio(self.ours.step, self.peer.step)


class TransposedRatio(ConvolutionRatio):
    """The same for transposed convolutions."""

    params = ([*TRANSPOSED], OURS)
    make = staticmethod(make_transposed)


class ConvGradRatio:
    """Median time of ours over that of ONNX Runtime's ConvGrad."""

    params = ([*CONVOLUTIONS], OURS)
    param_names = NAMES
    unit = "ours / peer"

    def setup(self, convolution, impl):
        self.peer = make("ort", convolution)
        self.ours = make(impl, convolution)

    def track_backward(self, convolution, impl):
        return ratio(self.ours.backward, self.peer.backward)
