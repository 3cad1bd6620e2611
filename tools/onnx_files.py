"""Check the gradients of ONNX files: ``python tools/onnx_files.py MODEL.onnx ... [--set NAME=VALUE]``.

Each file is differentiated with respect to its parameters. The tool moves all parameters a small step each
way in a random direction. It weights the change of the outputs with random cotangents, and compares it with
two gradients: of the graph with the kernels' operators, and of the graph of ONNX's own. The file is first
converted to float64, unless ``--as-it-is`` is given. Inputs are drawn at random. Unknown sizes are 2, or
given by ``--size NAME=N``. Some parameters lie on a kink, for example before a Relu if a channel's scale and
shift are zero. Both sides of a kink have different slopes; ``--aside`` compares at a nearby point.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from xpgrad.cli.console import table
from xpgrad_onnx import gradient_model, operators
from xpgrad_onnx._double import in_double

STEPS = (1e-8, 1e-7, 1e-6)
ASIDE = 1e-3  # a share of a parameter's usual size
UNKNOWN = 2  # the size of an axis without a size in the file


def main() -> int:
    """Print a row for each file; returns 1 if one has no gradient, or a wrong one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="fix an input")
    parser.add_argument("--size", action="append", default=[], metavar="NAME=N", help="an axis' size")
    parser.add_argument("--known", action="store_true", help="tell the graphs all sizes of inputs")
    parser.add_argument("--as-it-is", action="store_true", help="in the file's own precision")
    parser.add_argument("--aside", action="store_true", help="move all parameters a little first")
    args = parser.parse_args()
    sizes = {name: int(n) for name, n in (text.split("=") for text in args.size)}
    fixed = {name: float(n) for name, n in (text.split("=") for text in args.set)}
    rows = []
    for path in args.models:
        try:
            rows.append([path.name, *check(path, fixed, sizes, args)])
        except Exception as error:  # the table says which files fail, and how
            rows.append([path.name, *"-----", f"{type(error).__name__}: {error}"])
        print(*rows[-1], file=sys.stderr, flush=True)
    columns = ["file", "parameters", "error", "seconds", "standard: error", "seconds", ""]
    table("gradients of files", columns, rows)
    return int(any(row[-1] for row in rows))


def check(path: Path, fixed: dict[str, float], sizes: dict[str, int], given: argparse.Namespace) -> list[str]:
    """The number of parameters; for both kinds of graph the relative error and the seconds; what is wrong.

    The seconds are for making the graph and for running it.
    """
    model = onnx.load(path)
    model = model if given.as_it_is else in_double(model)
    for value in model.graph.input if given.known else ():
        for d, size in zip(value.type.tensor_type.shape.dim, shape_of(value, sizes), strict=True):
            d.dim_value = size
    rng = np.random.default_rng(0)
    names = {value.name for value in model.graph.input}
    inputs = {name: cast(model, name, value) for name, value in fixed.items() if name in names}
    graphs, making, bad = graphs_of(model, inputs)
    defaults = {tensor.name: numpy_helper.to_array(tensor) for tensor in graphs[0].graph.initializer}
    wanted = [o.name.removesuffix("_grad") for o in graphs[0].graph.output if o.name.endswith("_grad")]
    wanted = [name for name in wanted if name in defaults]
    feeds = {
        value.name: drawn(value, sizes, rng) for value in model.graph.input
        if value.name not in inputs and value.name not in {t.name for t in model.graph.initializer}
    }  # fmt: skip
    taken = {value.name for value in graphs[0].graph.input}
    outputs = [value.name for value in model.graph.output if f"{value.name}_grad" in taken]
    forward = ReferenceEvaluator(model, new_ops=operators())
    cotangents = {
        f"{name}_grad": rng.normal(size=value.shape).astype(value.dtype)
        for name, value in zip(outputs, forward.run(outputs, feeds | inputs), strict=True)
    }
    ways = {name: rng.normal(size=defaults[name].shape) * spread(defaults[name]) for name in wanted}
    for name in wanted if given.aside else ():
        value = defaults[name]
        defaults[name] = (value + ASIDE * spread(value) * rng.normal(size=value.shape)).astype(value.dtype)
    values = feeds | cotangents | {name: defaults[name] for name in wanted}
    slopes, running = zip(*(slope_of(graph, values, ways) for graph in graphs), strict=True)

    evaluator = ReferenceEvaluator(graphs[0], new_ops=operators())

    def weighted(distance: float) -> float:
        moved = {n: (defaults[n] + distance * way).astype(defaults[n].dtype) for n, way in ways.items()}
        pairs = zip(outputs, evaluator.run(outputs, feeds | cotangents | moved), strict=True)
        return sum(float(np.sum(result.astype(float) * cotangents[f"{name}_grad"])) for name, result in pairs)

    steps = (1e-3, 1e-2) if given.as_it_is else STEPS  # the smaller meets fewer kinks, the larger rounds less
    changes = [(weighted(step) - weighted(-step)) / (2 * step) for step in steps]
    cells = []
    for slope, before, seconds in zip(slopes, making, running, strict=False):
        measured = min(changes, key=lambda change: abs(change - slope))
        error = abs(slope - measured) / max(abs(slope), abs(measured), 1e-30)
        cells += [f"{error:.1e}", f"{before:.1f} + {seconds:.2f}"]
        if error >= (0.05 if given.as_it_is else 1e-4):
            bad = f"{slope:.9g} along, {measured:.9g} measured"
    cells += ["-"] * (4 - len(cells))
    return [str(sum(defaults[name].size for name in wanted)), *cells, bad]


