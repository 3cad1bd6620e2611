"""A minimal gated unit: a GRU with a single gate that forgets and resets.

Zhou, Wu, Zhang, Zhou, "Minimal gated unit for recurrent neural networks" (2016)::

    f = sigmoid(W_f x + R_f h' + b_f)
    n = tanh(W_n x + R_n (f h') + b_n)
    h = (1 - f) h' + f n
"""

import torch
from beside_a_loop import report

import xpgrad
from xpgrad.cells import sigmoid


def step(xp, x, h, W, R, v):
    f = sigmoid(xp, W.f(x) + R.f(h) + v.f)
    n = xp.tanh(W.n(x) + R.n(f * h) + v.n)
    return h + f * (n - h)


cell = xpgrad.Cell(step, W="f n", R="f n", v="f n", name="minimal_gated_unit")


def loop(X, W, R, v):
    """The same in PyTorch, with the inputs' product before the loop."""
    Z, (R_f, R_n) = torch.nn.functional.linear(X, W, v), R.chunk(2)
    h, states = X.new_zeros(X.shape[1], R.shape[1]), []
    for z in Z:
        z_f, z_n = z.chunk(2, 1)
        f = torch.sigmoid(z_f + h @ R_f.T)
        n = torch.tanh(z_n + (f * h) @ R_n.T)
        h = h + f * (n - h)
        states.append(h)
    return torch.stack(states)


if __name__ == "__main__":
    report(cell, loop)
