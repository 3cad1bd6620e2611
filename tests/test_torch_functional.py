"""xpgrad_torch.functional: the operators under autograd."""

import gc
import weakref

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import xpgrad
from xpgrad_torch import functional

T, N, I, H = 4, 3, 2, 3

# Shapes of the operands, as functions of the sizes; what each function returns; its attributes, by case.
SEQUENCE = {
    "X": lambda T, N, I, H, D, G: (T, N, I),
    "W": lambda T, N, I, H, D, G: (D, G * H, I),
    "R": lambda T, N, I, H, D, G: (D, G * H, H),
    "B": lambda T, N, I, H, D, G: (D, 2 * G * H),
    "initial_h": lambda T, N, I, H, D, G: (D, N, H),
}
CELL = {
    "X": lambda T, N, I, H, D, G: (N, I),
    "H": lambda T, N, I, H, D, G: (N, H),
    "W": lambda T, N, I, H, D, G: (G * H, I),
    "R": lambda T, N, I, H, D, G: (G * H, H),
    "B": lambda T, N, I, H, D, G: (2 * G * H,),
}
LSTM = {**SEQUENCE, "initial_c": SEQUENCE["initial_h"], "P": lambda T, N, I, H, D, G: (D, 3 * H)}
LSTM_CELL = {**CELL, "C": CELL["H"], "P": lambda T, N, I, H, D, G: (3 * H,)}
SHAPES = {
    "lstm": (4, LSTM),
    "gru": (3, SEQUENCE),
    "rnn": (1, SEQUENCE),
    "lstm_cell": (4, LSTM_CELL),
    "gru_cell": (3, CELL),
    "rnn_cell": (1, CELL),
}
COTANGENTS = {
    "lstm": ("grad_H_all", "grad_H_t", "grad_C_t"),
    "gru": ("grad_H_all", "grad_H_t"),
    "rnn": ("grad_H_all", "grad_H_t"),
    "lstm_cell": ("grad_H", "grad_C"),
    "gru_cell": ("grad_H",),
    "rnn_cell": ("grad_H",),
}
OPTIONS = {
    "lstm": {
        "plain": {},
        "clip": {"clip": 0.7},
        "input_forget": {"input_forget": True},
        "activations": {"activations": ["HardSigmoid", "Softsign", "Elu"], "activation_alpha": [0.3, 0.9]},
    },
    "gru": {
        "after": {"linear_before_reset": 1},
        "before": {"linear_before_reset": 0},
        "clip-after": {"clip": 0.7, "linear_before_reset": 1},
        "clip-before": {"clip": 0.7},
        "activations": {"activations": ["HardSigmoid", "Elu"], "activation_alpha": [0.3, 0.9]},
    },
    "rnn": {
        "plain": {},
        "clip": {"clip": 0.7},
        "activations": {"activations": ["Elu"], "activation_alpha": [0.9]},
    },
}
DIRECTIONS = {"reverse": {"direction": "reverse"}, "bidirectional": {"direction": "bidirectional"}}
CASES = [
    pytest.param(name, attributes, id=f"{name}-{case}")
    for name in SHAPES
    for case, attributes in {
        **OPTIONS[name.removesuffix("_cell")],
        **({} if name.endswith("_cell") else DIRECTIONS),
    }.items()
]
every_operator = pytest.mark.parametrize("name", SHAPES)
sequences = pytest.mark.parametrize("name", ["lstm", "gru", "rnn"])


def operands(name, seed=0, directions=1, dtype=torch.float64, grad=True, sizes=(T, N, I, H)):
    """Random operands by name, all of them, with uneven lengths."""
    g = torch.Generator().manual_seed(seed)
    gates, shapes = SHAPES[name]
    drawn = {
        operand: torch.randn(shape(*sizes, directions, gates), generator=g, dtype=dtype)
        .mul_(0.6)
        .requires_grad_(grad)
        for operand, shape in shapes.items()
    }
    if not name.endswith("_cell"):
        drawn["sequence_lens"] = torch.tensor([3, 4, 1][: sizes[1]]).clamp(max=sizes[0])
    return drawn


