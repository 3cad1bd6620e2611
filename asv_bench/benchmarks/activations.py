"""Activations, softmax and losses: ours on NumPy and torch, and PyTorch's own kernels."""

from xpgrad_bench.elementwise import (
    ALONG_AXIS,
    IMAGES,
    LOGITS,
    LOSSES,
    POINTWISE,
    ROWS,
    SHAPES,
    Elementwise,
    Loss,
)
from xpgrad_bench.implementations import make

from . import IMPLEMENTATIONS, OURS, ratio, settle


class PointwiseBackward:
    """Only the gradient, from saved arrays; the peer is PyTorch's backward kernel."""

    params = ([*SHAPES], [*POINTWISE], [*IMPLEMENTATIONS])
    param_names = ("elements", "function", "impl")
    shapes = SHAPES

    def setup(self, shape, function, impl):
        self.run = make(impl, Elementwise(function, self.shapes[shape]))
        self.run.backward()  # compiles
        settle()

    def time_backward(self, shape, function, impl):
        self.run.backward()

    def peakmem_backward(self, shape, function, impl):
        self.run.backward()


class SoftmaxBackward(PointwiseBackward):
    """The same along the last axis."""

    params = ([*ROWS], [*ALONG_AXIS], [*IMPLEMENTATIONS])
    param_names = ("rows x classes", "function", "impl")
    shapes = ROWS


class ActivationStep:
    """A module's forward and backward under autograd."""

    params = ([*SHAPES], [name for name, f in POINTWISE.items() if f.module], ["xpgrad-torch", "torch"])
    param_names = PointwiseBackward.param_names
    shapes = SHAPES
    kind = Elementwise

    def setup(self, shape, function, impl):
        self.run = make(impl, self.kind(function, self.shapes[shape]))
        self.run.step()
        settle()

    def time_step(self, shape, function, impl):
        self.run.step()


class ImagesStep(ActivationStep):
    """The same along the channels of images."""

    params = ([*IMAGES], [*ALONG_AXIS], ["xpgrad-torch", "torch"])
    param_names = SoftmaxBackward.param_names
    shapes = IMAGES

    @staticmethod
    def kind(function, shape):
        """The work."""
        return Elementwise(function, shape, axis=1)


class LossStep(ActivationStep):
    """A loss and the gradient of its logits."""

    params = ([*LOGITS], [*LOSSES], [*IMPLEMENTATIONS])
    param_names = ("samples x classes", "loss", "impl")
    shapes = LOGITS
    kind = Loss

    def peakmem_step(self, shape, function, impl):
        self.run.step()


class BackwardRatio:
    """Median time of ours over the peer's, both timed in turns in one process: below 1 is faster."""

    params = ([*SHAPES], [*POINTWISE], [*OURS])
    param_names = PointwiseBackward.param_names
    unit = "ours / peer"
    shapes = SHAPES

    def setup(self, shape, function, impl):
        work = Elementwise(function, self.shapes[shape])
        self.peer, self.ours = make("torch", work), make(impl, work)

    def track_ratio_backward(self, shape, function, impl):
        return ratio(self.ours.backward, self.peer.backward)


class SoftmaxBackwardRatio(BackwardRatio):
    """The same along the last axis."""

    params = ([*ROWS], [*ALONG_AXIS], [*OURS])
    param_names = SoftmaxBackward.param_names
    shapes = ROWS


class LossRatio:
    """The same for a loss and the gradient of its logits."""

    params = ([*LOGITS], [*LOSSES], [*OURS])
    param_names = LossStep.param_names
    unit = BackwardRatio.unit
    shapes = LOGITS

    def setup(self, shape, function, impl):
        work = Loss(function, self.shapes[shape])
        self.peer, self.ours = make("torch", work), make(impl, work)

    def track_ratio_step(self, shape, function, impl):
        return ratio(self.ours.step, self.peer.step)
