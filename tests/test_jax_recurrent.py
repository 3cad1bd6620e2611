"""`xpgrad_jax.lstm`, `gru` and `rnn` beside JAX's own autodiff of a ``lax.scan``, in every transformation."""

from __future__ import annotations

import importlib
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
from xpgrad.engine.compiled import machine
from xpgrad.engine.programs.foreign import HostTeam

T, N, I, H = 5, 4, 3, 2
LENGTHS = [5, 3, 0, 1]
GATES = {"lstm": 4, "gru": 3, "rnn": 1}


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


def regularizers(operator: str, rng: np.random.Generator, D: int) -> tuple[dict, dict]:
    """Operands for a state projected to 3 columns, where the operator has that; and masks."""
    width = 3 if operator == "lstm" else H
    masks = {"recurrent_mask": rng.uniform(size=(D, N, width))}
    masks["zoneout_h"] = rng.uniform(size=(T, D, N, width))
    more: dict[str, Any] = {}
    if operator == "lstm":
        more = {"S": (D, width, H), "R": (D, 4 * H, width), "initial_h": (D, N, width)}
        masks["zoneout_c"] = rng.uniform(size=(T, D, N, H))
    arrays = {name: jnp.asarray(rng.normal(size=shape)) for name, shape in more.items()}
    return arrays, {name: jnp.asarray(mask) for name, mask in masks.items()}


NATIVE = importlib.util.find_spec("llvmlite") is not None and os.environ.get("XPGRAD_JIT") != "0"


def test_programs_run_wherever_llvmlite_is() -> None:
    assert (xpgrad_jax.why_plain() is None) == NATIVE


NAMES = {"sequence_lens": "lengths", "initial_h": "h0", "initial_c": "c0"}


def pair(operator: str, lengths: Any = None, **options: Any) -> tuple[Any, Any]:
    """A number of all outputs, by our functions and by the reference, of operands by name."""

    def ours(arrays: dict[str, Any]) -> Any:
        return weigh(getattr(xpgrad_jax, operator)(**arrays, sequence_lens=lengths, **options))

    def theirs(arrays: dict[str, Any]) -> Any:
        given = {NAMES.get(name, name): x for name, x in arrays.items()}
        exact = None if lengths is None else jnp.asarray(lengths)
        return weigh(getattr(jax_references, operator)(**given, lengths=exact, **options))

    return ours, theirs


def weigh(outputs: tuple) -> Any:
    return sum((y * weight).sum() for y, weight in zip(outputs, weights(outputs), strict=True))


def weights(outputs: tuple) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.normal(size=y.shape) for y in outputs]


def by_the_core(operator: str, arrays: dict[str, Any], lengths: Any = None, **options: Any) -> Any:
    """The same number and its gradients by the core's kernels on NumPy arrays, which other tests check."""
    given = {name: np.asarray(x) for name, x in arrays.items()}
    out = getattr(xpgrad, operator)(**given, sequence_lens=lengths, **options)
    seen = [out.H_all, out.H_t, *([out.C_t] if operator == "lstm" else [])]
    saved = {name: getattr(out, name) for name in ("H_all", "C_all", "iofc", "zrh") if hasattr(out, name)}
    names = ("grad_H_all", "grad_H_t", "grad_C_t")
    cotangents = {
        name: weight.astype(given["X"].dtype) for name, weight in zip(names, weights(seen), strict=False)
    }
    gradient = getattr(xpgrad, f"{operator}_grad")
    grads = gradient(**given, **saved, **cotangents, sequence_lens=lengths, **options)
    fields = {"initial_h": "dH0", "initial_c": "dC0"}
    return weigh(seen), {name: getattr(grads, fields.get(name, f"d{name}")) for name in given}


