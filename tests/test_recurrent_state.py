"""Projection, recurrent dropout, zoneout, and cotangents of all cell states."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import xpgrad
import xpgrad.testing
from xpgrad.testing import gru_reference, lstm_reference

torch = pytest.importorskip("torch", reason="torch is not installed")

import xpgrad_torch  # noqa: E402
from xpgrad_torch import functional  # noqa: E402

T, N, I, H = 5, 4, 3, 4
LENGTHS = [4, 0, 2, 5]
REFERENCES = {"lstm": lstm_reference, "gru": gru_reference}
GATES = {"lstm": 4, "gru": 3}
SAVED = {"lstm": ("H_all", "C_all", "iofc"), "gru": ("H_all", "zrh")}
OUTPUTS = {"lstm": ("H_all", "H_t", "C_t", "C_all"), "gru": ("H_all", "H_t")}
FIELDS = {"initial_h": "dH0", "initial_c": "dC0"}
MASKS = ("recurrent_mask", "zoneout_h", "zoneout_c")


def problem(name: str, options: tuple[str, ...], directions: int = 1, seed: int = 0) -> tuple[dict, dict]:
    """Random operands, and the masks, by name."""
    rng = np.random.default_rng(seed)
    D, G, width = directions, GATES[name], 3 if "S" in options else H

    def draw(*shape: int) -> Any:
        return 0.7 * rng.standard_normal(shape)

    operands = {
        "X": draw(T, N, I), "W": draw(D, G * H, I), "R": draw(D, G * H, width), "B": draw(D, 2 * G * H),
        "initial_h": draw(D, N, width),
    }  # fmt: skip
    if name == "lstm":
        operands |= {"initial_c": draw(D, N, H), "P": draw(D, 3 * H)}
    if "S" in options:
        operands["S"] = draw(D, width, H)
    masks = {
        "recurrent_mask": 2 * rng.random((D, N, width)),
        "zoneout_h": rng.random((T, D, N, width)),
        "zoneout_c": (rng.random((T, D, N, H)) < 0.5).astype(float),
    }
    return operands, {key: value for key, value in masks.items() if key in options}


def subsets(name: str) -> list[tuple[str, ...]]:
    """Every set of the options."""
    every = ("S", *MASKS) if name == "lstm" else MASKS[:2]
    return [some for count in range(len(every) + 1) for some in itertools.combinations(every, count)]


def expected(name: str, operands: dict, masks: dict, attributes: dict) -> tuple[Any, Any, Any]:
    """Outputs of the naive reference, cotangents, and what PyTorch's autograd makes of these."""
    leaves = {key: torch.tensor(value, requires_grad=True) for key, value in operands.items()}
    given = {key: torch.tensor(value) for key, value in masks.items()}
    results = REFERENCES[name](**leaves, **given, **attributes)
    outputs = [getattr(results, key) for key in OUTPUTS[name]]
    g = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(y.shape, generator=g, dtype=y.dtype) for y in outputs]
    grads = torch.autograd.grad(outputs, list(leaves.values()), cotangents)
    named = {f"grad_{key}": c.numpy() for key, c in zip(OUTPUTS[name], cotangents, strict=True)}
    values = {key: y.detach().numpy() for key, y in zip(OUTPUTS[name], outputs, strict=True)}
    return values, named, dict(zip(leaves, (x.numpy() for x in grads), strict=True))


def run(name: str, operands: dict, masks: dict, attributes: dict, cotangents: dict, **more: Any) -> Any:
    """The kernel's outputs and gradients."""
    given = {**operands, **masks, **attributes}
    outputs = getattr(xpgrad, name)(**given)
    saved = {key: getattr(outputs, key) for key in SAVED[name]}
    return outputs, getattr(xpgrad, f"{name}_grad")(**given, **saved, **cotangents, **more)


