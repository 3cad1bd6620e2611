"""Modules that run a layer over rows of episodes: torchrl's and SB3-contrib's, beside themselves."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import xpgrad_torch
from xpgrad_torch._layers import Layers

N, T, I, H = 3, 9, 2, 4
IS_INIT = torch.zeros(N, T, dtype=torch.bool)
IS_INIT[0, [0, 4, 5]] = IS_INIT[2, 8] = True


def gradients(results: list[torch.Tensor], tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    loss = sum((y * torch.randn(y.shape, dtype=y.dtype)).sum() for y in results)  # whatever the strides
    return torch.autograd.grad(loss, tensors)


def assert_close(found: Any, wanted: Any, tolerance: float = 1e-11) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_states_at_all_steps(name: str) -> None:
    """Every step's states of both layers, as a loop of single steps finds them."""
    torch.manual_seed(0)
    layer = getattr(xpgrad_torch, name)(I, H, num_layers=2, dtype=torch.float64)
    x = torch.randn(N, T, I, dtype=torch.float64, requires_grad=True)
    output, of_layers = layer._run_with_states(x, None, IS_INIT)
    states = [torch.stack(each, dim=2).transpose(0, 1) for each in of_layers]
    steps, now = [], (torch.zeros(2, N, H, dtype=torch.float64),) * len(states)
    for t in range(T):
        kept = (~IS_INIT[:, t]).double()[:, None]
        _, new = layer(x[:, t : t + 1].transpose(0, 1), as_given(tuple(state * kept for state in now)))
        now = new if isinstance(new, tuple) else (new,)
        steps.append([state.transpose(0, 1) for state in now])
    wanted = [torch.stack(each, dim=1) for each in zip(*steps, strict=True)]
    tensors = [x, *layer.parameters()]
    assert_close([output, *states], [wanted[0][:, :, -1], *wanted])
    assert_close(gradients(states, tensors), gradients(wanted, tensors))


def as_given(states: tuple[torch.Tensor, ...]) -> Any:
    return states if len(states) > 1 else states[0]


# ------------------------------------------------------------------------------------------------- torchrl


def torchrl_module(kind: str, **options: Any) -> torch.nn.Module:
    modules = pytest.importorskip(
        "torchrl.modules", reason="torchrl is not installed: its modules are compared"
    )
    names = ["h", "c"][: 2 if kind == "LSTM" else 1]
    torch.manual_seed(0)
    return getattr(modules, f"{kind}Module")(
        I, H, in_keys=["x", *names], out_keys=["y", *(("next", name) for name in names)],
        default_recurrent_mode=True, **options,
    ).double()  # fmt: skip


def rows(module: Any, layers: int, later: float = 0.0) -> Any:
    from tensordict import TensorDict

    torch.manual_seed(2)
    states = {key: torch.full((N, T, layers, H), later, dtype=torch.float64) for key in module.in_keys[1:-1]}
    for state in states.values():
        state[:, 0] = torch.randn(N, layers, H)
    x = torch.randn(N, T, I, dtype=torch.float64, requires_grad=True)
    return TensorDict({"x": x, "is_init": IS_INIT[..., None], **states}, [N, T])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls of layers that return their states at all steps."""
    found: list[Any] = []
    run = Layers._run_with_states
    monkeypatch.setattr(
        Layers, "_run_with_states", lambda self, *args: found.append(args) or run(self, *args)
    )
    return found


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("layers", [1, 2])
def test_torchrls_modules(kind: str, layers: int, calls: list[Any]) -> None:
    """The same outputs, states at the episodes' ends, and gradients; with other states, their own way."""
    module = torchrl_module(kind, num_layers=layers)
    own = type(module)
    for later, expected_calls in ((0.0, 1), (0.5, 0)):  # states that are given at the begin of later episodes
        results, grads = [], []
        for change in (lambda m: m, xpgrad_torch.swap, xpgrad_torch.unswap):
            assert change(module) is module
            calls.clear()
            data = rows(module, layers, later)
            x = data["x"]  # theirs puts a copy in its place
            found = module(data)
            results.append([found[key] for key in module.out_keys])
            grads.append(gradients(results[-1], [x, *module.parameters()]))
            assert len(calls) == (expected_calls if change is xpgrad_torch.swap else 0)
        assert type(module) is own
        copy = pickle.loads(pickle.dumps(xpgrad_torch.swap(module)))
        assert type(copy) is type(module)
        xpgrad_torch.unswap(module)
        for result, grad in zip(results[1:], grads[1:], strict=True):
            assert_close(result, results[0])
            assert_close(grad, grads[0])


