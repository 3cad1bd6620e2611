"""`xpgrad_jax` on several devices and with executables that are not this process's."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

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
    }
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(SEVERAL_DEVICES)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == "right\n", done.stderr


@pytest.fixture
def native() -> None:
    if (reason := xpgrad_jax.why_plain()) is not None:
        pytest.skip(f"no programs: {reason}")


@pytest.mark.usefixtures("native")
def test_an_executable_of_another_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    here = _ffi._process_words()
    monkeypatch.setattr(_ffi, "_process_words", lambda: here + 1)
    with pytest.raises(jax.errors.JaxRuntimeError, match="compiled by another process"):
        jax.block_until_ready(xpgrad_jax.lstm(*(jnp.ones(s) for s in [(3, 2, 2), (1, 12, 2), (1, 12, 3)])))


@pytest.mark.usefixtures("native")
def test_a_call_that_does_not_fit_its_program_is_an_error() -> None:
    (program, *_) = [*_kept(), None]
    if program is None:
        jax.block_until_ready(xpgrad_jax.gru(*(jnp.ones(s) for s in [(3, 2, 2), (1, 9, 2), (1, 9, 3)])))
        program = _kept()[0]
    run = jax.jit(lambda x: _ffi.call(program, [x], [jax.ShapeDtypeStruct((2,), np.float32)]))
    with pytest.raises(jax.errors.JaxRuntimeError, match="are not those of its program"):
        jax.block_until_ready(run(jnp.ones(2)))


def _kept() -> list:
    from xpgrad_jax._primitives import _kept

    return _kept


@pytest.mark.usefixtures("native")
def test_xla_knows_why_programs_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPGRAD_JIT", "0")
    _ffi.why_not.cache_clear()
    try:
        assert xpgrad_jax.why_plain() == "numba is not there, or XPGRAD_JIT is 0"
        text = jax.jit(xpgrad_jax.gru).lower(*(jnp.ones(s) for s in [(3, 5, 2), (1, 9, 2), (1, 9, 3)]))
        assert "xpgrad_program" not in text.as_text()
    finally:
        _ffi.why_not.cache_clear()
