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


@pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="this PyTorch was built without gloo",
)
@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
def test_two_processes_have_the_gradients_of_one(wrap):
    common = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    common |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "XPGRAD_JIT": "0"}
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error::UserWarning",
                "-W",
                "ignore:FSDP2-wrapped module",
                str(SCRIPT),
                "--wrap",
                wrap,
            ],
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
