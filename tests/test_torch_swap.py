"""xpgrad_torch.swap: our modules in the place of PyTorch's."""

import copy
import functools
import gc
import importlib.util
import re
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import xpgrad
import xpgrad_torch
from torch_activation_cases import LOSSES, MODULES, module
from xpgrad_torch._gains import GAINS


class Tagger(nn.Module):
    def __init__(self, **kwargs):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.rnn = nn.LSTM(6, 5, batch_first=True, **kwargs)
        self.head = nn.Linear(10 if kwargs.get("bidirectional") else 5, 3)

    def forward(self, tokens):
        return self.head(self.rnn(self.embed(tokens))[0])


def test_replaces_in_place_and_returns_the_model():
    torch.manual_seed(0)
    model = Tagger(num_layers=2, bidirectional=True)
    before = copy.deepcopy(model)
    parameters = dict(model.named_parameters())
    assert xpgrad_torch.swap(model) is model
    assert type(model.rnn) is xpgrad_torch.LSTM
    assert list(dict(model.named_parameters())) == list(parameters)
    assert all(value is parameters[name] for name, value in model.named_parameters())
    assert repr(model) == repr(before)
    tokens = torch.randint(11, (4, 7))
    torch.testing.assert_close(model(tokens), before(tokens), rtol=1e-5, atol=1e-6)


