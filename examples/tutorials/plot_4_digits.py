"""
Digits with a convolutional network in NumPy
============================================

Two convolutions, a linear layer and cross-entropy, trained on scikit-learn's handwritten digits. No
framework computes a gradient here: each layer's pullback is called by hand, last layer first.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from xpgrad import conv, relu, relu_grad, softmax_cross_entropy, vjp

# %%
# 1,797 pictures of 8 by 8 pixels. A fifth is kept for the test.

digits = load_digits()
images = (digits.images[:, None] / 8 - 1).astype(np.float32)
labels = digits.target
rng = np.random.default_rng(0)
order = rng.permutation(len(images))
test, train = order[:360], order[360:]


def he(*shape):
    return (rng.normal(size=shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)


p = {"W1": he(16, 1, 3, 3), "W2": he(32, 16, 3, 3), "V": he(10, 32 * 4 * 4)}
p |= {"b1": np.zeros(16, np.float32), "b2": np.zeros(32, np.float32), "c": np.zeros(10, np.float32)}


def predict(x):
    x = relu(conv(x, p["W1"], p["b1"], pads=1))
    x = relu(conv(x, p["W2"], p["b2"], pads=1, strides=2))
    return x.reshape(len(x), -1) @ p["V"].T + p["c"]


# %%
# One training step: the forward keeps the pullbacks, then comes the backward. The first convolution does not
# compute the gradient of the pictures.


def gradients(x, y):
    z1, pull1 = vjp(conv, x, p["W1"], p["b1"], pads=1, wrt=("W", "B"))
    y1 = relu(z1)
    z2, pull2 = vjp(conv, y1, p["W2"], p["b2"], pads=1, strides=2)
    y2 = relu(z2)
    flat = y2.reshape(len(x), -1)
    loss, pull_loss = vjp(softmax_cross_entropy, flat @ p["V"].T + p["c"], y)
    d = pull_loss(np.ones_like(loss))
    g = {"V": d.T @ flat, "c": d.sum(axis=0)}
    d = pull2(relu_grad((d @ p["V"]).reshape(y2.shape), y2))
    g |= {"W2": d.dW, "b2": d.dB}
    d = pull1(relu_grad(d.dX, y1))
    return float(loss), g | {"W1": d.dW, "b1": d.dB}


momentum = {name: np.zeros_like(value) for name, value in p.items()}
accuracy = []
for _ in range(12):
    for batch in np.array_split(rng.permutation(train), len(train) // 32):
        _, g = gradients(images[batch], labels[batch])
        for name in p:
            momentum[name] = 0.9 * momentum[name] + g[name]
            p[name] -= 0.02 * momentum[name]
    accuracy.append((predict(images[test]).argmax(1) == labels[test]).mean())
print(f"{accuracy[-1]:.1%} of the unseen digits are right")

# %%
# The digits that it gets wrong.

guess = predict(images[test]).argmax(1)
wrong = np.flatnonzero(guess != labels[test])[:8]
figure, axes = plt.subplots(2, 5, figsize=(8, 3.6))
axes[0, 0].plot(range(1, 13), accuracy)
axes[0, 0].set(title="test accuracy", xlabel="epoch")
for axis in axes.flat[1:]:
    axis.axis("off")
for axis, k in zip(axes.flat[1:], wrong, strict=False):
    axis.imshow(images[test[k], 0], cmap="gray_r")
    axis.set_title(f"{labels[test[k]]}, read as {guess[k]}", fontsize=8)
figure.tight_layout()
assert accuracy[-1] > 0.95
