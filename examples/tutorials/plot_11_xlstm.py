"""
An xLSTM block on a CPU
=======================

The sLSTM of xLSTM (Beck and others, *xLSTM: Extended long short-term memory*, 2024) has an exponential input
gate, a normalizer, and heads. Its kernels are written for GPUs; what is left on a CPU is a loop over the
steps in Python. :class:`xpgrad_torch.SLSTM` is a layer for CPUs.

This page trains a character model with one sLSTM block, in both ways, from the same parameters.
"""

import time
from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.nn import functional

import xpgrad_torch

# %%
# The text is Python's own help, in small letters.

keep = "abcdefghijklmnopqrstuvwxyz .,\n"
text = "".join(c for c in "\n".join(topics[name] for name in sorted(topics)).lower() if c in keep)
text = " ".join(text.split())
alphabet = "".join(sorted(set(text)))
codes = torch.tensor([alphabet.index(c) for c in text])
T, N, WIDTH, HEADS = 64, 16, 64, 4
print(f"{len(codes)} characters, {len(alphabet)} different ones")

# %%
# The block: a norm, the sLSTM, a norm of each head's output, and a residual connection. Behind it stand a
# norm and a small network with another residual connection.


class Block(torch.nn.Module):
    """An sLSTM between residual connections; `recurrence` runs its layer."""

    def __init__(self, recurrence):
        super().__init__()
        self.recurrence = recurrence
        self.before = torch.nn.LayerNorm(WIDTH)
        self.layer = xpgrad_torch.SLSTM(WIDTH, WIDTH, heads=HEADS)
        self.by_head = torch.nn.GroupNorm(HEADS, WIDTH)
        self.between = torch.nn.LayerNorm(WIDTH)
        self.network = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.GELU(), torch.nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x):
        h = self.recurrence(self.layer, self.before(x))
        x = x + self.by_head(h.flatten(0, 1)).view_as(x)
        return x + self.network(self.between(x))


# %%
# The plain way: the product with the inputs at once, then one step after the other. ``R`` holds for each gate
# and head a block of its own.


def by_steps(layer, x):
    """The sLSTM as a loop."""
    width = WIDTH // HEADS
    gates = x @ layer.W[0].T + layer.B[0]
    R = layer.R[0].view(4, HEADS, width, width).permute(1, 3, 0, 2).reshape(HEADS, width, 4 * width)
    h = c = n = m = x.new_zeros(x.shape[1], WIDTH)
    outputs = []
    for t, gates_t in enumerate(gates):
        own = torch.bmm(h.view(-1, HEADS, width).transpose(0, 1), R)
        own = own.view(HEADS, -1, 4, width).permute(1, 2, 0, 3).reshape(-1, 4 * WIDTH)
        i, f, z, o = (gates_t + own).chunk(4, dim=-1)
        kept = functional.logsigmoid(f) + m
        m = torch.maximum(i, kept) if t else i
        i, f = torch.exp(i - m), torch.exp(kept - m)
        c, n = f * c + i * torch.tanh(z), f * n + i
        h = torch.sigmoid(o) * c / n
        outputs.append(h)
    return torch.stack(outputs)


def by_layer(layer, x):
    """The sLSTM as it is."""
    return layer(x)[0]


# %%
# Each training step reads 64 characters in 16 places.


def model(recurrence):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Embedding(len(alphabet), WIDTH),
        Block(recurrence),
        torch.nn.LayerNorm(WIDTH),
        torch.nn.Linear(WIDTH, len(alphabet)),
    )


def train(recurrence, steps):
    """The losses, and the median time of a step in milliseconds."""
    network, generator = model(recurrence), torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(network.parameters(), lr=4e-3)
    losses, times = [], []
    for _ in range(steps):
        places = torch.randint(len(codes) - T - 1, (N,), generator=generator)
        window = torch.stack([codes[p : p + T + 1] for p in places], dim=1)
        begin = time.perf_counter()
        loss = functional.cross_entropy(network(window[:-1]).flatten(0, 1), window[1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(1e3 * (time.perf_counter() - begin))
        losses.append(loss.item())
    return losses, float(np.median(times))


plain, plain_time = train(by_steps, 40)
ours, our_time = train(by_layer, 300)
print(f"with a loop: {plain_time:.1f} ms a step, with the layer: {our_time:.1f} ms")
difference = np.abs(np.subtract(ours[:40], plain)).max()
print(f"largest difference of the first 40 losses: {difference:.1e}")
assert difference < 1e-2

# %%
# The same losses, in less time. Of a step with the layer most is the rest of the model, which is the same
# in both. A model that only knows how frequent each character is has the dotted loss.

frequency = np.bincount(codes) / len(codes)
unigram = -(frequency * np.log(frequency)).sum()
figure, axes = plt.subplots(figsize=(7, 3.4))
axes.plot(np.arange(300) * our_time / 1e3, ours, label="SLSTM, 300 steps")
axes.plot(np.arange(40) * plain_time / 1e3, plain, label="a loop, 40 steps")
axes.axhline(unigram, linestyle=":", color="gray")
axes.set(xlabel="seconds", ylabel="loss, nats a character")
axes.legend()
figure.tight_layout()
assert np.mean(ours[-20:]) < unigram - 0.8

# %%
# A model that is built from the package ``xlstm`` needs no change: with ``backend="vanilla"`` in its
# configuration, ``xpgrad_torch.swap(model)`` puts this layer in the place of its loop.
