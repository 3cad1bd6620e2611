"""Memory and time of a training step through a stack of layers, by the arrays saved for the gradient."""

from xpgrad_bench.implementations import need
from xpgrad_bench.recurrent import SHAPES


class Stack:
    """Four layers; "torch" are torch's, the others ours with that `save`."""

    params = (
        ["50x32x64x64", "100x64x128x512", "200x128x64x128"],
        ["lstm", "gru"],
        ["torch", "all", "states", "25"],
    )
    param_names = ("T x N x I x H", "operator", "save")

    def setup(self, shape, operator, save):
        torch = need("torch")
        steps, batch, *sizes = SHAPES[shape]
        name = operator.upper()
        if save == "torch":
            self.module = getattr(torch.nn, name)(*sizes, num_layers=4)
        else:
            keep = int(save) if save.isdigit() else save
            self.module = getattr(need("xpgrad_torch"), name)(*sizes, num_layers=4, save=keep)
        self.X = torch.randn(steps, batch, sizes[0])

    def step(self):
        self.module(self.X)[0].sum().backward()

    def time_step(self, shape, operator, save):
        self.step()

    def peakmem_step(self, shape, operator, save):
        self.step()
