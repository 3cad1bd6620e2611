"""`xpgrad_jax.lstm` and `gru` beside JAX's own autodiff of a ``lax.scan``, in every transformation."""

from __future__ import annotations

import importlib.util
import os
import re
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="jax not installed")

import jax
import jax.numpy as jnp

import jax_references
import xpgrad
import xpgrad_jax

T, N, I, H = 5, 4, 3, 2
LENGTHS = [5, 3, 0, 1]
GATES = {"lstm": 4, "gru": 3}


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def operands(operator: str, rng: np.random.Generator, D: int = 1, layout: int = 0) -> dict[str, Any]:
    gates = GATES[operator]
    shapes = {
        "X": (T, N, I),
        "W": (D, gates * H, I),
        "R": (D, gates * H, H),
        "B": (D, 2 * gates * H),
        "initial_h": (D, N, H),
    }
    if operator == "lstm":
        shapes |= {"initial_c": (D, N, H), "P": (D, 3 * H)}
    arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    if layout:
        for name in ("X", "initial_h", "initial_c"):
            if name in arrays:
                arrays[name] = np.swapaxes(arrays[name], 0, 1)
    return {name: jnp.asarray(array) for name, array in arrays.items()}


NATIVE = importlib.util.find_spec("numba") is not None and os.environ.get("XPGRAD_JIT") != "0"


def test_programs_run_wherever_numba_is() -> None:
    assert (xpgrad_jax.why_plain() is None) == NATIVE


OURS = {"lstm": xpgrad_jax.lstm, "gru": xpgrad_jax.gru}
THEIRS = {"lstm": jax_references.lstm, "gru": jax_references.gru}
NAMES = {"sequence_lens": "lengths", "initial_h": "h0", "initial_c": "c0"}


def pair(operator: str, lengths: Any = None, **options: Any) -> tuple[Any, Any]:
    """A number of all outputs, by our functions and by the reference, of operands by name."""

    def weigh(outputs: tuple) -> Any:
        rng = np.random.default_rng(7)
        return sum((y * rng.normal(size=y.shape)).sum() for y in outputs)

    def ours(arrays: dict[str, Any]) -> Any:
        return weigh(OURS[operator](**arrays, sequence_lens=lengths, **options))

    def theirs(arrays: dict[str, Any]) -> Any:
        given = {NAMES.get(name, name): x for name, x in arrays.items()}
        exact = None if lengths is None else jnp.asarray(lengths)
        return weigh(THEIRS[operator](**given, lengths=exact, **options))

    return ours, theirs


def assert_close(ours: Any, theirs: Any, tolerance: float = 1e-10) -> None:
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    for a, b in pairs:
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("lstm", {}),
    "lstm reverse": ("lstm", {"direction": "reverse"}),
    "lstm bidirectional, batch first": ("lstm", {"direction": "bidirectional", "layout": 1}),
    "lstm clip": ("lstm", {"clip": 0.5}),
    "lstm input_forget": ("lstm", {"input_forget": True}),
    "lstm activations": ("lstm", {"activations": ["HardSigmoid", "Softsign", "Relu"]}),
    "gru": ("gru", {}),
    "gru reset after": ("gru", {"linear_before_reset": 1}),
    "gru reset after, reverse": ("gru", {"linear_before_reset": 1, "direction": "reverse"}),
    "gru bidirectional, batch first": ("gru", {"direction": "bidirectional", "layout": 1}),
    "gru clip": ("gru", {"clip": 0.5}),
    "gru activations": ("gru", {"activations": ["HardSigmoid", "LeakyRelu"], "linear_before_reset": 1}),
}


DENSE = ["lstm", "lstm bidirectional, batch first", "gru", "gru reset after, reverse"]


