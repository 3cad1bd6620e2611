"""A simple recurrent unit (SRU): no product in the loop, only elementwise steps.

Lei, Zhang, Wang, Dai, Artzi, "Simple recurrent units for highly parallelizable recurrence" (2018)::

    f = sigmoid(W_f x + v_f c' + b_f)        c = f c' + (1 - f) (W_c x)
    r = sigmoid(W_r x + v_r c' + b_r)        h = r c + (1 - r) (W_x x)

The output h is not an input of the next step: a state that the step does not read is an output. W_x allows
inputs of another size than the state.
"""

import torch
from beside_a_loop import report

import xpgrad
from xpgrad.cells import sigmoid


def step(xp, x, h, c, W, v):
    f = sigmoid(xp, W.f(x) + v.pf * c + v.f)
    r = sigmoid(xp, W.r(x) + v.pr * c + v.r)
    c = f * c + (1 - f) * W.c(x)
    return r * c + (1 - r) * W.x(x), c


cell = xpgrad.Cell(step, W="f r c x", v="f r pf pr", name="simple_recurrent_unit")


def loop(X, W, v):
    """The same in PyTorch, with the inputs' product before the loop."""
    b, p_f, p_r = v.split([v.shape[0] // 2, v.shape[0] // 4, v.shape[0] // 4])
    Z_f, Z_r, Z_c, Z_x = (X @ W.T).chunk(4, 2)
    (b_f, b_r), c, outputs = b.chunk(2), torch.zeros_like(Z_c[0]), []
    for z_f, z_r, z_c, z_x in zip(Z_f + b_f, Z_r + b_r, Z_c, Z_x, strict=True):
        f, r = torch.sigmoid(z_f + p_f * c), torch.sigmoid(z_r + p_r * c)
        c = f * c + (1 - f) * z_c
        outputs.append(r * c + (1 - r) * z_x)
    return torch.stack(outputs)


if __name__ == "__main__":
    report(cell, loop)
