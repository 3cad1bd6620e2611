"""Built-in operators that are one cell: against their definitions, and in frameworks."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import xpgrad
import xpgrad_torch
from backends import Backend
from xpgrad._cases.cell_operators import CELL_UNITS
from xpgrad._cases.kernels import KERNELS
from xpgrad._operators.axes import gradient_name
from xpgrad._operators.units import UNITS, Unit
from xpgrad._operators.vjp import rule_of
from xpgrad.testing import augru_reference, check_vjp, slstm_reference, to_numpy
from xpgrad_torch import functional

T, N, I, H = 6, 4, 3, 4
LENGTHS = [6, 0, 3, 1]


class Operator(NamedTuple):
    """An operator, its definition, its gates, its states, its module, and its options by name."""

    kernel: Callable[..., Any]
    reference: Callable[..., Any]
    gates: int
    biases: int
    states: str
    module: Callable[..., Any]
    options: dict[str, dict[str, Any]]


_OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "slstm": {
        "plain": {}, "heads": {"heads": 2}, "narrow heads": {"heads": 4, "forget": "exp"},
        "exp": {"forget": "exp"},
    },
    "augru": {"plain": {}, "reset after": {"linear_before_reset": 1}},
}  # fmt: skip


def _declared(name: str) -> Operator:
    unit = UNITS[name]
    return Operator(
        getattr(xpgrad, name), CELL_UNITS[name], unit.rows, unit.biases, "".join(unit.states),
        getattr(xpgrad_torch, unit.module), _OPTIONS.get(name, {"plain": {}}),
    )  # fmt: skip


OPERATORS = {name: _declared(name) for name in CELL_UNITS}
CALLS = [(name, option) for name, operator in OPERATORS.items() for option in operator.options]
every_call = pytest.mark.parametrize(("name", "option"), CALLS, ids=[" ".join(call) for call in CALLS])


def operands_of(
    name: str, D: int, rng: np.random.Generator, option: str = "plain", begin: bool = True, wide: bool = False
) -> dict[str, np.ndarray]:
    operator = OPERATORS[name]
    heads, rows = operator.options[option].get("heads", 1), operator.gates * H
    shapes: dict[str, tuple[int, ...]] = {"X": (T, N, I)}
    if name == "augru":
        shapes["attention"] = (T, N, H if wide else 1)
    shapes |= {"W": (D, rows, I), "R": (D, rows, H // heads), "B": (D, operator.biases * rows)}
    shapes |= {f"initial_{state}": (D, N, H) for state in operator.states} if begin else {}
    arrays = {key: rng.normal(size=shape) for key, shape in shapes.items()}
    if "initial_n" in arrays:
        arrays["initial_n"] = 0.5 + np.abs(arrays["initial_n"])
    if "attention" in arrays:
        arrays["attention"] = rng.uniform(size=arrays["attention"].shape)
    return arrays


def by_autograd(name: str, operands: dict[str, Any], **options: Any) -> tuple[Any, Any, Any]:
    """Outputs of the definition, random cotangents of them by name, and the gradients."""
    tensors = {key: torch.from_numpy(x).requires_grad_() for key, x in operands.items()}
    outputs = OPERATORS[name].reference(**tensors, **options)
    rng = np.random.default_rng(1)
    seeds = [rng.normal(size=tuple(y.shape)) for y in outputs]
    grads = torch.autograd.grad(outputs, list(tensors.values()), [torch.from_numpy(s) for s in seeds])
    named = dict(zip(rule_of(OPERATORS[name].kernel).cotangents.values(), seeds, strict=True))
    return (
        [y.detach().numpy() for y in outputs],
        named,
        dict(zip(tensors, [g.numpy() for g in grads], strict=True)),
    )


def assert_close(found: Any, wanted: Any, label: str, tolerance: float = 1e-11) -> None:
    np.testing.assert_allclose(to_numpy(found), np.asarray(wanted), rtol=0, atol=tolerance, err_msg=label)


def compare(name: str, outputs: Any, grads: Any, expected: tuple[Any, Any, Any]) -> None:
    plain, _, wanted = expected
    for key, value in zip(rule_of(OPERATORS[name].kernel).cotangents, plain, strict=True):
        assert_close(getattr(outputs, key), value, key)
    for key, value in wanted.items():
        assert_close(getattr(grads, gradient_name(key)), value, key)


@every_call
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("lengths", "begin"), [(None, False), (LENGTHS, True)], ids=["full", "lengths"])
def test_against_autograd_through_the_definition(
    name: str, option: str, direction: str, lengths: Any, begin: bool, rng: np.random.Generator
) -> None:
    options = {**OPERATORS[name].options[option], "direction": direction, "sequence_lens": lengths}
    operands = operands_of(name, 2 if direction == "bidirectional" else 1, rng, option, begin, wide=begin)
    expected = by_autograd(name, operands, **options)
    outputs, pullback = xpgrad.vjp(OPERATORS[name].kernel, **operands, **options)
    compare(name, outputs, pullback(**expected[1]), expected)


@pytest.mark.parametrize("name", OPERATORS)
def test_every_backend(backend: Backend, name: str, rng: np.random.Generator) -> None:
    options = {"direction": "bidirectional", "sequence_lens": LENGTHS}
    operands = operands_of(name, 2, rng)
    expected = by_autograd(name, operands, **options)
    arrays, seeds = (
        {key: backend.array(x, "float64") for key, x in part.items()} for part in (operands, expected[1])
    )
    outputs, pullback = xpgrad.vjp(OPERATORS[name].kernel, **arrays, **options)
    compare(name, outputs, pullback(**seeds), expected)


@every_call
@pytest.mark.usefixtures("interpreted")
def test_central_differences_without_biases(name: str, option: str, rng: np.random.Generator) -> None:
    operator, options = OPERATORS[name], OPERATORS[name].options[option]
    operands = operands_of(name, 1, rng, option)
    del operands["B"]
    few = {key: x[:3, :2] if key in ("X", "attention") else x[:, :2] for key, x in operands.items()}
    operands |= {key: x for key, x in few.items() if key not in ("W", "R")}
    names = list(rule_of(operator.kernel).cotangents)

    def forward(**arrays: Any) -> tuple[Any, ...]:
        return tuple(getattr(operator.kernel(**arrays, **options), key) for key in names)

    def gradient(*cotangents: Any, **arrays: Any) -> tuple[Any, ...]:
        grads = xpgrad.vjp(operator.kernel, **arrays, **options)[1](*cotangents)
        assert grads.dB is None
        return tuple(getattr(grads, gradient_name(key)) for key in arrays)

    check_vjp(forward, gradient, operands, operator=name, outputs=names)


@pytest.mark.parametrize("name", OPERATORS)
def test_gradients_of_each_sample_resets_and_layout(name: str, rng: np.random.Generator) -> None:
    kernel, operands = OPERATORS[name].kernel, operands_of(name, 1, rng)
    seed, reset = {"grad_H_all": rng.normal(size=(T, 1, N, H))}, rng.uniform(size=(T, N)) < 0.4
    options = {"sequence_lens": LENGTHS, "reset": reset}
    whole = xpgrad.vjp(kernel, **operands, **options)[1](**seed)
    each = xpgrad.vjp(kernel, **operands, **options, per_sample=True)[1](**seed)
    norms = xpgrad.vjp(kernel, **operands, **options, per_sample="norm")[1](**seed)
    for field in ("dW", "dR", "dB"):
        own = getattr(each, field)
        assert_close(own.sum(axis=0), getattr(whole, field), field)
        assert_close(getattr(norms, field), np.sqrt((own**2).sum(axis=tuple(range(2, own.ndim)))), field)
    front = {key: np.moveaxis(x, -2, 0) if key[0] in "Xai" else x for key, x in operands.items()}
    turned = xpgrad.vjp(kernel, **front, sequence_lens=LENGTHS, reset=reset.T, layout=1)[1](
        np.moveaxis(seed["grad_H_all"], -2, 0)
    )
    assert_close(turned.dX, np.swapaxes(whole.dX, 0, 1), "X")
    assert_close(turned.dR, whole.dR, "R")
    # the pieces between resets are calls of their own
    plain, _ = xpgrad.vjp(kernel, **operands, **options)
    n, cut = 0, next((t for t in range(1, T) if reset[t, 0]), T)
    one = {
        key: x[:cut, :1] if key in ("X", "attention") else x[:, :1] if key[0] == "i" else x
        for key, x in operands.items()
    }
    if reset[0, 0]:
        one = {key: np.zeros_like(x) if key[0] == "i" else x for key, x in one.items()}
    assert_close(kernel(**one).H_all[:, :, 0], plain.H_all[:cut, :, n], "the first piece")


@pytest.mark.parametrize(
    ("name", "option", "save"),
    [(*call, "all") for call in CALLS]
    + [(name, "plain", save) for name in OPERATORS for save in ("states", 2)],
)
def test_modules_and_functions(name: str, option: str, save: Any, rng: np.random.Generator) -> None:
    operator, options = OPERATORS[name], OPERATORS[name].options[option]
    operands = operands_of(name, 2, rng, option)
    expected = by_autograd(name, operands, **options, direction="bidirectional", sequence_lens=LENGTHS)
    tensors = {key: torch.from_numpy(x).requires_grad_() for key, x in operands.items()}
    seeds = [torch.from_numpy(x) for x in expected[1].values()]
    own = {"reset_after": bool(options.get("linear_before_reset"))} if name == "augru" else options
    layer = operator.module(I, H, bidirectional=True, batch_first=True, dtype=torch.float64, save=save, **own)
    with torch.no_grad():
        for key, parameter in layer.named_parameters():
            parameter.copy_(tensors[key])
    function = getattr(functional, name)
    for _ in range(2):
        found = function(**tensors, **options, sequence_lens=LENGTHS, direction="bidirectional", save=save)
        for y, value in zip(found, expected[0], strict=False):
            assert_close(y.detach(), value, name)
    exact = by_autograd(name, operands, **options, direction="bidirectional", sequence_lens=LENGTHS)
    loss = sum((y * seed).sum() for y, seed in zip(found, seeds, strict=False))
    grads = torch.autograd.grad(loss, list(tensors.values()))
    # of the outputs that PyTorch has
    plain = {key: torch.from_numpy(x).requires_grad_() for key, x in operands.items()}
    reference = operator.reference(**plain, **options, direction="bidirectional", sequence_lens=LENGTHS)
    again = sum((y * seed).sum() for y, seed in zip(reference[: len(found)], seeds, strict=False))
    for key, grad, value in zip(
        tensors, grads, torch.autograd.grad(again, list(plain.values())), strict=True
    ):
        assert_close(grad, value, key)
    states = [tensors[f"initial_{state}"] for state in operator.states]
    more = {"attention": tensors["attention"].transpose(0, 1)} if name == "augru" else {}
    output, finals = layer(tensors["X"].transpose(0, 1), states, LENGTHS, **more)
    assert_close(
        output.detach().transpose(0, 1), np.concatenate([exact[0][0][:, 0], exact[0][0][:, 1]], -1), "output"
    )
    last = finals if isinstance(finals, tuple) else (finals,)
    assert_close(last[0].detach(), exact[0][1], "final state")


@every_call
def test_jax(name: str, option: str, rng: np.random.Generator) -> None:
    jax = pytest.importorskip("jax", reason="jax not installed")
    import xpgrad_jax

    options = {**OPERATORS[name].options[option], "sequence_lens": np.asarray(LENGTHS)}
    operands = operands_of(name, 1, rng, option)
    plain = {key: torch.from_numpy(x).requires_grad_() for key, x in operands.items()}
    outputs = OPERATORS[name].reference(**plain, **options)
    with jax.enable_x64(True):
        arrays = {key: jax.numpy.asarray(x) for key, x in operands.items()}

        def loss(given: Any) -> Any:
            return sum((y * y).sum() for y in getattr(xpgrad_jax, name)(**given, **options))

        made = getattr(xpgrad_jax, name)(**arrays, **options)
        grads = jax.jit(jax.grad(loss))(arrays)
    for found, value in zip(made, outputs, strict=False):
        assert_close(found, value.detach(), "outputs")
    total = sum((y * y).sum() for y in outputs[: len(made)])
    for key, value in zip(plain, torch.autograd.grad(total, list(plain.values())), strict=True):
        assert_close(grads[key], value, key, 1e-10)


def test_every_operator_is_checked() -> None:
    """`check` has a row for each declared operator and each single step."""
    assert {name for unit in UNITS.values() for name in unit.kernels} <= {kernel.name for kernel in KERNELS}


def test_public_references_are_the_definitions(rng: np.random.Generator) -> None:
    for name, reference in (("slstm", slstm_reference), ("augru", augru_reference)):
        operands = operands_of(name, 1, rng)
        for found, wanted in zip(reference(**operands), CELL_UNITS[name](**operands), strict=True):
            assert_close(found, wanted, name, 0)


@pytest.mark.parametrize("name", [name for unit in UNITS.values() for name in unit.kernels])
def test_arrays_have_the_declared_axes(name: str, rng: np.random.Generator) -> None:
    """Outputs and gradients; a width that an option chooses is one of the declared ones."""
    unit = UNITS[name.removesuffix("_cell")]
    is_step = name == unit.step_name
    axes, kept = (unit.step_axes, unit.step_arguments) if is_step else (unit.axes, unit.graded)
    sizes = {"T": T, "N": N, "I": I, "H": H, "E": H, "J": H, "D": 1}

    def shape(key: str) -> tuple[int, ...]:
        return tuple(
            sizes[a[-1]] * int(a[:-1] or 1) if a[-1] in sizes else int(a.replace("?", "1"))
            for a in axes[key].split()
        )

    operands = {key: rng.normal(size=shape(key)) for key in kept if key != "S"}
    out, pullback = xpgrad.vjp(getattr(xpgrad, name), **operands)
    for key, found in out._asdict().items():
        if "?" not in axes[key]:
            assert found.shape == shape(key), key
        else:
            assert found.shape[-1] in [width * H for width in unit.kept[key]], key
    grads = pullback(*(rng.normal(size=shape(key)) for key in rule_of(getattr(xpgrad, name)).cotangents))
    for key in operands:
        assert getattr(grads, gradient_name(key)).shape == shape(key), key


@pytest.mark.parametrize("wrong", [{"step": "c"}, {"step": "", "inputs": UNITS["augru"].inputs}])
def test_a_wrong_declaration_of_a_step(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^none: step is '.*, expected letters of h, and no inputs$"):
        Unit("none", "None", "z", "nowhere", **wrong)
    assert "none" not in UNITS


STEPS = [unit for unit in UNITS.values() if unit.step is not None]


@pytest.mark.parametrize("unit", STEPS, ids=lambda unit: unit.name)
def test_a_step_is_a_sequence_of_length_1(unit: Unit, rng: np.random.Generator) -> None:
    """Its results, gradients and those of each sample, in the core and in PyTorch."""
    sizes = {"N": N, "I": I, "H": H}
    operands = {
        name: rng.normal(size=[int(a[:-1] or 1) * sizes[a[-1]] for a in unit.step_axes[name].split()])
        for name in unit.step_arguments
    }
    named = {state.upper(): f"initial_{state}" for state in unit.states}
    whole = {named.get(name, name): x[None] for name, x in operands.items()}
    seeds = [rng.normal(size=(N, H)) for _ in unit.states]
    out, pullback = xpgrad.vjp(getattr(xpgrad, unit.name), **whole)
    ends = {unit.cotangents[end]: seed[None] for end, seed in zip(unit.ends, seeds, strict=True)}
    grads = pullback(**ends)
    expected = [getattr(out, end)[0] for end in unit.ends]
    wanted = [getattr(grads, gradient_name(named.get(name, name)))[0] for name in operands]

    step, back = xpgrad.vjp(getattr(xpgrad, unit.step_name), **operands)
    each = xpgrad.vjp(getattr(xpgrad, unit.step_name), **operands, per_sample=True)[1](*seeds)
    for name, y, seed in zip(unit.step_cotangents, expected, seeds, strict=True):
        assert_close(getattr(step, name), y, name)
        assert seed.shape == y.shape
    for name, found, value, alone in zip(operands, back(*seeds), wanted, each, strict=True):
        assert_close(found, value, name)
        assert_close(alone.sum(axis=0) if "N" not in unit.step_axes[name].split() else alone, value, name)

    tensors = [torch.from_numpy(x).requires_grad_() for x in operands.values()]
    made = getattr(functional, unit.step_name)(*tensors)
    made = made if isinstance(made, tuple) else (made,)
    for found, y in zip(made, expected, strict=True):
        assert_close(found.detach(), y, "PyTorch")
    for found, value in zip(
        torch.autograd.grad(made, tensors, [torch.from_numpy(s) for s in seeds]), wanted, strict=True
    ):
        assert_close(found, value, "PyTorch")


@pytest.mark.parametrize("forget", ["sigmoid", "exp"])
@pytest.mark.usefixtures("interpreted")
def test_large_gates_stay_finite(forget: str, rng: np.random.Generator) -> None:
    """The stabilizer keeps exponentials in range; a forget gate of 0 is one."""
    operands = operands_of("slstm", 1, rng, begin=False)
    operands["B"] = 900.0 * np.sign(operands["B"])
    outputs, pullback = xpgrad.vjp(xpgrad.slstm, **operands, forget=forget)
    grads = pullback(grad_H_all=np.ones_like(outputs.H_all))
    assert all(np.isfinite(x).all() for x in (*outputs, *grads[:4]))
    assert (np.abs(outputs.H_all) <= 1 + 1e-12).all()


@pytest.mark.parametrize("forget", ["sigmoid", "exp"])
@pytest.mark.usefixtures("interpreted")
def test_input_gates_that_are_small_at_the_start_and_after_a_reset(forget: str) -> None:
    """There n = 0, and the other exponent may be above 0."""
    W = np.asarray([-100.0, 45.0, 1.0, 0.0]).reshape(1, 4, 1)
    X, R, reset = np.ones((4, 1, 1)), np.full((1, 4, 1), 0.1), np.asarray([[False], [False], [True], [False]])
    found = []
    for dtype in (np.float32, np.float64):
        arrays = [x.astype(dtype) for x in (X, W, R)]
        outputs, pullback = xpgrad.vjp(xpgrad.slstm, *arrays, forget=forget, reset=reset)
        grads = pullback(grad_H_all=np.ones_like(outputs.H_all))
        found.append([outputs.H_all, *grads[:3]])
    for low, high in zip(*found, strict=True):
        np.testing.assert_allclose(low, high, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("interpreted")
def test_attention_at_its_ends(rng: np.random.Generator) -> None:
    operands = operands_of("augru", 1, rng)
    attention = operands.pop("attention")
    plain = xpgrad.gru(**operands)
    assert_close(xpgrad.augru(**operands, attention=0 * attention).H_all, plain.H_all, "none")
    operands["R"] = 0 * operands["R"]
    alone = xpgrad.augru(**operands, attention=0 * attention + 1).H_all
    first = xpgrad.augru(
        **{**operands, "initial_h": 5 + 0 * operands["initial_h"]}, attention=0 * attention + 1
    )
    assert_close(alone, first.H_all, "nothing is kept")


def test_the_plain_backend_of_xlstm(rng: np.random.Generator) -> None:
    """The same outputs and gradients, with weights by `convert`."""
    cell = pytest.importorskip("xlstm.blocks.slstm.cell", reason="xlstm is not installed")
    for heads in (1, 2, 4):
        config = cell.sLSTMCellConfig(
            hidden_size=8, num_heads=heads, backend="vanilla", dtype="float32", bias_init="standard",
            recurrent_weight_init="standard",
        )  # fmt: skip
        theirs = cell.sLSTMCell(config).double()
        gates = torch.randn(5, 3, 32, dtype=torch.float64, requires_grad=True)  # N T 4H
        output, _ = theirs(gates)
        seed = torch.randn_like(output)
        expected = torch.autograd.grad(output, (gates, theirs._recurrent_kernel_, theirs._bias_), seed)
        weights = {"_recurrent_kernel_": theirs._recurrent_kernel_, "_bias_": theirs._bias_}
        onnx = xpgrad.convert("slstm", weights, "xlstm", "onnx")
        W = torch.eye(32, dtype=torch.float64)[None]
        H_all, *_ = functional.slstm(gates.transpose(0, 1), W, onnx["R"][None], onnx["B"][None], heads=heads)
        ours = H_all[:, 0].transpose(0, 1).unflatten(2, (heads, 8 // heads)).transpose(1, 2)
        torch.testing.assert_close(ours, output, rtol=0, atol=1e-11)
        found = torch.autograd.grad(ours, (gates, theirs._recurrent_kernel_, theirs._bias_), seed)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


def test_swap_of_xlstms_cell() -> None:
    """A model with xlstm's sLSTM trains with the same numbers, and gets its own cell back."""
    cell = pytest.importorskip("xlstm.blocks.slstm.cell", reason="xlstm is not installed")
    config = cell.sLSTMCellConfig(
        hidden_size=8, num_heads=2, backend="vanilla", dtype="float32", bias_init="standard",
        recurrent_weight_init="standard",
    )  # fmt: skip
    model = torch.nn.Sequential(torch.nn.Linear(6, 32), cell.sLSTMCell(config)).double()
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    own, parameters = model[1], list(model.parameters())
    swapped = xpgrad_torch.swap(model, verify=x)
    assert type(swapped[1]) is not type(own)
    assert all(a is b for a, b in zip(swapped.parameters(), parameters, strict=True))
    assert swapped.state_dict().keys() == torch.nn.Sequential(torch.nn.Linear(6, 32), own).state_dict().keys()
    output, state = swapped[1](swapped[0](x))
    wanted, last = own(swapped[0](x))
    torch.testing.assert_close(output, wanted, rtol=0, atol=1e-11)
    torch.testing.assert_close(state, last, rtol=0, atol=1e-11)
    again, _ = swapped[1](swapped[0](x), state)
    torch.testing.assert_close(again, own(swapped[0](x), last)[0], rtol=0, atol=1e-11)
    kind = type(swapped[1])  # pickle takes xlstm's own cell apart, but cannot put it together
    assert pickle.loads(pickle.dumps(kind)) is kind
    assert type(xpgrad_torch.unswap(swapped)[1]) is type(own)
    lstm = cell.sLSTMCell(
        cell.sLSTMCellConfig(hidden_size=8, num_heads=2, backend="vanilla", function="lstm")
    )
    with pytest.warns(UserWarning, match="its function is 'lstm', expected 'slstm'"):
        assert xpgrad_torch.swap(lstm) is lstm


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"heads": 3}, ValueError, "H is 4, expected a multiple of heads = 3"),
        ({"heads": 0}, ValueError, "heads is 0, expected a number from 1 on"),
        ({"heads": 2.0}, TypeError, "heads is 2.0 of type float, expected an integer"),
        ({"forget": "relu"}, ValueError, "forget is 'relu', expected one of 'sigmoid', 'exp'"),
        ({"heads": 2}, ValueError, r"R has shape \(1, 16, 4\), expected \(D, 4H, H/2\) = \(1, 16, 2\)"),
        ({"B": np.zeros((1, 32))}, ValueError, r"B has shape \(1, 32\), expected \(D, 4H\) = \(1, 16\)"),
    ],
)
def test_wrong_arguments(options: Any, error: type, text: str, rng: np.random.Generator) -> None:
    operands = {**operands_of("slstm", 1, rng), **{k: x for k, x in options.items() if k == "B"}}
    attributes = {key: x for key, x in options.items() if key != "B"}
    with pytest.raises(error, match=f"^slstm: {text}"):
        xpgrad.slstm(**operands, **attributes)
