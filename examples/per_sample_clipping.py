"""Training with differential privacy (DP-SGD): each sample's gradient is clipped, noise is added to the sum.

This is the loop that Opacus runs. The gradient of every sample comes from `torch.func`: `vmap` over `grad`.
xpgrad's modules then use their per-sample kernels, one call for the whole batch.

    python examples/per_sample_clipping.py --steps 60

Source: Abadi et al., "Deep Learning with Differential Privacy" (2016), algorithm 1.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import xpgrad_torch


class Classifier(nn.Module):
    """Classifies whether a series is slower in its first or in its second half."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.conv = xpgrad_torch.Conv1d(1, size, 5, padding=2)
        self.rnn = xpgrad_torch.GRU(size, size, batch_first=True)
        self.head = nn.Linear(size, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (N, 2) of series x (N, 1, T)."""
        return self.head(self.rnn(self.conv(x).tanh().transpose(1, 2))[1][0])


def series(count: int, generator: torch.Generator, steps: int = 32) -> tuple[Tensor, Tensor]:
    """Return series (N, 1, T) and which half has the lower frequency (N,)."""
    labels = torch.randint(2, (count,), generator=generator)
    slow, fast = torch.tensor([0.3, 1.5])
    first = torch.arange(steps) < steps // 2
    frequency = torch.where(first == (labels[:, None] == 0), slow, fast)
    phase = 6.28 * torch.rand(count, 1, generator=generator)
    noise = 0.1 * torch.randn(count, steps, generator=generator)
    return (torch.sin(frequency.cumsum(1) + phase) + noise)[:, None], labels


def private_gradients(
    model: nn.Module, x: Tensor, labels: Tensor, *, bound: float, noise: float
) -> dict[str, Tensor]:
    """Return the mean of the samples' gradients, each clipped to `bound`, plus noise relative to it."""
    parameters = dict(model.named_parameters())

    def loss(parameters: dict[str, Tensor], x: Tensor, label: Tensor) -> Tensor:
        scores = functional_call(model, parameters, (x[None],))
        return nn.functional.cross_entropy(scores, label[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, labels)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
    weights = (bound / norms).clamp(max=1)
    return {
        name: (torch.tensordot(weights, g, 1) + noise * bound * torch.randn_like(g[0])) / len(x)
        for name, g in each.items()
    }


def train(steps: int, *, bound: float = 1.0, noise: float = 0.5, seed: int = 0) -> tuple[float, float]:
    """Return the accuracy on new series before and after training."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    x, labels = series(400, generator)

    def accuracy() -> float:
        with torch.no_grad():
            return float((model(x).argmax(1) == labels).double().mean())

    before = accuracy()
    for _ in range(steps):
        gradients = private_gradients(model, *series(64, generator), bound=bound, noise=noise)
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name]
        optimizer.step()
    return before, accuracy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="batches of 64 series")
    parser.add_argument("--bound", type=float, default=1.0, help="longest gradient of a sample")
    parser.add_argument("--noise", type=float, default=0.5, help="standard deviation relative to the bound")
    options = parser.parse_args()
    before, after = train(options.steps, bound=options.bound, noise=options.noise)
    print(f"right on unseen series: {before:.1%} before, {after:.1%} after training")


if __name__ == "__main__":
    main()