@pytest.mark.parametrize(
    ("case", "lengths"), [*((case, LENGTHS) for case in OPTIONS), *((case, None) for case in DENSE)]
)
def test_values_and_gradients_are_those_of_autodiff(
    case: str, lengths: Any, rng: np.random.Generator
) -> None:
    operator, options = OPTIONS[case]
    arrays = operands(operator, rng, 2 if "bidirectional" in case else 1, options.get("layout", 0))
    ours, theirs = pair(operator, lengths, **options)
    assert_close(jax.jit(jax.value_and_grad(ours))(arrays), jax.jit(jax.value_and_grad(theirs))(arrays))


@pytest.mark.parametrize(("operator", "lengths"), [("lstm", None), ("gru", LENGTHS)])
def test_in_every_transformation(operator: str, lengths: Any, rng: np.random.Generator) -> None:
    arrays = operands(operator, rng)
    ours, theirs = pair(operator, lengths)
    tangents = {name: jnp.asarray(rng.normal(size=x.shape)) for name, x in arrays.items()}

    def results(f: Any) -> Any:
        only = {"W": arrays["W"]}

        def of_W(part: dict[str, Any]) -> Any:
            return f({**arrays, **part})

        def rows(name: str, axis: int) -> Any:
            stacked = jnp.stack([arrays[name], 2 * arrays[name], -arrays[name]], axis=axis)
            return jax.vmap(jax.grad(lambda x: f({**arrays, name: x})), in_axes=axis)(stacked)

        direction = {"W": tangents["W"]}
        return {
            "jvp": jax.jvp(f, (arrays,), (tangents,)),
            "one argument": jax.grad(of_W)(only),
            "checkpoint": jax.grad(jax.checkpoint(of_W))(only),
            "grad of vmap": jax.grad(
                lambda part: jax.vmap(lambda X: f({**arrays, **part, "X": X}))(
                    jnp.stack([arrays["X"], 3 * arrays["X"]])
                ).sum()
            )(only),
            "vmap over X": rows("X", 1),
            "vmap over R": rows("R", 0),
            "per sample": jax.vmap(lambda X: jax.grad(lambda part: f({**arrays, **part, "X": X}))(only))(
                jnp.stack([arrays["X"], 3 * arrays["X"]])
            ),
            "forward over reverse": jax.jvp(jax.grad(of_W), (only,), (direction,))[1],
            "reverse over reverse": jax.grad(
                lambda part: sum((g**2).sum() for g in jax.tree.leaves(jax.grad(f)({**arrays, **part})))
            )(only),
            "forward over forward": jax.jvp(
                lambda part: jax.jvp(of_W, (part,), (direction,))[1], (only,), (direction,)
            )[1],
        }

    assert_close(jax.jit(lambda: results(ours))(), jax.jit(lambda: results(theirs))())


@pytest.mark.parametrize("operator", GATES)
def test_eager_calls_are_those_under_jit(operator: str, rng: np.random.Generator) -> None:
    arrays = operands(operator, rng)
    ours, theirs = pair(operator, LENGTHS)
    for _ in range(3):
        assert_close(jax.value_and_grad(ours)(arrays), jax.jit(jax.value_and_grad(theirs))(arrays))


@pytest.mark.parametrize("operator", GATES)
def test_lengths_may_be_traced_and_padding_has_no_effect(operator: str, rng: np.random.Generator) -> None:
    arrays = operands(operator, rng)
    traces = []

    @jax.jit
    def run(arrays: dict[str, Any], lengths: Any) -> Any:
        traces.append(None)
        return jax.value_and_grad(pair(operator, lengths)[0])(arrays)

    for lengths in ([5, 3, 0, 1], [1, 5, 5, 2], [0, 0, 0, 0], [5, 5, 5, 5]):
        X = np.array(arrays["X"])
        for n, length in enumerate(lengths):
            X[length:, n] = np.nan
        value, grads = run({**arrays, "X": jnp.asarray(X)}, jnp.asarray(lengths))
        expected = jax.value_and_grad(pair(operator, lengths)[1])(arrays)
        assert_close((value, grads), expected)
    assert len(traces) == 1
    beyond = run(arrays, jnp.asarray([9, 3, -2, 1]))
    assert_close(beyond, run(arrays, jnp.asarray([5, 3, 0, 1])), 0)


