"""PyTorch's private names stand in one module, and each has a plain way or a clear error."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import xpgrad
import xpgrad_torch
from xpgrad_torch import _autograd, _kept, _private, _recurrent, functional

ADAPTERS = Path(xpgrad_torch.__file__).parents[1]
GETTERS = {"getattr", "setattr", "hasattr", "delattr"}
NAMED_TUPLES = {"_fields", "_make", "_replace", "_asdict"}
XLSTM = {
    f"self.{name}"
    for name in ("_bias_", "_get_state", "_permute_input", "_permute_output", "_recurrent_kernel_")
}
"""What a subclass of xlstm's cell takes of it."""
SB3 = {"theirs._process_sequence"}
"""What a subclass of SB3-contrib's recurrent policies replaces."""
OPACUS = {"_forward_counter", "_norm_sample", "_current_grad_sample"}  # Opacus', where its hooks are


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name != "_"


def owned(trees: list[ast.Module]) -> set[str]:
    """Return the private names that our own code defines."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            text = ast.unparse(node).removeprefix("self.")
            names |= {text} if text.isidentifier() else set()
    return {name for name in names if is_private(name)}


def foreign_modules(tree: ast.Module) -> set[str]:
    """Return the names by which a file knows PyTorch and its modules."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {a.asname or "torch" for a in node.names if a.name.split(".")[0] == "torch"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            names |= {a.asname or a.name for a in node.names}
    return names


def private_names(tree: ast.Module, own: set[str]) -> Iterator[str]:
    """Yield the private names that a file uses and that our own code does not define."""
    modules = foreign_modules(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root = ast.unparse(node).split(".")[0]
            if is_private(node.attr) and (root in modules or node.attr not in own):
                yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            words = [*str(node.module).split("."), *(a.name for a in node.names)]
            yield from (word for word in words if is_private(word))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in GETTERS:
            word = ast.literal_eval(node.args[1]) if isinstance(node.args[1], ast.Constant) else ""
            if is_private(word) and word not in own:
                yield word


def test_private_names_stand_in_one_module():
    paths = {str(path.relative_to(ADAPTERS)): path for path in ADAPTERS.glob("*/*.py")}
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in paths.items()}
    core = [
        ast.parse(path.read_text(encoding="utf-8")) for path in Path(xpgrad.__file__).parent.rglob("*.py")
    ]
    ours = [tree for name, tree in trees.items() if not name.endswith("_private.py")]
    own = NAMED_TUPLES | owned([*ours, *core])
    found = {name: set(private_names(tree, own)) for name, tree in trees.items()}
    assert found.pop("xpgrad_torch/_private.py")
    assert found.pop("xpgrad_keras/_private.py")
    found["xpgrad_torch/_opacus.py"] = {
        name for name in found["xpgrad_torch/_opacus.py"] if name.split(".")[-1] not in OPACUS
    }
    found["xpgrad_torch/_xlstm.py"] -= XLSTM
    found["xpgrad_torch/_episodes.py"] -= SB3
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nx = torch._C.f()",
        "from torch import nn\nx = nn.modules.conv._ConvNd",
        "from torch.utils import _pytree",
        "from torch._functorch import x",
        "from torch.autograd import forward_ad as ad\nx = ad._current_level",
        "def f(x):\n    return x._base",
        "x = getattr(y, '_base')",
    ],
)
def test_the_search_sees_private_names(text):
    assert list(private_names(ast.parse(text), {"_own"}))
    assert not list(private_names(ast.parse(text.replace("_", "")), {"_own"}))


# ------------------------------------------------------------------------------ with names taken away

