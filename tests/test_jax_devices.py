"""`xpgrad_jax` on several devices and with executables that are not this process's."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jax", reason="jax not installed")

import jax
import jax.numpy as jnp

import xpgrad_jax
from xpgrad_jax import _ffi

SEVERAL_DEVICES = """
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import xpgrad_jax

rng = np.random.default_rng(0)
T, N, I, H = 6, 4, 3, 2
X, W, R = (jnp.asarray(rng.normal(size=s)) for s in [(T, N, I), (1, 4 * H, I), (1, 4 * H, H)])
mesh = jax.make_mesh((2,), ("b",), axis_types=(AxisType.Auto,))
assert len(jax.devices()) == 2


def run(X, W, R):
    return xpgrad_jax.lstm(X, W, R)[0]


def close(a, b):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-10, atol=1e-12)


slope = jax.grad(lambda W: (run(X, W, R) ** 2).sum())(W)
for check in (True, False):
    specs = {"in_specs": (P(None, "b"), P(), P()), "out_specs": P(None, None, "b"), "check_vma": check}
    shared = jax.shard_map(run, mesh=mesh, **specs)
    close(jax.jit(shared)(X, W, R), run(X, W, R))
    close(jax.jit(jax.grad(lambda W: (shared(X, W, R) ** 2).sum()))(W), slope)
total = jax.shard_map(
    lambda X, W, R: jax.lax.psum((run(X, W, R) ** 2).sum(), "b"),
    mesh=mesh, in_specs=(P(None, "b"), P(), P()), out_specs=P(),
)
second = [
    jax.grad(lambda R: (jax.grad(f)(X, W, R) ** 2).sum())(R)
    for f in (total, lambda X, W, R: (run(X, W, R) ** 2).sum())
]
close(*second)
close(jax.pmap(lambda X: run(X, W, R))(jnp.stack([X, 2 * X]))[1], run(2 * X, W, R))
placed = jax.device_put(X, NamedSharding(mesh, P(None, "b")))
close(jax.jit(run)(placed, W, R), run(X, W, R))
step = jax.jit(lambda W: W - jax.grad(lambda W: (run(X, W, R) ** 2).sum())(W), donate_argnums=0)
given = W + 0
close(step(given), W - slope)
assert given.is_deleted()
print("right")
"""


def test_several_devices_and_donation() -> None:
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_ENABLE_X64": "1",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "0",
    }
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(SEVERAL_DEVICES)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == "right\n", done.stderr


@pytest.fixture
def native() -> None:
    if (reason := xpgrad_jax.why_plain()) is not None:
        pytest.skip(f"no programs: {reason}")


FROM_A_CACHE = """
import sys

import jax
import jax.numpy as jnp
import numpy as np

import xpgrad
import xpgrad_jax

events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
rng = np.random.default_rng(int(sys.argv[1]))
arrays = [rng.normal(size=s) for s in [(4, 3, 2), (1, 12, 2), (1, 12, 4)]]
for k in range(int(sys.argv[1])):  # other programs first, so that addresses are others
    jax.block_until_ready(xpgrad_jax.gru(*(jnp.ones(s) for s in [(k + 2, 1, 2), (1, 3, 2), (1, 3, 1)])))
del events[:]
run = jax.jit(jax.value_and_grad(lambda R, X, W: xpgrad_jax.gru(X, W, R)[0].sum()))
value, slope = run(*map(jnp.asarray, (arrays[2], arrays[0], arrays[1])))
out = xpgrad.gru(*arrays)
given = dict(zip(("X", "W", "R"), arrays))
saved = {"H_all": out.H_all, "zrh": out.zrh}
exact = xpgrad.gru_grad(**given, **saved, grad_H_all=np.ones_like(out.H_all), wrt=("R",)).dR
np.testing.assert_allclose(value, out.H_all.sum(), rtol=1e-12)
np.testing.assert_allclose(slope, exact, rtol=1e-12)
print(any(name.endswith("/cache_hits") for name in events))
"""


@pytest.mark.usefixtures("native")
def test_executables_from_a_cache_find_the_programs_of_this_process(tmp_path: Path) -> None:
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "JAX_ENABLE_X64": "1"}
    seen = []
    for number in ("0", "3"):
        command = [sys.executable, "-W", "error", "-c", FROM_A_CACHE, number]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert not done.stderr, done.stderr
        seen.append(done.stdout)
    assert seen == ["False\n", "True\n"]


@pytest.mark.usefixtures("native")
def test_an_executable_whose_program_is_not_here_is_refused() -> None:
    run = jax.jit(lambda x: _ffi.call((1, 2), [x], [jax.ShapeDtypeStruct((2,), np.float32)]))
    with pytest.raises(jax.errors.JaxRuntimeError, match="this one has no such program yet"):
        jax.block_until_ready(run(jnp.ones(2)))


class Standing:
    """Stands for a program that nobody runs."""

    address = 1


@pytest.mark.usefixtures("native")
def test_programs_are_found_among_many() -> None:
    run = jax.jit(xpgrad_jax.gru)
    shapes = [(3, 2, 2), (1, 9, 2), (1, 9, 3)]
    first = run(*map(jnp.ones, shapes))
    keys = {_ffi.registry().add(f"test {k}", Standing()) for k in range(300)}
    assert len(keys) == 300
    again, other = run(*map(jnp.ones, shapes)), run(*map(jnp.ones, [(4, 2, 2), *shapes[1:]]))
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[0], other[0][:3])


@pytest.mark.usefixtures("native")
def test_a_call_that_does_not_fit_its_program_is_an_error() -> None:
    jax.block_until_ready(xpgrad_jax.gru(*(jnp.ones(s) for s in [(3, 2, 2), (1, 9, 2), (1, 9, 3)])))
    key = next(key for key, program in _ffi.registry()._known.items() if program.count != 2)
    run = jax.jit(lambda x: _ffi.call(key, [x], [jax.ShapeDtypeStruct((2,), np.float32)]))
    with pytest.raises(jax.errors.JaxRuntimeError, match="are not those of its program"):
        jax.block_until_ready(run(jnp.ones(2)))


@pytest.mark.usefixtures("native")
def test_xla_knows_why_programs_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a process that has run programs: without compiling, no program can be written."""
    given = [jnp.ones(s) for s in [(3, 5, 2), (1, 9, 2), (1, 9, 3)]]
    expected = jax.jit(xpgrad_jax.gru)(*given)
    monkeypatch.setenv("XPGRAD_JIT", "0")
    assert xpgrad_jax.why_plain() == "llvmlite or our source files are missing, or XPGRAD_JIT is 0"
    again = jax.jit(lambda *arrays: xpgrad_jax.gru(*arrays))
    assert "xpgrad_program" not in again.lower(*given).as_text()
    for actual, desired in zip(again(*given), expected, strict=True):
        assert jnp.allclose(actual, desired, atol=1e-6)
