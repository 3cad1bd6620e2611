"""examples/distributed.py in two processes on this machine: DistributedDataParallel and FSDP over gloo."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed

SCRIPT = Path(__file__).parents[1] / "examples" / "distributed.py"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


SHARDED = """
import copy, warnings
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
import xpgrad_torch

dist.init_process_group("gloo", rank=0, world_size=1)
mesh = dist.device_mesh.init_device_mesh("cpu", (1,))


class Net(nn.Module):
    def __init__(self, layers, batch_first):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.layer = xpgrad_torch.GRU(6, 6, num_layers=layers, batch_first=batch_first)

    def forward(self, x):
        y, _ = self.layer(self.first(x))
        y += 2 * x
        return y.tanh()


warnings.simplefilter("error", UserWarning)
for layers, batch_first in (1, False), (1, True), (2, False), (2, True):
    torch.manual_seed(0)
    alone, x = Net(layers, batch_first), torch.randn(3, 4, 6)
    net = copy.deepcopy(alone)
    fully_shard(net.layer, mesh=mesh, reshard_after_forward=True)
    fully_shard(net, mesh=mesh)
    for each in (alone, net):
        each(x).sum().backward()
    for p, q in zip(alone.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(q.grad.to_local(), p.grad)
net = fully_shard(nn.Sequential(nn.LSTM(6, 6)), mesh=mesh)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    xpgrad_torch.swap(net)
assert "a LSTM stays: fully_shard has wrapped it" in str(caught[-1].message)
net(x)
assert "stays: fully_shard" in str(xpgrad_torch.swap_report(net))
"""

needs_gloo = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="this PyTorch was built without gloo",
)


@needs_gloo
def test_sharded_layers_and_writes_to_their_outputs():
    """FSDP's hook of an output that is a view would be lost."""
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, "-c", SHARDED], env=os.environ | own, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@needs_gloo
@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
def test_two_processes_have_the_gradients_of_one(wrap):
    common = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    common |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "XPGRAD_JIT": "0"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error::UserWarning", str(SCRIPT), "--wrap", wrap],
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        results = [process.communicate(timeout=100) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], results
    assert results[0][0].startswith(
        f"{wrap}, 2 processes: gradients of three steps differ from one process's"
    )
    assert results[1][0] == ""
