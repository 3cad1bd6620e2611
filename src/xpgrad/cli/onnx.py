"""Look into an ONNX file: its operators and parameters, what can be trained, and what not and why.

--train OUT writes a step of training as a model of ONNX's own operators, for any runtime. It also writes a
file with .values in its name: a model without inputs that returns the values for the first step.

Some models have branches that depend on an input, such as a sampling rate. --set NAME=VALUE fixes the input
and folds all that follows from it, as gradient_model(model, inputs={NAME: VALUE}) does.
"""

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from .arguments import unwritable
from .console import message, paragraph, table

__all__ = ["add_arguments", "run"]

_SHOWN = 12  # the number of listed parameters without --all
_LOSS, _OPTIMIZER = "cross_entropy", "adamw"  # of --train


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("model", type=Path, metavar="MODEL", help="the file, such as model.onnx")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=_assignment,
        metavar="NAME=VALUE",
        help="fix an input; numbers with commas between them are a row",
    )
    parser.add_argument("--all", action="store_true", help="list every parameter")
    parser.add_argument("--train", type=Path, metavar="OUT", help="write a step of training to this file")
    parser.add_argument(
        "--loss",
        help=f"with --train: cross_entropy, mse, bce_with_logits, or an output (default: {_LOSS})",
    )
    parser.add_argument(
        "--optimizer",
        choices=("sgd", "momentum", "adamw"),
        help=f"with --train (default: {_OPTIMIZER})",
    )


def _assignment(text: str) -> tuple[str, Any]:
    """An input and its value."""
    name, equals, value = text.partition("=")
    try:
        numbers = [float(part) for part in value.split(",")]
    except ValueError:
        numbers = []
    if not name or not equals or not numbers:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=VALUE with a number, such as sr=16000")
    whole = [int(number) if number.is_integer() else number for number in numbers]
    return name, np.asarray(whole if "," in value else whole[0])


def _problem(args: argparse.Namespace) -> str | None:
    """Why the arguments cannot be used together, or None."""
    names = [name for name, _ in args.set]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        return f"--set gives {repeated[0]} twice, expected each input once"
    if args.train is not None:
        if problem := unwritable("--train", args.train):
            return problem
        for path in (args.train, _values_beside(args.train)):
            if path.exists() and args.model.exists() and path.samefile(args.model):
                return f"--train is {args.train}, expected another file: it would replace the model"
        return None
    needless = [name for name in ("loss", "optimizer") if getattr(args, name) is not None]
    return f"--{needless[0]} goes with --train" if needless else None


def run(args: argparse.Namespace) -> int:
    """Print the file's operators and parameters.

    Returns 0 if the model can be trained; 1 if not, if a file cannot be read or written, or if onnx is not
    installed; 2 if the arguments do not go together.
    """
    problem = _problem(args)
    if problem:
        message(f"onnx: {problem}")
        return 2
    if importlib.util.find_spec("onnx") is None:
        message("onnx is not installed: pip install onnx")
        return 1
    import onnx

    from xpgrad_onnx._report import inspect

    try:
        model = onnx.load(args.model)
    except Exception as error:  # protobuf has its own exceptions
        message(f"{args.model} cannot be read as an ONNX model: {error}")
        return 1
    report = inspect(model, dict(args.set))
    opset = f"opset {report.opset}"
    if report.used not in (None, report.opset):
        opset += f", differentiated in opset {report.used}"
    producer = " ".join((model.producer_name, model.producer_version)).strip()
    ends = [("input", *row) for row in report.inputs] + [("output", *row) for row in report.outputs]
    table(f"{args.model.name}: {opset}" + (f", by {producer}" if producer else ""), ["", "", ""], ends)
    print()
    table(
        "Operators: nodes in the file, those left when what is known is folded, those with a gradient",
        ["operator", "nodes", "left", "differentiated", "gradient"],
        report.operators,
    )
    print()
    _print_parameters(report, len(report.parameters) if args.all else _SHOWN)
    print()
    if report.trouble:
        paragraph(f"No training graph. {report.trouble}")
        return 1
    paragraph(f"It can be trained: gradient_model makes a graph of {report.training_nodes} nodes.")
    return 0 if args.train is None else _write_step(model, args)


def _values_beside(train: Path) -> Path:
    """The file of a step's first values."""
    return train.with_name(f"{train.stem}.values{train.suffix}")


def _write_step(model: Any, args: argparse.Namespace) -> int:
    """Write the step of training and its first values, and return the command's status."""
    import onnx

    from xpgrad_onnx import constant_model, initial_values, training_model

    values = _values_beside(args.train)
    optimizer: Any = args.optimizer or _OPTIMIZER
    try:
        step = training_model(model, args.loss or _LOSS, optimizer=optimizer, inputs=dict(args.set))
        onnx.save(step, args.train)
        onnx.save(constant_model(initial_values(model, step)), values)
    except (OSError, ValueError, TypeError) as error:
        message(f"no step of training: {error}")
        return 1
    paragraph(f"Written: {args.train}, a step of {optimizer}, and {values}, the values of the first one.")
    return 0


def _print_parameters(report: Any, shown: int) -> None:
    """Print the parameters, and the constants that are no parameters."""
    count = sum(int(np.prod(parameter.shape)) for parameter in report.parameters)
    rest = len(report.parameters) - shown
    table(
        f"Parameters: {count:,} numbers in {len(report.parameters)} tensors",
        ["parameter", "shape", "type"],
        [(p.name, " x ".join(map(str, p.shape)) or "a number", p.dtype) for p in report.parameters[:shown]],
        footer=f"and {rest} more: --all lists them" if rest > 0 else None,
    )
    for reason, names in report.others.items():
        few = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        paragraph(f"No parameters, {reason}: {few}", indent="    ")
