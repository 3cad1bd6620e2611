"""Cross-entropies: definitions, differences, PyTorch, masks, ignored labels, memory, every backend."""

from __future__ import annotations

import contextlib
import itertools
import tracemalloc
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest

import xpgrad
from backends import Backend
from xpgrad.testing import assert_close, check_vjp, to_numpy

Long = np.longdouble
REDUCTIONS = ("mean", "sum", "none")
IGNORED = -7
SHAPE, CLASSES = (3, 5, 2, 4), 5
reductions = pytest.mark.parametrize("reduction", REDUCTIONS)


def data(kind: str, seed: int = 0, shape: tuple[int, ...] = SHAPE) -> dict[str, Any]:
    """Logits, labels of a kind, weights; some labels are ignored."""
    rng = np.random.default_rng(seed)
    samples = shape[:1] + shape[2:] if len(shape) > 1 else ()
    classes = shape[1] if len(shape) > 1 else shape[0]
    labels: Any = rng.integers(0, classes, size=samples)
    attributes: dict[str, Any] = {}
    if kind == "probabilities":
        labels = np.moveaxis(rng.dirichlet(np.ones(classes), size=samples), -1, 1 if samples else 0)
    elif kind == "ignored":
        labels = np.where(rng.random(samples) < 0.3, IGNORED, labels)
        attributes["ignore_index"] = IGNORED
    return {
        "X": 3 * rng.normal(size=shape), "labels": labels, "weights": rng.uniform(0.2, 2, size=classes),
        "attributes": attributes,
    }  # fmt: skip


def definition(
    X: np.ndarray, labels: np.ndarray, weights: Any, smoothing: float, ignored: Any, reduction: str
) -> tuple[np.ndarray, np.ndarray]:
    """The loss in extended precision, and the samples' factors of a mean; sample by sample."""
    classes = X.shape[1]
    w = np.ones(classes, Long) if weights is None else weights.astype(Long)
    rows = np.moveaxis(X.astype(Long), 1, -1)
    samples = rows.shape[:-1]
    losses, factors = np.zeros(samples, Long), np.zeros(samples, Long)
    for index in np.ndindex(samples):
        row = rows[index]
        log_p = row - np.max(row) - np.log(np.sum(np.exp(row - np.max(row))))
        if labels.dtype.kind == "f":
            target, factors[index] = np.moveaxis(labels, 1, -1)[index].astype(Long), 1
        elif labels[index] == ignored:
            continue
        else:
            target, factors[index] = np.eye(classes, dtype=Long)[labels[index]], w[labels[index]]
        target = (1 - Long(smoothing)) * target + Long(smoothing) / classes
        losses[index] = -np.sum(w * target * log_p)
    if reduction == "none":
        return losses, factors
    total = np.sum(losses)
    return total / np.sum(factors) if reduction == "mean" else total, factors


def run(
    backend: Backend | None, kind: str, dtype: str = "float64", weighted: bool = True, **more: Any
) -> tuple:
    """Loss, gradient and what went in, for a random cotangent."""
    case = data(kind)
    reduction = more.get("reduction", "mean")
    attributes = case["attributes"] | more
    samples = SHAPE[:1] + SHAPE[2:] if reduction == "none" else ()
    dY = np.random.default_rng(1).normal(size=samples)
    place = (lambda v, dtype=None: v) if backend is None else backend.array
    X, w, d = place(case["X"], dtype), place(case["weights"] if weighted else None, dtype), place(dY, dtype)
    labels = place(case["labels"], dtype)
    with np.errstate(all="raise"):
        loss = xpgrad.softmax_cross_entropy(X, labels, w, **attributes)
        dX = xpgrad.softmax_cross_entropy_grad(d, X, labels, w, **attributes)
    return loss, dX, X, labels, w, d, attributes


OPTIONS = list(
    itertools.product(("numbers", "ignored", "probabilities"), REDUCTIONS, (0.0, 0.15), (False, True))
)