REMOVED = {
    "LIBRARY": (torch._C, "__file__"),
    "is_forward_mode": (torch.autograd.forward_ad, "_current_level"),
    "count_dispatch_modes": (torch._C, "_len_torch_dispatch_stack"),
    "are_transforms_active": (torch._C, "_are_functorch_transforms_active"),
    "is_wrapped": (torch._C._functorch, "is_functorch_wrapped_tensor"),
    "is_of_older_vmap": (torch._C._functorch, "is_legacy_batchedtensor"),
    "older_vmap_level": (torch._C, "_vmapmode_increment_nesting"),
    "remove_older_batch": (torch, "_remove_batch_dim"),
    "add_older_batch": (torch, "_add_batch_dim"),
    "has_saved_tensors_hooks": (torch._C._autograd, "_top_saved_tensors_default_hooks"),
    "without_saved_hooks": (torch._C._autograd, "_pop_saved_tensors_default_hooks"),
    "set_versions": (torch._C._autograd, "_unsafe_set_version_counter"),
    "is_differentiated": (torch._C._functorch, "get_interpreter_stack"),
    "is_functionalized": (torch._C._functorch, "get_interpreter_stack"),
    "register_autograd": (torch._library.autograd, "make_autograd_impl"),
    "tree_map": (torch.utils._pytree, "tree_map"),
    "tree_leaves": (torch.utils._pytree, "tree_leaves"),
    "set_grad_sample": (
        importlib.import_module("torch.nn.utils._expanded_weights.expanded_weights_utils"),
        "set_grad_sample_if_exists",
    ),
}


@pytest.fixture
def plain(monkeypatch):
    """Return a function that gives what the module has under a name where PyTorch's own is gone."""

    def get(name: str):
        with monkeypatch.context() as context:
            context.delattr(*REMOVED[name])
            spec = importlib.util.spec_from_file_location("private_anew", _private.__file__)
            anew = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(anew)
            return getattr(anew, name)

    return get


def lstm_gradients() -> list[torch.Tensor]:
    torch.manual_seed(0)
    layer = xpgrad_torch.LSTM(2, 3).double()
    X = torch.randn(4, 2, 2, dtype=torch.float64, requires_grad=True)

    def loss(X):
        return functional.relu(layer(X)[0]).square().sum()

    return [*torch.autograd.grad(loss(X), [X, *layer.parameters()]), torch.func.grad(loss)(X)]


def test_layers_run_the_plain_way(plain, monkeypatch):
    """A change of an output's shape counts as a write, after which the kernel runs again."""
    expected = lstm_gradients()
    monkeypatch.setattr(_recurrent, "set_versions", plain("set_versions"))
    for ours, theirs in zip(lstm_gradients(), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["count_dispatch_modes", "are_transforms_active", "is_of_older_vmap"])
def test_kernels_run_the_plain_way(plain, monkeypatch, name):
    expected, way = lstm_gradients(), plain(name)
    assert way is not getattr(_private, name)
    monkeypatch.setattr(_autograd, name, way)
    for ours, theirs in zip(lstm_gradients(), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["count_dispatch_modes", "are_transforms_active", "is_forward_mode"])
def test_forward_mode_is_noticed_the_plain_way(plain, monkeypatch, name):
    X, tangent = torch.randn(2, 3, 4, dtype=torch.float64)
    expected = torch.func.jvp(torch.nn.functional.softplus, (X,), (tangent,))
    monkeypatch.setattr(_autograd, name, plain(name))
    actual = torch.func.jvp(functional.softplus, (X,), (tangent,))
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(functional.softplus(X), expected[0])


def test_dispatch_modes_see_a_kernel_the_plain_way(plain, monkeypatch):
    from torch.utils.flop_counter import FlopCounterMode

    monkeypatch.setattr(_autograd, "count_dispatch_modes", plain("count_dispatch_modes"))
    X = torch.randn(2, 3)
    with FlopCounterMode(display=False):
        torch.testing.assert_close(functional.relu(X), X.relu())


def test_tensors_of_transformations_are_known_the_plain_way(plain):
    is_wrapped, seen = plain("is_wrapped"), []

    def look(x):
        seen.append((is_wrapped(x), _private.is_wrapped(x)))
        return x.sum()

    X = torch.ones(2, 3)
    torch.func.vmap(look)(X), torch.func.grad(look)(X), torch.func.jvp(look, (X,), (X,))
    look(X), look(X[:0]), look(nn.Parameter(X))
    assert seen == [(True, True)] * 3 + [(False, False)] * 3