def test_single_module_is_replaced_and_left_alone():
    theirs = nn.LSTM(3, 4, 2, dropout=0.25, bidirectional=True, dtype=torch.float64).eval()
    theirs.weight_hh_l0.requires_grad_(False)
    ours = xpgrad_torch.swap(theirs)
    assert type(theirs) is nn.LSTM
    assert type(ours) is xpgrad_torch.LSTM
    assert not ours.training
    assert repr(ours) == repr(theirs)
    assert all(a is b for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    X = torch.randn(5, 2, 3, dtype=torch.float64)
    expected = theirs(X)[0]
    torch.testing.assert_close(ours(X)[0], expected, rtol=1e-10, atol=1e-11)
    # Tables of its own: what is assigned to the one does not reach the other.
    ours.weight_ih_l0 = nn.Parameter(torch.zeros_like(ours.weight_ih_l0))
    assert torch.equal(theirs(X)[0], expected)
    assert xpgrad_torch.swap(ours) is ours


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell"])
def test_each_known_module_computes_the_same(name):
    torch.manual_seed(3)
    options = {} if name.endswith("Cell") else {"num_layers": 2, "bidirectional": True}
    theirs = getattr(nn, name)(3, 4, bias=False, dtype=torch.float64, **options)
    model = xpgrad_torch.swap(nn.ModuleDict({"rnn": theirs}), cells=True)
    ours = model["rnn"]
    assert type(ours) is getattr(xpgrad_torch, name)
    assert repr(ours) == repr(theirs)
    assert all(a is b for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    X = torch.randn(5, *(() if name.endswith("Cell") else (2,)), 3, dtype=torch.float64)
    expected, got = theirs(X), ours(X)
    while not isinstance(expected, torch.Tensor):
        expected, got = expected[0], got[0]
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-11)


def test_shared_modules_stay_shared():
    shared = nn.LSTM(4, 4)
    model = nn.ModuleDict({"a": shared, "b": nn.ModuleList([shared, nn.LSTM(4, 4)]), "c": shared})
    xpgrad_torch.swap(model)
    assert model["a"] is model["b"][0] is model["c"]
    assert type(model["a"]) is type(model["b"][1]) is xpgrad_torch.LSTM
    assert model["b"][1] is not model["a"]


def test_subclasses_and_others_are_left_alone():
    class Mine(nn.LSTM):
        pass

    model = nn.ModuleDict({"mine": Mine(2, 3), "linear": nn.Linear(2, 3), "cell": nn.RNNCell(2, 3)})
    kept = dict(model.items())
    kept["parametrized"] = nn.utils.parametrizations.weight_norm(nn.LSTM(2, 3), "weight_hh_l0")
    model["parametrized"] = kept["parametrized"]
    xpgrad_torch.swap(model)
    assert all(model[name] is module for name, module in kept.items())


def test_projected_modules_are_replaced():
    torch.manual_seed(3)
    projected = nn.LSTM(3, 4, proj_size=2, bidirectional=True, dtype=torch.float64)
    X = torch.randn(5, 2, 3, dtype=torch.float64)
    expected = projected(X)
    ours = xpgrad_torch.swap(projected)
    assert type(ours) is xpgrad_torch.LSTM
    torch.testing.assert_close(ours(X), expected, rtol=1e-10, atol=1e-11)


def test_what_stays_is_told_where_swap_was_called():
    model = nn.ModuleList([nn.LSTM(3, 4), nn.Conv1d(1, 2, 3, dtype=torch.complex64)])
    with pytest.warns(UserWarning, match="swap: a Conv1d with weights of torch.complex64 stays") as caught:
        assert xpgrad_torch.swap(model) is model
    assert [warning.filename for warning in caught] == [__file__]
    assert type(model[1]) is nn.Conv1d


def test_models_without_anything_to_replace():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert xpgrad_torch.swap(model) is model
    linear = nn.Linear(2, 2)
    assert xpgrad_torch.swap(linear) is linear
    holes = nn.Module()
    holes.register_module("nothing", None)
    assert xpgrad_torch.swap(holes) is holes


def test_not_a_module():
    with pytest.raises(TypeError, match=r"swap: model is list of 1, expected torch\.nn\.Module"):
        xpgrad_torch.swap([nn.LSTM(2, 3)])
    with pytest.raises(TypeError, match="swap: model is the class LSTM, expected torch"):
        xpgrad_torch.swap(nn.LSTM)


def test_verify_takes_no_switch():
    with pytest.raises(
        TypeError, match="swap: verify is True, expected an example input of the model: a ten"
    ):
        xpgrad_torch.swap(nn.Sequential(nn.Linear(2, 2)), verify=True)


def test_hooks_move_along_and_can_be_removed():
    model = nn.Sequential(nn.LSTM(2, 3))
    seen = []
    handle = model[0].register_forward_hook(lambda module, args, out: seen.append(type(module)))
    xpgrad_torch.swap(model)
    model(torch.randn(4, 2, 2))
    assert seen == [xpgrad_torch.LSTM]
    handle.remove()
    model(torch.randn(4, 2, 2))
    assert len(seen) == 1


def hooked(module, seen):
    """Register one hook of every kind that PyTorch has, which notes the module that it gets; the handles."""

    def hook(kind, result=None):
        def note(owner, *args, **kwargs):
            seen.append((kind, owner))
            return result

        return note

    def without_module(*args):
        seen.append(("load_state_dict without module", None))

    return [
        module.register_forward_pre_hook(hook("forward pre")),
        module.register_forward_pre_hook(hook("forward pre with kwargs"), with_kwargs=True),
        module.register_forward_hook(hook("forward")),
        module.register_forward_hook(hook("forward with kwargs"), with_kwargs=True),
        module.register_forward_hook(hook("forward always"), always_call=True),
        module.register_full_backward_pre_hook(hook("backward pre")),
        module.register_full_backward_hook(hook("backward")),
        module.register_state_dict_pre_hook(hook("state_dict pre")),
        module.register_state_dict_post_hook(hook("state_dict post")),
        module.register_load_state_dict_pre_hook(hook("load_state_dict pre")),
        module._register_load_state_dict_pre_hook(without_module),
        module.register_load_state_dict_post_hook(hook("load_state_dict post")),
    ]


def run_hooks(model, module, seen):
    """The kinds of hooks that run, each with the module's type; all of them get the module itself."""
    seen.clear()
    outputs = model(torch.randn(4, 2, 2, requires_grad=True))
    outputs[0].sum().backward()
    model.load_state_dict(model.state_dict())
    with pytest.raises(RuntimeError):  # an error runs the hook that is always called
        model(torch.randn(4, 2, 7))
    assert all(owner in (None, module) for _, owner in seen)
    return [kind for kind, _ in seen]


@pytest.mark.parametrize("back", [False, True])
def test_hooks_of_every_kind_get_the_module_that_runs(back):
    gc.collect()
    model, seen = nn.Sequential(nn.LSTM(2, 3)), []
    handles = hooked(model[0], seen)
    expected = run_hooks(model, model[0], seen)
    assert len({*expected}) == len(handles)
    xpgrad_torch.swap(model)
    if back:
        xpgrad_torch.unswap(model)
    gc.collect()  # of the module that was replaced
    assert type(model[0]) is (nn.LSTM if back else xpgrad_torch.LSTM)
    assert run_hooks(model, model[0], seen) == expected
    other = copy.deepcopy(model)
    assert run_hooks(other, other[0], seen) == expected
    for handle in handles:
        handle.remove()
    assert run_hooks(model, model[0], seen) == []


def test_hooks_of_a_single_module_get_the_module_that_runs():
    theirs, seen = nn.LSTM(2, 3), []
    hooked(theirs, seen)
    expected = run_hooks(theirs, theirs, seen)
    ours = xpgrad_torch.swap(theirs)
    assert run_hooks(ours, ours, seen) == expected
    del ours
    gc.collect()
    assert run_hooks(theirs, theirs, seen) == expected


def wrapped_by_partial(module):
    """As accelerate does."""
    module._old_forward = module.forward

    def forward(module, *args, **kwargs):
        return module._old_forward(*args, **kwargs)

    module.forward = functools.update_wrapper(functools.partial(forward, module), module._old_forward)


def wrapped_by_method(module):
    def forward(self, *args):
        return type(self).forward(self, *args)

    module.forward = types.MethodType(forward, module)


def wrapped_by_function(module):
    old = module.forward
    module.forward = lambda *args: old(*args)


BINDINGS = {
    "partial": wrapped_by_partial,
    "method": wrapped_by_method,
    "function": wrapped_by_function,
    "compile": lambda module: module.compile(backend="eager"),
}


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("alone", [False, True])
def test_a_module_whose_forward_is_bound_to_it_stays(binding, alone):
    theirs = nn.GRU(2, 3)
    BINDINGS[binding](theirs)
    model = theirs if alone else nn.Sequential(theirs)
    words = r"a wrapper or a compiler has set GRU\.\w+, .*expected no such function: swap or unswap first"
    (row,) = xpgrad_torch.swap_report(model).rows
    assert (row.now, row.warns) == ("unchanged", True)
    assert re.search(words, row.why)
    with pytest.warns(UserWarning, match=f"swap: {words}"):
        xpgrad_torch.swap(model)
    assert type(next(iter(model.modules()) if alone else model.children())) is nn.GRU
    ours = xpgrad_torch.GRU(2, 3)
    BINDINGS[binding](ours)
    model = ours if alone else nn.Sequential(ours)
    with pytest.warns(UserWarning, match=f"unswap: {words}"):
        xpgrad_torch.unswap(model)
    assert next(iter(model.modules()) if alone else model.children()) is ours


def test_a_module_whose_method_another_one_keeps_stays():
    compiled = torch.compile(nn.GRU(2, 3), backend="eager")
    model = nn.Sequential(compiled, nn.Sequential(nn.GRU(3, 3)))
    with pytest.warns(UserWarning, match="swap: a wrapper or a compiler has set OptimizedModule"):
        xpgrad_torch.swap(model)
    assert type(compiled._orig_mod) is nn.GRU
    assert type(model[1][0]) is xpgrad_torch.GRU
    with pytest.warns(UserWarning, match="swap: a wrapper or a compiler has set OptimizedModule"):
        assert xpgrad_torch.swap(compiled) is compiled


def test_a_compiled_or_wrapped_parent_runs_what_takes_a_modules_place():
    theirs, runs = Tagger(), []
    wrapped_by_partial(theirs)
    xpgrad_torch.swap(theirs)
    assert type(theirs.rnn) is xpgrad_torch.LSTM
    theirs.rnn.register_forward_hook(lambda *args: runs.append(1))
    theirs(torch.zeros(2, 3, dtype=torch.int64))
    assert runs == [1]


def test_copy_and_conversion_after_swap():
    model = xpgrad_torch.swap(Tagger())
    other = copy.deepcopy(model).double()
    tokens = torch.randint(11, (4, 7))
    torch.testing.assert_close(other(tokens).float(), model(tokens), rtol=1e-5, atol=1e-6)
    assert model.rnn.weight_ih_l0.dtype == torch.float32


@pytest.fixture
def one_thread():
    """Let PyTorch use one thread: on tiny products two only wait for each other, long on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_training_continues_under_the_same_optimizer():
    torch.manual_seed(1)
    theirs = Tagger(num_layers=2, bidirectional=True)
    ours = copy.deepcopy(theirs)
    tokens, tags = torch.randint(11, (8, 6)), torch.randint(3, (8, 6))
    losses = []
    for model in (theirs, ours):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        losses.append([])
        for step in range(30):
            if step == 5 and model is ours:
                xpgrad_torch.swap(model)
            loss = nn.functional.cross_entropy(model(tokens).transpose(1, 2), tags)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[1][-1] < 0.7 * losses[1][5]
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-4, atol=1e-4)


# --- the report, undoing, verifying ------------------------------------------------------------------


def mixed():
    class Mine(nn.GRU):
        pass

    torch.manual_seed(0)
    shared = nn.LSTM(4, 4)
    return nn.ModuleDict(
        {
            "a": shared,
            "b": nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Linear(2, 2)),
            "c": shared,
            "mine": Mine(2, 3),
            "projected": nn.LSTM(3, 4, proj_size=2),
            "complex": nn.Conv1d(1, 2, 3, dtype=torch.complex64),
            "normed": nn.utils.parametrizations.weight_norm(nn.GRU(2, 3), "weight_hh_l0"),
            "ours": xpgrad_torch.GRUCell(2, 3),
        }
    )


# Without the spaces between the columns.
TABLE = """
module | type | now | why
a, c | LSTM | xpgrad_torch.LSTM
b.0 | Conv2d | xpgrad_torch.Conv2d
b.2 | Linear | unchanged | xpgrad has no Linear
mine | Mine | unchanged | it is a subclass of GRU, which may compute something else
projected | LSTM | xpgrad_torch.LSTM
complex | Conv1d | unchanged | a Conv1d with weights of torch.complex64 stays torch.nn's, expected a real \
floating-point dtype
normed | ParametrizedGRU | unchanged | it is parametrized: swap first, then parametrize
normed.parametrizations.weight_hh_l0 | ParametrizationList | unchanged | xpgrad has no ParametrizationList
ours | GRUCell | unchanged | it is xpgrad's already
3 of 9 modules with parameters replaced
"""


def test_report_is_a_table_of_everything_with_parameters(capsys):
    model = mixed()
    before = {name: type(module) for name, module in model.named_modules()}
    found = xpgrad_torch.swap_report(model)
    assert {name: type(module) for name, module in model.named_modules()} == before
    lines = str(found).splitlines()
    assert [re.sub("  +", " | ", line) for line in lines] == TABLE.strip().splitlines()
    assert len({line.index(row.now) for line, row in zip(lines[1:], found.rows, strict=False)}) == 1
    with pytest.warns(UserWarning, match="stays") as caught:
        xpgrad_torch.swap(model, verbose=True)
    assert len(caught) == 1
    assert capsys.readouterr().out.splitlines() == [*lines, *found.gains()]
    assert {gain.split(":")[0] for gain in found.gains()} == set().union(*GAINS.values()) & {
        row.type for row in found.rows if row.now != "unchanged"
    }
    for row in found.rows:
        module = model.get_submodule(row.names[0])
        assert type(module).__module__.startswith("xpgrad_torch") == (
            row.now != "unchanged" or row.names == ("ours",)
        )
    assert "(model)" in str(xpgrad_torch.swap_report(nn.LSTM(2, 3)))


def test_nothing_is_printed_unasked(capsys):
    xpgrad_torch.swap(Tagger())
    assert not capsys.readouterr().out


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN", "LSTMCell", "RNNCell", "Conv1d", "ConvTranspose3d"])
def test_unswap_is_the_way_back(name):
    theirs = getattr(nn, name)(3, 4, *([3] if "Conv" in name else []))
    model = nn.ModuleList([theirs, nn.ModuleList([theirs])])
    parameters, text = list(model.parameters()), repr(model)
    xpgrad_torch.swap(model, cells=True)
    assert xpgrad_torch.unswap(model) is model
    assert type(model[0]) is getattr(nn, name)
    assert model[0] is model[1][0]
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert repr(model) == text
    single = xpgrad_torch.unswap(xpgrad_torch.swap(theirs, cells=True))
    assert type(single) is getattr(nn, name)
    X = torch.randn(2, 3, *[5] * int(name[-2])) if "Conv" in name else torch.randn(4, 3)
    a, b = theirs(X), single(X)
    assert torch.equal(a[0], b[0])


@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell", "RNNCell"])
def test_cells_stay_unless_asked_for(name):
    cell = getattr(nn, name)(3, 4)
    model = nn.ModuleDict({"cell": cell})
    assert xpgrad_torch.swap(model)["cell"] is cell
    assert xpgrad_torch.swap(cell) is cell
    (row,) = xpgrad_torch.swap_report(model).rows
    assert (row.now, row.warns) == ("unchanged", False)
    assert row.why == "a single step of PyTorch's can be faster; cells=True replaces it"
    (row,) = xpgrad_torch.swap_report(model, cells=True).rows
    assert row.now == f"xpgrad_torch.{name}"
    assert type(xpgrad_torch.swap(model, cells=True)["cell"]) is getattr(xpgrad_torch, name)


@pytest.mark.parametrize("option", ["activations", "cells"])
def test_options_are_true_or_false(option):
    for operator in (xpgrad_torch.swap, xpgrad_torch.swap_report):
        with pytest.raises(TypeError, match=rf"swap.*: {option} is 'all', expected True or False"):
            operator(nn.ReLU(), **{option: "all"})


def test_unswap_leaves_what_pytorch_does_not_have():
    model = nn.ModuleList([xpgrad_torch.LSTM(2, 3, peephole=True, clip=1.0), xpgrad_torch.GRU(2, 3)])
    with pytest.warns(UserWarning, match=r"unswap: LSTM\(2, 3.*expected no peephole, clip") as caught:
        xpgrad_torch.unswap(model)
    assert [warning.filename for warning in caught] == [__file__]
    assert type(model[0]) is xpgrad_torch.LSTM
    assert type(model[1]) is nn.GRU
    with pytest.raises(TypeError, match="unswap: model is int"):
        xpgrad_torch.unswap(3)


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(2, 3, 3, padding=1), nn.BatchNorm1d(3)
        self.rnn = nn.GRU(3, 4, 2, dropout=0.5, batch_first=True)

    def forward(self, x, scale=1.0, *, shift=0.0):
        output, state = self.rnn(self.norm(self.conv(x)).transpose(1, 2))
        return {"output": output * scale + shift, "state": state}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", ["tensor", "tuple", "names"])
def test_verify_leaves_no_trace(dtype, form):
    torch.manual_seed(0)
    model = Everything().to(dtype)
    x, scale = torch.randn(5, 2, 6, dtype=dtype), torch.tensor(2.0, dtype=dtype)
    example = {"tensor": x, "tuple": (x, scale), "names": {"x": x, "scale": scale, "shift": 0.5}}[form]
    before = copy.deepcopy(model.state_dict())
    random = torch.random.get_rng_state()
    assert xpgrad_torch.swap(model, verify=example) is model
    assert type(model.rnn) is xpgrad_torch.GRU
    assert torch.equal(torch.random.get_rng_state(), random)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not x.requires_grad


@pytest.mark.parametrize("seed", range(4))
def test_verify_knows_a_gradient_that_is_rounding_alone(seed):
    """That of a bias in front of a normalization, whose true gradient is 0."""
    torch.manual_seed(seed)
    layers = [
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.BatchNorm2d(8),
    ]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 36, 5))
    xpgrad_torch.swap(model, verify=torch.randn(16, 3, 8, 8), convolutions=True)
    assert type(model[0]) is xpgrad_torch.Conv2d


@pytest.mark.parametrize("broken", ["forward", "backward"])
def test_verify_finds_what_differs_and_puts_the_model_back(monkeypatch, broken):
    import xpgrad

    name = "gru" if broken == "forward" else "gru_grad"
    kernel = getattr(xpgrad, name)

    def wrong(*args, **kwargs):
        result = kernel(*args, **kwargs)
        field = "H_all" if broken == "forward" else "dR"
        found = getattr(result, field)  # a tuple where it belongs to several parameters
        off = tuple(part * 1.001 for part in found) if isinstance(found, tuple) else found * 1.001
        return result._replace(**{field: off})

    monkeypatch.setattr(xpgrad, name, wrong)
    torch.manual_seed(0)
    model = Everything()
    words = "output 0 off by" if broken == "forward" else "gradient of rnn.weight_hh_l0 off by"
    with pytest.raises(RuntimeError, match=f"swap: verify found {words} .*, expected at most 0.0001"):
        xpgrad_torch.swap(model, verify=torch.randn(5, 2, 6))
    assert type(model.rnn) is nn.GRU
    xpgrad_torch.swap(model, verify=torch.randn(5, 2, 6), tolerance=0.01)
    assert type(model.rnn) is xpgrad_torch.GRU


@pytest.fixture
def slow_convolutions(monkeypatch):
    """Ours of one input channel take half of PyTorch's time, all others twice; the inputs that were timed."""
    timed = []

    def ratio(theirs, ours, X):
        assert type(ours).__module__ == "xpgrad_torch.convolution"
        assert type(theirs).__module__ == "torch.nn.modules.conv"
        timed.append((theirs.in_channels, tuple(X.shape), X.requires_grad))
        return 0.5 if theirs.in_channels == 1 else 2.0

    monkeypatch.setattr("xpgrad_torch._timed_layers._ratio", ratio)
    return timed


def convolutions():
    twice = nn.Conv2d(4, 4, 3, padding=1)
    return nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), twice, twice, nn.Conv2d(4, 4, 3, padding=1))


