"""
Which examples taught it that? Influence by per-sample gradients
================================================================

Gradient descent moves the weights along the sum of the examples' gradients. How much did one training example
push a given prediction? To first order this is the product of two gradients: the example's and the
prediction's. It needs the gradient of *every* example, and the kernels give them in one call:
``per_sample=True``.

The idea is TracIn (Pruthi et al., *Estimating training data influence by tracing gradient descent*, 2020).
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from xpgrad import gru, softmax_cross_entropy, vjp

# %%
# A GRU reads a digit row by row: 8 steps of 8 pixels.

digits = load_digits()
rows = np.swapaxes(digits.images / 8 - 1, 0, 1)  # (time, samples, 8)
labels = digits.target.copy()
H, rng = 24, np.random.default_rng(0)
train, test = np.arange(600), np.arange(600, 900)
flipped = rng.choice(train, size=30, replace=False)  # some labels are wrong on purpose
labels[flipped] = (labels[flipped] + rng.integers(1, 10, size=30)) % 10
p = {
    "W": rng.normal(size=(1, 3 * H, 8)) / 3,
    "R": rng.normal(size=(1, 3 * H, H)) / 5,
    "B": np.zeros((1, 6 * H)),
    "V": rng.normal(size=(10, H)) / 5,
}


def gradients(samples, per_sample):
    """Loss, and gradients by name, with a leading sample axis if asked for."""
    out, pull = vjp(gru, rows[:, samples], p["W"], p["R"], p["B"], wrt=("W", "R", "B"), per_sample=per_sample)
    h = out.H_t[0]
    loss, pull_loss = vjp(softmax_cross_entropy, h @ p["V"].T, labels[samples], reduction="sum")
    d = pull_loss(np.ones_like(loss))
    g = pull(grad_H_t=(d @ p["V"])[None])
    dV = np.einsum("no,nh->noh", d, h) if per_sample else d.T @ h
    return float(loss), {"W": g.dW, "R": g.dR, "B": g.dB, "V": dV}


# %%
# Train it. At some steps we note how well each training example's gradient agrees with its own: *self-
# influence*. An example that pushes hard against all others keeps a large gradient: a wrong label, mostly.

influence = np.zeros(len(train))
losses = []
velocity = {name: np.zeros_like(value) for name, value in p.items()}
for step in range(240):
    batch = rng.choice(train, size=100, replace=False)
    loss, g = gradients(batch, per_sample=False)
    losses.append(loss / 100)
    for name, value in p.items():
        velocity[name] = 0.9 * velocity[name] - 0.2 * g[name] / 100
        value += velocity[name]
    if step >= 80 and step % 40 == 0:
        _, each = gradients(train, per_sample=True)
        influence += sum((g.reshape(len(train), -1) ** 2).sum(axis=1) for g in each.values())

# %%
# The thirty labels that we flipped stand out.

order = np.argsort(influence)[::-1]
is_flipped = np.isin(train[order], flipped)
found = np.cumsum(is_flipped)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
left.plot(losses)
left.set(xlabel="step", ylabel="loss")
right.plot(np.arange(1, 601), found, label="by influence")
right.plot([0, 600], [0, 30], ":", color="gray", label="by chance")
right.set(xlabel="examples looked at", ylabel="wrong labels found")
right.legend()
figure.tight_layout()
print(f"{found[59]} of 30 wrong labels are among the 60 most influential examples")
assert found[59] >= 20
