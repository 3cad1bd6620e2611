"""What autograd keeps and what a backward computes: `save`, frozen parameters, checkpoints."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import xpgrad
import xpgrad_torch
from torch_cases import OURS, flat
from xpgrad_torch import functional

T, N, I, H = 7, 4, 3, 5
every_rnn = pytest.mark.parametrize("rnn", ["LSTM", "GRU", "RNN"])
STACKS = {
    "one": {},
    "both-two": {"bidirectional": True, "num_layers": 2, "batch_first": True},
    "activations": {"bidirectional": True, "clip": 1.0},
}
LENGTHS = {"full": None, "uneven": [5, 0, 3, 7]}


def results(module, X, lengths, states):
    """Outputs and all gradients for random cotangents, the same at each call."""
    outputs = flat(module(X, states, lengths=lengths))
    g = torch.Generator().manual_seed(5)
    cotangents = [torch.randn(y.shape, generator=g, dtype=y.dtype) for y in outputs]
    leaves = [X, *([states] if isinstance(states, torch.Tensor) else states), *module.parameters()]
    return outputs, torch.autograd.grad(outputs, leaves, cotangents)


def example(rnn, stack, dtype):
    torch.manual_seed(1)
    options = dict(stack)
    if "clip" in options:
        names = {"LSTM": ["HardSigmoid", "Tanh", "Softsign"], "GRU": ["HardSigmoid", "Softsign"]}
        plain = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}
        options["activations"] = names.get(rnn, ["Softsign"]) + plain.get(rnn, ["Elu"])
    module = OURS[rnn](I, H, **options, dtype=dtype)
    X = torch.randn(*((N, T) if module.batch_first else (T, N)), I, dtype=dtype, requires_grad=True)
    rows = module.num_layers * (2 if module.bidirectional else 1)
    states = [torch.randn(rows, N, H, dtype=dtype, requires_grad=True) for _ in range(2)]
    return module, X, tuple(states) if rnn == "LSTM" else states[0]


@every_rnn
@pytest.mark.parametrize("stack", [STACKS["one"], STACKS["both-two"]], ids=["one", "both-two"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_states_alone_give_the_same_to_the_last_bit(rnn, stack, lengths, dtype):
    module, X, states = example(rnn, stack, dtype)
    expected = results(module, X, lengths, states)
    module.save = "states"
    got = results(module, X, lengths, states)
    for part, other in zip(got, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(part, other, strict=True))


@every_rnn
@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("steps", [1, 3, T, 20])
def test_every_kth_state_gives_the_same(rnn, stack, lengths, steps, interpreted):
    """To rounding, and to the last bit what the same segments give where all is kept."""
    module, X, states = example(rnn, stack, torch.float64)
    expected = results(module, X, lengths, states)
    module.save = steps
    outputs, grads = results(module, X, lengths, states)
    for a, b in zip([*outputs, *grads], [*expected[0], *expected[1]], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    if steps >= T:
        assert all(torch.equal(a, b) for a, b in zip(grads, expected[1], strict=True))


@pytest.mark.parametrize("save", ["states", 3])
@pytest.mark.parametrize(("name", "gates"), [("rnn", 1), ("slstm", 4), ("augru", 3)])
def test_functions_that_save_less_give_the_same(name, gates, save):
    shapes = [(T, N, I), (1, gates * H, I), (1, gates * H, H)]
    if name == "augru":
        shapes.insert(1, (T, N, 1))
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]

    def computed(**options):
        H_all = getattr(functional, name)(*inputs, sequence_lens=[5, 0, 3, 7], **options)[0]
        return H_all, *torch.autograd.grad(H_all.square().sum(), inputs)

    for got, expected in zip(computed(save=save), computed(), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-13)


@every_rnn
def test_segments_are_bitwise_those_that_keep_everything(rnn):
    module, X, states = example(rnn, {}, torch.float32)

    def in_pieces(hx):
        pieces = []
        for start in range(0, T, 3):
            H_all, hx = module(X[start : start + 3], hx)
            pieces.append(H_all)
        return torch.cat(pieces), hx

    module.save = 3
    got = results(module, X, None, states)
    module.save = "all"
    outputs = flat(in_pieces(states))
    g = torch.Generator().manual_seed(5)
    cotangents = [torch.randn(y.shape, generator=g, dtype=y.dtype) for y in outputs]
    leaves = [X, *([states] if isinstance(states, torch.Tensor) else states), *module.parameters()]
    grads = torch.autograd.grad(outputs, leaves, cotangents)
    for part, other in zip(got, (outputs, grads), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(part, other, strict=True))


def kept(function, *inputs):
    """Numbers that autograd keeps of a function, besides its inputs and parameters."""
    storages = {}
    known = {x.untyped_storage().data_ptr() for x in inputs}

    def pack(x):
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.element_size()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        outputs = function()
    del outputs
    return sum(numbers for place, numbers in storages.items() if place not in known)


@every_rnn
def test_what_is_kept(rnn):
    """Per step and sequence: H_all and gates of all steps, or nothing, or the k-th states.

    Of an RNN H_all alone, which is its output.
    """
    steps, batch, hidden = 60, 8, 16
    module = OURS[rnn](4, hidden, dtype=torch.float64)
    X = torch.randn(steps, batch, 4, dtype=torch.float64)
    biases = module.bias_ih_l0.numel() + module.bias_hh_l0.numel()
    sequence, state = steps * batch * hidden, batch * hidden
    everything, states = {"LSTM": (6, 2), "GRU": (5, 1), "RNN": (1, 1)}[rnn]

    def numbers(save):
        module.save = save
        return kept(lambda: module(X), X, *module.parameters())

    assert numbers("all") == everything * sequence
    assert numbers("states") == 0
    for k in (10, 20):
        # the states at which the later segments begin, and the biases one behind the other
        assert numbers(k) == (steps // k - 1) * states * state + biases


@every_rnn
def test_second_derivatives_and_transforms_of_segments(rnn):
    torch.manual_seed(0)
    module = OURS[rnn](2, 3, dtype=torch.float64)
    parameters = dict(module.named_parameters())
    X = torch.randn(4, 3, 2, dtype=torch.float64)

    def loss(parameters, x):
        return torch.func.functional_call(module, parameters, (x,))[0].square().sum()

    values = []
    for save in ("all", "states", 3):
        module.save = save
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 1))(parameters, X)
        second = torch.func.hessian(lambda x: loss(parameters, x))(X[:, :1])
        leaf = X.clone().requires_grad_()
        (first,) = torch.autograd.grad(loss(parameters, leaf), leaf, create_graph=True)
        mixed = torch.autograd.grad(first.square().sum(), [leaf, *module.parameters()])
        values.append([*each.values(), second, first, *mixed])
    for other in values[1:]:
        for a, b in zip(other, values[0], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@every_rnn
def test_compiled_with_states_alone(rnn):
    """The compiled backward runs the kernel again instead of keeping its outputs."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    torch.manual_seed(0)
    torch._dynamo.reset()
    module, graphs = OURS[rnn](2, 3, save="states"), []

    def keep(graph, inputs):
        graphs.append([str(n.target) for n in graph.graph.nodes if "xpgrad" in str(n.target)])
        return make_boxed_func(graph.forward)

    from torch._functorch.partitioners import min_cut_rematerialization_partition

    backend = aot_autograd(
        fw_compiler=keep, bw_compiler=keep, partition_fn=min_cut_rematerialization_partition
    )
    X = torch.randn(4, 5, 2, requires_grad=True)
    y = torch.compile(module, backend=backend, fullgraph=True)(X)[0]
    cotangent = torch.randn_like(y)
    got = torch.autograd.grad(y, [X, *module.parameters()], cotangent)
    expected = torch.autograd.grad(module(X)[0], [X, *module.parameters()], cotangent)
    name = f"xpgrad.{rnn.lower()}"
    assert graphs == [[f"{name}.default"], [f"{name}.default", f"{name}_grad.default"]]
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("save", "error", "words"),
    [
        ("some", ValueError, ["save", "'some'", "'all'", "'states'"]),
        (0, ValueError, ["save", "0", "at least 1"]),
        (2.0, TypeError, ["save", "2.0", "float"]),
        (True, TypeError, ["save", "True", "bool"]),
    ],
)
def test_bad_save(save, error, words):
    for build in (
        lambda: xpgrad_torch.LSTM(2, 3, save=save),
        lambda: xpgrad_torch.GRU(2, 3, save=save),
        lambda: functional.gru(torch.ones(2, 1, 1), torch.ones(1, 3, 1), torch.ones(1, 3, 1), save=save),
    ):
        with pytest.raises(error) as caught:
            build()
        assert all(word in str(caught.value) for word in words)