def check(name: str, options: tuple[str, ...], attributes: dict, times: int = 1) -> None:
    """Outputs and gradients are those of autograd through the loop; per-sample ones add up to them."""
    D = 2 if attributes.get("direction") == "bidirectional" else 1
    operands, masks = problem(name, options, D)
    values, cotangents, grads = expected(name, operands, masks, attributes)
    if attributes.get("sequence_lens"):  # padding does not matter
        operands["X"][4:, 0] = np.nan
        for key in ("zoneout_h", "zoneout_c"):
            if key in masks:
                masks[key][2:, :, 2] = np.nan
    for _ in range(times):
        outputs, found = run(name, operands, masks, attributes, cotangents)
        for key, value in values.items():
            np.testing.assert_allclose(getattr(outputs, key), value, rtol=0, atol=1e-11, err_msg=key)
        for key, grad in grads.items():
            got = getattr(found, FIELDS.get(key, f"d{key}"))
            np.testing.assert_allclose(got, grad, rtol=0, atol=1e-11, err_msg=f"{options} {key}")
    _, each = run(name, operands, masks, attributes, cotangents, per_sample=True)
    for key in {"W", "R", "B", "P", "S"} & set(grads):
        total = getattr(each, f"d{key}").sum(0)
        np.testing.assert_allclose(total, grads[key], rtol=0, atol=1e-11, err_msg=f"per sample {key}")
    weights = np.random.default_rng(2).random(N)
    _, weighted = run(name, operands, masks, attributes, cotangents, sample_weight=weights)
    _, norms = run(name, operands, masks, attributes, cotangents, per_sample="norm")
    for key in {"W", "R", "B", "P", "S"} & set(grads):
        alone = getattr(each, f"d{key}")
        whole = np.tensordot(weights, alone, 1)
        np.testing.assert_allclose(getattr(weighted, f"d{key}"), whole, rtol=0, atol=1e-11, err_msg=key)
        length = np.sqrt((alone.reshape(N, D, -1) ** 2).sum(-1))
        np.testing.assert_allclose(getattr(norms, f"d{key}"), length, rtol=0, atol=1e-10, err_msg=key)


ATTRIBUTES: dict[str, dict[str, Any]] = {
    "full": {},
    "lengths, both directions": {"sequence_lens": LENGTHS, "direction": "bidirectional"},
    "clip, lengths reverse": {"clip": 0.5, "sequence_lens": LENGTHS, "direction": "reverse"},
}
CASES = [
    pytest.param(name, some, attributes, id=f"{name}-{'+'.join(some) or 'none'}-{key}")
    for name in REFERENCES
    for some in subsets(name)
    for key, attributes in ATTRIBUTES.items()
]
BEFORE = [{}, {"clip": 0.5, "sequence_lens": LENGTHS, "linear_before_reset": 1}]


@pytest.mark.parametrize(("name", "options", "attributes"), CASES)
def test_every_set_of_options_against_autograd(name: str, options: tuple[str, ...], attributes: dict) -> None:
    with xpgrad.use_engine("standard"):
        check(name, options, attributes)


@pytest.mark.parametrize(
    "attributes", [{}, {"sequence_lens": LENGTHS, "direction": "bidirectional"}], ids=str
)
def test_the_other_reset_convention(attributes: dict) -> None:
    for some in subsets("gru"):
        with xpgrad.use_engine("standard"):
            check("gru", some, attributes | {"linear_before_reset": 1})


@pytest.mark.parametrize(
    ("name", "options", "more"),
    [
        ("lstm", ("S",), {}),
        ("lstm", ("S", *MASKS), {}),
        ("gru", MASKS[:2], {}),
    ],
)
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "lengths"])
def test_compiled_and_in_programs(name: str, options: tuple[str, ...], more: dict, lengths: Any) -> None:
    check(name, options, {"direction": "bidirectional", "sequence_lens": lengths, **more}, times=3)


