"""The kernels as operators of PyTorch's: opcheck, torch.compile, torch.export."""

import copy
import dataclasses
import functools
import io
import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import xpgrad
import xpgrad_torch
from own_cells import CELLS
from torch_activation_cases import LACKING, module
from torch_activation_cases import MODULES as ACTIVATIONS
from torch_networks import residual_network
from torch_operators import EVERY_KERNEL, OPERATORS
from xpgrad_torch import functional

every_operator = pytest.mark.parametrize("operator", EVERY_KERNEL.values(), ids=EVERY_KERNEL)
MODULES = {
    "LSTM": (lambda: xpgrad_torch.LSTM(2, 3, 2, bidirectional=True), (4, 5, 2)),
    "LSTM-peephole": (lambda: xpgrad_torch.LSTM(2, 3, batch_first=True, peephole=True, clip=2.0), (4, 5, 2)),
    "LSTM-projected": (lambda: xpgrad_torch.LSTM(2, 3, proj_size=2), (4, 5, 2)),
    "GRU": (lambda: xpgrad_torch.GRU(2, 3, 2, reset_after=False), (4, 5, 2)),
    "RNN": (lambda: xpgrad_torch.RNN(2, 3, 2, bidirectional=True), (4, 5, 2)),
    "RNNCell": (lambda: xpgrad_torch.RNNCell(2, 3), (4, 2)),
    "LSTMCell": (lambda: xpgrad_torch.LSTMCell(2, 3), (4, 2)),
    "LSTMCell-without-bias": (lambda: xpgrad_torch.LSTMCell(2, 3, bias=False), (4, 2)),
    "GRUCell": (lambda: xpgrad_torch.GRUCell(2, 3), (4, 2)),
    "Conv2d": (lambda: xpgrad_torch.Conv2d(2, 4, 3, padding="same", groups=2), (4, 2, 6, 5)),
    "Conv1d-circular": (lambda: xpgrad_torch.Conv1d(2, 4, 3, padding=1, padding_mode="circular"), (4, 2, 6)),
    "Conv2d-without-bias": (lambda: xpgrad_torch.Conv2d(2, 4, 3, stride=2, bias=False), (4, 2, 6, 5)),
    "ConvTranspose2d": (lambda: xpgrad_torch.ConvTranspose2d(2, 4, 3, stride=2), (4, 2, 6, 5)),
    "ConvTranspose1d-without-bias": (
        lambda: xpgrad_torch.ConvTranspose1d(2, 4, 3, groups=2, bias=False),
        (4, 2, 6),
    ),
    "LSTM-without-bias": (lambda: xpgrad_torch.LSTM(2, 3, bias=False), (4, 5, 2)),
    "GRU-without-bias": (lambda: xpgrad_torch.GRU(2, 3, bias=False, bidirectional=True), (4, 5, 2)),
    "CrossEntropyLoss": (
        lambda: xpgrad_torch.CrossEntropyLoss(torch.arange(1.0, 6.0)),
        (4, 5),
        torch.tensor([0, 3, -100, 1]),
    ),
    "BCEWithLogitsLoss": (xpgrad_torch.BCEWithLogitsLoss, (4, 5), torch.linspace(0, 1, 20).view(4, 5)),
} | {name: (functools.partial(module, xpgrad_torch, name), (4, 4)) for name in ACTIVATIONS}


def each_of(modules):
    """A test for each of these modules, with the shape of its input."""
    return pytest.mark.parametrize(
        ("build", "shape", "more"),
        [(build, shape, more) for build, shape, *more in modules.values()],
        ids=modules,
    )


every_module = each_of(MODULES)
# Graphs of the other activations: test_torch_docs.py compiles and exports each, for its tables.
modules_with_graphs = each_of(
    {name: case for name, case in MODULES.items() if name not in ACTIVATIONS or name in ("PReLU", "Softmax")}
)


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def operands_without(operator, absent):
    return operator.operands() | dict.fromkeys(absent)


def all_operands(operator, operands):
    """The operands that the registered operator takes, None for those that no test has."""
    return tuple(operands.get(name) for name in operator.kernel.operands)


def gradient_inputs(operator, absent=()):
    """The arrays that the registered gradient takes, with random cotangents, and its attributes."""
    operands, kernel = operands_without(operator, absent), operator.kernel
    attributes = operator.kernel_attributes
    results = kernel.operator(*all_operands(operator, operands), **attributes)
    outputs = dict(zip(kernel.outputs, as_tuple(results), strict=True))
    cotangents = [torch.randn_like(outputs[name]) for name in kernel.outputs[: len(kernel.cotangents)]]
    arrays = [operands.get(name) for name in kernel.taken] + [outputs[name] for name in kernel.saved]
    return [*arrays, *cotangents], attributes