def assert_close(ours: Any, theirs: Any, tolerance: float = 1e-10) -> None:
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    for a, b in pairs:
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm reverse": ("lstm", {"direction": "reverse"}),
    "lstm clip": ("lstm", {"clip": 0.5}),
    "lstm input_forget": ("lstm", {"input_forget": True}),
    "lstm activations": ("lstm", {"activations": ["HardSigmoid", "Softsign", "Relu"]}),
    "gru": ("gru", {}),
    "gru reset after": ("gru", {"linear_before_reset": 1}),
    "gru clip": ("gru", {"clip": 0.5}),
    "gru activations": ("gru", {"activations": ["HardSigmoid", "LeakyRelu"], "linear_before_reset": 1}),
    "rnn": ("rnn", {}),
    "rnn reverse, relu": ("rnn", {"activations": ["Relu"], "direction": "reverse"}),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_values_and_gradients_are_those_of_autodiff(case: str, rng: np.random.Generator) -> None:
    operator, options = OPTIONS[case]
    arrays = operands(operator, rng)
    ours, theirs = pair(operator, LENGTHS, **options)
    assert_close(jax.jit(jax.value_and_grad(ours))(arrays), jax.jit(jax.value_and_grad(theirs))(arrays))


TOGETHER: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "lstm projected, masked": ("lstm", LENGTHS, {}),
    "lstm both ways, batch first": (
        "lstm",
        LENGTHS,
        {
            "direction": "bidirectional",
            "layout": 1,
            "clip": 0.7,
            "input_forget": True,
            "activations": ["HardSigmoid", "Softsign", "Tanh"] * 2,
        },
    ),
    "gru masked": ("gru", None, {"direction": "reverse", "activations": ["HardSigmoid", "LeakyRelu"]}),
    "gru both ways, batch first": (
        "gru",
        LENGTHS,
        {"direction": "bidirectional", "layout": 1, "clip": 0.7, "linear_before_reset": 1},
    ),
    "rnn": ("rnn", LENGTHS, {"direction": "bidirectional", "layout": 1, "clip": 0.7}),
}
"""Every option that ONNX has is in one of them, and every other one."""


@pytest.mark.parametrize("case", TOGETHER)
def test_in_every_transformation(case: str, rng: np.random.Generator) -> None:
    operator, lengths, options = TOGETHER[case]
    layout = options.get("layout", 0)
    D = 2 if options.get("direction") == "bidirectional" else 1
    arrays = operands(operator, rng, D, layout)
    if case.endswith("masked"):
        more, masks = regularizers(operator, rng, D)
        arrays, options = arrays | more, options | masks
    ours, theirs = pair(operator, lengths, **options)
    tangents = {name: jnp.asarray(rng.normal(size=x.shape)) for name, x in arrays.items()}
    only, direction = {"W": arrays["W"]}, {"W": tangents["W"]}
    inputs = jnp.stack([arrays["X"], 3 * arrays["X"]])
    recurrences = jnp.stack([arrays["R"], -arrays["R"]])

    def of_W(part: dict[str, Any]) -> Any:
        return ours({**arrays, **part})

    def squares(part: dict[str, Any]) -> Any:
        return sum((g**2).sum() for g in jax.tree.leaves(jax.grad(ours)({**arrays, **part})))

    def made() -> Any:
        return {
            "value and gradients": jax.value_and_grad(ours)(arrays),
            "jvp": jax.jvp(ours, (arrays,), (tangents,))[1],
            "one argument": jax.grad(of_W)(only),
            "checkpoint": jax.grad(jax.checkpoint(of_W))(only),
            "grad of vmap": jax.grad(
                lambda part: jax.vmap(lambda X: ours({**arrays, **part, "X": X}))(inputs).sum()
            )(only),
            "vmap over X": jax.vmap(jax.grad(lambda X: ours({**arrays, "X": X})), in_axes=1)(
                jnp.moveaxis(inputs, 0, 1)
            ),
            "vmap over R": jax.vmap(jax.grad(lambda R: ours({**arrays, "R": R})))(recurrences),
            "per sample": jax.vmap(lambda X: jax.grad(lambda part: ours({**arrays, **part, "X": X}))(only))(
                inputs
            ),
            "forward over reverse": jax.jvp(jax.grad(of_W), (only,), (direction,))[1],
            **(other_second_derivatives() if "both" not in case else {}),
        }

    def other_second_derivatives() -> Any:
        """The same rules of JAX for the same graphs, which take long to compile."""
        return {
            "reverse over reverse": jax.grad(squares)(only),
            "forward over forward": jax.jvp(
                lambda part: jax.jvp(of_W, (part,), (direction,))[1], (only,), (direction,)
            )[1],
        }

    def expected() -> Any:
        """As little as gives all of it: each second derivative is a product with the Hessian."""
        gradient = jax.grad(theirs)

        def curvature(along: dict[str, Any]) -> Any:
            given = {name: along.get(name, jnp.zeros_like(x)) for name, x in arrays.items()}
            return jax.jvp(gradient, (arrays,), (given,))[1]["W"]

        value, grads = jax.value_and_grad(theirs)(arrays)
        each = jax.lax.map(lambda X: gradient({**arrays, "X": X}), inputs)
        padded = {name: jnp.zeros_like(x) for name, x in arrays.items()} | direction
        bent = jax.lax.map(curvature, jax.tree.map(lambda *x: jnp.stack(x), padded, grads))
        return {
            "value and gradients": (value, grads),
            "jvp": sum((grads[name] * t).sum() for name, t in tangents.items()),
            "one argument": {"W": grads["W"]},
            "checkpoint": {"W": grads["W"]},
            "grad of vmap": {"W": each["W"].sum(axis=0)},
            "vmap over X": each["X"],
            "vmap over R": jax.lax.map(lambda R: gradient({**arrays, "R": R})["R"], recurrences),
            "per sample": {"W": each["W"]},
            "forward over reverse": {"W": bent[0]},
            "reverse over reverse": {"W": 2 * bent[1]},
            "forward over forward": (bent[0] * direction["W"]).sum(),
        }

    values = jax.jit(made)()
    assert_close(values, {name: x for name, x in jax.jit(expected)().items() if name in values})