@pytest.mark.parametrize("name", REFERENCES)
def test_batch_first(name: str) -> None:
    options = subsets(name)[-1]
    operands, masks = problem(name, options, 1)
    _, cotangents, grads = expected(name, operands, masks, {})

    def turned(key: str, array: Any) -> Any:
        if key in ("W", "R", "B", "P", "S"):
            return array
        return np.moveaxis(array, 2 if array.ndim == 4 else 1, 0)

    first = [{key: turned(key, x) for key, x in part.items()} for part in (operands, masks, cotangents)]
    with xpgrad.use_engine("standard"):
        _, found = run(name, first[0], first[1], {"layout": 1}, first[2])
    for key, grad in grads.items():
        got = getattr(found, FIELDS.get(key, f"d{key}"))
        np.testing.assert_allclose(got, turned(key, grad), rtol=0, atol=1e-11, err_msg=key)


def test_finite_differences_and_every_combination_of_cotangents() -> None:
    operands, masks = problem("lstm", ("S", *MASKS))
    given = {key: value[:3] if key in ("X", "zoneout_h", "zoneout_c") else value for key, value in
             {**operands, **masks}.items()}  # fmt: skip
    with xpgrad.use_engine("standard"):
        outputs, pullback = xpgrad.vjp(xpgrad.lstm, **given)
        rng = np.random.default_rng(3)
        for used in ((3,), (0, 3), (2, 3)):
            chosen = [rng.standard_normal(y.shape) if k in used else None for k, y in enumerate(outputs[:4])]
            grads = pullback(*chosen)
            step, direction = 1e-6, {k: rng.standard_normal(v.shape) for k, v in operands.items()}
            direction["X"] = direction["X"][:3]

            def moved(sign: int, direction: dict = direction, step: float = step) -> Any:
                shifted = {k: given[k] + sign * step * v for k, v in direction.items()}
                return xpgrad.lstm(**{**given, **shifted})

            above, below = moved(1), moved(-1)
            slope = sum(
                np.sum(c * (a - b)) / (2 * step)
                for c, a, b in zip(chosen, above[:4], below[:4], strict=True)
                if c is not None
            )
            found = sum(np.sum(getattr(grads, FIELDS.get(k, f"d{k}")) * v) for k, v in direction.items())
            np.testing.assert_allclose(found, slope, rtol=1e-7)


@pytest.mark.parametrize("wrt", ["X", "W", "R", "B", "P", "S", "initial_h", "initial_c"])
def test_each_gradient_alone(wrt: str) -> None:
    operands, masks = problem("lstm", ("S", *MASKS))
    with xpgrad.use_engine("standard"):
        _, cotangents, grads = expected("lstm", operands, masks, {})
        _, found = run("lstm", operands, masks, {}, cotangents, wrt=[wrt])
    field = FIELDS.get(wrt, f"d{wrt}")
    assert [name for name in found._fields if getattr(found, name) is not None] == [field]
    np.testing.assert_allclose(getattr(found, field), grads[wrt], rtol=0, atol=1e-11)


@pytest.mark.parametrize(("name", "options", "attributes"), CASES)
def test_naive_backward_against_autograd(name: str, options: tuple[str, ...], attributes: dict) -> None:
    D = 2 if attributes.get("direction") == "bidirectional" else 1
    operands, masks = problem(name, options, D)
    _, cotangents, grads = expected(name, operands, masks, attributes)
    given = {**operands, **masks, **attributes}
    outputs = REFERENCES[name](**given)
    saved = {key: getattr(outputs, key) for key in SAVED[name]}
    backward = getattr(xpgrad.testing, f"{name}_grad_reference")
    found = backward(**given, **saved, **cotangents)
    for key, grad in grads.items():
        got = getattr(found, FIELDS.get(key, f"d{key}"))
        np.testing.assert_allclose(got, grad, rtol=0, atol=1e-11, err_msg=key)


