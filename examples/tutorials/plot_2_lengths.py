"""
Sequences of different lengths, without packing
===============================================

Real sequences differ in length. PyTorch's way is to pack them: sort, pack, run, unpack. With xpgrad you
pass the padded batch and the lengths. This page trains a bidirectional LSTM on such a batch, shows that
padding has no effect, and compares with packing.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import xpgrad_torch

# %%
# The task: does a sequence of numbers end with a larger sum than it began with? The answer depends on the
# true end, and padding hides it.

torch.manual_seed(0)


def sequences(count, longest=40):
    lengths = torch.randint(4, longest + 1, (count,))
    x = torch.randn(count, longest, 1)
    half = (lengths // 2)[:, None]
    position = torch.arange(longest)[None]
    valid = position < lengths[:, None]
    first = (x[..., 0] * (position < half)).sum(1)
    second = (x[..., 0] * (valid & (position >= half))).sum(1)
    x[~valid] = float("nan")  # reading the padding would show
    return x, lengths, (second > first).float()


class Classifier(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.rnn = xpgrad_torch.LSTM(1, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, 1)

    def forward(self, x, lengths):
        _, (h, _) = self.rnn(x, lengths=lengths)  # h: the state at each sequence's own end
        return self.head(torch.cat([h[0], h[1]], dim=1))[:, 0]


model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
accuracies = []
for _ in range(250):
    x, lengths, answer = sequences(64)
    score = model(x, lengths)
    loss = xpgrad_torch.functional.binary_cross_entropy_with_logits(score, answer)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    accuracies.append(((score > 0) == (answer > 0.5)).float().mean().item())

smooth = torch.tensor(accuracies).unfold(0, 20, 1).mean(1)
plt.plot(range(20, 251), smooth)
plt.xlabel("step")
plt.ylabel("share of right answers, mean of 20 steps")
plt.tight_layout()

# %%
# The padding was NaN all the time. The same weights in ``torch.nn.LSTM`` on a packed batch give the same
# result.

x, lengths, _ = sequences(64)
theirs = nn.LSTM(1, 24, batch_first=True, bidirectional=True)
theirs.load_state_dict(model.rnn.state_dict())
packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
expected, _ = pad_packed_sequence(theirs(packed)[0], batch_first=True, total_length=40)
output, _ = model.rnn(x, lengths=lengths)
print(f"largest difference: {(output - expected).abs().max().item():.1e}")
torch.testing.assert_close(output, expected)
assert smooth[-1] > 0.8
