"""Writes the gains for `swap(verbose=True)`, adapters/xpgrad_torch/_gains.py, from docs/machines.

    python asv_bench/gains.py

`performance.py` does this too, after it has written the ratios in docs/machines.
"""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
MACHINES, TABLE = ROOT / "docs" / "machines", ROOT / "adapters" / "xpgrad_torch" / "_gains.py"
MODULES = {
    "LSTM, torch.nn.LSTM": ("LSTM",),
    "GRU, torch.nn.GRU": ("GRU",),
    "RNN, torch.nn.RNN": ("RNN",),
    "Convolutions, torch.nn.functional": ("Conv1d", "Conv2d", "Conv3d"),
}
"""The modules of each group of `bench`."""


def read():
    """The ratios of every measured machine."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(MACHINES.glob("*.json"))]


def table(runs):
    """The text of the module, from the ratios of each machine."""
    lines = []
    for run in runs:
        lines.append(f'    "{run["machine"]}": {{')
        for title, modules in MODULES.items():
            if title in run["groups"]:
                mean, lowest, highest = run["groups"][title]
                lines += [f'        "{module}": ({mean}, {lowest}, {highest}),' for module in modules]
        lines.append("    },")
    return "\n".join(
        [
            '"""Speedups of our modules over PyTorch\'s; written by asv_bench/gains.py."""',
            "",
            "GAINS = {  # by machine: geometric mean, lowest, highest over the shapes of docs/performance.md",
            *lines,
            "}",
            "",
        ]
    )


def write(runs):
    """Write the module."""
    TABLE.write_text(table(runs), encoding="utf-8")


if __name__ == "__main__":
    write(read())
