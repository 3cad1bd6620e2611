"""`jax.export`: sizes that are symbols, and exported functions in other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="jax not installed")

import jax
import jax.numpy as jnp
from jax import export

import xpgrad
import xpgrad_jax

T, N, I, H = 4, 3, 2, 5
GATES = {"lstm": 4, "gru": 3, "rnn": 1}


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def random(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape))


def assert_exported(function: Callable[..., Any], arrays: list[jax.Array], shapes: list[str]) -> None:
    """What is exported for symbols computes what is compiled for numbers, and holds no program of ours."""
    forms = export.symbolic_args_specs(arrays, shapes)
    exported = export.export(jax.jit(function))(*forms)
    assert "xpgrad_program" not in exported.mlir_module()
    for count in (N, 1):
        some = [x[tuple(slice(count if s == "n" else None) for s in _sizes(x, text))]
                for x, text in zip(arrays, shapes, strict=True)]  # fmt: skip
        for a, b in zip(
            jax.tree.leaves(exported.call(*some)), jax.tree.leaves(jax.jit(function)(*some)), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def _sizes(x: jax.Array, text: str) -> list[str]:
    return ["..."] * x.ndim if text == "..." else [size.strip() for size in text.split(",")]


def weights(operator: str, directions: int = 1) -> list[jax.Array]:
    rows = GATES[operator] * H
    return [random(directions, rows, I), random(directions, rows, H), random(directions, 2 * rows)]


@pytest.mark.parametrize("operator", GATES)
def test_a_batch_of_any_size(operator: str) -> None:
    """With lengths and states; values, and gradients by all operands."""
    run = getattr(xpgrad_jax, operator)
    arrays = [random(T, N, I), *weights(operator), jnp.asarray([2, 0, T]), random(1, N, H)]
    shapes = [f"{T}, n, {I}", "...", "...", "...", "n", f"1, n, {H}"]

    def loss(X: Any, W: Any, R: Any, B: Any, lengths: Any, h: Any) -> Any:
        return sum((y * jnp.cos(y)).sum() for y in run(X, W, R, B, lengths, h))

    assert_exported(run, arrays, shapes)
    assert_exported(jax.grad(loss, argnums=(0, 1, 2, 3, 5)), arrays, shapes)


def test_a_batch_in_front_in_both_directions() -> None:
    def run(X: Any, *given: Any) -> Any:
        return xpgrad_jax.gru(X, *given, direction="bidirectional", layout=1, linear_before_reset=1)

    gradient = jax.grad(lambda *given: (run(*given)[0] ** 2).sum(), argnums=(0, 1))
    for function in (run, gradient):
        assert_exported(
            function, [random(N, T, I), *weights("gru", 2)], [f"n, {T}, {I}", "...", "...", "..."]
        )


def test_truncated_peepholes() -> None:
    """A gradient that is not the function's own."""

    def loss(X: Any, P: Any) -> Any:
        outputs = xpgrad_jax.lstm(X, *weights("lstm"), P=P, peephole="truncated")
        return (outputs[0] ** 2).sum()

    assert_exported(
        jax.grad(loss, argnums=(0, 1)), [random(T, N, I), random(1, 3 * H)], [f"{T}, n, {I}", "..."]
    )


TRANSFORMED: dict[str, Callable[..., Any]] = {
    "jvp": lambda X, *given: jax.jvp(lambda X: xpgrad_jax.lstm(X, *given)[0], (X,), (X,)),
    "second derivative": lambda X, *given: jax.grad(
        lambda X: (jax.grad(lambda X: (xpgrad_jax.lstm(X, *given)[0] ** 2).sum())(X) ** 2).sum()
    )(X),
    "vmap over it": lambda X, *given: jax.vmap(
        lambda x: xpgrad_jax.lstm(x[:, None], *given)[1][0, 0], in_axes=1
    )(X),
    "vmap over another axis": lambda X, *given: jax.vmap(lambda x: xpgrad_jax.lstm(x, *given)[1])(
        jnp.stack([X, 2 * X])
    ),
    "gradients of samples": lambda X, W, *given: jax.vmap(
        jax.grad(lambda W, x: xpgrad_jax.lstm(x[:, None], W, *given)[1].sum()), in_axes=(None, 1)
    )(W, X),
    "the core's function": lambda *given: xpgrad.lstm(*given).C_all,
    "layer normalization": lambda *given: xpgrad.layer_norm_lstm(
        *given, *[1 + random(1, 2, 4 * H)] * 2, *[1 + random(1, H)] * 2
    )[:3],
}