def run(name, fixed, **attributes):
    """Outputs of the function, as a tuple."""
    outputs = getattr(functional, name)(**fixed, **attributes)
    return (outputs,) if isinstance(outputs, torch.Tensor) else outputs


def with_gradient(fixed):
    return [operand for operand in fixed if operand != "sequence_lens"]


def closed_over(name, fixed, **attributes):
    """Return the function of the operands that have a gradient, and these."""
    names = with_gradient(fixed)

    def call(*tensors):
        return run(name, {**fixed, **dict(zip(names, tensors, strict=True))}, **attributes)

    return call, [fixed[operand] for operand in names]


def directions_of(attributes):
    return 2 if attributes.get("direction") == "bidirectional" else 1


@pytest.mark.parametrize(("name", "attributes"), CASES)
def test_gradcheck(name, attributes):
    fixed = operands(name, directions=directions_of(attributes))
    assert gradcheck(*closed_over(name, fixed, **attributes), fast_mode=True)


@every_operator
def test_gradcheck_without_optional_operands(name):
    fixed = {operand: x for operand, x in operands(name).items() if operand in ("X", "W", "R", "H", "C")}
    assert gradcheck(*closed_over(name, fixed), fast_mode=True)


@sequences
def test_gradcheck_batch_first(name):
    fixed = operands(name)
    for operand in {"X", "initial_h", "initial_c"} & fixed.keys():
        fixed[operand] = fixed[operand].detach().transpose(0, 1).contiguous().requires_grad_()
    assert gradcheck(*closed_over(name, fixed, layout=1), fast_mode=True)


@pytest.mark.parametrize(("name", "attributes"), CASES)
def test_gradgradcheck(name, attributes):
    fixed = operands(name, 3, directions_of(attributes), sizes=(2, 2, 1, 2))
    call, inputs = closed_over(name, fixed, **attributes)
    assert gradgradcheck(call, inputs, fast_mode=True)


@sequences
def test_gradient_with_graph_equals_gradient_without(name):
    call, inputs = closed_over(name, operands(name, 1, 2), direction="bidirectional", clip=0.8)
    outputs = call(*inputs)
    cotangents = [torch.randn_like(y) for y in outputs]
    plain = torch.autograd.grad(outputs, inputs, cotangents, retain_graph=True)
    with_graph = torch.autograd.grad(outputs, inputs, cotangents, create_graph=True)
    for a, b in zip(plain, with_graph, strict=True):
        assert not a.requires_grad
        assert b.requires_grad
        torch.testing.assert_close(a, b.detach(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["lstm", "lstm_cell"])
def test_truncated_peephole_gradient_is_asked_for_and_differs(name):
    call, inputs = closed_over(name, operands(name))
    truncated, _ = closed_over(name, operands(name), peephole="truncated")
    cotangents = [torch.randn_like(y) for y in call(*inputs)]
    full = torch.autograd.grad(call(*inputs), inputs, cotangents)
    cut = torch.autograd.grad(truncated(*inputs), inputs, cotangents)
    fixed = operands(name, grad=False)
    forward = getattr(xpgrad, name)(**fixed)._asdict()
    grads = getattr(xpgrad, f"{name}_grad")(
        **fixed,
        **{key: forward[key] for key in ("H_all", "C_all", "C_next", "iofc") if key in forward},
        **dict(zip(COTANGENTS[name], cotangents, strict=True)),
        peephole="truncated",
    )
    cut, full = (dict(zip(with_gradient(fixed), g, strict=True)) for g in (cut, full))
    for operand in ("X", "W", "R", "B", "P"):
        torch.testing.assert_close(cut[operand], getattr(grads, f"d{operand}"), rtol=1e-11, atol=1e-12)
        assert not torch.allclose(cut[operand], full[operand], rtol=1e-4, atol=1e-6)


@pytest.fixture
def asked(monkeypatch):
    """Record what each backward asks a kernel for."""
    calls = []

    def watch(kernel):
        def spy(*args, **kwargs):
            calls.append(kwargs)
            return kernel(*args, **kwargs)

        return spy

    for name in SHAPES:
        monkeypatch.setattr(xpgrad, f"{name}_grad", watch(getattr(xpgrad, f"{name}_grad")))
    return calls


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("lstm", ("X",)),
        ("lstm", ("W", "B")),
        ("lstm", ("initial_h", "P")),
        ("lstm", ("R", "initial_c")),
        ("lstm", tuple(LSTM)),
        ("gru", ("X",)),
        ("gru", ("B", "initial_h")),
        ("gru", ("R", "W")),
        ("rnn", ("R", "initial_h")),
        ("rnn_cell", ("X", "R")),
        ("lstm_cell", ("H", "P")),
        ("lstm_cell", ("C", "W", "B")),
        ("gru_cell", ("H", "R")),
        ("gru_cell", ("X", "W", "B")),
    ],
)
def test_only_what_requires_a_gradient_is_computed(asked, name, needed):
    fixed = operands(name, grad=False)
    for operand in needed:
        fixed[operand].requires_grad_()
    outputs = run(name, fixed)
    cotangents = [torch.randn_like(y) for y in outputs]
    torch.autograd.backward(outputs, cotangents)
    assert [set(call["wrt"]) for call in asked] == [set(needed)]
    everything = operands(name)
    torch.autograd.backward(run(name, everything), cotangents)
    for operand in with_gradient(fixed):
        if operand in needed:
            torch.testing.assert_close(fixed[operand].grad, everything[operand].grad, rtol=1e-11, atol=1e-12)
        else:
            assert fixed[operand].grad is None