def test_known_lengths_are_checked(rng: np.random.Generator) -> None:
    arrays = operands("gru", rng)
    with pytest.raises(ValueError, match=r"gru: sequence_lens\[1\] is 6, expected 0 to T = 5"):
        xpgrad_jax.gru(**arrays, sequence_lens=[5, 6, 1, 1])
    with pytest.raises(TypeError, match="sequence_lens has dtype float64, expected an integer dtype"):
        xpgrad_jax.gru(**arrays, sequence_lens=np.ones(N))


@pytest.mark.parametrize("operator", GATES)
def test_graph_is_one_call_forth_and_one_back_whatever_the_number_of_steps(operator: str) -> None:
    gates, texts, calls = GATES[operator], [], []
    for steps in (6, 600):
        shapes = [(steps, N, I), (1, gates * H, I), (1, gates * H, H)]
        X, W, R = (jnp.zeros(shape) for shape in shapes)
        gradient = jax.grad(lambda W, X=X, R=R: OURS[operator](X, W, R)[0].sum())
        text = str(jax.make_jaxpr(gradient)(W))
        assert text.count("ffi_call[") == 2
        assert "callback" not in text
        texts.append(re.sub(r"\b(6|600)\b", "T", text))
        calls.append(jax.jit(gradient).lower(W).as_text().count("stablehlo.custom_call @xpgrad_program"))
    assert texts[0] == texts[1]
    assert calls == ([2, 2] if NATIVE else [0, 0])


def test_only_what_is_asked_for_is_computed(rng: np.random.Generator) -> None:
    arrays = operands("lstm", rng)
    ours, _ = pair("lstm")
    text = str(jax.make_jaxpr(jax.grad(lambda W: ours({**arrays, "W": W})))(arrays["W"]))
    assert "wrt=('W',)" in text
    only_last = jax.make_jaxpr(jax.grad(lambda W: xpgrad_jax.lstm(**{**arrays, "W": W})[2].sum()))
    present = re.search(r"gradient_ffi_call\[.*?present=\((.*?)\)", str(only_last(arrays["W"])), re.S)
    assert present is not None
    assert "grad_C_t" in present[1]
    assert "grad_H" not in present[1]


