"""
Second derivatives: how sharp is the minimum?
=============================================

The product of the Hessian with a vector is the derivative of a gradient: ``create_graph=True`` keeps the
graph for it. A few such products give the largest curvature of the loss by power iteration, without ever
forming the Hessian.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import xpgrad_torch

torch.manual_seed(0)
rnn = xpgrad_torch.LSTM(2, 16)
head = nn.Linear(16, 1)
parameters = [*rnn.parameters(), *head.parameters()]
x = torch.randn(15, 32, 2)
target = torch.cumsum(x[..., :1] * x[..., 1:], dim=0).tanh()


def loss_of():
    return (head(rnn(x)[0]) - target).square().mean()


def hessian_times(vector):
    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True)
    product = sum((g * v).sum() for g, v in zip(gradients, vector, strict=True))
    return torch.autograd.grad(product, parameters)


# %%
# A difference of two gradients gives the same result.

vector = [torch.randn_like(p) for p in parameters]
exact = hessian_times(vector)


def shifted(step):
    with torch.no_grad():
        for p, v in zip(parameters, vector, strict=True):
            p += step * v
    result = torch.autograd.grad(loss_of(), parameters)
    with torch.no_grad():
        for p, v in zip(parameters, vector, strict=True):
            p -= step * v
    return result


step = 1e-3
for e, up, down in zip(exact, shifted(step), shifted(-step), strict=True):
    torch.testing.assert_close(e, (up - down) / (2 * step), rtol=1e-2, atol=1e-3)

# %%
# Power iteration while the network trains. Gradient descent with rate r is stable if the largest curvature is
# below 2 / r; the curvature grows until it meets that bound (Cohen et al., *Gradient descent on neural
# networks typically occurs at the edge of stability*, 2021).

rate, curvatures, losses = 0.4, [], []
vector = [torch.randn_like(p) for p in parameters]
for k in range(300):
    loss = loss_of()
    losses.append(loss.item())
    with torch.no_grad():
        for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p -= rate * g
    if k % 10 == 0:
        for _ in range(4):
            product = hessian_times(vector)
            size = torch.cat([v.flatten() for v in product]).norm()
            vector = [v / size for v in product]
        curvatures.append(size.item())

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
left.plot(losses)
left.set(xlabel="step", ylabel="loss")
right.plot(range(0, 300, 10), curvatures)
right.axhline(2 / rate, linestyle=":", color="gray", label="2 / learning rate")
right.set(xlabel="step", ylabel="largest curvature")
right.legend()
figure.tight_layout()
assert losses[-1] < losses[0]