@pytest.mark.parametrize(("kind", "reduction", "smoothing", "weighted"), OPTIONS)
def test_definition(kind: str, reduction: str, smoothing: float, weighted: bool, backend: Backend) -> None:
    for dtype in backend.dtypes:
        if dtype != "float64" and not (weighted and smoothing):
            continue
        more = {"reduction": reduction, "label_smoothing": smoothing}
        loss, _, X, labels, w, _, attributes = run(backend, kind, dtype, weighted, **more)
        exact = [None if v is None else to_numpy(v) for v in (X, labels, w)]
        exact = [v.astype(float) if v is not None and v.dtype.kind == "f" else v for v in exact]
        expected, _ = definition(*exact, smoothing, attributes.get("ignore_index"), reduction)
        tolerance = {"float64": 1e-14, "float32": 1e-6, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
        assert_close(loss, np.asarray(expected, float), like=X, rtol=tolerance, label="loss")


@pytest.mark.parametrize(("kind", "reduction", "smoothing", "weighted"), OPTIONS)
@pytest.mark.parametrize("how", ["numpy", "blocks", "standard"])
def test_differences(
    kind: str, reduction: str, smoothing: float, weighted: bool, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "blocks":
        monkeypatch.setenv("XPGRAD_JIT", "0")
    case = data(kind, 2, (2, 3, 2))
    labels, weights = case["labels"], case["weights"] if weighted else None
    more = case["attributes"] | {"reduction": reduction, "label_smoothing": smoothing}
    with xpgrad.use_engine("standard" if how == "standard" else None):
        check_vjp(
            lambda X: xpgrad.softmax_cross_entropy(X, labels, weights, **more),
            lambda dY, X: xpgrad.softmax_cross_entropy_grad(dY, X, labels, weights, **more),
            {"X": case["X"]},
            operator="softmax_cross_entropy",
        )


@pytest.mark.parametrize(("kind", "reduction", "smoothing", "weighted"), OPTIONS)
def test_pytorch(kind: str, reduction: str, smoothing: float, weighted: bool) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    more = {"reduction": reduction, "label_smoothing": smoothing}
    loss, dX, X, labels, w, d, attributes = run(None, kind, weighted=weighted, **more)
    leaf = torch.tensor(X, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(
        leaf, torch.tensor(labels), None if w is None else torch.tensor(w), **attributes
    )
    expected.backward(torch.tensor(d))
    np.testing.assert_allclose(loss, expected.detach().numpy(), rtol=1e-13)
    np.testing.assert_allclose(dX, leaf.grad.numpy(), rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("kind", ["numbers", "ignored", "probabilities"])
@reductions
def test_gradient_on_backends(kind: str, reduction: str, backend: Backend) -> None:
    """As on NumPy in float64, which differences and PyTorch have proved."""
    expected = run(None, kind, reduction=reduction, label_smoothing=0.1)[1]
    for dtype in backend.dtypes:
        _, dX, X, *_ = run(backend, kind, dtype, reduction=reduction, label_smoothing=0.1)
        tolerance = {"float64": 1e-13, "float32": 2e-6, "float16": 5e-3, "bfloat16": 4e-2}[dtype]
        assert_close(dX, expected, like=X, rtol=tolerance)


@pytest.mark.parametrize("ignore_index", [None, IGNORED, 1])
@pytest.mark.parametrize("smoothing", [0.0, 0.25])
@pytest.mark.parametrize("shape", [(3, 5), SHAPE])
@reductions
def test_few_checks_give_the_same_bits(
    reduction: str, shape: tuple[int, ...], smoothing: float, ignore_index: int | None, backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A call that takes few checks and the same call with all checks; a label that is ignored needs masks."""
    given = data("numbers", shape=shape)
    dY = np.random.default_rng(1).normal(size=given["labels"].shape if reduction == "none" else ())
    X, cotangent = (backend.array(a, "float32") for a in (given["X"], dY))
    labels = backend.array(given["labels"])
    options: Any = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": ignore_index}

    def results() -> list[np.ndarray]:
        loss = xpgrad.softmax_cross_entropy(X, labels, **options)
        return [
            to_numpy(a) for a in (loss, xpgrad.softmax_cross_entropy_grad(cotangent, X, labels, **options))
        ]

    few = results()
    monkeypatch.setattr("xpgrad.losses._usual_call", lambda *args: None)
    for ours, checked in zip(few, results(), strict=True):
        np.testing.assert_array_equal(ours, checked, strict=True)


@pytest.mark.parametrize("wrong", ["shape", "dtype", "type", "nothing"])
@pytest.mark.parametrize("name", ["softmax_cross_entropy", "binary_cross_entropy_with_logits"])
def test_a_wrong_cotangent_of_a_usual_call(name: str, wrong: str, backend: Backend) -> None:
    """An error names it, although such a call takes few checks."""
    X = backend.array(np.zeros((3, 4)), "float32")
    targets = backend.array(np.zeros(3, np.int64)) if name.startswith("softmax") else X
    dY = {
        "shape": backend.array(np.ones(1), "float32"), "dtype": backend.array(np.ones(()), "float64"),
        "type": 1.0, "nothing": None,
    }[wrong]  # fmt: skip
    with pytest.raises((TypeError, ValueError), match=f"{name}_grad: dY "):
        getattr(xpgrad, f"{name}_grad")(dY, X, targets)


@pytest.mark.parametrize("kind", ["numbers", "probabilities"])
def test_one_sample_and_shapes(kind: str, backend: Backend) -> None:
    """(C,) is one sample; batches may be empty, and have any number of axes behind the classes."""
    for shape in [(5,), (1, 5), (4, 1), (0, 5), (2, 3, 1, 1, 2), (2, 3, 0)]:
        case = data(kind, 3, shape)
        X, labels = backend.array(case["X"]), backend.array(case["labels"])
        losses = xpgrad.softmax_cross_entropy(X, labels, reduction="none")
        samples = shape[:1] + shape[2:] if len(shape) > 1 else ()
        whole = case["X"][None] if len(shape) == 1 else case["X"]
        known = np.asarray(case["labels"])[None] if len(shape) == 1 else case["labels"]
        expected = definition(whole, known, None, 0, None, "none")[0].reshape(samples)
        assert_close(losses, expected.astype(float), like=X, rtol=1e-13, atol=1e-15)
        d = backend.array(np.ones(samples))
        dX = xpgrad.softmax_cross_entropy_grad(d, X, labels, reduction="none")
        share = to_numpy(xpgrad.softmax(X, axis=min(1, len(shape) - 1)))
        target = case["labels"]
        if kind == "numbers":
            target = np.moveaxis(np.eye(whole.shape[1])[known], -1, 1).reshape(shape)
        assert_close(dX, share - target, like=X, rtol=1e-13, atol=1e-15)


def test_ignored_samples_do_not_leak(backend: Backend) -> None:
    """NaN and inf in them have no effect, and nothing is left if all are ignored."""
    X = np.asarray([[1.0, 2.0, 3.0], [np.nan, np.inf, 0.0], [3.0, 1.0, 0.5]])
    labels = np.asarray([2, IGNORED, 0])
    x, t = backend.array(X), backend.array(labels)
    with np.errstate(all="raise"):
        loss = xpgrad.softmax_cross_entropy(x, t, ignore_index=IGNORED)
        dX = xpgrad.softmax_cross_entropy_grad(backend.array(np.asarray(2.0)), x, t, ignore_index=IGNORED)
        nothing = backend.array(np.full(3, IGNORED))
        total = xpgrad.softmax_cross_entropy(x, nothing, ignore_index=IGNORED, reduction="sum")
        none = xpgrad.softmax_cross_entropy_grad(
            backend.array(np.asarray(2.0)), x, nothing, ignore_index=IGNORED
        )
    kept = [0, 2]
    np.testing.assert_allclose(to_numpy(loss), xpgrad.softmax_cross_entropy(X[kept], labels[kept]))
    expected = np.zeros((3, 3))
    expected[kept] = xpgrad.softmax_cross_entropy_grad(np.asarray(2.0), X[kept], labels[kept])
    assert_close(dX, expected, like=x, rtol=1e-13)
    assert float(to_numpy(total)) == 0
    assert np.all(to_numpy(none) == 0)


def test_extremes(backend: Backend) -> None:
    inf = np.inf
    X = np.asarray(
        [[1e4, -1e4, 0.0], [-inf, 1.0, 1.0], [inf, 1.0, 2.0], [-inf, -inf, -inf], [-1e4, 1e4, 0.0]]
    )
    labels = np.asarray([0, 1, 0, 2, 0])
    d = np.asarray([1.0, 2.0, 3.0, 4.0, 5.0])
    for dtype in {"float32", "float64"} & set(backend.dtypes):
        x, cotangent, t = backend.array(X, dtype), backend.array(d, dtype), backend.array(labels)
        with np.errstate(all="raise"):
            loss = to_numpy(xpgrad.softmax_cross_entropy(x, t, reduction="none"))
            dX = to_numpy(xpgrad.softmax_cross_entropy_grad(cotangent, x, t, reduction="none"))
        nan = np.nan
        np.testing.assert_allclose(loss, [0, np.log(2), nan, nan, 2e4], rtol=1e-6, atol=1e-7)
        expected = [[0, 0, 0], [0, -1, 1], [nan] * 3, [nan] * 3, [-5, 5, 0]]
        np.testing.assert_allclose(dX, expected, rtol=1e-6, atol=1e-6)


# every row of three logits, finite and not
LOGITS = np.asarray([*itertools.product((0.5, 2.0, -np.inf, np.inf, np.nan), repeat=3)])


def _of_pytorch(
    labels: np.ndarray, dtype: str, weights: Any, **options: Any
) -> tuple[np.ndarray, np.ndarray]:
    """PyTorch's losses and gradients of LOGITS, one for each row."""
    torch = pytest.importorskip("torch", reason="torch is not installed: there is nothing to compare with")
    x = torch.tensor(LOGITS.astype(dtype), requires_grad=True)
    target = torch.tensor(labels.astype(dtype) if labels.ndim > 1 else labels)
    weight = None if weights is None else torch.tensor(np.asarray(weights, dtype))
    loss = torch.nn.functional.cross_entropy(x, target, weight, reduction="none", **options)
    loss.backward(torch.ones_like(loss))
    return loss.detach().numpy(), x.grad.numpy()


def _ours(backend: Backend, labels: np.ndarray, dtype: str, weights: Any, **options: Any) -> tuple:
    x, one = backend.array(LOGITS, dtype), backend.array(np.ones(len(LOGITS)), dtype)
    t = backend.array(labels, dtype)
    w = None if weights is None else backend.array(np.asarray(weights), dtype)
    with np.errstate(all="raise"):
        loss = xpgrad.softmax_cross_entropy(x, t, w, reduction="none", **options)
        dX = xpgrad.softmax_cross_entropy_grad(one, x, t, w, reduction="none", **options)
    return to_numpy(loss), to_numpy(dX)


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 0.5]], ids=["plain", "weights"])
@pytest.mark.parametrize("smoothing", [0.0, 0.25])
@pytest.mark.parametrize("label", [0, 2])
def test_a_run_that_diverged_has_no_loss(
    backend: Backend, label: int, smoothing: float, weights: Any
) -> None:
    """As in PyTorch: NaN for a sample with inf or NaN, or with -inf throughout; -inf elsewhere is a mask."""
    labels = np.full(len(LOGITS), label)
    for dtype in {"float32", "float64"} & set(backend.dtypes):
        found = _ours(backend, labels, dtype, weights, label_smoothing=smoothing)
        desired = _of_pytorch(labels, dtype, weights, label_smoothing=smoothing)
        assert np.isnan(desired[0]).sum() == 99
        for actual, expected in zip(found, desired, strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", ["a weight of 0", "a probability of 0", "probabilities"])
def test_a_run_that_diverged_has_no_loss_by_other_targets(backend: Backend, target: str) -> None:
    """A class without a target counts nothing where it is masked: PyTorch has 0 times inf there."""
    shares = {"a probability of 0": [0.0, 0.5, 0.5], "probabilities": [0.25, 0.25, 0.5]}
    labels = np.asarray([shares[target]] * len(LOGITS)) if target in shares else np.zeros(len(LOGITS), int)
    weights = None if target in shares else [0.0, 1.0, 1.0]
    for dtype in {"float32", "float64"} & set(backend.dtypes):
        found = _ours(backend, labels, dtype, weights)
        desired = list(_of_pytorch(labels, dtype, weights))
        if target != "probabilities":
            masked = (
                np.isneginf(LOGITS[:, 0])
                & ~(np.isposinf(LOGITS) | np.isnan(LOGITS)).any(axis=1)
                & np.isfinite(LOGITS[:, 1:]).any(axis=1)
            )
            assert masked.sum() == 8
            assert np.isnan(desired[0][masked]).all()
            expected = np.zeros(8)
            if target in shares:
                rest = LOGITS[masked, 1:]
                with np.errstate(invalid="ignore"):
                    expected = np.log(np.exp(rest).sum(axis=1)) - rest @ [0.5, 0.5]
            desired[0][masked] = expected
        for actual, expected in zip(found, desired, strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_one_sample_that_diverged_spoils_the_loss_unless_it_is_ignored(
    backend: Backend, reduction: str
) -> None:
    for row in ([np.inf, 1.0], [1.0, np.inf], [-np.inf, -np.inf], [np.nan, 1.0]):
        x = backend.array(np.asarray([[1.0, 2.0], row]))
        spoiled = xpgrad.softmax_cross_entropy(x, backend.array(np.asarray([0, 0])), reduction=reduction)
        assert np.isnan(float(to_numpy(spoiled)))
        kept = xpgrad.softmax_cross_entropy(
            x, backend.array(np.asarray([0, IGNORED])), ignore_index=IGNORED, reduction=reduction
        )
        np.testing.assert_allclose(float(to_numpy(kept)), np.log(1 + np.exp(1.0)))


@pytest.mark.parametrize("jit", ["0", "1"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_out(jit: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As any array, also X's and the probabilities' own."""
    monkeypatch.setenv("XPGRAD_JIT", jit)
    tolerance = {"rtol": 1e-12 if dtype == "float64" else 3e-3, "atol": 1e-7}
    for kind, shape in itertools.product(("numbers", "probabilities"), ((6, 5), (6, 5, 3))):
        case = data(kind, 4, shape)
        X, w = case["X"].astype(dtype), case["weights"].astype(dtype)
        labels = case["labels"].astype(dtype) if kind == "probabilities" else case["labels"]
        dY = np.asarray(1.5, dtype)
        expected = xpgrad.softmax_cross_entropy_grad(dY, X, labels, w)
        loss = xpgrad.softmax_cross_entropy(X, labels, w)
        outs = [np.empty_like(X), np.empty_like(X.T).T, X.copy(), labels.copy()][
            : 3 if kind == "numbers" else 4
        ]
        for number, out in enumerate(outs):
            x, t = out if number == 2 else X, out if number == 3 else labels
            assert xpgrad.softmax_cross_entropy_grad(dY, x, t, w, out=out) is out
            np.testing.assert_allclose(out, expected, **tolerance)
        box = np.empty((), dtype)
        assert xpgrad.softmax_cross_entropy(X, labels, w, out=box) is box
        assert box == loss


@pytest.mark.parametrize("jit", ["0", "1"])
@pytest.mark.parametrize("kind", ["numbers", "probabilities"])
def test_memory(jit: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient is the only array of the logits' size; the loss makes none."""
    monkeypatch.setenv("XPGRAD_JIT", jit)
    shape = (256, 32000)
    rng = np.random.default_rng(5)
    X = rng.standard_normal(shape, dtype=np.float32)
    labels: Any = rng.integers(0, shape[1], shape[0])
    if kind == "probabilities":
        labels = np.full(shape, 1 / shape[1], np.float32)
    dY = np.ones((), np.float32)
    xpgrad.softmax_cross_entropy_grad(dY, X[:2], labels[:2])  # compiles
    xpgrad.softmax_cross_entropy(X[:2], labels[:2])
    for call, most in (
        (lambda: xpgrad.softmax_cross_entropy(X, labels), 0.2),
        (lambda: xpgrad.softmax_cross_entropy_grad(dY, X, labels), 1.2),
        (lambda: xpgrad.softmax(X), 1.2),
    ):
        tracemalloc.start()
        try:
            call()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < most * X.nbytes


def test_differentiable_tensors() -> None:
    """Through the standard engine, and the gradient's own derivative too."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    case = data("ignored", 6)
    X = torch.tensor(case["X"], requires_grad=True)
    labels, one = torch.tensor(case["labels"]), torch.ones((), dtype=torch.float64)
    loss = xpgrad.softmax_cross_entropy(X, labels, **case["attributes"])
    (by_autograd,) = torch.autograd.grad(loss, X)
    dX = xpgrad.softmax_cross_entropy_grad(one, X, labels, **case["attributes"])
    np.testing.assert_allclose(by_autograd.numpy(), dX.detach().numpy(), rtol=1e-10, atol=1e-15)
    v = torch.randn_like(X)
    (ours,) = torch.autograd.grad(dX, X, v)
    leaf = torch.tensor(case["X"], requires_grad=True)
    theirs = torch.nn.functional.cross_entropy(leaf, labels, **case["attributes"])
    (slope,) = torch.autograd.grad(theirs, leaf, create_graph=True)
    (expected,) = torch.autograd.grad(slope, leaf, v)
    np.testing.assert_allclose(ours.numpy(), expected.numpy(), rtol=1e-9, atol=1e-14)


# --- binary -----------------------------------------------------------------------------------------


def binary_data(backend: Backend | None, dtype: str, weighted: bool, seed: int = 0) -> list:
    rng = np.random.default_rng(seed)
    values = [
        3 * rng.normal(size=(4, 3, 5)), rng.random((4, 3, 5)), rng.uniform(0.5, 2, (3, 1)),
        rng.uniform(0.5, 3, 5),
    ]  # fmt: skip
    values = [v if weighted or number < 2 else None for number, v in enumerate(values)]
    return values if backend is None else [backend.array(v, dtype) for v in values]


@pytest.mark.parametrize("weighted", [False, True])
@reductions
def test_binary(weighted: bool, reduction: str, backend: Backend) -> None:
    for dtype in backend.dtypes:
        X, t, w, p = binary_data(backend, dtype, weighted)
        exact = [1 if v is None else to_numpy(v).astype(Long) for v in (X, t, w, p)]
        x, target = exact[:2]
        losses = exact[2] * (exact[3] * target * np.log1p(np.exp(-x)) + (1 - target) * np.log1p(np.exp(x)))
        reduce = {"mean": np.mean, "sum": np.sum, "none": lambda v: v}[reduction]
        d = np.random.default_rng(1).normal(size=losses.shape if reduction == "none" else ())
        slope = exact[2] * ((1 - target) / (1 + np.exp(-x)) - exact[3] * target / (1 + np.exp(x)))
        scale = losses.size if reduction == "mean" else 1
        dY = backend.array(d, dtype)
        with np.errstate(all="raise"):
            loss = xpgrad.binary_cross_entropy_with_logits(X, t, w, pos_weight=p, reduction=reduction)
            dX = xpgrad.binary_cross_entropy_with_logits_grad(dY, X, t, w, pos_weight=p, reduction=reduction)
        tolerance = {"float64": 2e-15, "float32": 1e-6, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
        assert_close(loss, np.asarray(reduce(losses), float), like=X, rtol=tolerance)
        expected = (to_numpy(dY).astype(Long) / scale * slope).astype(float)
        assert_close(dX, expected, like=X, rtol=tolerance)


@pytest.mark.parametrize("weighted", [False, True])
@reductions
def test_binary_differences_and_pytorch(weighted: bool, reduction: str) -> None:
    X, t, w, p = binary_data(None, "float64", weighted, 7)
    more = {"pos_weight": p, "reduction": reduction}
    check_vjp(
        lambda X: xpgrad.binary_cross_entropy_with_logits(X, t, w, **more),
        lambda dY, X: xpgrad.binary_cross_entropy_with_logits_grad(dY, X, t, w, **more),
        {"X": X},
        operator="binary_cross_entropy_with_logits",
    )
    torch = pytest.importorskip("torch", reason="torch is not installed")
    leaf = torch.tensor(X, requires_grad=True)
    rest = [None if v is None else torch.tensor(v) for v in (t, w, p)]
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        leaf, rest[0], rest[1], pos_weight=rest[2], reduction=reduction
    )
    d = torch.rand_like(expected)
    expected.backward(d)
    loss = xpgrad.binary_cross_entropy_with_logits(X, t, w, **more)
    np.testing.assert_allclose(loss, expected.detach().numpy(), rtol=1e-13)
    dX = xpgrad.binary_cross_entropy_with_logits_grad(d.numpy(), X, t, w, **more)
    np.testing.assert_allclose(dX, leaf.grad.numpy(), rtol=1e-12, atol=1e-15)


def test_binary_extremes_and_sizes(backend: Backend) -> None:
    inf = np.inf
    X = np.asarray([1e4, -1e4, 1e4, -1e4, inf, -inf, inf, -inf, 0.0])
    t = np.asarray([1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.5])
    x, target, d = backend.array(X), backend.array(t), backend.array(np.full(9, 2.0))
    with np.errstate(all="raise"):
        loss = to_numpy(xpgrad.binary_cross_entropy_with_logits(x, target, reduction="none"))
        dX = to_numpy(xpgrad.binary_cross_entropy_with_logits_grad(d, x, target, reduction="none"))
    np.testing.assert_allclose(loss, [0, 0, 1e4, 1e4, 0, 0, inf, inf, np.log(2)], rtol=1e-15)
    np.testing.assert_allclose(dX, [0, 0, 2, -2, 0, 0, 2, -2, 0], rtol=1e-15)
    empty = backend.array(np.zeros((0, 3)))
    one = backend.array(np.asarray(1.0))
    assert to_numpy(xpgrad.binary_cross_entropy_with_logits(empty, empty, reduction="sum")) == 0
    assert xpgrad.binary_cross_entropy_with_logits_grad(one, empty, empty).shape == (0, 3)


def test_binary_in_place() -> None:
    X, t, w, p = binary_data(None, "float64", True)
    dY = np.asarray(0.5)
    expected = xpgrad.binary_cross_entropy_with_logits_grad(dY, X, t, w, pos_weight=p)
    for number in range(2):
        arrays = [X.copy(), t.copy()]
        result = xpgrad.binary_cross_entropy_with_logits_grad(
            dY, *arrays, w, pos_weight=p, out=arrays[number]
        )
        assert result is arrays[number]
        np.testing.assert_allclose(result, expected, rtol=1e-14)


# --- bad input --------------------------------------------------------------------------------------------

X, LABELS, ONE = np.ones((2, 3)), np.zeros(2, int), np.asarray(1.0)
entropy, entropy_grad = xpgrad.softmax_cross_entropy, xpgrad.softmax_cross_entropy_grad
binary, binary_grad = xpgrad.binary_cross_entropy_with_logits, xpgrad.binary_cross_entropy_with_logits_grad
BAD = {
    "labels' shape": (
        lambda: entropy(X, np.zeros(3, int)), ValueError,
        "softmax_cross_entropy: labels has shape (3,), "
        "expected (X's without the classes, for labels of dtype int64) = (2,)",
    ),
    "probabilities' shape": (
        lambda: entropy(X, np.ones(2)), ValueError,
        "softmax_cross_entropy: labels has shape (2,), "
        "expected (the shape of X, for labels of dtype float64) = (2, 3)",
    ),
    "probabilities' dtype": (
        lambda: entropy(X, np.ones((2, 3), "f4")), TypeError,
        "softmax_cross_entropy: labels has dtype float32, expected float64, the dtype of X",
    ),
    "labels' dtype": (
        lambda: entropy(X, np.ones(2, bool)), TypeError,
        "softmax_cross_entropy: labels has dtype bool, expected an integer dtype",
    ),
    "labels' type": (
        lambda: entropy(X, [0, 1]), TypeError, "softmax_cross_entropy: labels is a list, expected an array",
    ),
    "label": (
        lambda: entropy(X, np.asarray([0, 3])), ValueError,
        "softmax_cross_entropy: labels has 3, expected classes 0 to 2",
    ),
    "negative label": (
        lambda: entropy_grad(ONE, X, np.asarray([0, -1]), ignore_index=5), ValueError,
        "softmax_cross_entropy_grad: labels has -1, expected classes 0 to 2",
    ),
    "ignored probabilities": (
        lambda: entropy(X, X, ignore_index=1), ValueError,
        "softmax_cross_entropy: ignore_index is 1, expected None for labels that are probabilities",
    ),
    "ignore_index": (
        lambda: entropy(X, LABELS, ignore_index=0.5), TypeError,
        "softmax_cross_entropy: ignore_index is 0.5 of type float, expected an integer",
    ),
    "weights": (
        lambda: entropy(X, LABELS, np.ones(2)), ValueError,
        "softmax_cross_entropy: weights has shape (2,), expected (C) = (3,)",
    ),
    "reduction": (
        lambda: entropy(X, LABELS, reduction="max"), ValueError,
        "softmax_cross_entropy: reduction is 'max', expected one of 'mean', 'sum', 'none'",
    ),
    "smoothing": (
        lambda: entropy(X, LABELS, label_smoothing=1.5), ValueError,
        "softmax_cross_entropy: label_smoothing is 1.5, expected 0 to 1",
    ),
    "no classes": (
        lambda: entropy(np.ones((2, 0)), LABELS), ValueError,
        "softmax_cross_entropy: X has shape (2, 0), expected (N, C, ...) or (C,) with C at least 1",
    ),
    "cotangent": (
        lambda: entropy_grad(np.ones(2), X, LABELS), ValueError,
        "softmax_cross_entropy_grad: dY has shape (2,), expected (the shape of the loss) = ()",
    ),
    "no cotangent": (
        lambda: entropy_grad(None, X, LABELS), TypeError,
        "softmax_cross_entropy_grad: dY is None, expected an array",
    ),
    "out": (
        lambda: entropy(X, LABELS, out=np.ones(2)), ValueError,
        "softmax_cross_entropy: out has shape (2,), expected (the shape of the result) = ()",
    ),
    "targets": (
        lambda: binary(X, np.ones(3)), ValueError,
        "binary_cross_entropy_with_logits: targets has shape (3,), expected (the shape of X) = (2, 3)",
    ),
    "integer targets": (
        lambda: binary(X, np.ones((2, 3), int)), TypeError,
        "binary_cross_entropy_with_logits: targets has dtype int64, expected float64, the dtype of X",
    ),
    "weight": (
        lambda: binary(X, X, np.ones(2)), ValueError,
        "binary_cross_entropy_with_logits: weight has shape (2,), expected one that broadcasts to (2, 3)",
    ),
    "pos_weight": (
        lambda: binary_grad(ONE, X, X, pos_weight=np.ones((1, 2, 3))), ValueError,
        "binary_cross_entropy_with_logits_grad: pos_weight has shape (1, 2, 3), expected one that broadcasts",
    ),
    "labels of another library": (
        lambda: xpgrad.softmax_cross_entropy(X, strict.asarray([0, 1])), TypeError,
        "softmax_cross_entropy: labels is an array of array_api_strict, expected numpy, the namespace of X",
    ),
    "probabilities of another library": (
        lambda: xpgrad.softmax_cross_entropy_grad(ONE, X, strict.asarray(X)), TypeError,
        "softmax_cross_entropy_grad: labels is an array of array_api_strict, expected numpy, the namespace",
    ),
    "a list of labels": (
        lambda: xpgrad.softmax_cross_entropy(X, [0, 1]), TypeError,
        "softmax_cross_entropy: labels is a list, expected an array",
    ),
    "binary reduction": (
        lambda: binary(X, X, reduction=None), ValueError,
        "binary_cross_entropy_with_logits: reduction is None, expected one of 'mean', 'sum', 'none'",
    ),
    "binary cotangent": (
        lambda: binary_grad(ONE, X, X, reduction="none"), ValueError,
        "binary_cross_entropy_with_logits_grad: dY has shape (), expected (the shape of the loss) = (2, 3)",
    ),
    "binary out": (
        lambda: binary(X, X, out=np.ones((2, 3))), ValueError,
        "binary_cross_entropy_with_logits: out has shape (2, 3), expected (the shape of the result) = ()",
    ),
    "no targets": (
        lambda: binary(X, None), TypeError, "binary_cross_entropy_with_logits: targets is None, expected",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_bad_input(kind: str) -> None:
    call, error, message = BAD[kind]
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value).startswith(message), str(caught.value)


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("ignored", [None, 0])
@pytest.mark.parametrize("engine", ["compiled", "standard"])
def test_a_weight_of_a_class_that_no_sample_has(engine, ignored, value, rng):
    """Such as 1 / its frequency; also of a class whose samples are ignored."""
    X, labels = rng.normal(size=(4, 3, 2)), np.asarray([[1, 2], [2, 2], [1, 1], [2, 1]])
    weights = np.asarray([1.0, 0.5, 2.0])
    if ignored is not None:
        labels[0, 0] = ignored
    found = []
    with contextlib.nullcontext() if engine == "compiled" else xpgrad.use_engine(engine):
        for weight in (1.0, value):
            weights[0] = weight
            given = X, labels, weights
            loss = xpgrad.softmax_cross_entropy(*given, ignore_index=ignored)
            dX = xpgrad.softmax_cross_entropy_grad(np.ones(()), *given, ignore_index=ignored)
            found.append((loss, dX))
    np.testing.assert_array_equal(found[1][0], found[0][0])
    np.testing.assert_array_equal(found[1][1], found[0][1])