def test_torchrls_other_calls() -> None:
    """Single steps of a rollout, rows without resets, and more axes in front."""
    torchrl = pytest.importorskip(
        "torchrl.modules", reason="torchrl is not installed: its modules are compared"
    )
    module = torchrl_module("LSTM")
    data = rows(module, 1).detach()
    cases = [data[:, 3], data[1], data[2], data.reshape(N, 1, T)]
    modes = [False, True, True, True]
    wanted = []
    for change in (lambda m: m, xpgrad_torch.swap):
        change(module)
        found = []
        for case, mode in zip(cases, modes, strict=True):
            with torchrl.set_recurrent_mode(mode):
                result = module(case.clone())
            assert result.shape == case.shape
            found += [result[key] for key in module.out_keys]
        wanted.append(found)
    assert_close(*wanted)


def test_what_stays_of_torchrl() -> None:
    """The layer inside stays with the module around it, which asks for PyTorch's."""
    module = torchrl_module("GRU")

    class Mine(type(module)):  # type: ignore[misc]
        pass

    others = torch.nn.ModuleList([module, torchrl_module("GRU", bidirectional=True)])
    others[0].__class__ = Mine
    with pytest.warns(UserWarning, match=r"expected one direction|subclass of GRUModule"):
        xpgrad_torch.swap(others)
    assert [type(each.gru) for each in others] == [torch.nn.GRU] * 2
    why = [row.why for row in xpgrad_torch.swap_report(others).rows]
    assert any("the GRU in it stays too: a Mine stays, it is a subclass of GRUModule" in each for each in why)


# ---------------------------------------------------------------------------------------------- SB3-contrib