@pytest.mark.parametrize("has_names", [True, False])
def test_operators_get_their_backward(plain, has_names):
    register = _private.register_autograd if has_names else plain("register_autograd")
    name = f"f{has_names:d}"
    library = torch.library.Library("xpgrad_tests", "FRAGMENT")
    library.define(f"{name}(Tensor x, *, int n=2) -> Tensor")
    library.impl(name, lambda x, n=2: n * x, "CompositeExplicitAutograd")

    def keep(ctx, inputs, keyword_only_inputs, output):
        ctx.n = keyword_only_inputs["n"]

    operator = getattr(torch.ops.xpgrad_tests, name).default
    register(library, operator, lambda ctx, dY: -ctx.n * dY, keep)
    for n in (2, 3):
        x = torch.ones(2, requires_grad=True)
        torch.testing.assert_close(operator(x, n=n), n * x)
        (dX,) = torch.autograd.grad(operator(x, n=n).sum(), x)
        torch.testing.assert_close(dX, torch.full((2,), -float(n)))


def test_trees_and_children_have_a_plain_way(plain):
    tree = (1, {"a": [2, 3]})
    assert plain("tree_map")(str, tree) == _private.tree_map(str, tree) == ("1", {"a": ["2", "3"]})
    assert plain("tree_leaves")(tree) == _private.tree_leaves(tree) == [1, 2, 3]
    model = nn.Sequential(nn.ReLU(), nn.Tanh())
    assert _private.children_of(model) == model._modules
    monkey = type("Model", (), {"named_children": model.named_children})()
    assert _private.children_of(monkey) == model._modules


@pytest.mark.parametrize("padding", ["same", "valid", (1, 2)])
def test_convolutions_pad_the_plain_way(padding):
    layer = nn.Conv2d(1, 1, (2, 4), padding=padding, dilation=(3, 1))
    ends = _private.padding_ends(layer)
    assert ends is layer._reversed_padding_repeated_twice
    del layer._reversed_padding_repeated_twice
    assert list(_private.padding_ends(layer)) == list(ends)


def test_the_output_padding_of_a_size_needs_pytorch(monkeypatch):
    layer, X = nn.ConvTranspose2d(1, 1, 3, stride=3, output_padding=1), torch.ones(1, 1, 2, 2)
    assert _private.output_padding_of(layer, X, (7, 8)) == [1, 2]
    monkeypatch.delattr(nn.ConvTranspose2d.__base__, "_output_padding")
    assert _private.output_padding_of(layer, X, None) == (1, 1)
    with pytest.raises(RuntimeError, match=r"has no torch.nn.ConvTranspose1d._output_padding, expected"):
        _private.output_padding_of(layer, X, (7, 8))


def test_who_watches_the_plain_way(plain, monkeypatch):
    def seen(x):
        assert _private.is_differentiated()
        assert not plain("is_differentiated")()
        return x

    torch.func.grad(seen)(torch.ones(()))
    for transform in (torch.func.vmap, torch.func.functionalize):
        assert not transform(lambda x: x * _private.is_differentiated())(torch.ones(2)).any()
    assert torch.func.functionalize(lambda x: x * _private.is_functionalized())(torch.ones(2)).all()
    assert not torch.func.functionalize(lambda x: x * plain("is_functionalized")())(torch.ones(2)).any()
    monkeypatch.delattr(torch.autograd.profiler, "_is_profiler_enabled")
    assert not _private.is_profiling()


def test_hooks_of_saved_tensors_stay_the_plain_way(plain):
    packed, x = [], torch.ones(2, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x) or x, lambda x: x):
        with _private.without_saved_hooks():
            x.sin()
        assert not packed
        with plain("without_saved_hooks")():
            x.sin()
        assert len(packed) == 1