def test_each_direction_of_segments_has_its_own_alphas_and_betas():
    X, found = torch.randn(5, 2, 3, dtype=torch.float64), []
    options = {
        "activations": ["HardSigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Affine", "Tanh"],
        "activation_alpha": [0.3, 0.2, 0.25, 0.9], "activation_beta": [0.4, 0.45, 0.1],
    }  # fmt: skip
    for save in ("all", 2):
        torch.manual_seed(0)
        module = xpgrad_torch.LSTM(3, 4, bidirectional=True, dtype=torch.float64, save=save, **options)
        output, _ = module(X)
        found.append([output, *torch.autograd.grad(output.square().sum(), list(module.parameters()))])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@every_rnn
def test_save_is_a_constructor_argument(rnn):
    module = OURS[rnn](2, 3, save=4)
    assert repr(module) == f"{rnn}(2, 3, save=4)"
    assert repr(OURS[rnn](2, 3)) == f"{rnn}(2, 3)"


@pytest.mark.parametrize("save", ["states", 3])
def test_packed_sequences(save):
    torch.manual_seed(0)
    module = xpgrad_torch.GRU(2, 3, 2, bidirectional=True)
    packed = torch.nn.utils.rnn.pack_sequence([torch.randn(n, 2) for n in (2, 7, 4)], enforce_sorted=False)
    expected = module(packed)
    module.save = save
    got = module(packed)
    torch.testing.assert_close(got[0].data, expected[0].data)
    torch.testing.assert_close(got[1], expected[1])


