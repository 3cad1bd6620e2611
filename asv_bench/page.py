"""Pages with generated text between marks, and the page of each measured machine."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
MACHINES = DOCS / "machines"
MARKS = ("machine", "summary", "behind", "instructions", "loops", "products", "details")

_NEW_PAGE = """# {cpu}

Results of `python -m xpgrad bench` on this machine.
[Performance](../performance.md#how-it-is-measured) describes the method.

## Summary

*Speedup* is the peer's time over ours: above 1 ours is faster. For memory it is the peer's peak over ours.
*Aim* is the project's goal. *Of floor* is the time that no implementation can beat, over the measured time:
100 % is the limit. [Performance](../performance.md#how-it-is-measured) says what the floor ignores.

<!-- summary: begin -->
<!-- summary: end -->

[![Speedups as bars, and rates under the roofline]({slug}.png)]({slug}.png)

Click on the picture to see it in full.

## The machine

<!-- machine: begin -->
<!-- machine: end -->

## Where a peer is ahead

Every case in which ours was slower in this run. At a speedup of 0.80 ours takes 1.25 times as
long.

<!-- behind: begin -->
<!-- behind: end -->

## Where a step's time goes

By kind of instruction of the compiled programs that make up a step. The rest is Python and PyTorch. *Its
share* is the whole step's rate over the best product's rate, measured in turns. *Products alone, share* is
the same for the step's larger products only, each computed by the faster of PyTorch's and ours.

<!-- instructions: begin -->
Not measured on this machine.
<!-- instructions: end -->

## Steps of the time loops

An LSTM's step in a compiled loop, in microseconds: only its product, only its formula, and both.

<!-- loops: begin -->
Not measured on this machine.
<!-- loops: end -->

## Matrix products

GFLOP/s in one thread: our own products, PyTorch's, NumPy's and oneDNN's.

<!-- products: begin -->
Not measured on this machine.
<!-- products: end -->

## Every case

*Set by* names the larger side of the floor. A name like `lstm 50, 32, 256, 256` is operator, T, N, I, H
(a range is of lengths); `8, 64, 56 x 56; 64, 3 x 3` is N, C, size; channels of the output, kernel.

<!-- details: begin -->
<!-- details: end -->
"""


def write_between(page: Path, name: str, text: str) -> None:
    """Replace the text between ``<!-- name: begin -->`` and ``<!-- name: end -->``."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{page} has no marks {begin} and {end}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def slug(cpu: str) -> str:
    """A CPU's name as a file name: ``Intel(R) Xeon(R) Processor`` is ``intel_xeon``."""
    words = re.sub(r"\(\w+\)|\b(processor|cpu)\b|@.*", " ", cpu.lower())
    return "_".join(re.findall(r"[a-z0-9]+", words))


def machine_page(cpu: str) -> Path:
    """The page of a machine; it is created if the machine has none."""
    page = MACHINES / f"{slug(cpu)}.md"
    if not page.exists():
        page.parent.mkdir(exist_ok=True)
        page.write_text(_NEW_PAGE.format(cpu=cpu, slug=slug(cpu)), encoding="utf-8")
    return page
