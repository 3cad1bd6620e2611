"""Prints the README's tables of training steps: PyTorch's time over ours, each pair measured in turns.

    python asv_bench/table.py                      # print both
    python asv_bench/table.py --write              # and put them into the README
    python asv_bench/table.py --only convolution   # or recurrent

Every pair runs in a process of its own, so that no pair meets the thread pools of another.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
COLUMNS = {
    "LSTM": ("lstm", False),
    "GRU": ("gru", False),
    "LSTM, uneven lengths": ("lstm", True),
    "GRU, uneven lengths": ("gru", True),
    "peephole LSTM": ("lstm-peephole", False),
}
_PAIR = """
import sys
sys.path.insert(0, {here!r})
from benchmarks.common import ratio
from benchmarks.{module} import {table}, make
ours, peer = (make(impl, {arguments}) for impl in ({ours!r}, {peer!r}))
print(1 / ratio(ours.{what}, peer.{what}, seconds={seconds}))
"""
_MISSING = "NotImplementedError"  # what a benchmark raises where a peer is not installed


def pair(seconds, module, table, arguments, ours="xpgrad-torch", peer="torch", what="step"):
    """The peer's median time over ours, from a process of its own; None where the peer is not installed."""
    code = _PAIR.format(
        here=str(HERE), seconds=seconds, module=module, table=table, arguments=arguments, ours=ours,
        peer=peer, what=what,
    )  # fmt: skip
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if result.returncode and _MISSING in result.stderr:
        return None
    result.check_returncode()
    return float(result.stdout.split()[-1])


def machine():
    """What was measured on, in a line."""
    import numpy
    import torch

    import xpgrad

    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
        cpu = names[0].partition(":")[2].strip() if names else cpu
    return (
        f"{cpu}, {os.cpu_count()} cores, {torch.get_num_threads()} threads; PyTorch {torch.__version__}, "
        f"NumPy {numpy.__version__}, xpgrad {xpgrad.__version__}"
    )


def recurrent(seconds):
    """The table of LSTMs and GRUs."""
    from benchmarks.common import SHAPES

    yield "How many times as fast as PyTorch's own module a training step (forward and backward, float32) of"
    yield "`xpgrad_torch`'s drop-in is; for uneven lengths PyTorch packs the sequences, for peepholes it is a"
    yield "loop over time. Above 1 is ours."
    yield ""
    yield f"| T, N, I, H | {' | '.join(COLUMNS)} |"
    yield f"| --- |{' ---: |' * len(COLUMNS)}"
    for shape, sizes in SHAPES.items():
        cells = []
        for case, uneven in COLUMNS.values():
            arguments = f"{case!r}, SHAPES[{shape!r}], uneven={uneven}"
            cells.append(_cell(pair(seconds, "common", "SHAPES", arguments)))
        yield f"| {', '.join(map(str, sizes))} | {' | '.join(cells)} |"


def convolution(seconds):
    """The table of convolutions."""
    from benchmarks.convolution_runs import CONVOLUTIONS

    columns = {
        "step, tensors": {},
        "backward, arrays, over ONNX Runtime's": {
            "ours": "xpgrad-numpy",
            "peer": "ort",
            "what": "backward",
        },
    }
    ratios = {name: [] for name in columns}
    yield "How many times as fast as PyTorch's own function a training step (forward and backward,"
    yield "float32) of `xpgrad_torch`'s is, and how many times as fast as ONNX Runtime's ConvGrad the"
    yield "backward on NumPy arrays. Above 1 is ours."
    yield ""
    yield f"| N, C, size; O, kernel, stride | {' | '.join(columns)} |"
    yield f"| --- |{' ---: |' * len(columns)}"
    for name, shape in CONVOLUTIONS.items():
        cells = []
        for column, peers in columns.items():
            found = pair(seconds, "convolution_runs", "CONVOLUTIONS", repr(name), **peers)
            ratios[column].append(found)
            cells.append(_cell(found))
        size, kernel = (" x ".join(map(str, k)) for k in (shape.size, [shape.kernel] * len(shape.size)))
        depthwise = ", depthwise" if shape.group > 1 else ""
        geometry = f"{shape.N}, {shape.C}, {size}; {shape.O}, {kernel}, {shape.stride}{depthwise}"
        yield f"| {geometry} | {' | '.join(cells)} |"
    means = [_cell(_geometric_mean(found[:-2])) for found in ratios.values()]
    yield f"| geometric mean of all but the last two | {' | '.join(means)} |"


def _cell(ratio):
    return "-" if ratio is None else f"{ratio:.2f}"


def _geometric_mean(ratios):
    return None if None in ratios else statistics.geometric_mean(ratios)


TABLES = {"recurrent": ("<!-- ratios -->", recurrent), "convolution": ("<!-- convolutions -->", convolution)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the tables into the README")
    parser.add_argument("--only", choices=TABLES, help="which table (default: all)")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each pair (default: 3)")
    args = parser.parse_args()
    sys.path.insert(0, str(HERE))

    for name, (mark, lines) in TABLES.items():
        if args.only in (None, name):
            text = []
            for line in lines(args.seconds):
                print(line, flush=True)
                text.append(line)
            text += ["", f"Medians of interleaved runs by `asv_bench/table.py` on {machine()}."]
            print(f"{text[-1]}\n")
            if args.write:
                write(README, mark, "\n".join(text))


def write(page, mark, table):
    """Put a table into a page, from its mark to the next mark or heading."""
    head, _, rest = page.read_text(encoding="utf-8").partition(mark)
    end = min(at for at in (rest.find("\n## "), rest.find("\n<!-- ")) if at >= 0)
    page.write_text(f"{head}{mark}\n{table}\n{rest[end:]}", encoding="utf-8")


if __name__ == "__main__":
    main()
