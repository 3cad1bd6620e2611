"""Prints the rates of matrix products in one thread: ours, torch.mm's (MKL), NumPy's and oneDNN's.

    python asv_bench/products.py                  # both dtypes
    python asv_bench/products.py --dtype float32 --seconds 0.3
    python asv_bench/products.py --write          # and put the table into docs/machines

GFLOP/s, the median of calls in turns. The last column is our rate over the best library's, turn by turn. A
time loop has few rows and uses the same weight in every step, so we and oneDNN pack it before. Products after
a loop have many rows, with factors by rows or by columns (turned).
"""

import argparse
from collections.abc import Iterable
from functools import partial
from statistics import median

import numpy as np
import torch

from page import machine_page, write_between
from xpgrad.cli.info import read_cpu
from xpgrad.engine.compiled.products import matrix as products
from xpgrad.engine.process.blas import in_one_thread
from xpgrad.engine.process.team import PoolTeam
from xpgrad_bench.timing import in_turns

MARK = "products"
DTYPES = ("float32", "float64")
FEW = [(1, 256, 1024), (8, 256, 1024), (16, 256, 1024), (16, 650, 2600), (32, 64, 256), (32, 512, 2048)]
# Rows, summed elements, columns, and which factors are turned.
MANY = [
    (1600, 256, 1024, ""), (1600, 256, 1024, "B"), (1024, 1600, 256, "A"), (700, 650, 2600, "B"),
    (2600, 700, 650, "A"), (1600, 1024, 240, ""), (2048, 512, 64, ""), (512, 2048, 64, "A"),
]  # fmt: skip


class OneThread(PoolTeam):
    """A team of the calling thread only."""

    def size(self):
        """The number of threads."""
        return 1


def libraries(a, b, c):
    """The products of other libraries."""
    left, right, out = (torch.from_numpy(x) for x in (a, b, c))
    return {"torch.mm": partial(torch.mm, left, right, out=out), "NumPy": partial(np.matmul, a, b, out=c)}


def few_rows(dtype, m, k, n):
    """The libraries' products for a time loop."""
    a, b, c = matrix(dtype, m, k), matrix(dtype, n, k).T, np.empty((m, n), dtype)
    panels = products.packed(b)
    ways = {"ours": products.packed_product(a, panels, c), **libraries(a, b, c)}
    if dtype == "float32" and torch.backends.mkldnn.is_available():
        weight = torch.ops.mkldnn._reorder_linear_weight(torch.from_numpy(b.T), m)
        linear = torch.ops.mkldnn._linear_pointwise
        ways["oneDNN"] = partial(linear, torch.from_numpy(a), weight, None, "none", [], "")
    return ways


def many_rows(dtype, m, k, n, turned):
    """The libraries' products after a loop."""
    a = matrix(dtype, k, m).T if "A" in turned else matrix(dtype, m, k)
    b = matrix(dtype, n, k).T if "B" in turned else matrix(dtype, k, n)
    c = np.empty((m, n), dtype)
    return {"ours": partial(products.multiply, OneThread(), a, b, c), **libraries(a, b, c)}


def matrix(dtype, rows, columns):
    """Random numbers."""
    return np.random.default_rng(0).normal(size=(rows, columns)).astype(dtype)


def table(dtypes, seconds):
    """Lines of a Markdown table; each is printed as soon as it is measured."""
    columns = ("ours", "torch.mm", "NumPy", "oneDNN")
    yield f"| rows x inner x columns | {' | '.join(columns)} | ours / best |"
    yield "| --- " + "| ---: " * (len(columns) + 1) + "|"
    for dtype in dtypes:
        cases = [(f"few, {dtype}", size, few_rows) for size in FEW]
        cases += [(f"many, {dtype}", size, many_rows) for size in MANY]
        for name, size, make in cases:
            found = in_turns(make(dtype, *size), seconds, warm=True)
            operations = 2 * size[0] * size[1] * size[2]
            middle = {library: median(times) for library, times in found.items()}
            torn = f", {size[3]} turned" if len(size) > 3 and size[3] else ""
            cells = [f"{operations / middle[c] / 1e9:.0f}" if c in middle else "-" for c in columns]
            best = min(middle, key=middle.get)
            share = median(theirs / ours for theirs, ours in zip(found[best], found["ours"], strict=True))
            yield f"| {size[0]} x {size[1]} x {size[2]}, {name}{torn} | {' | '.join(cells)} | {share:.2f} |"


def _printed(lines: Iterable[str]) -> list[str]:
    kept = []
    for line in lines:
        print(line, flush=True)
        kept.append(line)
    return kept


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", choices=DTYPES, help="this one only")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each row (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="into the page in docs/machines")
    given = parser.parse_args()
    torch.set_num_threads(1)
    cpu = read_cpu().label
    print(f"One thread of {cpu}; NumPy {np.__version__}, PyTorch {torch.__version__}.\n")
    lines = in_one_thread(_printed, table([given.dtype] if given.dtype else DTYPES, given.seconds))
    if given.write:
        head = f"One thread of {cpu}; NumPy {np.__version__}, PyTorch {torch.__version__}. GFLOP/s."
        write_between(machine_page(cpu), MARK, "\n".join([head, "", *lines]))


if __name__ == "__main__":
    main()