@pytest.mark.parametrize(
    ("name", "used"),
    [
        *(("lstm", used) for used in [(0,), (1,), (2,), (0, 2), (1, 2)]),
        *((name, (k,)) for name in ("gru", "rnn", "lstm_cell") for k in (0, 1)),
    ],
)
def test_unused_outputs_have_no_cotangent(asked, name, used):
    call, inputs = closed_over(name, operands(name))
    outputs = call(*inputs)
    cotangents = [torch.randn_like(y) for y in outputs]

    def grads(outputs, cotangents):
        return torch.autograd.grad(
            outputs, inputs, cotangents, allow_unused=True, materialize_grads=True, retain_graph=True
        )

    got = grads([outputs[k] for k in used], [cotangents[k] for k in used])
    given = [asked[0][cotangent] is not None for cotangent in COTANGENTS[name]]
    assert given == [k in used for k in range(len(outputs))]
    expected = grads(
        call(*inputs), [c if k in used else torch.zeros_like(c) for k, c in enumerate(cotangents)]
    )
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


@every_operator
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(name, mode):
    fixed = operands(name)
    with mode():
        got = run(name, fixed)
    for a, b in zip(got, run(name, fixed), strict=True):
        assert not a.requires_grad
        assert b.requires_grad
        torch.testing.assert_close(a, b.detach(), rtol=0, atol=0)


@every_operator
def test_no_operand_requires_a_gradient(name):
    assert not any(y.requires_grad for y in run(name, operands(name, grad=False)))


@every_operator
def test_non_contiguous_operands_and_cotangents(name):
    fixed, strided = operands(name), {}
    for operand, x in operands(name, grad=False).items():
        strided[operand] = torch.stack((x, x), dim=-1)[..., 0]
        assert not strided[operand].is_contiguous()
        if operand != "sequence_lens":
            strided[operand].requires_grad_()
    outputs, others = run(name, fixed), run(name, strided)
    cotangents = [torch.randn_like(y) for y in outputs]
    torch.autograd.backward(outputs, cotangents)
    torch.autograd.backward(others, [torch.stack((c, c), dim=-1)[..., 0] for c in cotangents])
    for a, b in zip(outputs, others, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)
    for operand in with_gradient(fixed):
        torch.testing.assert_close(fixed[operand].grad, strided[operand].grad, rtol=1e-11, atol=1e-12)


