"""Convolutions: training steps and backward passes, ours on NumPy and torch, torch's and ORT's own."""

from xpgrad_bench.convolutions import CONVOLUTIONS, LARGE_KERNELS, TRANSPOSED
from xpgrad_bench.implementations import make

from . import IMPLEMENTATIONS, OURS, ratio, settle

WORKS = CONVOLUTIONS | LARGE_KERNELS
NAMES = ("N x C x size, O of kernel", "impl")


class Convolutions:
    """Forward and backward for all gradients."""

    params = ([*WORKS], [*IMPLEMENTATIONS])
    param_names = NAMES
    works = WORKS

    def setup(self, convolution, impl):
        self.run = make(impl, self.works[convolution])
        self.run.step()  # compiles
        settle()

    def time_step(self, convolution, impl):
        self.run.step()

    def peakmem_step(self, convolution, impl):
        self.run.step()


class TransposedConvolutions(Convolutions):
    """The same for transposed convolutions."""

    params = ([*TRANSPOSED], [*IMPLEMENTATIONS])
    works = TRANSPOSED


class ConvolutionBackward:
    """Only the backward, as ONNX Runtime has nothing else."""

    params = ([*WORKS], [*IMPLEMENTATIONS, "ort"])
    param_names = NAMES

    def setup(self, convolution, impl):
        self.run = make(impl, WORKS[convolution])
        self.run.backward()
        settle()

    def time_backward(self, convolution, impl):
        self.run.backward()

    def peakmem_backward(self, convolution, impl):
        self.run.backward()


class ConvolutionRatio:
    """Median time of ours over torch's, both timed in turns in one process: below 1 is faster."""

    params = ([*WORKS], [*OURS])
    param_names = NAMES
    unit = "ours / peer"
    works = WORKS

    def setup(self, convolution, impl):
        work = self.works[convolution]
        self.peer, self.ours = make("torch", work), make(impl, work)

    def track_ratio_step(self, convolution, impl):
        return ratio(self.ours.step, self.peer.step)


class TransposedRatio(ConvolutionRatio):
    """The same for transposed convolutions."""

    params = ([*TRANSPOSED], [*OURS])
    works = TRANSPOSED


class ConvGradRatio:
    """Median time of ours over that of ONNX Runtime's ConvGrad."""

    params = ([*WORKS], [*OURS])
    param_names = NAMES
    unit = "ours / peer"

    def setup(self, convolution, impl):
        work = WORKS[convolution]
        self.peer, self.ours = make("ort", work), make(impl, work)

    def track_ratio_backward(self, convolution, impl):
        return ratio(self.ours.backward, self.peer.backward)