@every_operator
@pytest.mark.parametrize("grad", [False, True], ids=["values", "grad"])
def test_opcheck(operator, grad):
    operands = operator.operands()
    for name in operator.differentiable:
        operands[name].requires_grad_(grad)
    attributes = operator.kernel_attributes
    torch.library.opcheck(operator.kernel.operator, all_operands(operator, operands), attributes)


@pytest.mark.parametrize(
    ("operator", "per_sample"),
    [
        pytest.param(operator, per_sample, id=f"{name}-{'per_sample' if per_sample else 'summed'}")
        for name, operator in EVERY_KERNEL.items()
        for per_sample in ((False, True) if operator.kernel.has_per_sample else (False,))
    ],
)
def test_opcheck_of_the_gradient(operator, per_sample):
    arrays, attributes = gradient_inputs(operator)
    options = {**attributes, "wrt": operator.differentiable}
    if operator.kernel.has_per_sample:
        options["per_sample"] = per_sample
    torch.library.opcheck(operator.kernel.gradient_operator, tuple(arrays), options)


WITHOUT = [
    pytest.param(operator, absent, id=f"{name}-without-{'-'.join(absent) or 'nothing'}")
    for name, operator in OPERATORS.items()
    for absent in operator.subsets()
    if operator.optional
]
# one left out, or all of them: what is slow need not see every subset
FEW_WITHOUT = [
    pytest.param(*case.values, id=case.id)
    for case in WITHOUT
    if len(case.values[1]) in (1, len(case.values[0].optional))
]


@pytest.mark.parametrize(("operator", "absent"), WITHOUT)
def test_fake_tensors_agree_without_optional_operands(operator, absent):
    """Shapes, dtypes and strides of the results of an operator and its gradient, for every subset."""
    tests = ("test_schema", "test_faketensor")
    operands = all_operands(operator, operands_without(operator, absent))
    torch.library.opcheck(operator.kernel.operator, operands, operator.kernel_attributes, test_utils=tests)
    arrays, attributes = gradient_inputs(operator, absent)
    options = {**attributes, "wrt": [name for name in operator.differentiable if name not in absent]}
    torch.library.opcheck(operator.kernel.gradient_operator, tuple(arrays), options, test_utils=tests)


@pytest.mark.parametrize("kernel", ["gelu", "gelu, out", "softmax", "conv"])
def test_a_kernel_on_real_tensors_while_new_ones_are_fake(kernel):
    """Its result is fake: it was written to memory that a fake tensor does not have, and the process died."""
    x = torch.randn(1, 2, 5, 5)
    run = {
        "gelu": lambda: xpgrad.gelu(x),
        "gelu, out": lambda: xpgrad.gelu(x, out=torch.empty_like(x)),
        "softmax": lambda: xpgrad.softmax(x),
        "conv": lambda: xpgrad.conv(x, x),
    }[kernel]
    real = run()
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = run()
    assert type(fake) is FakeTensor
    assert (fake.shape, fake.dtype) == (real.shape, real.dtype)
    with (
        FakeTensorMode(),
        pytest.raises(AssertionError, match="Please convert all Tensors to FakeTensors first"),
    ):
        run()


@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_the_shape_of_a_convolution_is_found_without_computing(name, monkeypatch):
    """Neither values nor a choice of method, which would compare symbolic sizes."""

    def refuse(*arguments):
        raise AssertionError("a method was asked for")

    monkeypatch.setattr(sys.modules["xpgrad.conv"], "choose", refuse)
    operator = OPERATORS[name]
    given = all_operands(operator, operands_without(operator, ()))
    with FakeTensorMode() as mode:
        operands = [x if x is None else mode.from_tensor(x) for x in given]
        faked = operator.kernel.operator(*operands, **operator.kernel_attributes)
    monkeypatch.undo()
    real = operator.kernel.operator(*given, **operator.kernel_attributes)
    assert faked.shape == real.shape
    assert faked.stride() == real.stride()


@pytest.mark.parametrize(
    ("operator", "absent"),
    [case for case in FEW_WITHOUT if len(case.values[1]) == len(case.values[0].optional)],
)
def test_opcheck_without_any_optional_operand(operator, absent):
    """With sizes of any value; without one operand alone, and the sizes fixed: the test below."""
    operands = operands_without(operator, absent)
    for name in operator.differentiable:
        if name not in absent:
            operands[name].requires_grad_()
    tests = ("test_autograd_registration", "test_aot_dispatch_dynamic")
    attributes = operator.kernel_attributes
    torch.library.opcheck(
        operator.kernel.operator, all_operands(operator, operands), attributes, test_utils=tests
    )


