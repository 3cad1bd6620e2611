"""Write vectors: inputs, saved arrays, cotangents and gradients for the tests of other people's kernels.

Every case is computed in float64 and compared with central differences. Each case becomes one file (npz:
NumPy's archive; json: numbers as text). With --format onnx it becomes two folders, for the forward and the
gradient, in the layout of ONNX's backend tests.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .._cases.vectors import Vector, operators, vectors
from .arguments import at_least_one, not_negative
from .console import Progress, message, table

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("operator", choices=operators(), metavar="OPERATOR", help=", ".join(operators()))
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the folder to write to")
    parser.add_argument(
        "--format", choices=sorted(FORMATS), default="npz", help="how to write them (default: %(default)s)"
    )
    parser.add_argument(
        "--cases",
        type=at_least_one,
        metavar="N",
        help="the number of cases, which cycle through the options (default: one of each)",
    )
    parser.add_argument(
        "--seed", type=not_negative, default=0, metavar="N", help="seed of the numbers (default: %(default)s)"
    )
    parser.add_argument("--option", metavar="NAME", help="the only option, as check --all prints it")


def run(args: argparse.Namespace) -> int:
    """Make the vectors and write them.

    Returns 0; 1 if the arguments select nothing or the format's package is missing; 2 if nothing can be
    written.
    """
    try:
        write = FORMATS[args.format]()
        found = vectors(args.operator, args.cases, args.seed, option=args.option)
    except ImportError:
        message(f"--format {args.format} needs the package onnx: pip install onnx")
        return 1
    except ValueError as error:
        message(str(error))
        return 1
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        rows = _written(args, found, write)
    except OSError as error:
        message(f"vectors: --out is {args.out}, expected a folder to write to: {error.strerror}")
        return 2
    written = sum(row[-1] == "written" for row in rows)
    table(
        f"Vectors of {args.operator} in {args.out}",
        ["case", "option", "error", ""],
        rows,
        footer=f"{written} of {len(rows)} written. Errors are those to central differences, in float64.",
    )
    return 0 if written else 1


def _written(
    args: argparse.Namespace, found: Iterator[Vector], write: Callable[..., None]
) -> list[list[str]]:
    """Write the vectors; a line for each."""
    rows = []
    for index, vector in enumerate(Progress(found, "vectors", args.cases)):
        name = f"{vector.operator}_{index:03d}"
        try:
            write(vector, args.out, name)
        except NotImplementedError as error:
            rows.append([name, vector.option, f"{vector.error:.1e}", f"left out: {error}"])
        else:
            rows.append([name, vector.option, f"{vector.error:.1e}", "written"])
    return rows


# ----------------------------------------------------------------------------------------------- the formats


_ABOUT = ("operator", "option", "attributes", "error")


def _parts(vector: Vector) -> tuple[dict[str, Any], dict[str, Mapping[str, np.ndarray]]]:
    """The facts about a vector, and its groups of arrays."""
    fields = vector._asdict()
    return {key: fields.pop(key) for key in _ABOUT}, fields


def _write_npz(vector: Vector, folder: Path, name: str) -> None:
    about, groups = _parts(vector)
    arrays = {f"{group}/{key}": array for group, part in groups.items() for key, array in part.items()}
    np.savez_compressed(folder / f"{name}.npz", about=json.dumps(about), **arrays)  # type: ignore[arg-type]


def _write_json(vector: Vector, folder: Path, name: str) -> None:
    def described(array: np.ndarray) -> dict[str, Any]:
        return {"shape": list(array.shape), "dtype": array.dtype.name, "data": array.reshape(-1).tolist()}

    about, groups = _parts(vector)
    arrays = {group: {key: described(array) for key, array in part.items()} for group, part in groups.items()}
    (folder / f"{name}.json").write_text(json.dumps(about | arrays), encoding="utf-8")


def _onnx_writer() -> Callable[[Vector, Path, str], None]:
    from xpgrad_onnx.backend_tests import write

    return write


FORMATS: dict[str, Callable[[], Callable[[Vector, Path, str], None]]] = {
    "json": lambda: _write_json,
    "npz": lambda: _write_npz,
    "onnx": _onnx_writer,
}
