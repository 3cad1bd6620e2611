"""
A recurrent cell of your own, compiled
======================================

A paper has a new gate, and you want to try it: on sequences of different lengths, and fast enough to train.
You write its step as in the paper. :class:`xpgrad.Cell` makes the forward and the gradient from it.

Here it is a leaky gate: a state decays at a learned rate and takes in a candidate when a gate opens. The task
is to remember the first of many numbers.
"""

import matplotlib.pyplot as plt
import torch

import xpgrad
from xpgrad.cells import sigmoid
from xpgrad_torch import CellLayer

# %%
# The step. ``W.u(x)`` is a block of the input weights times the input, ``R.u(h)`` one of the recurrence
# weights times the state, ``v.u`` a vector of parameters.


def leaky(xp, x, h, W, R, v):
    u = sigmoid(xp, W.u(x) + R.u(h) + v.u)  # opens for values to keep
    n = xp.tanh(W.n(x) + R.n(h) + v.n)
    kept = sigmoid(xp, v.leak)
    return kept * (1 - u) * h + u * n


cell = xpgrad.Cell(leaky, W="u n", R="u n", v="u n leak")
cell.check()  # against the formula above, and against central differences

# %%
# The result of reverse mode: the pullback of one step. It reads gates that the forward saved.

print(cell.text[cell.text.index("def leaky_pullback_0") :])

# %%
# A layer like any other in PyTorch. The sequences have 5 to 30 steps.

torch.manual_seed(0)
layer, readout = CellLayer(cell, 2, 24), torch.nn.Linear(24, 1)
with torch.no_grad():
    layer.v[0, 48:] = 4.0  # leaks little at first
optimizer = torch.optim.Adam([*layer.parameters(), *readout.parameters()], lr=1e-2)
losses = []
for _ in range(300):
    X = torch.zeros(30, 64, 2)
    X[..., 0] = torch.rand(30, 64) * 2 - 1
    X[0, :, 1] = 1  # says which number counts
    lengths = torch.randint(5, 31, (64,))
    _, h_n = layer(X, lengths=lengths)
    loss = torch.nn.functional.mse_loss(readout(h_n[0])[:, 0], X[0, :, 0])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"mean squared error {losses[0]:.3f} before, {losses[-1]:.4f} after")

# %%
# The result: the number stays in the state for the whole sequence.

figure, axes = plt.subplots(figsize=(6, 3))
axes.semilogy(losses)
axes.set_xlabel("step")
axes.set_ylabel("mean squared error")
figure.tight_layout()