def graphs_of(
    model: onnx.ModelProto, inputs: dict[str, Any]
) -> tuple[list[onnx.ModelProto], list[float], str]:
    """The graph with the kernels' operators and of ONNX's own, the seconds to make each, and an error."""
    graphs, making, bad = [], [], ""
    for standard in (False, True):
        began = time.perf_counter()
        try:
            graphs.append(gradient_model(model, inputs=inputs, standard=standard))
        except ValueError as error:
            if not standard:
                raise
            bad = f"standard: {error}"
        making.append(time.perf_counter() - began)
    return graphs, making, bad


def slope_of(graph: onnx.ModelProto, feeds: dict[str, Any], ways: dict[str, Any]) -> tuple[float, float]:
    """The slope along a direction by the gradients, and the seconds of a run."""
    evaluator = ReferenceEvaluator(graph, new_ops=operators())
    began = time.perf_counter()
    grads = evaluator.run([f"{name}_grad" for name in ways], feeds)
    seconds = time.perf_counter() - began
    pairs = zip(ways.values(), grads, strict=True)
    return sum(float(np.sum(grad.astype(float) * way)) for way, grad in pairs), seconds


def spread(values: np.ndarray) -> float:
    """A parameter's usual size."""
    return float(np.sqrt(np.mean(np.square(values.astype(float))))) or 1e-3


def cast(model: onnx.ModelProto, name: str, value: float) -> np.ndarray:
    """A number in an input's type."""
    kind = next(v for v in model.graph.input if v.name == name).type.tensor_type.elem_type
    return np.asarray(value, dtype=helper.tensor_dtype_to_np_dtype(kind))


def shape_of(value: onnx.ValueInfoProto, sizes: dict[str, int]) -> list[int]:
    """An input's shape."""
    return [
        sizes.get(f"{value.name}.{k}", d.dim_value if d.dim_value > 0 else sizes.get(d.dim_param, UNKNOWN))
        for k, d in enumerate(value.type.tensor_type.shape.dim)
    ]


def drawn(value: onnx.ValueInfoProto, sizes: dict[str, int], rng: Any) -> np.ndarray:
    """A random input."""
    kind, shape = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type), shape_of(value, sizes)
    if kind.kind in "iu":
        return rng.integers(0, 9, size=shape).astype(kind)
    return (rng.normal(size=shape) / 2).astype(kind) if kind.kind == "f" else np.ones(shape, dtype=kind)


if __name__ == "__main__":
    raise SystemExit(main())