def test_convolutions_stay_where_pytorchs_are_faster_on_the_example(slow_convolutions):
    example = torch.randn(2, 1, 8, 8)
    model = convolutions()
    found = xpgrad_torch.swap_report(model, verify=example)
    assert [row.names for row in found.rows] == [("0",), ("1", "2"), ("3",)]
    assert [row.now for row in found.rows] == ["xpgrad_torch.Conv2d", "unchanged", "unchanged"]
    words = (
        "PyTorch's is faster for (2, 4, 6, 6): ours takes 2.00 times as long; convolutions=True replaces it"
    )
    assert [row.why for row in found.rows] == ["", words, words]
    # of one form two are timed once; the example is a leaf, so the first one has a gradient of its input too
    assert slow_convolutions == [(1, (2, 1, 8, 8), True), (4, (2, 4, 6, 6), True)]
    xpgrad_torch.swap(model, verify=example)
    ours, theirs = xpgrad_torch.Conv2d, nn.Conv2d
    assert [type(module) for module in model] == [ours, theirs, theirs, theirs]


@pytest.mark.parametrize(
    ("convolutions_", "verify"), [(True, True), (None, False), (False, True), (False, False)]
)
def test_all_convolutions_or_none(slow_convolutions, convolutions_, verify):
    model = convolutions()
    options = {"verify": torch.randn(2, 1, 8, 8)} if verify else {}
    xpgrad_torch.swap(model, convolutions=convolutions_, **options)
    kind = nn.Conv2d if convolutions_ is False else xpgrad_torch.Conv2d
    assert all(type(module) is kind for module in model)
    assert not slow_convolutions
    if convolutions_ is False:
        rows = xpgrad_torch.swap_report(model, convolutions=False).rows
        assert {row.why for row in rows} == {"convolutions is False"}


