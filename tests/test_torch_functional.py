"""xpgrad_torch.functional: the operators under autograd."""

import gc
import weakref

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import xpgrad
from xpgrad_torch.functional import lstm

T, N, I, H = 4, 3, 2, 3


def operands(seed=0, directions=1, dtype=torch.float64, grad=True):
    """Random operands by name, all of them, with uneven lengths."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=g, dtype=dtype).mul_(0.6).requires_grad_(grad)

    return {
        "X": draw(T, N, I),
        "W": draw(directions, 4 * H, I),
        "R": draw(directions, 4 * H, H),
        "B": draw(directions, 8 * H),
        "sequence_lens": torch.tensor([3, 4, 1]),
        "initial_h": draw(directions, N, H),
        "initial_c": draw(directions, N, H),
        "P": draw(directions, 3 * H),
    }


NAMES = ("X", "W", "R", "B", "initial_h", "initial_c", "P")


def closed_over(fixed, names, **attributes):
    """Return lstm as a function of the named operands, and these."""

    def call(*tensors):
        return lstm(**{**fixed, **dict(zip(names, tensors, strict=True))}, **attributes)

    return call, [fixed[name] for name in names]


ATTRIBUTES = {
    "plain": {},
    "reverse": {"direction": "reverse"},
    "bidirectional": {"direction": "bidirectional"},
    "clip": {"clip": 0.7},
    "input_forget": {"input_forget": True},
    "activations": {"activations": ["HardSigmoid", "Softsign", "Elu"], "activation_alpha": [0.3, 0.9]},
}


@pytest.mark.parametrize("attributes", ATTRIBUTES.values(), ids=ATTRIBUTES)
def test_gradcheck(attributes):
    fixed = operands(directions=2 if attributes.get("direction") == "bidirectional" else 1)
    assert gradcheck(*closed_over(fixed, NAMES, **attributes))


def test_gradcheck_without_optional_operands():
    fixed = {name: operands()[name] for name in ("X", "W", "R")}
    assert gradcheck(*closed_over(fixed, ("X", "W", "R")))


def test_gradcheck_batch_first():
    fixed = operands()
    for name in ("X", "initial_h", "initial_c"):
        fixed[name] = fixed[name].detach().transpose(0, 1).contiguous().requires_grad_()
    assert gradcheck(*closed_over(fixed, NAMES, layout=1))


@pytest.mark.parametrize("attributes", ATTRIBUTES.values(), ids=ATTRIBUTES)
def test_gradgradcheck(attributes):
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    g = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(shape, generator=g, dtype=torch.float64).mul_(0.6).requires_grad_()

    fixed = {
        "X": draw(2, 2, 1),
        "W": draw(directions, 8, 1),
        "R": draw(directions, 8, 2),
        "B": draw(directions, 16),
        "sequence_lens": torch.tensor([2, 1]),
        "initial_h": draw(directions, 2, 2),
        "initial_c": draw(directions, 2, 2),
        "P": draw(directions, 6),
    }
    assert gradgradcheck(*closed_over(fixed, NAMES, **attributes))


def test_gradient_with_graph_equals_gradient_without():
    call, inputs = closed_over(operands(1, 2), NAMES, direction="bidirectional", clip=0.8)
    outputs = call(*inputs)
    cotangents = [torch.randn_like(y) for y in outputs]
    plain = torch.autograd.grad(outputs, inputs, cotangents, retain_graph=True)
    with_graph = torch.autograd.grad(outputs, inputs, cotangents, create_graph=True)
    for a, b in zip(plain, with_graph, strict=True):
        assert not a.requires_grad
        assert b.requires_grad
        torch.testing.assert_close(a, b.detach(), rtol=1e-11, atol=1e-12)


def test_truncated_peephole_gradient_is_asked_for_and_differs():
    call, inputs = closed_over(operands(), NAMES)
    truncated, _ = closed_over(operands(), NAMES, peephole="truncated")
    cotangents = [torch.randn_like(y) for y in call(*inputs)]
    full = torch.autograd.grad(call(*inputs), inputs, cotangents)
    cut = torch.autograd.grad(truncated(*inputs), inputs, cotangents)
    fixed = operands(grad=False)
    forward = xpgrad.lstm(**fixed)
    expected = xpgrad.lstm_grad(
        **fixed,
        H_all=forward.H_all,
        C_all=forward.C_all,
        iofc=forward.iofc,
        **dict(zip(("grad_H_all", "grad_H_t", "grad_C_t"), cotangents, strict=True)),
        peephole="truncated",
    )
    for a, b, exact in zip(cut, expected, full, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
        assert not torch.allclose(a, exact, rtol=1e-4, atol=1e-6)


@pytest.fixture
def asked(monkeypatch):
    """Record what each backward asks the kernel for."""
    calls = []
    kernel = xpgrad.lstm_grad

    def spy(*args, **kwargs):
        calls.append(kwargs)
        return kernel(*args, **kwargs)

    monkeypatch.setattr(xpgrad, "lstm_grad", spy)
    return calls


@pytest.mark.parametrize("needed", [("X",), ("W", "B"), ("initial_h", "P"), ("R", "initial_c"), NAMES])
def test_only_what_requires_a_gradient_is_computed(asked, needed):
    fixed = operands(grad=False)
    for name in needed:
        fixed[name].requires_grad_()
    outputs = lstm(**fixed)
    cotangents = [torch.randn_like(y) for y in outputs]
    torch.autograd.backward(outputs, cotangents)
    assert [set(call["wrt"]) for call in asked] == [set(needed)]
    everything = operands()
    torch.autograd.backward(lstm(**everything), cotangents)
    for name in NAMES:
        if name in needed:
            torch.testing.assert_close(fixed[name].grad, everything[name].grad, rtol=1e-11, atol=1e-12)
        else:
            assert fixed[name].grad is None


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_unused_outputs_have_no_cotangent(asked, used):
    call, inputs = closed_over(operands(), NAMES)
    outputs = call(*inputs)
    cotangents = [torch.randn_like(y) for y in outputs]
    got = torch.autograd.grad([outputs[k] for k in used], inputs, [cotangents[k] for k in used])
    given = [asked[0][name] is not None for name in ("grad_H_all", "grad_H_t", "grad_C_t")]
    assert given == [k in used for k in range(3)]
    zeroed = [c if k in used else torch.zeros_like(c) for k, c in enumerate(cotangents)]
    expected = torch.autograd.grad(call(*inputs), inputs, zeroed)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode):
    fixed = operands()
    with mode():
        got = lstm(**fixed)
    for a, b in zip(got, lstm(**fixed), strict=True):
        assert not a.requires_grad
        assert b.requires_grad
        torch.testing.assert_close(a, b.detach(), rtol=0, atol=0)


def test_no_operand_requires_a_gradient():
    assert not any(y.requires_grad for y in lstm(**operands(grad=False)))


def test_non_contiguous_operands_and_cotangents():
    fixed, strided = operands(), {}
    for name, x in operands(grad=False).items():
        strided[name] = torch.stack((x, x), dim=-1)[..., 0]
        assert not strided[name].is_contiguous()
        if name != "sequence_lens":
            strided[name].requires_grad_()
    outputs, others = lstm(**fixed), lstm(**strided)
    cotangents = [torch.randn_like(y) for y in outputs]
    torch.autograd.backward(outputs, cotangents)
    torch.autograd.backward(others, [torch.stack((c, c), dim=-1)[..., 0] for c in cotangents])
    for a, b in zip(outputs, others, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)
    for name in NAMES:
        torch.testing.assert_close(fixed[name].grad, strided[name].grad, rtol=1e-11, atol=1e-12)


def test_expanded_cotangent():
    call, inputs = closed_over(operands(), NAMES)
    got = torch.autograd.grad(call(*inputs)[0].sum(), inputs)
    expected = torch.autograd.grad(call(*inputs)[0], inputs, torch.ones(T, 1, N, H, dtype=torch.float64))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def test_operands_and_cotangents_are_not_written_to():
    fixed = operands()
    before = {name: x.detach().clone() for name, x in fixed.items()}
    outputs = lstm(**fixed)
    cotangents = [torch.randn_like(y) for y in outputs]
    kept = [x.detach().clone() for x in (*outputs, *cotangents)]
    torch.autograd.backward(outputs, cotangents)
    for name, x in fixed.items():
        assert torch.equal(x, before[name]), name
    assert all(torch.equal(a, b) for a, b in zip((*outputs, *cotangents), kept, strict=True))


def test_padding_does_not_leak():
    clean, dirty = operands(), operands()
    past = torch.arange(T)[:, None] >= clean["sequence_lens"]
    with torch.no_grad():
        dirty["X"][past] = float("nan")
    outputs, others = lstm(**clean), lstm(**dirty)
    assert not outputs[0][past.unsqueeze(1)].any()
    cotangents = [torch.randn_like(y) for y in outputs]
    torch.autograd.backward(outputs, cotangents)
    cotangents[0] = torch.where(past[:, None, :, None], torch.nan, cotangents[0])
    torch.autograd.backward(others, cotangents)
    for a, b in zip(outputs, others, strict=True):
        assert torch.equal(a, b)
    for name in NAMES:
        assert torch.isfinite(dirty[name].grad).all(), name
        torch.testing.assert_close(clean[name].grad, dirty[name].grad, rtol=1e-12, atol=1e-13)
    assert not clean["X"].grad[past].any()


def test_backward_twice_needs_retain_graph():
    outputs = lstm(**operands())
    loss = sum((y * torch.randn_like(y)).sum() for y in outputs)
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_memory_is_freed_without_the_garbage_collector():
    fixed = operands()
    gc.collect()
    gc.disable()
    try:
        H_all, H_t, C_t = lstm(**fixed)
        saved = [weakref.ref(x) for x in (H_all, H_all.grad_fn)]
        H_all.sum().backward()
        del H_all, H_t, C_t
        assert [ref() for ref in saved] == [None, None]
    finally:
        gc.enable()


def test_saved_operand_changed_in_place_is_noticed():
    fixed = operands()
    outputs = lstm(**fixed)
    with torch.no_grad():
        fixed["R"].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs[0].sum().backward()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"X": [[[1.0]]]}, TypeError, ["lstm", "X", "list", "torch.Tensor"]),
        ({"B": 1.0}, TypeError, ["lstm", "B", "float", "torch.Tensor"]),
        ({"W": None}, TypeError, ["lstm", "W", "NoneType", "torch.Tensor"]),
        ({"peephole": "partial"}, ValueError, ["lstm", "peephole", "'partial'", "'full'", "'truncated'"]),
        ({"W": torch.zeros(1, 12, 6).double()}, ValueError, ["lstm", "W", "(1, 12, 6)", "(1, 12, 2)"]),
        ({"direction": "sideways"}, ValueError, ["lstm", "direction", "sideways"]),
    ],
)
def test_bad_input(change, error, words):
    with pytest.raises(error) as caught:
        lstm(**{**operands(), **change})
    assert all(word in str(caught.value) for word in words), caught.value


def test_checkpoint():
    from torch.utils.checkpoint import checkpoint

    call, inputs = closed_over(operands(), NAMES)
    outputs = call(*inputs)
    cotangents = [torch.randn_like(y) for y in outputs]
    expected = torch.autograd.grad(outputs, inputs, cotangents)
    got = torch.autograd.grad(checkpoint(call, *inputs, use_reentrant=False), inputs, cotangents)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)]
)
def test_lower_precision_against_float64(dtype, tolerance):
    """Errors relative to the largest value; half precision keeps its states in float32."""
    low = operands(5, dtype=dtype)
    high = {name: x.detach().double() if x.is_floating_point() else x for name, x in low.items()}
    for name in NAMES:
        high[name].requires_grad_()
    outputs, exact = lstm(**low), lstm(**high)
    cotangents = [torch.randn_like(y) for y in outputs]
    torch.autograd.backward(outputs, cotangents)
    torch.autograd.backward(exact, [c.double() for c in cotangents])
    pairs = [*zip(outputs, exact, strict=True), *((low[name].grad, high[name].grad) for name in NAMES)]
    for got, expected in pairs:
        assert got.dtype == dtype
        assert (got - expected).abs().max() <= tolerance * expected.abs().max()
