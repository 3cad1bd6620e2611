"""Training in several processes: gradients of DistributedDataParallel or FSDP, compared with one process.

Start it with

    torchrun --standalone --nproc-per-node 2 examples/distributed.py --wrap ddp

Every process takes its part of the batch. The first process then computes the gradients of the whole batch
alone and prints the largest difference.
"""

import argparse
import copy

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import xpgrad_torch


class Model(nn.Module):
    """A convolution, a bidirectional LSTM with peepholes, a GRU, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = xpgrad_torch.Conv1d(3, 8, 3, padding=1)
        self.lstm = xpgrad_torch.LSTM(8, 8, batch_first=True, bidirectional=True, peephole=True)
        self.gru = xpgrad_torch.GRU(16, 8, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Scores (N, 2) of sequences x (N, 3, T) with lengths (N,)."""
        hidden = self.lstm(self.conv(x).transpose(1, 2), lengths=lengths)[0]
        return self.head(self.gru(hidden, lengths=lengths)[1][0])


def loss_of(model: nn.Module, x: Tensor, lengths: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x, lengths), labels)


def whole(gradient: Tensor) -> Tensor:
    """A whole gradient, joined from the parts that FSDP keeps in each process."""
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wrap", choices=["ddp", "fsdp"], default="ddp")
    wrap = parser.parse_args().wrap
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Model().double()
    alone = copy.deepcopy(model)
    x, labels = torch.randn(4 * size, 3, 12, dtype=torch.float64), torch.randint(2, (4 * size,))
    lengths = torch.randint(1, 13, (4 * size,))
    mine = slice(4 * rank, 4 * rank + 4)

    together: nn.Module
    if wrap == "ddp":
        together = DistributedDataParallel(model)
    else:
        mesh = dist.init_device_mesh("cpu", (size,))
        for part in (model.conv, model.lstm, model.gru):
            fully_shard(part, mesh=mesh)
        together = fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(together.parameters(), lr=0.5)
    expected_optimizer = torch.optim.SGD(alone.parameters(), lr=0.5)
    worst = 0.0
    for _ in range(3):
        optimizer.zero_grad()
        expected_optimizer.zero_grad()
        loss_of(together, x[mine], lengths[mine], labels[mine]).backward()
        loss_of(alone, x, lengths, labels).backward()
        for got, expected in zip(together.parameters(), alone.parameters(), strict=True):
            difference = (whole(got.grad) - expected.grad).abs().max()
            worst = max(worst, float(difference / expected.grad.abs().max()))
        optimizer.step()
        expected_optimizer.step()
    if rank == 0:
        print(f"{wrap}, {size} processes: gradients of three steps differ from one process's by {worst:.1e}")
    dist.destroy_process_group()
    if worst > 1e-10:
        raise SystemExit(f"gradients differ by {worst}")


if __name__ == "__main__":
    main()