def test_layers_on_a_gpu_stay_unless_asked_for(monkeypatch):
    monkeypatch.setattr(sys.modules["xpgrad_torch.swap"], "_device_type", lambda module: "cuda")
    layers = nn.ModuleList([nn.GRU(2, 3), nn.Conv1d(2, 3, 1), nn.ReLU()])
    found = xpgrad_torch.swap_report(layers)
    assert [row.why for row in found.rows] == [
        "PyTorch's is faster on cuda; a call with this module alone replaces it",
        "PyTorch's is faster on cuda; convolutions=True replaces it",
    ]
    assert [type(layer) for layer in xpgrad_torch.swap(layers)] == [nn.GRU, nn.Conv1d, nn.ReLU]
    assert type(xpgrad_torch.swap(layers[0])) is xpgrad_torch.GRU
    xpgrad_torch.swap(layers, convolutions=True, activations=True)
    assert [type(layer) for layer in layers] == [nn.GRU, xpgrad_torch.Conv1d, xpgrad_torch.ReLU]


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.ConvTranspose2d])
def test_timing_leaves_no_trace(kind):
    torch.manual_seed(0)
    layer = kind(2, 3, 3).double()
    calls = []
    layer.register_forward_hook(lambda *_: calls.append(1))
    X = torch.randn(2, 2, *[6] * (2 if kind is nn.ConvTranspose2d else 1), dtype=torch.float64)
    random, weights = torch.random.get_rng_state(), layer.weight.detach().clone()
    found = xpgrad_torch.swap_report(nn.Sequential(layer), verify=X).rows[0]
    assert found.now in ("unchanged", f"xpgrad_torch.{kind.__name__}")
    assert len(calls) == 1  # the example's
    assert torch.equal(torch.random.get_rng_state(), random)
    assert torch.equal(layer.weight, weights)
    assert layer.weight.grad is None
    assert not layer._forward_pre_hooks


