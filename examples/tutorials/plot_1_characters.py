"""
A character model in plain NumPy
================================

An LSTM reads text one character at a time and predicts the next one. The forward and the backward of the
LSTM come from xpgrad; everything else is a few lines of NumPy: an embedding, a linear layer and Adam.
"""

from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import numpy as np

from xpgrad import lstm, softmax_cross_entropy, vjp

# %%
# The text is Python's own help. We keep lower-case letters and a few signs.

keep = "abcdefghijklmnopqrstuvwxyz .,\n"
text = "".join(c for c in "\n".join(topics[name] for name in sorted(topics)).lower() if c in keep)
text = " ".join(text.split())
alphabet = "".join(sorted(set(text)))
codes = np.array([alphabet.index(c) for c in text])
print(f"{len(codes)} characters, {len(alphabet)} different ones")

# %%
# The batch is 32 streams of text side by side. Each training step reads 48 characters of every stream and
# starts from the final state of the previous step.

T, N, E, H = 48, 32, 32, 96
V = len(alphabet)
rng = np.random.default_rng(0)
streams = codes[: len(codes) // N * N].reshape(N, -1).T


def uniform(*shape):
    return rng.uniform(-1, 1, size=shape).astype(np.float32) / np.sqrt(H, dtype=np.float32)


parameters = {
    "embedding": uniform(V, E),
    "W": uniform(1, 4 * H, E),
    "R": uniform(1, 4 * H, H),
    "B": uniform(1, 8 * H),
    "head": uniform(V, H),
}

# %%
# A pullback maps the cotangent of an output to the gradients of the inputs. We go through the model
# backwards: loss, linear layer, LSTM, embedding.


def loss_and_gradients(p, inputs, targets, state):
    x = p["embedding"][inputs]
    out, lstm_pullback = vjp(
        lstm, x, p["W"], p["R"], p["B"], initial_h=state[0], initial_c=state[1], wrt=("X", "W", "R", "B")
    )
    h = out.H_all[:, 0].reshape(-1, H)
    loss, loss_pullback = vjp(softmax_cross_entropy, h @ p["head"].T, targets.ravel())
    d_logits = loss_pullback(np.ones_like(loss))
    g = lstm_pullback(grad_H_all=(d_logits @ p["head"]).reshape(T, 1, N, H))
    d_embedding = np.zeros_like(p["embedding"])
    np.add.at(d_embedding, inputs.ravel(), g.dX.reshape(-1, E))
    gradients = {"embedding": d_embedding, "W": g.dW, "R": g.dR, "B": g.dB, "head": d_logits.T @ h}
    return float(loss), gradients, (out.H_t, out.C_t)


# %%
# Adam, written out.

first = {name: np.zeros_like(value) for name, value in parameters.items()}
second = {name: np.zeros_like(value) for name, value in parameters.items()}
losses, state = [], (np.zeros((1, N, H), np.float32),) * 2
starts = range(0, len(streams) - T - 1, T)
for step in range(1, 401):
    start = starts[(step - 1) % len(starts)]
    if start == 0:
        state = (np.zeros((1, N, H), np.float32),) * 2
    window = streams[start : start + T + 1]
    loss, gradients, state = loss_and_gradients(parameters, window[:-1], window[1:], state)
    losses.append(loss)
    for name, g in gradients.items():
        first[name] += 0.1 * (g - first[name])
        second[name] += 0.001 * (g**2 - second[name])
        scale = np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        parameters[name] -= 0.005 * scale * first[name] / (np.sqrt(second[name]) + 1e-8)

# %%
# The loss, in nats per character. The dotted line is the loss of a model that only knows the frequency of
# each character.

frequency = np.bincount(codes) / len(codes)
unigram = -(frequency * np.log(frequency)).sum()
plt.plot(losses)
plt.axhline(unigram, linestyle=":", color="gray")
plt.xlabel("step")
plt.ylabel("loss, nats a character")
plt.tight_layout()

# %%
# Text from the model. Each character is drawn from the prediction and becomes the next input.

h, c = (np.zeros((1, 1, H), np.float32) for _ in range(2))
code, written = alphabet.index(" "), ""
for _ in range(300):
    x = parameters["embedding"][[[code]]]
    out = lstm(x, parameters["W"], parameters["R"], parameters["B"], initial_h=h, initial_c=c)
    h, c = out.H_t, out.C_t
    logits = (parameters["head"] @ h[0, 0]).astype(np.float64) / 0.7
    p = np.exp(logits - logits.max())
    code = rng.choice(V, p=p / p.sum())
    written += alphabet[code]
print(written)
assert losses[-1] < unigram - 0.5
