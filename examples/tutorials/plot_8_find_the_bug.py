"""
Find the bug in a gradient
==========================

Here is the backward pass of a small recurrent network, with one mistake. The network still learns, so nobody
notices. ``check_vjp`` notices, and the blocks of the gradient show where the mistake is.
"""

import matplotlib.pyplot as plt
import numpy as np

from xpgrad.testing import check_vjp, numerical_jacobian


def forward(x, h0, W, R):
    """An Elman network: h = tanh(W x + R h')."""
    h, states = h0, []
    for step in x:
        h = np.tanh(step @ W.T + h @ R.T)
        states.append(h)
    return np.stack(states)


def backward(dY, x, h0, W, R, *, mistake):
    states = forward(x, h0, W, R)
    before = np.concatenate([h0[None], states[:-1]])
    dh, dx, dW, dR = np.zeros_like(h0), np.zeros_like(x), np.zeros_like(W), np.zeros_like(R)
    for t in reversed(range(len(x))):
        dz = (dh + dY[t]) * (1 - states[t] ** 2)
        dx[t], dh = dz @ W, dz @ R
        dW += dz.T @ x[t]
        dR += dz.T @ (states[t] if mistake else before[t])  # the state after the step instead of before it
    return {"x": dx, "h0": dh, "W": dW, "R": dR}


# %%
# It learns with the mistake too: the loss falls to a twentieth, and ends a tenth above the right one. Who
# knows what the loss should be?

rng = np.random.default_rng(0)
T, N, I, H = 12, 40, 2, 10
x = rng.normal(size=(T, N, I))
target = 0.5 * np.cumsum(x[..., :1], axis=0) / np.sqrt(np.arange(1, T + 1))[:, None, None]
curves = {}
for mistake in (False, True):
    start = np.random.default_rng(2)
    W, R, v = start.normal(size=(H, I)) / 2, start.normal(size=(H, H)) / 5, start.normal(size=(1, H)) / 3
    losses = []
    for _ in range(150):
        h0 = np.zeros((N, H))
        y = forward(x, h0, W, R)
        error = y @ v.T - target
        losses.append((error**2).mean())
        d = 2 * error / error.size
        g = backward(d @ v, x, h0, W, R, mistake=mistake)
        for parameter, gradient in ((W, g["W"]), (R, g["R"]), (v, np.einsum("tno,tnh->oh", d, y))):
            parameter -= 0.1 * gradient
    curves["with the mistake" if mistake else "right"] = losses

# %%
# ``check_vjp`` takes small arrays. All sizes differ.

arguments = {
    "x": rng.normal(size=(4, 2, 3)),
    "h0": rng.normal(size=(2, 5)),
    "W": rng.normal(size=(5, 3)) / 2,
    "R": rng.normal(size=(5, 5)) / 2,
}
check_vjp(forward, lambda dY, **a: backward(dY, **a, mistake=False), arguments)
try:
    check_vjp(forward, lambda dY, **a: backward(dY, **a, mistake=True), arguments)
except AssertionError as error:
    print(error)
else:
    raise SystemExit("the mistake went unnoticed")

# %%
# x, h0 and W passed; R did not. So dz is right, and its factor is wrong. A cotangent that is zero except at a
# single step shows at which steps: the difference begins at the very first.

errors = []
for t in range(4):
    dY = np.zeros((4, 2, 5))
    dY[t] = rng.normal(size=(2, 5))
    jacobian = numerical_jacobian(forward, arguments, "R")[0].reshape(dY.size, -1)
    right = (dY.ravel() @ jacobian).reshape(5, 5)
    errors.append(np.abs(backward(dY, **arguments, mistake=True)["R"] - right).max())

figure, (left, middle) = plt.subplots(1, 2, figsize=(9, 3.4))
for label, losses in curves.items():
    left.plot(losses, label=label)
left.set(xlabel="step", ylabel="loss")
left.legend()
middle.bar(range(4), errors)
middle.set(xlabel="the only step with a cotangent", ylabel="error of dR")
figure.tight_layout()