def test_bad_convolutions():
    with pytest.raises(TypeError, match="swap: convolutions is 1, expected True, False or None"):
        xpgrad_torch.swap(nn.LSTM(2, 3), convolutions=1)


def test_bad_verify():
    with pytest.raises(TypeError, match=r"swap: tolerance is 'a' of type str, expected a number"):
        xpgrad_torch.swap(nn.LSTM(2, 3), verify=torch.ones(1, 1, 2), tolerance="a")
    with pytest.raises(ValueError, match=r"tolerance is 0\.1, expected verify to be given"):
        xpgrad_torch.swap(nn.LSTM(2, 3), tolerance=0.1)
    model = nn.Sequential(nn.Embedding(3, 2)).requires_grad_(False)
    with pytest.raises(ValueError, match="no output with a gradient"):
        xpgrad_torch.swap(model, verify=torch.tensor([1, 2]))


def test_activations_are_left_alone_unless_asked_for():
    model = nn.ModuleDict(
        {name: module(nn, name) for name in MODULES} | {name: getattr(nn, name)() for name in LOSSES}
    )
    kept = dict(model.items())
    assert xpgrad_torch.swap(model) is model
    assert dict(model.items()) == kept
    before = repr(model)
    assert xpgrad_torch.swap(model, activations=True) is model
    for name, theirs in kept.items():
        assert type(model[name]) is getattr(xpgrad_torch, name)
        assert type(theirs) is getattr(nn, name)
        assert all(a is b for a, b in zip(model[name].parameters(), theirs.parameters(), strict=True))
    assert repr(model) == before