@pytest.mark.parametrize("case", TRANSFORMED)
def test_transformations_of_a_batch_of_any_size(case: str) -> None:
    arrays = [random(T, N, I), *weights("lstm")]
    assert_exported(TRANSFORMED[case], arrays, [f"{T}, n, {I}", "...", "...", "..."])


OTHERS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], list[str]]] = {
    "a cell": (
        lambda X, Hs: xpgrad_jax.gru_cell(X, Hs, *(w[0] for w in weights("gru"))),
        [(N, I), (N, H)],
        [f"n, {I}", f"n, {H}"],
    ),
    "conv": (
        lambda X, W: xpgrad_jax.conv(X, W, pads=1, strides=2),
        [(N, 2, 5, 4), (3, 2, 3, 3)],
        ["n, 2, 5, 4", "..."],
    ),
    "conv's channels": (xpgrad_jax.conv, [(2, N, 5), (3, N, 3)], ["2, n, 5", "3, n, 3"]),
    "conv_transpose": (xpgrad_jax.conv_transpose, [(N, 2, 4), (2, 3, 2)], ["n, 2, 4", "..."]),
    "gelu": (xpgrad_jax.gelu, [(N, 4)], ["n, 4"]),
    "prelu": (xpgrad_jax.prelu, [(N, 4), (4,)], ["n, 4", "4"]),
    "softmax": (xpgrad_jax.softmax, [(N, 4)], ["n, 4"]),
    "log_softmax": (lambda X: xpgrad_jax.log_softmax(X, axis=0), [(N, 4)], ["n, 4"]),
    "a loss": (
        lambda X: xpgrad_jax.softmax_cross_entropy(X, jnp.zeros(X.shape[0], int)), [(N, 4)], ["n, 4"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_other_kernels_of_any_size(case: str) -> None:
    function, shapes, symbols = OTHERS[case]
    arrays = [random(*shape) for shape in shapes]
    if case == "conv's channels":
        specs = export.symbolic_args_specs(arrays, symbols)
        exported = export.export(jax.jit(function))(*specs)
        np.testing.assert_allclose(exported.call(*arrays), function(*arrays), rtol=1e-10)
        return
    assert_exported(function, arrays, symbols)
    assert_exported(jax.grad(lambda *given: (function(*given) ** 2).sum()), arrays, symbols)


def test_an_image_of_any_height_where_it_is_said_to_be_large_enough() -> None:
    m, few = *export.symbolic_shape("m", constraints=["m >= 3"]), *export.symbolic_shape("k")
    W = random(3, 2, 3, 3)
    form = lambda height: jax.ShapeDtypeStruct((1, 2, height, 4), W.dtype)  # noqa: E731
    exported = export.export(jax.jit(lambda X: xpgrad_jax.conv(X, W)))(form(m))
    X = random(1, 2, 6, 4)
    np.testing.assert_allclose(exported.call(X), xpgrad_jax.conv(X, W), rtol=1e-10)
    message = (
        r"conv: a size is symbolic, expected a number .* X \(1, 2, k, 4\), W \(3, 2, 3, 3\); .*'k' < '3'"
    )
    with pytest.raises(ValueError, match=message):
        export.export(jax.jit(lambda X: xpgrad_jax.conv(X, W)))(form(few))


def test_sizes_that_must_be_numbers() -> None:
    (n,) = export.symbolic_shape("n")
    W, R, B = weights("lstm")

    def refused(function: Callable[..., Any], *shapes: Any) -> Any:
        forms = [jax.ShapeDtypeStruct(shape, W.dtype) for shape in shapes]
        return export.export(jax.jit(function))(*forms)

    rule = "expected numbers; only the batch's size may be symbolic"
    with pytest.raises(ValueError, match=rf"lstm: X has shape \(n, {N}, {I}\), {rule}"):
        refused(lambda X: xpgrad_jax.lstm(X, W, R), (n, N, I))
    with pytest.raises(ValueError, match=rf"lstm: X has shape \({T}, {N}, n\), {rule}"):
        refused(lambda X, W: xpgrad_jax.lstm(X, W, R), (T, N, n), (1, 4 * H, n))
    with pytest.raises(ValueError, match=r"lstm: sequence_lens has shape \(3,\), expected \(N\) = \(n,\)"):
        refused(lambda X: xpgrad_jax.lstm(X, W, R, B, [1, 2, 3]), (T, n, I))
    with pytest.raises(ValueError, match=r"lstm: W has shape \(1, 19, 2\), expected"):
        refused(lambda X: xpgrad_jax.lstm(X, W[:, 1:], R), (T, n, I))
    gamma, gamma_c = jnp.ones((1, 2, 4 * H)), jnp.ones((1, H))
    standard = xpgrad.use_engine("standard")
    with standard, pytest.raises(ValueError, match="layer_norm_lstm: N is n, expected a number"):
        refused(lambda X: xpgrad.layer_norm_lstm(X, W, R, B, gamma, gamma, gamma_c, gamma_c).H_all, (T, n, I))


_RESTORED = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax import export
import xpgrad_jax

def function(X, W, R):
    return xpgrad_jax.lstm(X, W, R)[1]

arrays = [jnp.asarray(x) for x in np.load(sys.argv[1] + "/arrays.npz").values()]
restored = export.deserialize(bytearray(open(sys.argv[1] + "/" + sys.argv[2], "rb").read()))
if sys.argv[2] == "programs":
    try:
        restored.call(*arrays)
    except Exception as error:
        assert "xpgrad_program" in str(error), error
    else:
        raise AssertionError("no program is there yet")
    jax.jit(function).lower(*restored.in_avals)
np.testing.assert_allclose(restored.call(*arrays), np.load(sys.argv[1] + "/expected.npy"), rtol=1e-5)
"""


@pytest.mark.parametrize("kind", ["programs", "symbols"])
def test_an_exported_function_in_another_process(kind: str, tmp_path: Path) -> None:
    """As docs/jax.md describes it: programs run once the process has them, JAX's own operations at once."""
    pytest.importorskip("flatbuffers", reason="flatbuffers is not installed: JAX writes files with it")
    if kind == "programs" and xpgrad_jax.why_plain() is not None:
        pytest.skip("no programs here")
    arrays = [random(*s).astype(jnp.float32) for s in [(T, N, I), (1, 4 * H, I), (1, 4 * H, H)]]
    forms = export.symbolic_args_specs(arrays, [f"{T}, n, {I}" if kind == "symbols" else "...", "...", "..."])
    run = jax.jit(lambda X, W, R: xpgrad_jax.lstm(X, W, R)[1])
    if kind == "programs":
        with pytest.raises(ValueError, match="custom calls whose targets have no compatibility guarantees"):
            export.export(run)(*forms).serialize()
    ours = export.DisabledSafetyCheck.custom_call("xpgrad_program")
    exported = export.export(run, disabled_checks=[ours] if kind == "programs" else [])(*forms)
    assert ("xpgrad_program" in exported.mlir_module()) == (kind == "programs")
    (tmp_path / kind).write_bytes(exported.serialize())
    np.savez(tmp_path / "arrays.npz", *arrays)
    np.save(tmp_path / "expected.npy", run(*arrays))
    command = [sys.executable, "-c", _RESTORED, str(tmp_path), kind]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
