"""A GRU with peepholes: its gates see the state directly, as an LSTM's gates see its cell state.

The equations::

z = sigmoid(W_z x + R_z h' + p_z h' + b_z)
r = sigmoid(W_r x + R_r h' + p_r h' + b_r)
n = tanh(W_n x + b_n + r (R_n h' + c_n))
h = (1 - z) n + z h'
"""

import torch
from beside_a_loop import report

import xpgrad
from xpgrad.cells import sigmoid


def step(xp, x, h, W, R, v):
    z = sigmoid(xp, W.z(x) + R.z(h) + v.pz * h + v.z)
    r = sigmoid(xp, W.r(x) + R.r(h) + v.pr * h + v.r)
    n = xp.tanh(W.n(x) + v.n + r * (R.n(h) + v.cn))
    return n + z * (h - n)


cell = xpgrad.Cell(step, W="z r n", R="z r n", v="z r n pz pr cn", name="peephole_gru")


def loop(X, W, R, v):
    """The same in PyTorch, with the inputs' product before the loop, and one product per step."""
    H = R.shape[1]
    Z, (p_z, p_r, c_n) = torch.nn.functional.linear(X, W, v[: 3 * H]), v[3 * H :].chunk(3)
    h, states = X.new_zeros(X.shape[1], H), []
    for x in Z:
        (x_z, x_r, x_n), (h_z, h_r, h_n) = x.chunk(3, 1), (h @ R.T).chunk(3, 1)
        z = torch.sigmoid(x_z + h_z + p_z * h)
        r = torch.sigmoid(x_r + h_r + p_r * h)
        n = torch.tanh(x_n + r * (h_n + c_n))
        h = n + z * (h - n)
        states.append(h)
    return torch.stack(states)


if __name__ == "__main__":
    report(cell, loop)