def test_zoneout_of_everything_keeps_the_initial_states() -> None:
    operands, _ = problem("lstm", ())
    masks = {"zoneout_h": np.ones((T, 1, N, H)), "zoneout_c": np.ones((T, 1, N, H))}
    with xpgrad.use_engine("standard"):
        out = xpgrad.lstm(**operands, **masks)
    np.testing.assert_array_equal(out.H_t, operands["initial_h"])
    np.testing.assert_array_equal(out.C_t, operands["initial_c"])


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("lstm", {"S": np.ones((1, 3, H))}, ["S has shape (1, 3, 4)", "D, proj, H"]),
        ("lstm", {"recurrent_mask": np.ones((1, N, 3))}, ["recurrent_mask", "(1, 4, 3)", "D, N, H"]),
        ("lstm", {"zoneout_c": np.ones((T, N, H))}, ["zoneout_c", "(5, 4, 4)", "T, D, N, H"]),
        ("gru", {"zoneout_h": np.ones((T, 1, N, 9))}, ["zoneout_h", "(5, 1, 4, 9)", "T, D, N, H"]),
    ],
)
def test_bad_shapes(name: str, change: dict, words: list[str]) -> None:
    operands, _ = problem(name, ())
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        getattr(xpgrad, name)(**operands, **change)
    assert str(caught.value).startswith(f"{name}: ")
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_projection_that_is_not_there_has_no_gradient() -> None:
    operands, _ = problem("lstm", ())
    out = xpgrad.lstm(**operands)
    with pytest.raises(ValueError, match="lstm_grad: wrt has 'S', expected S to be given, it is None"):
        xpgrad.lstm_grad(**operands, H_all=out.H_all, C_all=out.C_all, iofc=out.iofc, wrt="S")


# --- PyTorch -----------------------------------------------------------------------------------------


MODULES = {
    "LSTM-zoneout": (xpgrad_torch.LSTM, {"zoneout": (0.3, 0.2)}),
    "LSTM-everything": (
        xpgrad_torch.LSTM,
        {"zoneout": (0.3, 0.2), "recurrent_dropout": 0.4, "proj_size": 2, "bidirectional": True},
    ),
    "LSTM-cells": (xpgrad_torch.LSTM, {"return_cell_states": True, "num_layers": 2}),
    "GRU": (xpgrad_torch.GRU, {"zoneout": 0.3, "recurrent_dropout": 0.4}),
    "GRU-before": (xpgrad_torch.GRU, {"zoneout": 0.3, "recurrent_dropout": 0.4, "reset_after": False}),
}


@pytest.fixture
def interpreted() -> Iterator[None]:
    """Nothing is compiled: each set of options would be on its own."""
    with xpgrad.use_engine("standard"):
        yield


every_module = pytest.mark.parametrize(("kind", "options"), MODULES.values(), ids=MODULES)


def flat(result: Any) -> list[Any]:
    return [y for part in result for y in (part if isinstance(part, tuple) else (part,))]


def built(kind: Any, options: dict, hidden: int = 3, **more: Any) -> Any:
    torch.manual_seed(0)
    return kind(2, hidden, dtype=torch.float64, **options, **more)


@every_module
@pytest.mark.parametrize("lengths", [None, [3, 1]], ids=["full", "lengths"])
def test_gradcheck(kind: Any, options: dict, lengths: Any, interpreted: None) -> None:
    module = built(kind, options)
    names = [name for name, _ in module.named_parameters()]
    X = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)

    def call(X: Any, *parameters: Any) -> Any:
        torch.manual_seed(7)
        given = dict(zip(names, parameters, strict=True))
        return tuple(flat(torch.func.functional_call(module, given, (X,), {"lengths": lengths})))

    assert torch.autograd.gradcheck(call, (X, *module.parameters()), fast_mode=True)


@every_module
def test_a_seed_decides_in_training_and_nothing_in_evaluation(
    kind: Any, options: dict, interpreted: None
) -> None:
    module, X = built(kind, options), torch.randn(4, 3, 2, dtype=torch.float64)

    def once(seed: int) -> Any:
        torch.manual_seed(seed)
        return module(X)[0]

    drawn = "zoneout" in options
    assert torch.equal(once(1), once(1))
    assert torch.equal(once(1), once(2)) != drawn
    module.eval()
    assert torch.equal(once(1), once(2))
    again = eval(repr(module), {"LSTM": xpgrad_torch.LSTM, "GRU": xpgrad_torch.GRU})
    assert repr(again) == repr(module)