def test_activations_and_recurrent_modules_in_one_go():
    class Mine(nn.ReLU):
        pass

    shared = nn.GELU()
    model = nn.Sequential(
        nn.Linear(3, 4), shared, nn.Linear(4, 4), shared, nn.ReLU(inplace=True), Mine(), nn.RReLU()
    )
    before = copy.deepcopy(model).eval()
    both = nn.ModuleDict({"rnn": nn.LSTM(4, 2), "net": model})
    xpgrad_torch.swap(both, activations=True).eval()
    assert type(both["rnn"]) is xpgrad_torch.LSTM
    assert model[1] is model[3]
    assert [type(m) for m in model[4:]] == [xpgrad_torch.ReLU, Mine, nn.RReLU]
    x = torch.randn(5, 3)
    torch.testing.assert_close(model(x), before(x))
    assert type(xpgrad_torch.swap(nn.SiLU(inplace=True), activations=True)) is xpgrad_torch.SiLU
    assert type(xpgrad_torch.swap(nn.SiLU())) is nn.SiLU


def test_activations_and_losses_verified_reported_and_put_back(capsys):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            names = [name for name in MODULES if name not in ("Softmax", "LogSoftmax")]
            self.layers = nn.Sequential(nn.Linear(4, 4), *(module(nn, name) for name in names))
            self.loss, self.binary = nn.CrossEntropyLoss(torch.rand(4)), nn.BCEWithLogitsLoss()

        def forward(self, x, target):
            y = 3 * self.layers(x)
            return self.loss(y, target), self.binary(y, torch.sigmoid(x.detach()))

    torch.manual_seed(0)
    model = Model().double()
    before = repr(model), {name: type(m) for name, m in model.named_modules()}
    example = (torch.randn(3, 4, dtype=torch.float64), torch.tensor([0, 3, 1]))
    xpgrad_torch.swap(model, activations=True, verify=example, verbose=True, tolerance=1e-7)
    printed = capsys.readouterr().out.splitlines()
    kinds = [name for name in MODULES if name not in ("Softmax", "LogSoftmax")] + ["CrossEntropyLoss"]
    for kind in [*kinds, "BCEWithLogitsLoss"]:
        (line,) = [line for line in printed if f" {kind} " in line]
        assert f"xpgrad_torch.{kind}" in line
    assert type(model.binary) is xpgrad_torch.BCEWithLogitsLoss
    assert xpgrad_torch.unswap(model) is model
    assert (repr(model), {name: type(m) for name, m in model.named_modules()}) == before


