"""Prints the time of a step of an LSTM's time loops: of the product, of the formula, and of both.

    python asv_bench/time_loops.py            # a table of some sizes
    python asv_bench/time_loops.py --write    # and put it into docs/machines

float32, all threads of PyTorch. A loop needs a formula, so the product's loop copies one block of columns.
The last column is the rate of both over the rate of the best product, as in `python -m xpgrad bench`.
"""

import argparse
import ctypes
from functools import partial
from statistics import median

import numpy as np
import torch

from page import machine_page, write_between
from xpgrad import engine as engines
from xpgrad._elementwise.activation_formulas import ONNX_ACTIVATIONS
from xpgrad.cli.info import read_cpu
from xpgrad.engine import Elementwise, Formula, Operand, Product, Span
from xpgrad.engine.compiled.formula_code import c_function
from xpgrad.engine.compiled.records import (
    InstructionHead,
    Kind,
    ProgramHead,
    SharedWork,
    WorkRecord,
    flat,
    length,
    positions,
)
from xpgrad.engine.numpy_engine import loop_integers
from xpgrad.engine.process.memory import address_of
from xpgrad.engine.process.team import compiled_share
from xpgrad.lstm import _lstm_step, _lstm_step_pullback
from xpgrad_bench.implementations.pytorch import product_rate
from xpgrad_bench.timing import in_turns

MARK = "loops"
SIZES = ((50, 32, 64), (50, 32, 256), (100, 64, 512), (35, 20, 650), (200, 128, 128))
ORDER = (0, 3, 1, 2)  # PyTorch's i f g o for the kernels' i o f g


def copied(xp, x):
    """The shortest formula."""
    return (x,)


def numbers(*shape):
    """Small random numbers."""
    return (0.1 * np.random.default_rng(0).normal(size=shape)).astype(np.float32)


def constants():
    """The constants of a usual LSTM."""
    sigmoid, tanh = (ONNX_ACTIVATIONS[name].bind(0.0, 0.0) for name in ("sigmoid", "tanh"))
    return {"gate": sigmoid, "candidate": tanh, "output": tanh, "clip": None, "input_forget": False}


def forward(engine, steps, rows, N, H):
    """The product and the formula of a forward step."""
    gates, products_, h, c = numbers(rows, 4 * H), numbers(N, 4 * H), numbers(rows, H), numbers(rows, H)
    z, b = Operand(gates, 4, "now", ORDER), Operand(numbers(1, 4 * H), 4, "every", ORDER)
    r, c_prev = Operand(products_, 4, "first", ORDER), Operand(c, 1, "before")
    inputs = [z, r, b, Operand(None, 3), c_prev, Operand(None)]
    weight = engine.loop_weight(numbers(4 * H, H).T, steps)
    product = Product(Operand(h, 1, "before"), weight, products_)
    return product, Elementwise(Formula(_lstm_step, constants()), inputs, [z, Operand(c), Operand(h)])


def backward(engine, steps, rows, N, H):
    """The product and the formula of a backward step."""
    dz, dh, dc, c = numbers(rows, 4 * H), numbers(N, H), numbers(N, H), numbers(rows, H)
    none, carried = Operand(None), Operand(dc, 1, "first")
    inputs = [
        Operand(numbers(rows, H)), Operand(dh, 1, "first"), none, carried,
        Operand(numbers(rows, 4 * H), 4, "now", ORDER), Operand(c), none, Operand(c, 1, "before"),
        Operand(None, 4), Operand(None, 4), Operand(None, 3),
    ]  # fmt: skip
    formula = Formula(_lstm_step_pullback, constants() | {"full": False})
    stage = Elementwise(formula, inputs, [Operand(dz, 4, "local", ORDER), carried])
    return Product(Operand(dz, 4, "local"), engine.loop_weight(numbers(4 * H, H), steps), dh), stage


def runner(engine, loop):
    """A function that runs a loop; if its threads share columns, as a program would."""
    integers = loop_integers(loop)
    if not loop.head.stages:
        return partial(engine.run_loop, loop, integers)
    begin, kind = length(ProgramHead), positions(Kind).steps
    record_at = begin + length(InstructionHead)
    start, number, first = engine.team.addresses
    shared = SharedWork(loop.function, address_of(integers), loop.parts, number, first)
    record = flat(WorkRecord(0, shared))
    head = ProgramHead(start, compiled_share(), guard=0, steps=0)
    code = np.asarray([*head, length(InstructionHead) + len(record), kind, *record])
    code[record_at] = address_of(code) + 8 * (record_at + positions(WorkRecord).shared.function)
    arguments, call = "int64 code, int64 begin, int64 end", "execute(code, begin, end)"
    address = c_function("program", "programs.native_program", arguments, call)
    execute = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(address)

    def run(kept=(integers, loop)):
        execute(address_of(code), begin, len(code))

    return run


def line(engine, best, size, make):
    """One row of the table."""
    T, N, H = size
    steps = np.asarray([Span(N, now, now - N, now) for now in range(N, T * N, N)])
    product, formula = make(engine, T, T * N, N, H)
    target = Operand(product.target, product.target.shape[1] // H, "first", (0,))
    copy = Elementwise(Formula(copied), [target], [Operand(numbers(N, H), 1, "first")])
    stages = {"product": [product, copy], "formula": [formula], "both": [product, formula]}
    ways = {
        name: runner(engine, engine.time_loop(some, steps, by_stages=True)) for name, some in stages.items()
    }
    found = [median(times) / len(steps) for times in in_turns(ways, least=15).values()]
    share = 2 * N * H * 4 * H / found[-1] / best
    cells = " | ".join(f"{1e6 * taken:.1f}" for taken in found)
    return f"| {make.__name__} {N}·{H} | {cells} | {share:.2f} |"


def table(engine, best):
    """Lines of a Markdown table."""
    yield "| step | product, us | formula, us | both, us | share of the best product |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for size in SIZES:
        for make in (forward, backward):
            yield line(engine, best, size, make)


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="into the page in docs/machines")
    given = parser.parse_args()
    engine, cpu = engines.of_type(torch.zeros(1)), read_cpu()
    best = product_rate("float32", 2.0)
    head = f"{cpu.label}, {torch.get_num_threads()} threads. The best product: {best / 1e9:.0f} GFLOP/s."
    print(f"{head}\n")
    lines = []
    for one in table(engine, best):
        print(one, flush=True)
        lines.append(one)
    if given.write:
        write_between(machine_page(cpu.label), MARK, "\n".join([head, "", *lines]))


if __name__ == "__main__":
    main()