def test_evaluation_takes_the_expectation() -> None:
    module = built(xpgrad_torch.LSTM, {"zoneout": (0.3, 0.2), "recurrent_dropout": 0.4}).eval()
    X = torch.randn(T, N, 2, dtype=torch.float64)
    R, W = module.weight_hh_l0, module.weight_ih_l0
    h = c = torch.zeros(N, 3, dtype=torch.float64)
    for x in X:
        i, f, g, o = (x @ W.T + h @ R.T + module.bias_ih_l0 + module.bias_hh_l0).chunk(4, -1)
        new = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = 0.2 * h + 0.8 * o.sigmoid() * new.tanh()
        c = 0.3 * c + 0.7 * new
    _, (h_n, c_n) = module(X)
    torch.testing.assert_close((h_n[0], c_n[0]), (h, c), rtol=0, atol=1e-12)


def test_what_is_drawn_in_training() -> None:
    """Each element of the state is kept or new; the share of those kept is the probability."""
    module = xpgrad_torch.GRU(2, 400, zoneout=0.25)
    output = module(torch.randn(6, 5, 2))[0].detach()
    kept = (output[1:] == output[:-1]).double().mean()
    assert abs(kept - 0.25) < 0.03
    masks = built(xpgrad_torch.LSTM, {"recurrent_dropout": 0.2}, 400)._masks(torch.zeros(3, 50, 2))
    assert list(masks) == ["recurrent_mask"]
    values = masks["recurrent_mask"].unique()
    torch.testing.assert_close(values, torch.tensor([0.0, 1.25]))
    assert abs(masks["recurrent_mask"].mean() - 1) < 0.03


@every_module
@pytest.mark.parametrize("save", ["states", 2])
def test_recomputation_has_the_same_masks(kind: Any, options: dict, save: Any, interpreted: None) -> None:
    results = []
    for kept in ("all", save):
        module = built(kind, options, save=kept)
        torch.manual_seed(5)
        X = torch.randn(5, 3, 2, dtype=torch.float64, requires_grad=True)
        outputs = flat(module(X, lengths=[5, 2, 4]))
        grads = torch.autograd.grad(sum(y.square().sum() for y in outputs), [X, *module.parameters()])
        results.append([*outputs, *grads])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@every_module
def test_vmap_with_other_masks_for_each(kind: Any, options: dict, interpreted: None) -> None:
    module, X = built(kind, options), torch.randn(4, 3, 2, dtype=torch.float64)
    same = torch.stack([X, X], 0)
    out = torch.func.vmap(lambda x: module(x)[0], randomness="different")(same)
    assert out.shape[:3] == (2, 4, 3)
    assert torch.allclose(out[0], out[1]) != ("zoneout" in options)
    parameters = dict(module.named_parameters())

    def loss(parameters: Any, x: Any) -> Any:
        return torch.func.functional_call(module, parameters, (x,))[0].square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 1), randomness="different")(parameters, X)
    assert all(grad.isfinite().all() and grad.shape[0] == 3 for grad in each.values())