@every_operator
def test_expanded_cotangent(name):
    call, inputs = closed_over(name, operands(name))
    got = torch.autograd.grad(call(*inputs)[0].sum(), inputs)
    y = call(*inputs)[0]
    expected = torch.autograd.grad(y, inputs, torch.ones_like(y))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


@every_operator
def test_operands_and_cotangents_are_not_written_to(name):
    fixed = operands(name)
    before = {operand: x.detach().clone() for operand, x in fixed.items()}
    outputs = run(name, fixed)
    cotangents = [torch.randn_like(y) for y in outputs]
    kept = [x.detach().clone() for x in (*outputs, *cotangents)]
    torch.autograd.backward(outputs, cotangents)
    for operand, x in fixed.items():
        assert torch.equal(x, before[operand]), operand
    assert all(torch.equal(a, b) for a, b in zip((*outputs, *cotangents), kept, strict=True))


@sequences
def test_padding_does_not_leak(name):
    clean, dirty = operands(name), operands(name)
    past = torch.arange(T)[:, None] >= clean["sequence_lens"]
    with torch.no_grad():
        dirty["X"][past] = float("nan")
    outputs, others = run(name, clean), run(name, dirty)
    assert not outputs[0][past.unsqueeze(1)].any()
    cotangents = [torch.randn_like(y) for y in outputs]
    torch.autograd.backward(outputs, cotangents)
    cotangents[0] = torch.where(past[:, None, :, None], torch.nan, cotangents[0])
    torch.autograd.backward(others, cotangents)
    for a, b in zip(outputs, others, strict=True):
        assert torch.equal(a, b)
    for operand in with_gradient(clean):
        assert torch.isfinite(dirty[operand].grad).all(), operand
        torch.testing.assert_close(clean[operand].grad, dirty[operand].grad, rtol=1e-12, atol=1e-13)
    assert not clean["X"].grad[past].any()


@every_operator
def test_backward_twice_needs_retain_graph(name):
    outputs = run(name, operands(name))
    loss = sum((y * torch.randn_like(y)).sum() for y in outputs)
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@every_operator
def test_memory_is_freed_without_the_garbage_collector(name):
    fixed = operands(name)
    gc.collect()
    gc.disable()
    try:
        outputs = run(name, fixed)
        saved = [weakref.ref(x) for x in (*outputs, outputs[0].grad_fn)]
        outputs[0].sum().backward()
        del outputs
        assert [ref() for ref in saved] == [None] * len(saved)
    finally:
        gc.enable()


@every_operator
def test_saved_operand_changed_in_place_is_noticed(name):
    fixed = operands(name)
    outputs = run(name, fixed)
    with torch.no_grad():
        fixed["R"].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs[0].sum().backward()


@pytest.mark.parametrize(
    ("name", "change", "error", "words"),
    [
        ("lstm", {"X": [[[1.0]]]}, TypeError, ["X", "list", "torch.Tensor"]),
        ("lstm", {"B": 1.0}, TypeError, ["B", "float", "torch.Tensor"]),
        ("lstm", {"W": None}, TypeError, ["W", "NoneType", "torch.Tensor"]),
        ("lstm", {"peephole": "partial"}, ValueError, ["peephole", "'partial'", "'full'", "'truncated'"]),
        ("lstm", {"W": torch.zeros(1, 12, 6).double()}, ValueError, ["W", "(1, 12, 6)", "(1, 12, 2)"]),
        ("lstm", {"direction": "sideways"}, ValueError, ["direction", "sideways"]),
        ("gru", {"X": [[[1.0]]]}, TypeError, ["X", "list", "torch.Tensor"]),
        ("gru", {"R": None}, TypeError, ["R", "NoneType", "torch.Tensor"]),
        ("gru", {"W": torch.zeros(1, 9, 6).double()}, ValueError, ["W", "(1, 9, 6)", "(1, 9, 2)"]),
        ("gru", {"linear_before_reset": 2}, ValueError, ["linear_before_reset", "2", "0", "1"]),
        ("rnn", {"R": None}, TypeError, ["R", "NoneType", "torch.Tensor"]),
        ("rnn", {"W": torch.zeros(1, 3, 6).double()}, ValueError, ["W", "(1, 3, 6)", "(1, 3, 2)"]),
        ("rnn_cell", {"clip": -1.0}, ValueError, ["clip", "-1.0"]),
        ("lstm_cell", {"C": None}, TypeError, ["C", "NoneType", "torch.Tensor"]),
        ("lstm_cell", {"H": torch.zeros(2, 3).double()}, ValueError, ["H", "(2, 3)", "(3, 3)"]),
        ("lstm_cell", {"peephole": "partial"}, ValueError, ["peephole", "'partial'"]),
        ("gru_cell", {"H": 1}, TypeError, ["H", "int", "torch.Tensor"]),
        ("gru_cell", {"W": torch.zeros(9, 6).double()}, ValueError, ["W", "(9, 6)", "(9, 2)"]),
        ("gru_cell", {"clip": -1.0}, ValueError, ["clip", "-1.0"]),
    ],
)
def test_bad_input(name, change, error, words):
    with pytest.raises(error) as caught:
        run(name, {**operands(name), **change})
    assert str(caught.value).startswith(f"{name}: ")
    assert all(word in str(caught.value) for word in words), caught.value