def test_parameters_are_found_the_plain_way():
    layer = nn.Linear(2, 3)
    own = [layer.weight, layer.bias]
    assert _private.parameters_of(layer, ["weight", "bias"])[0] is layer.weight
    assert all(a is b for a, b in zip(_private.parameters_in(layer), own, strict=True))
    plain = type("Layer", (), {"weight": layer.weight, "parameters": lambda self, recurse: iter(own)})()
    assert _private.parameters_of(plain, ["weight"])[0] is layer.weight
    assert all(a is b for a, b in zip(_private.parameters_in(plain), own, strict=True))


def test_a_view_is_its_own_base_the_plain_way():
    X = torch.ones(3)
    assert _private.base_of(X[1:]) is X
    assert _private.base_of(X) is X
    nothing = object()
    assert _private.base_of(nothing) is nothing


def test_a_tensor_has_a_version():
    X = torch.ones(3)
    before = _private.version_of(X)
    assert _private.version_of(X) == before
    X += 1
    assert _private.version_of(X) != before
    with torch.inference_mode():
        assert _private.version_of(torch.ones(3)) is None
    without = type("Tensor", (), {"is_inference": lambda self: False})()
    assert _private.version_of(without) is None


def test_hooks_of_saved_tensors_are_taken_for_there_the_plain_way(plain, monkeypatch):
    way = plain("has_saved_tensors_hooks")
    assert (way(), _private.has_saved_tensors_hooks()) == (True, False)
    with torch.autograd.graph.save_on_cpu():
        assert _private.has_saved_tensors_hooks()
    with monkeypatch.context() as context:
        context.setattr(_kept, "has_saved_tensors_hooks", way)
        assert_outputs_are_copied()
    monkeypatch.setattr(_kept, "version_of", lambda x: None)
    assert_outputs_are_copied()


def assert_outputs_are_copied():
    """What is saved of an output is a copy: its memory may change."""
    layer = xpgrad_torch.LSTM(2, 3)
    for X in torch.randn(2, 4, 2, 2):
        expected = torch.autograd.grad(layer(X)[0].sum(), [*layer.parameters()])
        output = layer(X)[0]
        loss = output.sum()
        output.data.zero_()
        for a, b in zip(torch.autograd.grad(loss, [*layer.parameters()]), expected, strict=True):
            torch.testing.assert_close(a, b)


def test_a_module_without_a_table_of_hooks_has_none_to_rebind():
    layer = nn.Linear(2, 3)
    del layer.__dict__["_load_state_dict_pre_hooks"]
    _private.rebind_hooks(layer)
    assert "_load_state_dict_pre_hooks" not in vars(layer)


def test_without_its_file_pytorch_has_no_threads_of_its_own(plain):
    from xpgrad.engine.process.team import find_openmp

    assert find_openmp(plain("LIBRARY"), torch.get_num_threads) is None


def test_a_function_applies_itself_the_plain_way(monkeypatch):
    class Alone:
        apply = "its own"

    with monkeypatch.context() as context:
        context.setattr(torch.autograd, "Function", Alone)
        assert _private.applied_unwatched(Alone) == "its own"


@pytest.mark.parametrize(
    ("name", "arguments", "missing"),
    [
        ("older_vmap_level", (), "_C._vmapmode_increment_nesting"),
        ("remove_older_batch", (torch.ones(2), 1), "_remove_batch_dim"),
        ("add_older_batch", (torch.ones(2), 0, 1), "_add_batch_dim"),
        (
            "set_grad_sample",
            (torch.ones(2), None),
            "nn.utils._expanded_weights.expanded_weights_utils.set_grad_sample_if_exists",
        ),
    ],
)
def test_what_has_no_plain_way_is_an_error_when_it_is_used(plain, name, arguments, missing):
    with pytest.raises(RuntimeError) as caught:
        plain(name)(*arguments)
    assert f"PyTorch {torch.__version__} has no torch.{missing}, expected" in str(caught.value)


def test_a_module_that_is_gone_is_one_name_less():
    assert _private._found("_C.no_such_name.at_all") is None
    assert _private._imported("nn.no_such_module", "name") is None
