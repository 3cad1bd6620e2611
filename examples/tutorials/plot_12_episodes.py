"""
Recurrent PPO on rows of many episodes
======================================

An agent that must remember has a recurrent network. It collects steps in many environments at once, and a row
of its data holds the end of one episode, some whole ones, and the begin of another. In training the state has
to start anew before each episode. The usual code runs single steps in a Python loop and clears the state in
between. With ``reset`` the layer runs the whole rows: :class:`xpgrad_torch.LSTM` takes the steps before which
the state is cleared.

This page writes proximal policy optimization (Schulman and others, 2017) down with such a layer, and trains a
second network with a loop on the same data.
"""

import time

import matplotlib.pyplot as plt
import numpy as np
import torch

import xpgrad_torch

# %%
# The environment is a corridor. At its begin a sign says left or right; after 4 to 11 steps comes a fork. The
# sign is gone by then: a network without a memory is right half of the time. An observation is the sign,
# whether this is the fork, and 1. An episode ends behind the fork, with a reward of 1 or -1.


class Corridors:
    """Many corridors side by side; a new one begins where one ended."""

    def __init__(self, count, seed):
        self.rng = np.random.default_rng(seed)
        self.sign, self.left, self.first = np.zeros(count), np.zeros(count, int), np.ones(count, bool)
        self._begin(self.first)

    def _begin(self, which):
        count = which.sum()
        self.sign[which] = self.rng.choice([-1.0, 1.0], count)
        self.left[which] = self.rng.integers(4, 12, count)

    def look(self):
        seen = np.stack([self.sign * self.first, self.left == 0, np.ones_like(self.sign)], axis=-1)
        return torch.tensor(seen, dtype=torch.float32)

    def step(self, action):
        """Rewards, and which corridors have ended."""
        done = self.left == 0
        reward = done * np.where(action == (self.sign > 0), 1.0, -1.0)
        self.left -= 1
        self.first = done
        self._begin(done)
        return torch.tensor(reward, dtype=torch.float32), torch.tensor(done)


# %%
# The network: an LSTM, and a layer for the chances of both actions and the value. It takes rows of any number
# of steps, (T, N, 3), and says which steps begin an episode.

T, N, H = 64, 32, 32


class Agent(torch.nn.Module):
    """Logits of two actions and a value, from an LSTM with resets."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = xpgrad_torch.LSTM(3, H), torch.nn.Linear(H, 3)

    def forward(self, x, states, begins):
        h, states = self.rnn(x, states, reset=begins)
        y = self.head(h)
        return y[..., :2], y[..., 2], states


class LoopingAgent(torch.nn.Module):
    """The same with a loop of single steps."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = torch.nn.LSTM(3, H), torch.nn.Linear(H, 3)

    def forward(self, x, states, begins):
        outputs = []
        for x_t, begins_t in zip(x, begins, strict=True):
            kept = 1.0 - begins_t.float()[None, :, None]
            h, states = self.rnn(x_t[None], tuple(state * kept for state in states))
            outputs.append(h)
        y = self.head(torch.cat(outputs))
        return y[..., :2], y[..., 2], states


# %%
# Collecting: 64 steps of all 32 corridors. The states at the begin of the row are kept for training. The
# advantages are those of Schulman and others (2016): no reward flows from one episode into the one before.


@torch.no_grad()
def collect(agent, corridors, states, begins):
    """A row of data, and where the next one goes on."""
    first, rows = states, []
    for _ in range(T):
        x = corridors.look()
        logits, value, states = agent(x[None], states, begins[None])
        chances = torch.distributions.Categorical(logits=logits[0])
        action = chances.sample()
        reward, done = corridors.step(action.numpy())
        rows.append((x, begins, action, chances.log_prob(action), value[0], reward, done))
        begins = done
    x, marks, action, chance, value, reward, done = (torch.stack(each) for each in zip(*rows, strict=True))
    _, following, _ = agent(corridors.look()[None], states, begins[None])
    values, gain, gains = torch.cat([value, following]), torch.zeros(N), []
    for t in reversed(range(T)):
        goes_on = 1.0 - done[t].float()
        gain = reward[t] + 0.99 * values[t + 1] * goes_on - values[t] + 0.99 * 0.95 * goes_on * gain
        gains.append(gain)
    advantage = torch.stack(gains[::-1])
    data = (x, marks, action, chance, advantage, advantage + value, first)
    return data, states, begins, reward[done].mean().item()


# %%
# Training: four steps of the optimizer on each row, all corridors at once.


def update(agent, optimizer, data):
    """The mean loss of the four steps."""
    x, begins, action, chance, advantage, target, states = data
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    total = 0.0
    for _ in range(4):
        logits, value, _ = agent(x, states, begins)
        chances = torch.distributions.Categorical(logits=logits)
        ratio = torch.exp(chances.log_prob(action) - chance)
        gained = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        error = torch.nn.functional.mse_loss(value, target)
        loss = 0.5 * error - gained - 0.01 * chances.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
        total += loss.item() / 4
    return total


torch.manual_seed(0)
agents = {"reset": Agent(), "a loop": LoopingAgent()}
agents["a loop"].load_state_dict(agents["reset"].state_dict())
optimizers = {name: torch.optim.Adam(agent.parameters(), lr=3e-3) for name, agent in agents.items()}
losses, times, rewards = {name: [] for name in agents}, {name: [] for name in agents}, []
corridors, begins = Corridors(N, seed=0), torch.ones(N, dtype=torch.bool)
states = (torch.zeros(1, N, H), torch.zeros(1, N, H))
for _ in range(40):
    data, states, begins, reward = collect(agents["reset"], corridors, states, begins)
    rewards.append(reward)
    for name, agent in agents.items():
        begin = time.perf_counter()
        losses[name].append(update(agent, optimizers[name], data))
        times[name].append(1e3 * (time.perf_counter() - begin))

# %%
# Both networks see the same data, so their losses are the same but for rounding. The agent learns to remember
# the sign.

medians = {name: float(np.median(each)) for name, each in times.items()}
for name, milliseconds in medians.items():
    print(f"{name:7} {milliseconds:6.1f} ms for four steps of the optimizer")
print(f"mean reward {rewards[0]:.2f} at first, {np.mean(rewards[-5:]):.2f} at last")

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
left.plot(losses["a loop"], linewidth=4, alpha=0.4, label=f"a loop, {medians['a loop']:.0f} ms")
left.plot(losses["reset"], label=f"reset, {medians['reset']:.0f} ms")
left.set(xlabel="rows of data", ylabel="loss")
left.legend()
right.plot(rewards)
right.axhline(0, color="gray", linestyle=":")
right.set(xlabel="rows of data", ylabel="mean reward of an episode")
figure.tight_layout()
assert np.mean(rewards[-5:]) > 0.9
