"""Prints the README's table of training steps: PyTorch's time over ours, each pair measured in turns.

    python asv_bench/table.py            # print
    python asv_bench/table.py --write    # and put it into the README

Every pair runs in a process of its own, so that no pair meets the thread pools of another.
"""

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
MARK = "<!-- ratios -->"
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
from benchmarks.common import SHAPES, make, ratio
ours, peer = (make(impl, {case!r}, SHAPES[{shape!r}], uneven={uneven}) for impl in ("xpgrad-torch", "torch"))
print(1 / ratio(ours.step, peer.step, seconds={seconds}))
"""


def pair(case, shape, uneven, seconds):
    """PyTorch's median time over ours, from a process of its own."""
    code = _PAIR.format(here=str(HERE), case=case, shape=shape, uneven=uneven, seconds=seconds)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the table into the README")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each pair (default: 3)")
    args = parser.parse_args()
    sys.path.insert(0, str(HERE))
    from benchmarks.common import SHAPES

    lines = [
        "How many times as fast as PyTorch's own module a training step (forward and backward, float32) of",
        "`xpgrad_torch`'s drop-in is; for uneven lengths PyTorch packs the sequences, for peepholes it is a",
        "loop over time. Above 1 is ours.",
        "",
        f"| T, N, I, H | {' | '.join(COLUMNS)} |",
        f"| --- |{' ---: |' * len(COLUMNS)}",
    ]
    for shape, sizes in SHAPES.items():
        print(f"measuring {shape}", file=sys.stderr)
        cells = [f"{pair(case, shape, uneven, args.seconds):.2f}" for case, uneven in COLUMNS.values()]
        lines.append(f"| {', '.join(map(str, sizes))} | {' | '.join(cells)} |")
    lines += ["", f"Medians of interleaved runs by `asv_bench/table.py` on {machine()}."]
    table = "\n".join(lines)
    print(table)
    if args.write:
        head, _, rest = README.read_text(encoding="utf-8").partition(MARK)
        tail = rest[rest.index("\n## ") :]
        README.write_text(f"{head}{MARK}\n{table}\n{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
