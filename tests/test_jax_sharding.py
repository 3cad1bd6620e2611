"""`xpgrad_jax` under `jax.jit` with arrays that are split over devices; the cases are in sharded_jax.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="jax not installed")

from xpgrad_jax import why_plain

SCRIPT = Path(__file__).with_name("sharded_jax.py")


def run(name: str, devices: int = 2, **environment: str) -> None:
    """Run a case, or a list of them, in a process of so many devices."""
    environment = {
        **os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_ENABLE_X64": "1", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0", **environment,
    }  # fmt: skip
    command = [sys.executable, "-W", "error", str(SCRIPT), name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == "right\n", done.stderr


def test_a_step_is_split_along_the_batch() -> None:
    run("short")


@pytest.mark.long
@pytest.mark.skipif(why_plain() is not None, reason="no programs here")
def test_every_kernel_is_split_along_the_batch() -> None:
    run("long")


@pytest.mark.long
@pytest.mark.exhaustive
@pytest.mark.parametrize("variable", ["JAX_USE_SHARDY_PARTITIONER", "XPGRAD_JIT"])
def test_the_other_partitioner_and_without_programs(variable: str) -> None:
    run("short", **{variable: "0"})


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param("other_meshes", marks=pytest.mark.exhaustive), "whole", "both"]
)
def test_two_axes_of_a_mesh_and_what_stays_whole(name: str) -> None:
    run(name, devices=4)