@every_module
def test_compiled(kind: Any, options: dict, interpreted: None) -> None:
    module, X = built(kind, options).eval(), torch.randn(4, 3, 2, dtype=torch.float64)
    step = torch.compile(module, fullgraph=True, backend="aot_eager")
    results = []
    for run_ in (module, step):
        outputs = flat(run_(X))
        grads = torch.autograd.grad(sum(y.square().sum() for y in outputs), list(module.parameters()))
        results.append([*outputs, *grads])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_all_cell_states(packed: bool, batch_first: bool) -> None:
    module = built(
        xpgrad_torch.LSTM, {"return_cell_states": True}, batch_first=batch_first, bidirectional=True
    )
    X = torch.randn(3, 5, 2, dtype=torch.float64)
    lengths = torch.tensor([5, 2, 4])
    if packed:
        pack = torch.nn.utils.rnn.pack_padded_sequence(
            X if batch_first else X.transpose(0, 1), lengths, batch_first=batch_first, enforce_sorted=False
        )
        output, (_, c_n), cells = module(pack)
        assert output.batch_sizes.equal(cells.batch_sizes)
        cells = torch.nn.utils.rnn.pad_packed_sequence(cells, batch_first=True)[0]
    else:
        _, (_, c_n), cells = module(X if batch_first else X.transpose(0, 1), lengths=lengths)
        cells = cells if batch_first else cells.transpose(0, 1)
    ends = cells[torch.arange(3), lengths - 1, :3]
    torch.testing.assert_close(ends, c_n[0])
    torch.testing.assert_close(cells[:, 0, 3:], c_n[1])


@pytest.mark.parametrize(
    ("kind", "options", "error", "words"),
    [
        (xpgrad_torch.LSTM, {"zoneout": 0.1}, TypeError, ["zoneout is 0.1", "(p_c, p_h)"]),
        (xpgrad_torch.LSTM, {"zoneout": (0.1, 1.5)}, ValueError, ["zoneout is (0.1, 1.5)", "0 to 1"]),
        (xpgrad_torch.LSTM, {"return_cell_states": 1}, TypeError, ["return_cell_states is 1"]),
        (xpgrad_torch.GRU, {"zoneout": (0.1, 0.2)}, ValueError, ["zoneout is (0.1, 0.2)", "0 to 1"]),
        (xpgrad_torch.GRU, {"recurrent_dropout": 1}, ValueError, ["recurrent_dropout is 1", "below 1"]),
    ],
)
def test_bad_construction(kind: Any, options: dict, error: type, words: list[str]) -> None:
    with pytest.raises(error) as caught:
        kind(2, 3, **options)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("kind", "name"), [("gru", name) for name in MASKS[:2]] + [("lstm", name) for name in MASKS]
)
def test_a_mask_that_requires_a_gradient(kind: str, name: str) -> None:
    operands, masks = problem(kind, MASKS if kind == "lstm" else MASKS[:2])
    given = {key: torch.tensor(value) for key, value in {**operands, **masks}.items()}
    given[name].requires_grad_()
    with pytest.raises(ValueError, match=f"{kind}: {name} requires a gradient, expected a mask"):
        getattr(functional, kind)(**given)


def test_functions_against_autograd() -> None:
    operands, masks = problem("lstm", ("S", *MASKS))
    given = {key: torch.tensor(value) for key, value in {**operands, **masks}.items()}
    leaves = [given[key].requires_grad_() for key in operands]
    outputs = functional.run_recurrent("lstm", {**given, "peephole": "full"})
    values, cotangents, grads = expected("lstm", operands, masks, {})
    assert all(map(torch.equal, functional.lstm(**given), outputs[:3]))
    found = torch.autograd.grad(outputs, leaves, [torch.tensor(cotangents[f"grad_{k}"]) for k in values])
    for key, grad in zip(operands, found, strict=True):
        np.testing.assert_allclose(grad, grads[key], rtol=0, atol=1e-11, err_msg=key)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_call_leaves_no_circles_of_references(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A circle would hold a call's arrays until the collector finds it."""
    monkeypatch.setenv("XPGRAD_JIT", "0")
    operands, masks = problem(name, ("recurrent_mask", "zoneout_h"))
    forward, gradient = getattr(xpgrad, name), getattr(xpgrad, f"{name}_grad")

    def step() -> None:
        outputs = forward(**operands, **masks)
        saved = {field: getattr(outputs, field) for field in SAVED[name]}
        gradient(**operands, **masks, **saved, grad_H_all=outputs.H_all)

    step()
    while gc.collect():  # finalizers of other tests' circles may leave circles
        pass
    gc.disable()
    try:
        step()
        assert gc.collect() == 0
    finally:
        gc.enable()
