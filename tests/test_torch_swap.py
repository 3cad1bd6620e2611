"""xpgrad_torch.swap: our modules in the place of PyTorch's."""

import copy

import pytest
import torch
from torch import nn

import xpgrad_torch
from torch_activation_cases import LOSSES, MODULES, module


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


@pytest.mark.parametrize("name", ["LSTM", "GRU", "LSTMCell", "GRUCell"])
def test_each_known_module_computes_the_same(name):
    torch.manual_seed(3)
    options = {} if name.endswith("Cell") else {"num_layers": 2, "bidirectional": True}
    theirs = getattr(nn, name)(3, 4, bias=False, dtype=torch.float64, **options)
    model = xpgrad_torch.swap(nn.ModuleDict({"rnn": theirs}))
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

    model = nn.ModuleDict({"mine": Mine(2, 3), "rnn": nn.RNN(2, 3), "cell": nn.RNNCell(2, 3)})
    kept = dict(model.items())
    kept["parametrized"] = nn.utils.parametrizations.weight_norm(nn.LSTM(2, 3), "weight_hh_l0")
    model["parametrized"] = kept["parametrized"]
    xpgrad_torch.swap(model)
    assert all(model[name] is module for name, module in kept.items())


def test_projected_modules_stay_and_the_user_is_told():
    projected = nn.LSTM(3, 4, proj_size=2)
    model = nn.ModuleList([nn.LSTM(3, 4), projected])
    for swapped in (model, projected):
        with pytest.warns(
            UserWarning, match="swap: an LSTM with proj_size = 2 stays torch.nn.LSTM"
        ) as caught:
            assert xpgrad_torch.swap(swapped) is swapped
        assert [warning.filename for warning in caught] == [__file__]
    assert type(model[0]) is xpgrad_torch.LSTM
    assert model[1] is projected


def test_models_without_anything_to_replace():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert xpgrad_torch.swap(model) is model
    linear = nn.Linear(2, 2)
    assert xpgrad_torch.swap(linear) is linear
    holes = nn.Module()
    holes.register_module("nothing", None)
    assert xpgrad_torch.swap(holes) is holes


def test_not_a_module():
    with pytest.raises(TypeError, match=r"swap: model is list, expected torch\.nn\.Module"):
        xpgrad_torch.swap([nn.LSTM(2, 3)])


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


def test_a_threshold_with_another_value_stays_and_the_user_is_told():
    model = nn.Sequential(nn.Threshold(0.1, 20.0), nn.Threshold(0.1, 0.0))
    with pytest.warns(UserWarning, match="swap: a Threshold with value = 20.0 stays") as caught:
        xpgrad_torch.swap(model, activations=True)
    assert [warning.filename for warning in caught] == [__file__]
    assert [type(m) for m in model] == [nn.Threshold, xpgrad_torch.Threshold]


def test_public_names():
    assert xpgrad_torch.__all__ == sorted(xpgrad_torch.__all__)
    assert all(hasattr(xpgrad_torch, name) for name in xpgrad_torch.__all__)