# --- frozen and partial ----------------------------------------------------------------------------------


@pytest.fixture
def products(monkeypatch):
    """Count the matrix products of the standard engine."""
    import array_api_compat.torch as xp

    counted = []
    matmul = xp.matmul
    monkeypatch.setattr(xp, "matmul", lambda a, b: counted.append(1) or matmul(a, b))
    return counted


def products_of_backward(products, rnn, wanted, **options):
    """Matrix products of one backward on the standard engine, where only `wanted` require a gradient."""
    module = OURS[rnn](2, 3, **options, dtype=torch.float64)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in wanted)
    X = torch.randn(T, N, 2, dtype=torch.float64, requires_grad="input" in wanted)
    h = torch.randn(module.num_layers, N, 3, dtype=torch.float64, requires_grad="h_0" in wanted)
    c = torch.randn(module.num_layers, N, 3, dtype=torch.float64, requires_grad="c_0" in wanted)
    with xpgrad.use_engine("standard"):
        outputs = flat(module(X, (h, c) if rnn == "LSTM" else h))
        products.clear()
        if any(y.requires_grad for y in outputs):
            sum(y.square().sum() for y in outputs).backward()
    return len(products)


# The loop has a product for each step but the first, whose result only h_0 takes. The gradient of weight_hh
# has two: by h_0, and by all later states.
LOOP = T - 1


@every_rnn
@pytest.mark.parametrize(
    ("wanted", "more"),
    [
        (["bias_ih_l0"], 0),
        (["input"], 1),
        (["weight_ih_l0"], 1),
        (["weight_hh_l0"], 2),
        (["h_0"], 1),
        (["weight_ih_l0", "weight_hh_l0"], 3),
        (["input", "weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0", "h_0"], 5),
    ],
)
def test_frozen_parameters_and_inputs_cost_nothing(rnn, wanted, more, products):
    assert products_of_backward(products, rnn, wanted) == LOOP + more


@every_rnn
def test_layers_below_the_last_trained_one_cost_nothing(rnn, products):
    assert products_of_backward(products, rnn, [], num_layers=2) == 0
    assert products_of_backward(products, rnn, ["weight_hh_l1"], num_layers=2) == LOOP + 2
    both = products_of_backward(products, rnn, ["weight_hh_l0"], num_layers=2)
    assert both == (LOOP + 1) + (LOOP + 2)  # the upper layer for its input, the lower for its weight


def test_only_the_cell_state_is_wanted(products):
    assert products_of_backward(products, "LSTM", ["c_0"]) == LOOP


@every_rnn
@pytest.mark.parametrize("save", ["all", "states", 3])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(rnn, save, reentrant):
    torch.manual_seed(0)
    module = OURS[rnn](2, 3, save=save)
    X = torch.randn(T, N, 2, requires_grad=True)
    grads = []
    for run in (module, lambda X: checkpoint(module, X, use_reentrant=reentrant)):
        module.zero_grad()
        X.grad = None
        y = run(X)[0]
        y.backward(torch.cos(torch.arange(y.numel())).view_as(y))
        grads.append([X.grad, *(p.grad for p in module.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