@every_operator
def test_checkpoint(name):
    from torch.utils.checkpoint import checkpoint

    call, inputs = closed_over(name, operands(name))
    outputs = call(*inputs)
    cotangents = [torch.randn_like(y) for y in outputs]
    expected = torch.autograd.grad(outputs, inputs, cotangents)
    got = torch.autograd.grad(checkpoint(call, *inputs, use_reentrant=False), inputs, cotangents)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@every_operator
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)]
)
def test_lower_precision_against_float64(name, dtype, tolerance):
    """Errors relative to the largest value; half precision keeps its states in float32."""
    low = operands(name, 5, dtype=dtype)
    high = {operand: x.detach().double() if x.is_floating_point() else x for operand, x in low.items()}
    names = with_gradient(low)
    for operand in names:
        high[operand].requires_grad_()
    outputs, exact = run(name, low), run(name, high)
    torch.manual_seed(0)  # the tolerances are for these numbers
    cotangents = [torch.randn_like(y) for y in outputs]
    torch.autograd.backward(outputs, cotangents)
    torch.autograd.backward(exact, [c.double() for c in cotangents])
    pairs = [*zip(outputs, exact, strict=True), *((low[x].grad, high[x].grad) for x in names)]
    for got, expected in pairs:
        assert got.dtype == dtype
        assert (got - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("lstm", {"clip": 1.5}),
        ("lstm", {"input_forget": True}),
        ("gru", {"linear_before_reset": 1}),
        ("gru", {"linear_before_reset": 0, "clip": 1.5}),
        ("rnn", {"clip": 1.5}),
    ],
)
def test_steps_of_the_cell_make_the_sequence(name, attributes):
    fixed = operands(name, 2)
    del fixed["sequence_lens"]
    outputs = run(name, fixed, **attributes)
    parameters = {operand: fixed[operand][0] for operand in {"W", "R", "B", "P"} & fixed.keys()}
    states = [fixed[operand][0] for operand in ("initial_h", "initial_c") if operand in fixed]
    steps = []
    for x in fixed["X"]:
        given = dict(zip(("H", "C"), states, strict=False))
        states = run(f"{name}_cell", {"X": x, **given, **parameters}, **attributes)
        steps.append(states[0])
    looped = (torch.stack(steps)[:, None], *(state[None] for state in states))
    cotangents = [torch.randn_like(y) for y in outputs]
    leaves = [fixed[operand] for operand in with_gradient(fixed)]
    results = [torch.autograd.grad(y, leaves, cotangents) for y in (outputs, looped)]
    for a, b in zip([*outputs, *results[0]], [*looped, *results[1]], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def test_public_names():
    assert functional.__all__ == sorted(functional.__all__)
    assert set(SHAPES) <= set(functional.__all__)
    assert all(hasattr(functional, name) for name in functional.__all__)