@pytest.mark.parametrize("operator", GATES)
def test_eager_calls_are_those_under_jit(operator: str, rng: np.random.Generator) -> None:
    arrays = operands(operator, rng)
    ours, _ = pair(operator, LENGTHS)
    for _ in range(3):
        assert_close(jax.value_and_grad(ours)(arrays), by_the_core(operator, arrays, LENGTHS))


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
        assert_close((value, grads), by_the_core(operator, arrays, lengths))
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
        gradient = jax.grad(lambda W, X=X, R=R: getattr(xpgrad_jax, operator)(X, W, R)[0].sum())
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
    ours, _ = pair(operator, LENGTHS, direction="reverse")
    run = jax.jit(jax.value_and_grad(ours)).lower(arrays)
    assert "xpgrad_program" not in run.as_text()
    assert_close(run.compile()(arrays), by_the_core(operator, arrays, LENGTHS, direction="reverse"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("x64", [False, True])
def test_other_dtypes(dtype: str, x64: bool, rng: np.random.Generator) -> None:
    with jax.enable_x64(x64):
        arrays = {name: x.astype(dtype) for name, x in operands("lstm", rng).items()}
        run = jax.jit(jax.value_and_grad(lambda a: sum(y.sum() for y in xpgrad_jax.lstm(
            **a, sequence_lens=LENGTHS))))  # fmt: skip
        value, grads = run(arrays)
    wide = {name: np.asarray(x.astype("float32")) for name, x in arrays.items()}
    out = xpgrad.lstm(**wide, sequence_lens=LENGTHS)
    cotangents = {"grad_H_all": out.H_all, "grad_H_t": out.H_t, "grad_C_t": out.C_t}
    exact = xpgrad.lstm_grad(
        **wide, sequence_lens=LENGTHS, H_all=out.H_all, C_all=out.C_all, iofc=out.iofc,
        **{name: np.ones_like(x) for name, x in cotangents.items()},
    )  # fmt: skip
    fields = {"initial_h": "dH0", "initial_c": "dC0"}
    assert value.dtype == dtype
    tolerance = {"float32": 1e-5, "float16": 2e-2, "bfloat16": 2e-1}[dtype]
    for name, grad in grads.items():
        assert grad.dtype == dtype
        expected = getattr(exact, fields.get(name, f"d{name}"))
        np.testing.assert_allclose(np.asarray(grad, np.float64), expected, rtol=tolerance, atol=tolerance)


def test_masks_have_the_slope_of_a_scan(rng: np.random.Generator) -> None:
    arrays = operands("gru", rng)
    _, masks = regularizers("gru", rng, 1)
    ours, theirs = (lambda m, f=f: f(arrays | m) for f in pair("gru", LENGTHS))
    assert_close(jax.jit(jax.grad(ours))(masks), jax.jit(jax.grad(theirs))(masks))


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
    arrays = {"X": X, "W": W, "R": R}
    assert_close(jax.value_and_grad(pair("lstm")[0])(arrays), by_the_core("lstm", arrays))


@pytest.mark.skipif(not NATIVE, reason="llvmlite not installed: no program runs in the host's threads")
@pytest.mark.parametrize("lengths", [None, [6, 3, 0, 1, 6, 2, 5]])
@pytest.mark.parametrize("operator", GATES)
def test_the_hosts_threads_share_columns(
    operator: str, lengths: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = 70
    shapes = [(6, 7, 4), (1, GATES[operator] * hidden, 4), (1, GATES[operator] * hidden, hidden)]
    arrays = {name: rng.normal(size=shape) / 4 for name, shape in zip("XWR", shapes, strict=True)}
    expected = by_the_core(operator, arrays, lengths)
    shared = []
    decide = machine._share_columns

    def noting(*asked: Any) -> bool:
        shared.append(decide(*asked))
        return shared[-1]

    monkeypatch.setattr(machine, "_SAVED", -(1 << 60))
    monkeypatch.setattr(machine, "_share_columns", noting)
    monkeypatch.setattr(HostTeam, "size", lambda team: 3)
    given = {name: jnp.asarray(x) for name, x in arrays.items()}
    for _ in range(3):
        assert_close(jax.jit(jax.value_and_grad(pair(operator, lengths)[0]))(given), expected)
    assert any(shared)


def test_ten_threads_at_once_in_turns_with_numpy_and_torch(rng: np.random.Generator) -> None:
    shapes = [(12, 40, 8), (1, 64, 8), (1, 64, 16)]
    given = [rng.normal(size=shape) for shape in shapes]
    X, W, R = map(jnp.asarray, given)
    run = jax.jit(jax.value_and_grad(lambda W: xpgrad_jax.lstm(X, W, R)[0].sum()))
    expected = run(W)
    states = xpgrad.lstm(*given).H_all
    wrong: list[Any] = []
    torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
    tensors = [torch.from_numpy(x) for x in given] if torch else given

    def work() -> None:
        with jax.enable_x64(True):  # belongs to a thread
            for _ in range(20):
                value, grad = run(W)
                same = np.allclose(value, expected[0]) and np.allclose(grad, expected[1], rtol=1e-12)
                turns = [xpgrad.lstm(*arrays).H_all for arrays in (given, tensors)]
                if not same or not all(np.allclose(turn, states) for turn in turns):
                    wrong.append(value)

    threads = [threading.Thread(target=work) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("lengths", [[], [np.int8(1), np.uint64(2), 3], np.asarray([1, 2, 3], dtype=">i4")])
def test_lengths_of_any_integers(lengths):
    X, W, R = (
        np.ones((4, len(lengths), 3), np.float32),
        np.ones((1, 16, 3), np.float32),
        np.ones((1, 16, 4), np.float32),
    )
    found = xpgrad_jax.lstm(jnp.asarray(X), jnp.asarray(W), jnp.asarray(R), sequence_lens=lengths)[0]
    np.testing.assert_allclose(found, xpgrad.lstm(X, W, R, sequence_lens=lengths).H_all, rtol=1e-5, atol=1e-6)
