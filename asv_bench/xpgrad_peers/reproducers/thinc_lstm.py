import numpy as np
from thinc.api import LSTM
from thinc.types import Padded

rng = np.random.default_rng(0)
T, N, I, H = 4, 3, 2, 5
model = LSTM(nO=H, nI=I)
model.initialize()
parameters = rng.normal(size=model.get_param("LSTM").shape).astype("f")
X, weights = rng.normal(size=(T, N, I)).astype("f"), rng.normal(size=(T, N, H)).astype("f")


def padded(data):
    return Padded(data, np.full(T, N, "i"), np.full(N, T, "i"), np.arange(N, dtype="i"))


def loss(x, parameters):
    model.set_param("LSTM", parameters)
    return float(np.sum(weights * model(padded(x), is_train=True)[0].data, dtype="f8"))


def differences(function, point):
    found = np.zeros(point.shape)
    for index in np.ndindex(point.shape):
        ahead, behind = point.copy(), point.copy()
        ahead[index] += 0.01
        behind[index] -= 0.01
        found[index] = (function(ahead) - function(behind)) / 0.02
    return found


model.set_param("LSTM", parameters)
_, backprop = model(padded(X), is_train=True)
dX = backprop(padded(weights)).data
gradient = model.get_grad("LSTM")
# the last 4H are the second bias, whose gradient the first one has
for name, a, b in (
    ("dX", dX, differences(lambda x: loss(x, parameters), X)),
    ("parameters", gradient[: -4 * H], differences(lambda p: loss(X, p), parameters)[: -4 * H]),
):
    print(f"{name}: off by {np.abs(a - b).max() / np.abs(b).max():.0%} of its largest value")
