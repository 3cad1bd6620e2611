"""
Forecast a series, and say how sure you are
===========================================

A network that forecasts the sun's activity gives one number for next year. How wrong may it be? Dropout can
answer that (Gal and Ghahramani, *A theoretically grounded application of dropout in recurrent neural
networks*, 2016): each mask of the recurrent state makes another network, and if these networks disagree the
forecast is unsure. The mask is the same at every step, so it removes parts of the network instead of bits of
its memory.

``recurrent_dropout=0.25`` of :class:`xpgrad_torch.LSTM` draws such masks in training. Here it draws them in
the forecast too.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import xpgrad_torch
from xpgrad.cli.demos.series import read_sunspots

# %%
# The numbers of sunspots, year by year. Training does not see the years from 1976 on.

years, numbers = read_sunspots()
series = torch.tensor(np.sqrt(numbers) / 10, dtype=torch.float32)  # a square root evens out the noise
known = int(np.searchsorted(years, 1976))


class Forecaster(torch.nn.Module):
    """Next year's number, its mean and the logarithm of its standard deviation, from all years before."""

    def __init__(self):
        super().__init__()
        self.lstm = xpgrad_torch.LSTM(1, 32, recurrent_dropout=0.25)
        self.head = torch.nn.Linear(32, 2)

    def forward(self, x):
        """Two numbers for each step of series (T, N)."""
        return self.head(self.lstm(x[..., None])[0]).unbind(-1)


# %%
# Train on windows of sixty years. The loss is the likelihood of the next number: it rewards a network that
# says when it is unsure, and punishes one that is too sure.

torch.manual_seed(0)
model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
losses = []
for _ in range(500):
    starts = torch.randint(0, known - 61, (32,))
    windows = torch.stack([series[s : s + 61] for s in starts], dim=1)
    mean, deviation = model(windows[:-1])
    error = (windows[1:] - mean) * torch.exp(-deviation)
    loss = (0.5 * error.square() + deviation)[10:].mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

# %%
# A forecast of thirty years: each of 400 networks continues with numbers that it drew itself. The mask must
# be the same at all steps, so the forecast runs the whole series again for each year.


def paths(until, count, steps):
    """Forecasts (steps, count) after the year with the number `until`."""
    x = series[max(0, until - 60) : until, None].repeat(1, count)
    for _ in range(steps):
        torch.manual_seed(1)  # the same masks each time
        mean, deviation = model(x)
        noise = torch.randn(count, generator=torch.Generator().manual_seed(len(x)))
        drawn = mean[-1] + torch.exp(deviation[-1]) * noise
        x = torch.cat([x, drawn.clamp(min=0)[None]])
    return (10 * x[-steps:]).square()


model.train()  # the masks are drawn
with torch.no_grad():
    drawn = paths(known, 400, 30).numpy()
low, middle, high = np.quantile(drawn, [0.05, 0.5, 0.95], axis=1)
ahead = years[known : known + 30]
truth = numbers[known : known + 30]
inside = np.mean((truth >= low) & (truth <= high))
print(f"{inside:.0%} of the thirty years are within the band that should hold 90 %")

figure, axes = plt.subplots(figsize=(9, 3.6))
axes.plot(years[known - 60 : known + 30], numbers[known - 60 : known + 30], color="black", label="sunspots")
axes.fill_between(ahead, low, high, alpha=0.3, label="90 % of forecasts")
axes.plot(ahead, middle, label="median forecast")
axes.axvline(years[known] - 0.5, color="gray", lw=0.8)
axes.set(xlabel="year", ylabel="sunspot number")
axes.legend(loc="upper left")
figure.tight_layout()
assert 0.6 < inside <= 1

# %%
# How much of it is the network's own doubt? Without the noise only the masks make the forecasts differ. In
# evaluation, ``model.eval()``, no mask is drawn, and all forecasts are equal.

with torch.no_grad():
    window = series[known - 60 : known, None].repeat(1, 400)
    spread = (10 * model(window)[0][-1]).square().std()
    model.eval()
    alone = (10 * model(window)[0][-1]).square().std()
print(f"next year's forecasts by mask spread by {spread:.1f}, without masks by {alone:.1f}")