@pytest.mark.parametrize(("operator", "absent"), FEW_WITHOUT)
def test_compile_without_optional_operands(operator, absent):
    operands = operands_without(operator, absent)
    names = [name for name in operator.differentiable if name not in absent]
    leaves = [operands[name].requires_grad_() for name in names]
    torch._dynamo.reset()
    compiled = torch.compile(operator.of(operands, names), fullgraph=True, backend="aot_eager")
    eager, outputs = operator.run(operands), compiled(*leaves)
    cotangents = [torch.randn_like(y) for y in eager]
    expected = [*eager, *torch.autograd.grad(eager, leaves, cotangents)]
    for a, b in zip([*outputs, *torch.autograd.grad(outputs, leaves, cotangents)], expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@every_operator
def test_vmap_of_the_registered_gradient(operator):
    """Over the last cotangent, for all operands that have a gradient."""
    (*arrays, cotangent), attributes = gradient_inputs(operator)
    names = [name for name, x in operator.operands().items() if x.is_floating_point()]

    def gradient(d):
        return tuple(operator.kernel.gradient_operator(*arrays, d, **attributes, wrt=names))

    many = torch.stack([cotangent, 2 * cotangent, -cotangent])
    expected = [torch.stack(parts) for parts in zip(*map(gradient, many), strict=True)]
    for a, b in zip(torch.func.vmap(gradient)(many), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@every_operator
def test_registered_and_eager_are_the_same(operator):
    """Values, gradients for random cotangents, and gradients of these."""
    names = operator.differentiable
    operands = operator.operands()
    attributes = operator.kernel_attributes
    leaves = [operands[name].requires_grad_() for name in names]
    registered = as_tuple(operator.kernel.operator(*all_operands(operator, operands), **attributes))
    eager = operator.run(operands)
    registered = registered[: len(eager)]
    cotangents = [torch.randn_like(y, requires_grad=True) for y in eager]
    results = []
    for outputs in (registered, eager):
        grads = torch.autograd.grad(outputs, leaves, cotangents, create_graph=True)
        mixed = sum((g * torch.cos(torch.arange(g.numel())).view_as(g)).sum() for g in grads)
        second = torch.autograd.grad(mixed, [*leaves, *cotangents], allow_unused=True, materialize_grads=True)
        results.append([*outputs, *grads, *second])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert any(x.abs().max() > 1e-3 for x in results[0][-len(cotangents) :])


@pytest.mark.parametrize("name", ["cross_entropy", "cross_entropy-probabilities", "binary_cross_entropy"])
def test_gradients_of_targets_and_weights(name):
    """The kernels have none; PyTorch's own operators give them, by every way."""
    operator = OPERATORS[name]
    operands, kernel = operator.operands(), operator.kernel
    names = [n for n, x in operands.items() if x.is_floating_point()]
    leaves = [operands[n].requires_grad_() for n in names]
    with xpgrad.use_engine("standard"):
        expected = getattr(xpgrad, kernel.name)(**operands, **operator.kernel_attributes)
    eager = operator.run(operands)[0]
    registered = kernel.operator(*all_operands(operator, operands), **operator.kernel_attributes)
    cotangent = torch.randn_like(expected)
    compiled = torch.compile(operator.of(operands, names), fullgraph=True, backend="aot_eager")(*leaves)[0]
    expected_grads = torch.autograd.grad(expected, leaves, cotangent)
    with FlopCounterMode(display=False):  # the registered gradient fails below a mode
        watched = operator.run(operands)[0]
        grads = torch.autograd.grad(watched, leaves, cotangent, retain_graph=True)
    torch.testing.assert_close(grads, expected_grads, rtol=1e-12, atol=1e-12)
    for y in (eager, registered, compiled, watched):
        for a, b in zip(torch.autograd.grad(y, leaves, cotangent), expected_grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def flat(result):
    if isinstance(result, torch.Tensor):
        return [result]
    return [x for part in result for x in flat(part)]


def kernels_in(graph):
    return [str(node.target) for node in graph.nodes if "xpgrad" in str(node.target)]


@modules_with_graphs
def test_compile_sees_one_node_for_each_kernel(build, shape, more):
    torch.manual_seed(0)
    module = build()
    X = torch.randn(shape, requires_grad=True)
    leaves = [X, *module.parameters()]
    eager = flat(module(X, *more))
    cotangents = [torch.randn_like(y) for y in eager]
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    outputs = flat(compiled(X, *more))
    assert counter.frame_count == 1
    assert len(kernels_in(counter.graphs[0].graph)) == getattr(module, "num_layers", 1)
    for a, b in zip(outputs, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    got = torch.autograd.grad(outputs, leaves, cotangents)
    for a, b in zip(got, torch.autograd.grad(eager, leaves, cotangents), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


KINDS_OF_LENGTHS = {
    "list": list,
    "tuple": tuple,
    "array": np.array,
    "array of bytes": lambda numbers: np.array(numbers, dtype=np.uint8),
    "tensor of bytes": lambda numbers: torch.tensor(numbers, dtype=torch.uint8),
}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("list", {}),
        ("tuple", {"num_layers": 2, "bidirectional": True}),
        ("array", {}),
        ("array of bytes", {"save": 2}),
        ("tensor of bytes", {"save": 2}),
    ],
)
def test_lengths_of_every_kind_compiled(kind, options):
    torch.manual_seed(0)
    torch._dynamo.reset()
    module, X = xpgrad_torch.GRU(2, 3, **options), torch.randn(6, 3, 2)

    def step(X, lengths):
        return module(X, lengths=lengths)[0].square().sum()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for numbers in ([6, 2, 4], [1, 6, 3], [0, 2, 5]):
        expected = torch.autograd.grad(step(X, numbers), [*module.parameters()])
        for run in (compiled, step):
            got = torch.autograd.grad(run(X, KINDS_OF_LENGTHS[kind](numbers)), [*module.parameters()])
            for a, b in zip(got, expected, strict=True):
                torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", ["list", "array"])
def test_lengths_of_functions_and_own_layers_compiled(kind):
    torch._dynamo.reset()
    W, R = torch.randn(1, 20, 2), torch.randn(1, 20, 5)
    layer = xpgrad_torch.LayerNormLSTM(2, 5)

    def step(X, lengths):
        return functional.lstm(X, W, R, sequence_lens=lengths)[0].sum() + layer(X, lengths=lengths)[0].sum()

    compiled, X = torch.compile(step, fullgraph=True, backend="aot_eager"), torch.randn(6, 3, 2)
    torch.testing.assert_close(compiled(X, KINDS_OF_LENGTHS[kind]([6, 0, 4])), step(X, [6, 0, 4]))
    with pytest.raises(ValueError, match=r"sequence_lens\[1\] is 9, expected 0 to T = 6"):
        compiled(X, KINDS_OF_LENGTHS[kind]([6, 9, 4]))


def test_compiled_code_runs_for_every_length():
    """By inductor's C++, with lengths as tensors and other numbers of steps."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    module = xpgrad_torch.LSTM(2, 3, 2, batch_first=True)
    step = torch.compile(
        lambda x, lengths: module(x, lengths=lengths)[0].tanh(), fullgraph=True, dynamic=True
    )
    for steps in (5, 7):
        x, lengths = torch.randn(3, steps, 2), torch.tensor([steps, 2, 0])
        expected = module(x, lengths=lengths)[0].tanh()
        y = step(x, lengths)
        torch.testing.assert_close(y, expected)
        cotangent = torch.randn_like(y)
        parameters = list(module.parameters())
        for a, b in zip(
            torch.autograd.grad(y, parameters, cotangent),
            torch.autograd.grad(expected, parameters, cotangent),
            strict=True,
        ):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@modules_with_graphs
@pytest.mark.parametrize("strict", [False, True], ids=["traced", "strict"])
def test_export(build, shape, more, strict):
    torch.manual_seed(0)
    module = build().eval()
    X = torch.randn(shape)
    program = torch.export.export(module, (X, *more), strict=strict)
    assert len(kernels_in(program.graph)) == getattr(module, "num_layers", 1)
    for a, b in zip(flat(program.module()(X, *more)), flat(module(X, *more)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("build", [xpgrad_torch.ConvTranspose1d, xpgrad_torch.ConvTranspose2d])
def test_compiled_groups_of_a_transposed_convolution(build):
    """Its weight has the output channels of each group, its bias those of all."""
    module = build(4, 6, 3, groups=2)
    x = torch.randn(2, 4, *(7,) * (module.weight.dim() - 2))
    torch.compile(module, backend="aot_eager", fullgraph=True)(x).sin().sum().backward()
    found = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    module(x).sin().sum().backward()
    torch.testing.assert_close(found, [p.grad for p in module.parameters()])


def test_a_residual_network_compiles_and_exports():
    """Convolutions without bias behind one another; values and gradients are PyTorch's."""
    theirs = residual_network().double()
    ours = xpgrad_torch.swap(copy.deepcopy(theirs), activations=True)
    X = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    expected = theirs(X)
    cotangent = torch.randn_like(expected)
    expected_grads = torch.autograd.grad(expected, list(theirs.parameters()), cotangent)
    torch._dynamo.reset()
    y = torch.compile(ours, fullgraph=True, backend="aot_eager")(X)
    torch.testing.assert_close(y, expected)
    grads = torch.autograd.grad(y, list(ours.parameters()), cotangent)
    for a, b in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(a, b)
    program = torch.export.export(ours.eval(), (X,))
    torch.testing.assert_close(program.module()(X), theirs.eval()(X))


def test_export_with_a_batch_of_any_size():
    module = xpgrad_torch.GRU(2, 3, batch_first=True).eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(module, (torch.randn(4, 5, 2),), dynamic_shapes=({0: batch},))
    X = torch.randn(9, 5, 2)
    torch.testing.assert_close(program.module()(X)[0], module(X)[0])


# That a check of shapes is not part of the trace. PyTorch says so of its own modules' checks, too.
traced = pytest.mark.filterwarnings(
    "ignore:Converting a tensor to a Python boolean", "ignore:.torch.jit:DeprecationWarning"
)


def traced_and_loaded(function, inputs):
    """A trace, and the same out of a file."""
    trace = torch.jit.trace(function, inputs)
    file = io.BytesIO()
    torch.jit.save(trace, file)
    file.seek(0)
    return trace, torch.jit.load(file)


@traced
@every_module
def test_jit_trace(build, shape, more):
    """Values and gradients for other numbers, and where they may be other, for other sizes."""
    torch.manual_seed(0)
    module = build()
    trace, loaded = traced_and_loaded(module, (torch.randn(shape), *more))
    larger = (*(n + 3 for n in shape[:1]), *shape[1:])
    for run in (trace, loaded):
        for size in (shape, shape if more else larger):
            X = torch.randn(size, requires_grad=True)
            got, expected = flat(run(X, *more)), flat(module(X, *more))
            cotangents = [torch.randn_like(y) for y in expected]
            for a, b in zip(got, expected, strict=True):
                torch.testing.assert_close(a, b)
            (a,), (b,) = (torch.autograd.grad(outputs, X, cotangents) for outputs in (got, expected))
            torch.testing.assert_close(a, b)


@traced
@every_operator
def test_jit_trace_of_functions(operator):
    names = [name for name, x in operator.operands().items() if x.is_floating_point()]
    first, second = (operator.operands(seed) for seed in (0, 1))
    # words, which it cannot record
    without = dataclasses.replace(operator, attributes=operator.attributes | {"activations": None})
    operator = without if "activations" in operator.attributes else operator
    function = operator.of(first, names)
    for run in traced_and_loaded(function, tuple(first[name] for name in names)):
        given = tuple(second[name] for name in names)
        for a, b in zip(run(*given), function(*given), strict=True):
            torch.testing.assert_close(a, b)


@traced
@pytest.mark.parametrize("module", [xpgrad_torch.GRU, xpgrad_torch.GRUCell])
def test_jit_trace_says_what_it_cannot_record(module):
    module, X = module(3, 4, activations=["HardSigmoid", "Tanh"]), torch.randn(2, 3)
    with pytest.raises(RuntimeError, match=r"gru.*: torch.jit.trace cannot record .* activations .*export"):
        torch.jit.trace(module, X)


class Bag(nn.Module):
    """A module in a larger model."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.head = nn.Sequential(inner), nn.Linear(3, 2)

    def forward(self, X: Tensor):
        return self.inner(self.head(X))


RECURRENT_MODULES = (
    "LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell", "LayerNormLSTM", "LayerNormGRU",
)  # fmt: skip
every_class = pytest.mark.parametrize(
    "build",
    [
        *(lambda name=name: getattr(xpgrad_torch, name)(2, 3) for name in RECURRENT_MODULES),
        lambda: xpgrad_torch.CellLayer(CELLS["GRU"], 2, 3),
        *(lambda n=n: getattr(xpgrad_torch, f"Conv{n}d")(2, 3, 3) for n in (1, 2, 3)),
        *(lambda n=n: getattr(xpgrad_torch, f"ConvTranspose{n}d")(2, 3, 3) for n in (1, 2, 3)),
        *(lambda name=name: module(xpgrad_torch, name) for name in ACTIVATIONS),
        *(getattr(xpgrad_torch, name) for name in LACKING),
        xpgrad_torch.CrossEntropyLoss,
        xpgrad_torch.BCEWithLogitsLoss,
    ],
)


@traced
@every_class
def test_jit_script_says_what_to_do_instead(build):
    inner = build()
    words = rf"^{type(inner).__name__}: torch.jit.script cannot .*unswap\(model\).*trace.*compile.*export"
    for scripted in (inner, Bag(inner)):
        with pytest.raises(RuntimeError, match=words):
            torch.jit.script(scripted)


@traced
def test_jit_script_of_an_unswapped_model():
    model, X = Bag(nn.GRU(2, 3)), torch.randn(4, 5, 3)
    expected = model(X)
    xpgrad_torch.swap(model)
    with pytest.raises(RuntimeError, match="unswap"):
        torch.jit.script(model)
    assert type(model.inner[0]) is xpgrad_torch.GRU
    for a, b in zip(flat(torch.jit.script(xpgrad_torch.unswap(model))(X)), flat(expected), strict=True):
        torch.testing.assert_close(a, b)


@traced
def test_jit_trace_of_a_residual_network():
    theirs = residual_network().eval()
    ours = xpgrad_torch.swap(copy.deepcopy(theirs), activations=True)
    trace = torch.jit.trace(ours, torch.randn(2, 3, 32, 32))
    X = torch.randn(3, 3, 40, 32)
    torch.testing.assert_close(trace(X), theirs(X), rtol=1e-4, atol=1e-5)


@traced
@pytest.mark.filterwarnings("ignore:You are using the legacy TorchScript-based ONNX export")
@pytest.mark.parametrize("name", ["ReLU", "GRU", "Conv2d-without-bias"])
def test_onnx_export_says_what_to_do(name):
    build, shape = MODULES[name]
    module, X = build(), torch.randn(shape)
    with pytest.raises(RuntimeError, match=r"cannot translate xpgrad's operators.*xpgrad_torch.unswap"):
        torch.onnx.export(module, (X,), io.BytesIO(), dynamo=False)
    if name != "GRU":  # of which PyTorch says that it exports one number of samples
        torch.onnx.export(xpgrad_torch.unswap(module), (X,), io.BytesIO(), dynamo=False)


@every_operator
def test_recorders_see_the_gradient_of_an_eager_call(operator):
    """As where PyTorch compiles the backward of a graph that eager code has made."""
    operands = operator.operands()
    wanted = [
        x.requires_grad_() for x in operands.values() if isinstance(x, Tensor) and x.is_floating_point()
    ]
    outputs = operator.run(operands)
    cotangents = [torch.randn_like(y) for y in outputs]
    expected = torch.autograd.grad(outputs, wanted, cotangents, retain_graph=True, allow_unused=True)

    def backward(*cotangents):
        return torch.autograd.grad(outputs, wanted, cotangents, retain_graph=True, allow_unused=True)

    graph = make_fx(backward)(*cotangents)
    names = [name for name in (str(node.target) for node in graph.graph.nodes) if name.startswith("xpgrad.")]
    # a loss with a gradient of its targets is composed, and some gradients run the kernel again
    assert [name.split(".")[1].endswith("_grad") for name in names] in ([True], [False, True], [])
    for got, own in zip(graph(*cotangents), expected, strict=True):
        assert (got is None) == (own is None)
        if own is not None:
            torch.testing.assert_close(got, own)


@pytest.mark.parametrize("name", ["lstm", "conv1d", "gelu"])
def test_a_compiled_backward_of_an_eager_call(name):
    """The compiler records the gradient's operator; it does not read the engine."""
    operator = EVERY_KERNEL[name]
    operands = operator.operands()
    X = operands["X"].requires_grad_()
    y = operator.run(operands)[0]
    (expected,) = torch.autograd.grad(y.sin().sum(), X, retain_graph=True)
    counter = CompileCounterWithBackend("aot_eager")
    with compiled_autograd._enable(torch.compile(backend=counter, fullgraph=True)):
        y.sin().sum().backward()
    torch.testing.assert_close(X.grad, expected)
    assert sum("_grad" in kernel for graph in counter.graphs for kernel in kernels_in(graph.graph)) == 1


@every_operator
def test_recorders_see_the_operator(operator):
    class Recorder(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    operands = operator.operands()
    with Recorder() as recorder:
        operator.run(operands)
    assert [name for name in recorder.seen if "xpgrad" in name] == [str(operator.kernel.operator)]


def test_fake_tensors_have_the_shapes_of_the_results():
    from torch._subclasses.fake_tensor import FakeTensorMode

    operator = OPERATORS["lstm-both"]
    operands = operator.operands()
    with FakeTensorMode() as mode:
        fake = operator.run({name: mode.from_tensor(x) for name, x in operands.items()})
    for a, b in zip(fake, operator.run(operands), strict=True):
        assert (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (functional.conv1d, {"stride": 2, "padding": 1, "dilation": 2}),
        (functional.conv_transpose1d, {"stride": (3,), "output_padding": 2}),
        (functional.conv2d, {"stride": (2, 1), "padding": 2}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_numbers_from_outside_of_compiled_code(function, options):
    """With ``dynamic=True`` PyTorch takes them for numbers that may change."""
    shape = (9, 8)[: 2 if function is functional.conv2d else 1]
    x = torch.randn(2, 3, *shape, requires_grad=True)
    w = torch.randn(3, 3, *(3 for _ in shape), requires_grad=True)

    def loss(x, w):
        return function(x, w, **options).square().sum()

    torch._dynamo.reset()
    expected = torch.autograd.grad(loss(x, w), (x, w))
    got = torch.autograd.grad(torch.compile(loss, dynamic=True, fullgraph=True)(x, w), (x, w))
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(g, e, rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------------------ torch.fx


class Holder(torch.nn.Module):
    """Whatever a module takes, with an operation before it and one behind."""

    def __init__(self, module):
        super().__init__()
        self.inner = torch.nn.ModuleDict({"one": module})

    def forward(self, x, *others):
        result = self.inner["one"](x + 1, *others)
        return (result[0] if isinstance(self.inner["one"], WITH_STATES) else result) * 2


WITH_STATES = (torch.nn.RNNBase, torch.nn.LSTMCell, xpgrad_torch.LayerNormGRU, xpgrad_torch.CellLayer)
TRACED = {
    **MODULES,
    "LSTM-with-states": (
        lambda: xpgrad_torch.LSTM(2, 3),
        (4, 5, 2),
        (torch.ones(1, 5, 3), torch.ones(1, 5, 3)),
    ),
    "GRU-with-lengths": (lambda: xpgrad_torch.GRU(2, 3), (4, 5, 2), None, torch.tensor([4, 1, 0, 2, 3])),
    "GRUCell-with-state": (lambda: xpgrad_torch.GRUCell(2, 3), (4, 2), torch.ones(4, 3)),
    "LayerNormGRU": (lambda: xpgrad_torch.LayerNormGRU(2, 3), (4, 5, 2), torch.ones(1, 5, 3)),
    "CellLayer": (lambda: xpgrad_torch.CellLayer(CELLS["GRU"], 2, 3, bidirectional=True), (4, 5, 2)),
    "ConvTranspose1d-sized": (lambda: xpgrad_torch.ConvTranspose1d(2, 4, 3, stride=2), (4, 2, 6), [14]),
}


@each_of(TRACED)
def test_symbolic_trace_calls_the_module(build, shape, more):
    """As it does PyTorch's own; the traced model and a trace of it compute the same."""
    x, holder = torch.randn(shape), Holder(build())

    class Given(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.holder = holder

        def forward(self, x):
            return self.holder(x, *more)

    traced = torch.fx.symbolic_trace(Given())
    for graph_module in (traced, torch.fx.symbolic_trace(traced), copy.deepcopy(traced)):
        called = [node.target for node in graph_module.graph.nodes if node.op == "call_module"]
        assert called == ["holder.inner.one"]
        assert torch.equal(graph_module(x), holder(x, *more))


def test_symbolic_trace_of_a_swapped_network():
    """It has the nodes of the network with PyTorch's modules, and gradients flow through it."""
    torch.manual_seed(0)
    network = residual_network()
    swapped = xpgrad_torch.swap(copy.deepcopy(network), activations=True)
    ours, theirs = torch.fx.symbolic_trace(swapped), torch.fx.symbolic_trace(network)
    assert [str(node.target) for node in ours.graph.nodes] == [
        str(node.target) for node in theirs.graph.nodes
    ]
    x = torch.randn(2, 3, 16, 16)
    for one in (ours, theirs):
        one(x).sum().backward()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------- counted operations

COUNTED = {
    "GRU": ((5, 4), {}, (7, 3, 5)),
    "GRU-batch-first": ((5, 4), {"batch_first": True}, (3, 7, 5)),
    "GRU-two-ways-and-layers": ((5, 4, 2), {"bidirectional": True}, (7, 3, 5)),
    "GRU-one-step": ((5, 4), {}, (1, 3, 5)),
    "RNN": ((5, 4), {"nonlinearity": "relu"}, (7, 3, 5)),
    "LSTM": ((5, 4), {}, (7, 3, 5)),
    "LSTM-projected": ((5, 6), {"proj_size": 4}, (7, 3, 5)),
    "LSTMCell": ((5, 4), {}, (3, 5)),
    "GRUCell": ((5, 4), {"bias": False}, (3, 5)),
    "RNNCell": ((5, 4), {}, (3, 5)),
    "Conv1d": ((4, 6, 3), {"stride": 2, "padding": 1}, (2, 4, 9)),
    "Conv2d": ((4, 6, (3, 2)), {"bias": False}, (2, 4, 9, 7)),
    "Conv3d": ((4, 6, 3), {"dilation": 2}, (2, 4, 6, 7, 8)),
    "ConvTranspose2d": ((4, 6, 3), {"stride": 2, "output_padding": 1}, (2, 4, 5, 6)),
}


def counted(namespace, name, arguments, options, shape, wanted):
    """What PyTorch's counter finds in a training step for the input's gradient, the parameters' or both."""
    x = torch.randn(shape, dtype=torch.float64, requires_grad="x" in wanted)
    module = getattr(namespace, name)(*arguments, **options, dtype=torch.float64)
    module.requires_grad_("parameters" in wanted)
    with FlopCounterMode(display=False) as counter:
        result = module(x)
        if wanted:
            (result[0] if isinstance(result, tuple) else result).sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("wanted", [(), ("x",), ("parameters",), ("x", "parameters")], ids="-".join)
@pytest.mark.parametrize(
    ("name", "case"), [(name.split("-")[0], case) for name, case in COUNTED.items()], ids=COUNTED
)
def test_operations_are_counted_as_those_of_pytorch(name, case, wanted):
    """PyTorch's float64 layers are matrix products, which its counter knows."""
    expected = counted(torch.nn, name, *case, wanted)
    assert counted(xpgrad_torch, name, *case, wanted) == expected > 0


def test_operations_of_a_backward_alone():
    """The forward ran before anybody counted."""
    x, counts = torch.randn(2, 3, 8, 8, requires_grad=True), []
    for package in (nn, xpgrad_torch):
        loss = package.Conv2d(3, 4, 3)(x).sum()
        with FlopCounterMode(display=False) as counter:
            loss.backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_a_checkpoint_under_a_mode():
    """It lets saved tensors be read once."""
    module, x = xpgrad_torch.Conv1d(3, 4, 3), torch.randn(2, 3, 9, requires_grad=True)
    with FlopCounterMode(display=False):
        torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False).square().sum().backward()
    (expected,) = torch.autograd.grad(module(x).square().sum(), x)
    torch.testing.assert_close(x.grad, expected)


def test_operations_of_a_grouped_convolution():
    """Each output has the products of its group's channels, in every direction."""
    convolution, x = xpgrad_torch.Conv2d(6, 9, 3, groups=3), torch.randn(2, 6, 8, 8, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        convolution(x).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * (2 * 6 * 6) * 9 * (2 * 3 * 3)


def test_operations_of_a_cell_of_ones_own():
    """It has no counterpart; lengths are values, and counts follow from shapes."""
    layer = xpgrad_torch.CellLayer(CELLS["minimal gated unit"], 5, 6)
    with FlopCounterMode(display=False) as counter:
        layer(torch.randn(4, 3, 5), lengths=[4, 2, 1])
    assert counter.get_total_flops() == 2 * (4 * 3) * 12 * (5 + 6)


@pytest.mark.parametrize(
    "name", ["Conv2d", "ConvTranspose1d", "LSTM", "GRUCell", "CrossEntropyLoss", "BCEWithLogitsLoss"]
)
def test_no_node_of_a_graph_saves_none(name):
    """Tools that draw graphs, as torchviz, ask for the size of what each node saved."""
    arguments = {"Conv2d": (3, 4, 3), "ConvTranspose1d": (3, 4, 3), "LSTM": (3, 4), "GRUCell": (3, 4)}
    module = getattr(xpgrad_torch, name)(*arguments.get(name, ()))
    shape = {"Conv2d": (2, 3, 5, 5), "ConvTranspose1d": (2, 3, 5), "LSTM": (5, 2, 3)}.get(name, (2, 3))
    X = torch.randn(shape, requires_grad=True)
    target = {"CrossEntropyLoss": [torch.tensor([0, 2])], "BCEWithLogitsLoss": [torch.rand(2, 3)]}
    result = module(X, *target.get(name, []))
    nodes, saved = [(result[0] if isinstance(result, tuple) else result).grad_fn], []
    while nodes:
        node = nodes.pop()
        saved += getattr(node, "saved_tensors", ())
        nodes += [below for below, _ in node.next_functions if below is not None]
    assert saved
    assert all(x is not None for x in saved)