def test_verify_finds_a_loss_that_differs(monkeypatch):
    kernel = xpgrad.softmax_cross_entropy_grad
    monkeypatch.setattr(xpgrad, "softmax_cross_entropy_grad", lambda *a, **k: 1.01 * kernel(*a, **k))
    model = nn.ModuleDict({"net": nn.Linear(3, 3), "loss": nn.CrossEntropyLoss()})
    model.forward = lambda x: model["loss"](model["net"](x), torch.tensor([0, 2]))
    with pytest.raises(RuntimeError, match="swap: verify found gradient of"):
        xpgrad_torch.swap(model, activations=True, verify=torch.randn(2, 3))
    assert type(model["loss"]) is nn.CrossEntropyLoss


def test_public_names():
    assert xpgrad_torch.__all__ == sorted(xpgrad_torch.__all__)
    assert all(hasattr(xpgrad_torch, name) for name in xpgrad_torch.__all__)


def test_gains_are_those_of_the_pages():
    """`asv_bench/gains.py` makes the table from docs/machines."""
    root = Path(__file__).parent.parent
    spec = importlib.util.spec_from_file_location("asv_gains", root / "asv_bench" / "gains.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    made = {}
    exec(script.table(script.read()), made)
    assert made["GAINS"] == GAINS
    assert all({"LSTM", "GRU"} <= set(gains) for gains in GAINS.values())
    assert any("Conv2d" in gains for gains in GAINS.values())


def test_a_layer_that_stays_keeps_its_hooks_to_itself():
    theirs, log = nn.LSTM(3, 4), []
    theirs.register_forward_hook(lambda *_: log.append("before"))
    ours = xpgrad_torch.swap(theirs)
    ours.register_forward_hook(lambda *_: log.append("after"))
    ours.register_buffer("number", torch.ones(1), persistent=False)
    theirs(torch.randn(5, 2, 3))
    assert log == ["before"]
    ours(torch.randn(5, 2, 3))
    assert log == ["before", "before", "after"]
    assert "number" not in theirs._non_persistent_buffers_set


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
@pytest.mark.parametrize("hooked", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_verify_with_weights_that_a_hook_computes(hooked):
    """Timing must not enter the graph of the run before."""
    model = nn.Sequential(hooked(nn.Conv1d(8, 8, 3)), nn.ReLU(inplace=True))
    xpgrad_torch.swap(model, verify=torch.randn(2, 8, 16))


def test_verify_with_a_model_that_writes_to_its_input():
    model, x = nn.Sequential(nn.ReLU(inplace=True), nn.Conv1d(8, 8, 3)), torch.randn(2, 8, 16)
    before = x.clone()
    xpgrad_torch.swap(model, verify=x)
    assert torch.equal(x, before)


def test_a_failed_verify_restores_buffers():
    class Detached(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(8)

        def forward(self, x):
            self.register_buffer("last", x.detach())
            return self.norm(x).detach()

    model = Detached()
    with pytest.raises(ValueError, match="verify found no output with a gradient"):
        xpgrad_torch.swap(model, verify=torch.randn(4, 8, 5) + 3)
    assert not model.norm.running_mean.any()
    assert model.norm.num_batches_tracked == 0
