"""PyTorch's transformations on our modules and on torch.nn's: tables in docs/pytorch.md.

    python asv_bench/transforms.py            print the tables
    python asv_bench/transforms.py --write    put them into docs/pytorch.md, between its marks

Each cell is one run on float32 modules on the CPU, compared with a computation that needs no transformation.
"""

import argparse
import copy
import logging
import os
import socket
import warnings
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import functional_call, grad, jvp, vmap

import xpgrad_torch
from page import write_between

PAGE = Path(__file__).parents[1] / "docs" / "pytorch.md"
T, N, C = 6, 4, 3


class Case(NamedTuple):
    """How to build and call a module: its arguments, the shape of an input, the input's batch axis."""

    arguments: tuple = ()
    shape: tuple = (N, 5)
    axis: int = 0
    target: torch.Tensor | None = None


def _activations(have_peers):
    """The activations that PyTorch has, or those that it lacks, with their required arguments."""
    needed = {"Softmax": (-1,), "LogSoftmax": (-1,), "Threshold": (0.2, 0.0)}
    kinds = [name for name in xpgrad_torch.activations.__all__ if name[0].isupper()]
    return {name: Case(needed.get(name, ())) for name in kinds if hasattr(nn, name) == have_peers}


FAMILIES = {
    "recurrent": {
        "LSTM": Case((C, 5), (T, N, C), 1),
        "GRU": Case((C, 5), (T, N, C), 1),
        "RNN": Case((C, 5), (T, N, C), 1),
        "LSTMCell": Case((C, 5), (N, C)),
        "GRUCell": Case((C, 5), (N, C)),
        "RNNCell": Case((C, 5), (N, C)),
        "LayerNormLSTM": Case((C, 5), (T, N, C), 1),
        "LayerNormGRU": Case((C, 5), (T, N, C), 1),
        "SLSTM": Case((C, 5), (T, N, C), 1),
    },
    "convolutions": {
        f"Conv{kind}{n}d": Case((C, 4, 3), (N, C, *(5, 6, 4)[:n]))
        for kind in ("", "Transpose")
        for n in (1, 2, 3)
    },
    "activations": _activations(True),
    "losses": {
        "CrossEntropyLoss": Case(target=torch.tensor([0, 3, 1, 4])),
        "BCEWithLogitsLoss": Case(target=torch.linspace(0, 1, N * 5).view(N, 5)),
    },
}
CASES = {name: case for family in FAMILIES.values() for name, case in family.items()} | _activations(False)


class Example:
    """A module and an input, equal for ours and theirs.

    `module` is float32; `exact` is PyTorch's own in float64, where it uses simple operators.
    """

    def __init__(self, owner, name):
        case = CASES[name]
        torch.manual_seed(0)
        self.module = getattr(owner, name)(*case.arguments)
        self.exact = copy.deepcopy(self.module).double()
        if hasattr(nn, name):
            self.exact = getattr(nn, name)(*case.arguments).double()
            self.exact.load_state_dict(self.module.state_dict())
        self.x = torch.randn(case.shape)
        self.axis = case.axis
        self.target = () if case.target is None else (case.target,)

    def call(self, x, parameters=None, target=None, module=None):
        """The first tensor of the module's result, or of the exact module's for float64."""
        target = self.target if target is None else target
        if x.dtype == torch.float64:
            module, target = self.exact, [t.double() if t.is_floating_point() else t for t in target]
        module = self.module if module is None else module
        if parameters is None:
            return first(module(x, *target))
        return first(functional_call(module, parameters, (x, *target)))

    def loss(self, parameters, x, *target):
        """A number that depends on the whole result."""
        return self.call(x, parameters, target).square().sum()

    def gradients(self, module=None):
        """The loss's gradients for the parameters, or for the input if there are none."""
        exact = module is self.exact
        x = (self.x.double() if exact else self.x.clone()).requires_grad_()
        leaves = list((self.module if module is None else module).parameters()) or [x]
        y = self.call(x, module=module)
        return torch.autograd.grad((y if exact else y.float()).square().sum(), leaves)


def first(result):
    """The first tensor of a result."""
    return result if isinstance(result, torch.Tensor) else first(result[0])


def close(got, expected):
    """Raise unless the numbers agree up to float32's rounding."""
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.float(), b.float(), rtol=1e-3, atol=1e-3)


def along(function, x, tangent, step=1e-6):
    """A function's derivative along a direction, from differences in float64."""
    points = (x.double() + sign * step * tangent.double() for sign in (1, -1))
    ahead, behind = (function(point.requires_grad_()).detach() for point in points)
    return (ahead - behind) / (2 * step)


def double_backward(example):
    """The derivative of a gradient's length along a direction, compared with differences in float64."""
    x, tangent = example.x, torch.randn_like(example.x)

    def length(x):
        (gradient,) = torch.autograd.grad(
            example.call(x).square().sum(), x, create_graph=x.dtype == torch.float32
        )
        return gradient.square().sum()

    leaf = x.clone().requires_grad_()
    (got,) = torch.autograd.grad(length(leaf), leaf)
    close([(got * tangent).sum()], [along(length, x, tangent)])
    return "yes"


