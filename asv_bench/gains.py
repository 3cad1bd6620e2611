"""Writes what `swap(verbose=True)` says, adapters/xpgrad_torch/_gains.py, from the page on performance.

    python asv_bench/gains.py

`performance.py` does it too, after it has written that page.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE, TABLE = ROOT / "docs" / "performance.md", ROOT / "adapters" / "xpgrad_torch" / "_gains.py"
MODULES = {
    "LSTM, torch.nn.LSTM": ("LSTM",),
    "GRU, torch.nn.GRU": ("GRU",),
    "RNN, torch.nn.RNN": ("RNN",),
    "Convolutions, torch.nn.functional": ("Conv1d", "Conv2d", "Conv3d"),
}
"""Which modules each of the page's groups is about."""


def between(text, name):
    """What stands between a page's marks."""
    return text.partition(f"<!-- {name}: begin -->")[2].partition(f"<!-- {name}: end -->")[0]


def table(page):
    """The text of the module, from the text of the page."""
    machine = re.search(r"^- machine: (.*)$", between(page, "machine"), re.M)[1]
    lines = []
    for row in between(page, "summary").strip().splitlines()[2:]:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        title, mean, lowest, highest = cells[0], cells[1], cells[3], cells[4]
        for module in next((names for words, names in MODULES.items() if title == words), ()):
            lines.append(f'    "{module}": ({float(mean)}, {float(lowest)}, {float(highest)}),')
    return "\n".join(
        [
            '"""How many times as fast as PyTorch\'s modules ours were; written by asv_bench/gains.py."""',
            "",
            f'MACHINE = "{machine}"',
            "GAINS = {  # geometric mean, lowest, highest over the shapes of docs/performance.md",
            *lines,
            "}",
            "",
        ]
    )


def write():
    """Write the module."""
    TABLE.write_text(table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write()