@pytest.mark.parametrize("operator", GATES)
def test_plain_way_where_programs_do_not_fit(
    operator: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xpgrad_jax import _ffi

    monkeypatch.setattr(_ffi, "why_not", lambda: "told so")
    arrays = operands(operator, rng)
    ours, theirs = pair(operator, LENGTHS, direction="reverse")
    run = jax.jit(jax.value_and_grad(ours))
    assert "xpgrad_program" not in run.lower(arrays).as_text()
    assert_close(run(arrays), jax.jit(jax.value_and_grad(theirs))(arrays))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("x64", [False, True])
def test_other_dtypes(dtype: str, x64: bool, rng: np.random.Generator) -> None:
    with jax.enable_x64(x64):
        arrays = {name: x.astype(dtype) for name, x in operands("lstm", rng).items()}
        value, grads = jax.jit(jax.value_and_grad(lambda a: sum(y.sum() for y in xpgrad_jax.lstm(
            **a, sequence_lens=LENGTHS))))(arrays)  # fmt: skip
        wide = {name: x.astype("float32") for name, x in arrays.items()}
        expected = jax.grad(
            lambda a: sum(
                y.sum()
                for y in jax_references.lstm(
                    **{NAMES.get(k, k): v for k, v in a.items()}, lengths=jnp.asarray(LENGTHS)
                )
            )
        )(wide)
    assert value.dtype == dtype
    tolerance = {"float32": 1e-5, "float16": 2e-2, "bfloat16": 2e-1}[dtype]
    for name, grad in grads.items():
        assert grad.dtype == dtype
        np.testing.assert_allclose(
            np.asarray(grad, np.float64), np.asarray(expected[name]), rtol=tolerance, atol=tolerance
        )


def test_truncated_peepholes_are_a_gradient_and_no_tangent(rng: np.random.Generator) -> None:
    arrays = operands("lstm", rng)
    given = {name: np.asarray(x) for name, x in arrays.items()}
    out = xpgrad.lstm(**given)
    expected = xpgrad.lstm_grad(
        **given, H_all=out.H_all, C_all=out.C_all, iofc=out.iofc, grad_H_t=np.ones_like(out.H_t),
        peephole="truncated",
    )  # fmt: skip

    def loss(P: Any) -> Any:
        return xpgrad_jax.lstm(**{**arrays, "P": P}, peephole="truncated")[1].sum()

    np.testing.assert_allclose(np.asarray(jax.grad(loss)(arrays["P"])), expected.dP, rtol=1e-12)
    with pytest.raises(ValueError, match="lstm: peephole is 'truncated', expected 'full' in forward mode"):
        jax.jvp(loss, (arrays["P"],), (arrays["P"],))


def test_bad_input_is_named(rng: np.random.Generator) -> None:
    arrays = operands("lstm", rng)
    with pytest.raises(TypeError, match="lstm: W is None, expected an array"):
        xpgrad_jax.lstm(**{**arrays, "W": None})
    with pytest.raises(TypeError, match="lstm: W is a list, expected an array of JAX or NumPy"):
        xpgrad_jax.lstm(**{**arrays, "W": [1.0]})
    with pytest.raises(ValueError, match=r"lstm: W has shape \(1, 8, 2\)"):
        xpgrad_jax.lstm(**{**arrays, "W": arrays["W"][:, :, :2]})
    with pytest.raises(TypeError, match="lstm: R has dtype float32, expected float64"):
        jax.jit(xpgrad_jax.lstm)(**{**arrays, "R": arrays["R"].astype("float32")})
    with pytest.raises(ValueError, match="lstm: layout is 2"):
        xpgrad_jax.lstm(**arrays, layout=2)


@pytest.mark.parametrize("sizes", [(0, N), (T, 0), (1, 1)])
def test_empty_and_smallest_sizes(sizes: tuple[int, int], rng: np.random.Generator) -> None:
    steps, batch = sizes
    X, W, R = (jnp.asarray(rng.normal(size=s)) for s in [(steps, batch, I), (1, 4 * H, I), (1, 4 * H, H)])
    ours = jax.grad(lambda W: sum(y.sum() for y in xpgrad_jax.lstm(X, W, R)))(W)
    theirs = jax.grad(lambda W: sum(y.sum() for y in jax_references.lstm(X, W, R)))(W)
    assert_close(ours, theirs)


def test_ten_threads_at_once_in_turns_with_numpy(rng: np.random.Generator) -> None:
    shapes = [(12, 40, 8), (1, 64, 8), (1, 64, 16)]
    given = [rng.normal(size=shape) for shape in shapes]
    X, W, R = map(jnp.asarray, given)
    run = jax.jit(jax.value_and_grad(lambda W: xpgrad_jax.lstm(X, W, R)[0].sum()))
    expected = run(W)
    states = xpgrad.lstm(*given).H_all
    wrong: list[Any] = []

    def work() -> None:
        with jax.enable_x64(True):  # belongs to a thread
            for _ in range(20):
                value, grad = run(W)
                same = np.allclose(value, expected[0]) and np.allclose(grad, expected[1], rtol=1e-12)
                if not same or not np.allclose(xpgrad.lstm(*given).H_all, states):
                    wrong.append(value)

    threads = [threading.Thread(target=work) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