def forward_mode(example):
    """A derivative along a direction, compared with differences in float64."""
    x, tangent = example.x, torch.randn_like(example.x)
    _, got = jvp(example.call, (x,), (tangent,))
    close([got], [along(example.call, x, tangent)])
    return "yes"


def map_over_inputs(example):
    """Several inputs at once."""
    many = torch.stack([example.x, 2 * example.x, -example.x])
    close([vmap(example.call)(many)], [torch.stack([example.call(each) for each in many])])
    return "yes"


def per_sample_gradients(example):
    """Each sample's gradient for every parameter and for the sample."""
    axis, x = example.axis, example.x
    parameters = dict(example.module.named_parameters())
    dims = (None, axis, *(0 for _ in example.target))
    got = vmap(grad(example.loss, argnums=(0, 1)), in_dims=dims)(parameters, x, *example.target)
    for k, sample in enumerate(x.unbind(axis)):
        leaf = sample.clone().requires_grad_()
        y = example.call(leaf, target=tuple(t[k] for t in example.target))
        expected = torch.autograd.grad(y.square().sum(), [*parameters.values(), leaf])
        close([*(got[0][name][k] for name in parameters), got[1][k]], expected)
    return "yes"


def compiled(example):
    """The whole module in one graph, and the graph's number of nodes."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    module = torch.compile(example.module, fullgraph=True, backend=counter)
    close(example.gradients(module), example.gradients())
    return f"yes, {_kernels(counter.graphs[0].graph)}"


def exported(example):
    """A program without Python."""
    program = torch.export.export(example.module, (example.x, *example.target))
    close([first(program.module()(example.x, *example.target))], [example.call(example.x)])
    return f"yes, {_kernels(program.run_decompositions().graph)}"


def _kernels(graph):
    nodes = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    ours = sum(name.startswith("xpgrad.") for name in nodes)
    count = ours or len(nodes)
    return f"{count} {'kernel ' if ours else ''}node{'' if count == 1 else 's'}"


def autocast(dtype):
    """Forward and backward under autocast; the largest error of a gradient."""

    def run(example):
        expected = example.gradients(example.exact)
        with torch.autocast("cpu", dtype=dtype):
            x = example.x.clone().requires_grad_()
            y = example.call(x)
        leaves = list(example.module.parameters()) or [x]
        got = torch.autograd.grad(y.float().square().sum(), leaves)
        scale = max(float(b.abs().max()) for b in expected)
        error = max(float((a - b).abs().max()) for a, b in zip(got, expected, strict=True)) / scale
        return f"error {error:.0e}" if error > 1e-5 else "in float32"

    return run


def distributed(example):
    """One process with DistributedDataParallel; examples/distributed.py compares two with one."""
    if not list(example.module.parameters()):
        return "no parameters"
    together = nn.parallel.DistributedDataParallel(copy.deepcopy(example.module))
    close(example.gradients(together), example.gradients())
    return "yes"


COLUMNS = {
    "double backward": double_backward,
    "forward mode (`jvp`)": forward_mode,
    "`vmap`": map_over_inputs,
    "`vmap(grad)`": per_sample_gradients,
    "`torch.compile(fullgraph=True)`": compiled,
    "`torch.export`": exported,
    "autocast bfloat16": autocast(torch.bfloat16),
    "autocast float16": autocast(torch.float16),
    "DistributedDataParallel": distributed,
}


def attempt(run, owner, name):
    """The outcome of a run: its answer, or its failure."""
    try:
        return run(Example(owner, name))
    except AssertionError:
        return "**wrong**"
    except Exception as error:
        return f"no: {type(error).__name__}"


def row(owner, name):
    """The cells of a module."""
    if not hasattr(owner, name):
        return ("it has none",) + ("",) * (len(COLUMNS) - 1)
    return tuple(attempt(run, owner, name) for run in COLUMNS.values())


def table(names):
    """The table of some modules, as Markdown; modules with equal cells share a row."""
    lines = ["| | | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 2) + "|"]
    groups = {}
    for name in names:
        groups.setdefault(tuple(row(owner, name) for owner in (xpgrad_torch, nn)), []).append(name)
    for rows, alike in groups.items():
        for owner, title, cells in zip(("ours", "torch.nn"), (", ".join(alike), ""), rows, strict=True):
            lines.append(f"| {title} | {owner} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    """Print the tables, or write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/pytorch.md")
    write = parser.parse_args().write
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listener.getsockname()[1])}
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    text = "\n\n".join(table(names) for names in FAMILIES.values())
    torch.distributed.destroy_process_group()
    if not write:
        print(text)
        return
    write_between(PAGE, "transforms", text)


if __name__ == "__main__":
    main()
