"""What PyTorch's transformations give on our recurrent modules and on torch.nn's: a table in docs/pytorch.md.

    python asv_bench/transforms.py            print the table
    python asv_bench/transforms.py --write    put it into docs/pytorch.md, between its marks

Each cell is one run on float32 modules on the CPU, compared with a computation that needs no transformation.
"""

import argparse
import copy
import logging
import os
import socket
import warnings
from pathlib import Path

import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import functional_call, grad, jvp, vmap

import xpgrad_torch

PAGE = Path(__file__).parents[1] / "docs" / "pytorch.md"
BEGIN, END = "<!-- transforms: begin -->", "<!-- transforms: end -->"
T, N, I, H = 6, 4, 3, 5
MODULES = ["LSTM", "GRU", "LSTMCell", "GRUCell"]


def example(kind):
    """A module in float32 and an input, the same for ours and theirs."""
    torch.manual_seed(0)
    module = kind(I, H)
    return module, torch.randn(*((N, I) if kind.__name__.endswith("Cell") else (T, N, I)))


def output(result):
    """The first tensor of a module's result."""
    return result if isinstance(result, torch.Tensor) else output(result[0])


def loss_of(module):
    """The loss as a function of parameters and input."""
    return lambda parameters, x: output(functional_call(module, parameters, (x,))).square().sum()


def close(got, expected):
    """Raise where the numbers are not the same but for float32's rounding."""
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.float(), b.float(), rtol=1e-3, atol=1e-3)


def exact(module):
    """Parameters in float64, on PyTorch's own modules, whose float64 path consists of simple operators."""
    kind = getattr(nn, type(module).__name__)
    double = kind(I, H).double()
    double.load_state_dict(module.state_dict())
    return double


def double_backward(module, x):
    """The gradient of a gradient's length."""
    results = []
    for each, point in ((module, x), (exact(module), x.double())):
        leaf = point.clone().requires_grad_()
        (first,) = torch.autograd.grad(output(each(leaf)).square().sum(), leaf, create_graph=True)
        results.append(torch.autograd.grad(first.square().sum(), [leaf, *each.parameters()]))
    close(*results)
    return "yes"


def forward_mode(module, x):
    """A derivative along a direction, beside differences in float64."""
    tangent = torch.randn_like(x)
    _, got = jvp(lambda x: output(module(x)), (x,), (tangent,))
    double, step = exact(module), 1e-6
    ahead, behind = (output(double(x.double() + s * step * tangent.double())) for s in (1, -1))
    close([got], [(ahead - behind) / (2 * step)])
    return "yes"


def map_over_inputs(module, x):
    """Several inputs at once."""
    many = torch.stack([x, 2 * x, -x])
    close([vmap(lambda x: output(module(x)))(many)], [torch.stack([output(module(each)) for each in many])])
    return "yes"


def per_sample_gradients(module, x):
    """Each sample's gradient of every parameter."""
    axis = x.dim() - 2
    parameters = dict(module.named_parameters())
    got = vmap(grad(loss_of(module)), in_dims=(None, axis))(parameters, x)
    for k, sample in enumerate(x.unbind(axis)):
        leaves = list(module.parameters())
        expected = torch.autograd.grad(output(module(sample)).square().sum(), leaves)
        close([got[name][k] for name in parameters], expected)
    return "yes"


def compiled(module, x):
    """The whole module in one graph, and how many nodes that has."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    close([output(torch.compile(module, fullgraph=True, backend=counter)(x))], [output(module(x))])
    return f"yes, {_kernels(counter.graphs[0].graph)}"


def exported(module, x):
    """A program without Python."""
    program = torch.export.export(module, (x,))
    close([output(program.module()(x))], [output(module(x))])
    return f"yes, {_kernels(program.run_decompositions().graph)}"


def _kernels(graph):
    nodes = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    ours = sum(name.startswith("xpgrad.") for name in nodes)
    return f"{ours} kernel node" if ours else f"{len(nodes)} nodes"


def autocast(dtype):
    """Forward and backward under autocast; the largest error of a gradient."""

    def run(module, x):
        with torch.autocast("cpu", dtype=dtype):
            y = output(module(x))
        got = torch.autograd.grad(y.float().square().sum(), list(module.parameters()))
        double = exact(module)
        expected = torch.autograd.grad(output(double(x.double())).square().sum(), list(double.parameters()))
        scale = max(float(b.abs().max()) for b in expected)
        error = max(float((a - b).abs().max()) for a, b in zip(got, expected, strict=True)) / scale
        return f"error {error:.0e}"

    return run


def distributed(module, x):
    """One process with DistributedDataParallel; examples/distributed.py compares two with one."""
    together = nn.parallel.DistributedDataParallel(copy.deepcopy(module))
    got = torch.autograd.grad(output(together(x)).square().sum(), list(together.parameters()))
    close(got, torch.autograd.grad(output(module(x)).square().sum(), list(module.parameters())))
    return "yes"


ROWS = {
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


def attempt(run, kind):
    """What a run gives: its answer, or how it fails."""
    try:
        return run(*example(kind))
    except AssertionError:
        return "**wrong**"
    except Exception as error:
        return f"no: {type(error).__name__}"


def table():
    """The whole table, as Markdown."""
    head = [f"{owner} {name}" for name in MODULES for owner in ("our", "torch's")]
    lines = ["| | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for title, run in ROWS.items():
        cells = [attempt(run, getattr(owner, name)) for name in MODULES for owner in (xpgrad_torch, nn)]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into docs/pytorch.md")
    write = parser.parse_args().write
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listener.getsockname()[1])}
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    text = table()
    torch.distributed.destroy_process_group()
    if not write:
        print(text)
        return
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    main()
