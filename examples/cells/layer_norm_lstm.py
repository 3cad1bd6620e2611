"""An LSTM with layer normalization, of both products and of the cell state.

Ba, Kiros, Hinton, "Layer normalization" (2016), in the form of PyTorch's fastrnns benchmark::

    z = LN(W x; gamma_0, beta_0) + LN(R h'; gamma_1, beta_1) + b        over all four gates together
    c = sigmoid(z_f) c' + sigmoid(z_i) tanh(z_c)
    h = sigmoid(z_o) tanh(LN(c; gamma_c, beta_c))

The shifts and the bias are one vector here, because they are added.
"""

import torch
from beside_a_loop import report
from torch.nn.functional import layer_norm as torch_layer_norm

import xpgrad
from xpgrad.cells import layer_norm, sigmoid


def step(xp, x, h, c, W, R, v):
    x_i, x_o, x_f, x_c = layer_norm(xp, [W.i(x), W.o(x), W.f(x), W.c(x)])
    h_i, h_o, h_f, h_c = layer_norm(xp, [R.i(h), R.o(h), R.f(h), R.c(h)])
    i = sigmoid(xp, v.xi * x_i + v.hi * h_i + v.i)
    o = sigmoid(xp, v.xo * x_o + v.ho * h_o + v.o)
    f = sigmoid(xp, v.xf * x_f + v.hf * h_f + v.f)
    c = f * c + i * xp.tanh(v.xc * x_c + v.hc * h_c + v.c)
    (normal,) = layer_norm(xp, [c])
    return o * xp.tanh(v.gamma * normal + v.beta), c


VECTORS = "xi xo xf xc hi ho hf hc i o f c gamma beta"
cell = xpgrad.Cell(step, W="i o f c", R="i o f c", v=VECTORS, name="layer_norm_lstm")


def loop(X, W, R, v):
    """The same in PyTorch, with the inputs' product and its normalization before the loop."""
    H = R.shape[1]
    x_scale, h_scale, shift, gamma, beta = v.split([4 * H, 4 * H, 4 * H, H, H])
    Z = torch_layer_norm(X @ W.T, (4 * H,), x_scale, shift)
    h, c, outputs = X.new_zeros(X.shape[1], H), X.new_zeros(X.shape[1], H), []
    for z in Z:
        i, o, f, g = (z + torch_layer_norm(h @ R.T, (4 * H,), h_scale)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(torch_layer_norm(c, (H,), gamma, beta))
        outputs.append(h)
    return torch.stack(outputs)


if __name__ == "__main__":
    report(cell, loop)