class Policy(torch.nn.Module):
    """In the place of a policy of SB3-contrib: what the package adds around its loop is left out."""

    def __init__(self, kind: type[torch.nn.RNNBase]) -> None:
        super().__init__()
        self.lstm_actor = kind(I, H, num_layers=2, dtype=torch.float64)

    @staticmethod
    def _process_sequence(features: Any, states: Any, starts: Any, layer: Any) -> tuple[Any, Any]:
        outputs = []
        for x, start in zip(features.view(N, -1, I).unbind(1), starts.view(N, -1).unbind(1), strict=True):
            kept = (1 - start)[:, None]
            states = tuple(kept * state for state in states) if isinstance(states, tuple) else kept * states
            output, states = layer(x[None], states)
            outputs.append(output[0])
        return torch.stack(outputs, dim=1).flatten(0, 1), states


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_what_a_policy_computes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output, states and gradients; the policy stays the object that its algorithm holds."""
    module = SimpleNamespace(RecurrentActorCriticPolicy=Policy)
    monkeypatch.setitem(sys.modules, "sb3_contrib.common.recurrent.policies", module)
    torch.manual_seed(0)
    policy = Policy(getattr(torch.nn, kind))
    x = torch.randn(N * T, I, dtype=torch.float64, requires_grad=True)
    given = [
        torch.randn(2, N, H, dtype=torch.float64, requires_grad=True) for _ in range(1 + (kind == "LSTM"))
    ]
    starts, found, grads = IS_INIT.flatten().double(), [], []
    for change in (lambda m: m, xpgrad_torch.swap, xpgrad_torch.unswap):
        assert change(policy) is policy
        output, states = policy._process_sequence(x, as_given(tuple(given)), starts, policy.lstm_actor)
        single, _ = policy._process_sequence(x[:N], as_given(tuple(given)), starts[:N], policy.lstm_actor)
        found.append([output, *(states if kind == "LSTM" else [states]), single])
        grads.append(gradients(found[-1], [x, *given, *policy.parameters()]))
        swapped = change is xpgrad_torch.swap
        assert isinstance(policy.lstm_actor, Layers) == swapped == (type(policy) is not Policy)
    for result, grad in zip(found[1:], grads[1:], strict=True):
        assert_close(result, found[0])
        assert_close(grad, grads[0])
    xpgrad_torch.swap(policy)
    with pytest.raises(ValueError, match="episode_starts has other numbers than 0 and 1"):
        policy._process_sequence(x, as_given(tuple(given)), 0.5 * starts, policy.lstm_actor)

    class Mine(Policy):
        pass

    with pytest.warns(
        UserWarning, match="the LSTM in it stays too: a Mine stays, it is a subclass of Policy"
    ):
        mine = xpgrad_torch.swap(Mine(torch.nn.LSTM))
    assert type(mine.lstm_actor) is torch.nn.LSTM


@pytest.mark.parametrize(
    ("ours", "theirs", "name"),
    [
        ("_episodes", "sb3_contrib.common.recurrent.policies", "RecurrentActorCriticPolicy"),
        ("_xlstm", "xlstm.blocks.slstm.cell", "sLSTMCell_vanilla"),
    ],
)
def test_a_pickle_imports_the_package_of_its_types(ours: str, theirs: str, name: str, tmp_path: Path) -> None:
    """In a new process, where the pickle's type is the first that it asks for; the package is a small one."""
    *folders, file = theirs.split(".")
    tmp_path.joinpath(*folders).mkdir(parents=True)
    text = f"import torch\n\n\nclass {name}(torch.nn.Module):\n    pass\n"
    tmp_path.joinpath(*folders, f"{file}.py").write_text(text, encoding="utf-8")
    pickled = f"cxpgrad_torch.{ours}\n{name}\n.".encode()
    code = f"import pickle; print(pickle.loads({pickled!r}))"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert run.stdout == f"<class 'xpgrad_torch.{ours}.{name}'>\n", run.stderr[-500:]


def test_policies_of_sb3() -> None:
    """Values, log-probabilities, states and gradients of the package's own."""
    reason = "sb3_contrib is not installed"
    policies = pytest.importorskip("sb3_contrib.common.recurrent.policies", reason=reason)
    spaces = pytest.importorskip("gymnasium.spaces")
    states_of = pytest.importorskip("sb3_contrib.common.recurrent.type_aliases").RNNStates
    torch.manual_seed(0)
    policy = policies.RecurrentActorCriticPolicy(
        spaces.Box(-1, 1, (I,)), spaces.Discrete(2), lambda _: 1e-3, lstm_hidden_size=H, n_lstm_layers=2
    )
    x, actions = torch.randn(N * T, I, requires_grad=True), torch.randint(2, (N * T,))
    given = [torch.randn(2, N, H, requires_grad=True) for _ in range(4)]
    pairs = tuple(given[:2]), tuple(given[2:])
    own, found, grads = type(policy), [], []
    for change in (lambda m: m, xpgrad_torch.swap, xpgrad_torch.unswap):
        assert change(policy) is policy
        starts = IS_INIT.flatten().float()
        results = list(policy.evaluate_actions(x, actions, states_of(*pairs), starts))
        output, states = policy._process_sequence(x, pairs[0], starts, policy.lstm_actor)
        found.append([*results, output, *states])
        grads.append(gradients(found[-1], [x, *given, *policy.parameters()]))
    assert type(policy) is own
    for result, grad in zip(found[1:], grads[1:], strict=True):
        assert_close(result, found[0], 1e-5)
        assert_close(grad, grads[0], 1e-4)
