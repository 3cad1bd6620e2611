"""Makes parts of docs/activations.md from the declarations: the plot, the tables of functions and of errors.

python docs/activations.py             # print the tables, draw the plot beside the page
python docs/activations.py --write     # and put the tables into the page

The site's build draws the plot where a function is missing in it.
"""

# ruff: noqa: RUF001 - Greek letters in titles

import argparse
import inspect
import itertools
import math
from pathlib import Path

import numpy as np

import xpgrad
from xpgrad._operators.declaration import DECLARED
from xpgrad.testing import to_numpy

HERE = Path(__file__).parent
PAGE = HERE / "activations.md"
PLOT = HERE / "activations.png"
MARK = "<!-- errors -->"
FUNCTIONS = "<!-- functions -->"


class Curve:
    """A declared function as the page shows it: its name, kinks, attributes, and its gradient's residual."""

    def __init__(self, declaration):
        self.name, self.kinks, self.takes = declaration.name, declaration.kinks, declaration.residual
        self.attributes = declaration.shown
        self._operands = {name: operand.shown for name, operand in declaration.operands.items()}
        numbers = {**self._operands, **self.attributes}
        self.title = ", ".join([self.name, *(f"{GREEK.get(k, k)} {v}" for k, v in numbers.items())])

    def value(self, x):
        """f(x)."""
        return getattr(xpgrad, self.name)(x, *self._arrays(x), **self.attributes)

    def slope(self, x):
        """The derivative at x."""
        return self.slope_from(self.value(x) if self.takes == "Y" else x)

    def slope_from(self, saved):
        """The derivative from the gradient's residual, x or y: the gradient for a cotangent of ones."""
        gradient = getattr(xpgrad, f"{self.name}_grad")
        found = gradient(saved * 0 + 1, saved, *self._arrays(saved), **self.attributes)
        return found.dX if self._operands else found

    def _arrays(self, x):
        return [x[:1] * 0 + value for value in self._operands.values()]


GREEK = {"alpha": "α", "beta": "β", "gamma": "γ"}
CURVES = tuple(map(Curve, DECLARED.values()))


# ---------------------------------------------------------------------------------- the table of functions


def functions():
    """The table of functions, as lines of Markdown."""
    lines = ["| function | value and gradient | from |", "| --- | --- | --- |"]
    for name, declaration in DECLARED.items():
        parameters = inspect.signature(getattr(xpgrad, name)).parameters
        numbers = [f"{option} = {parameters[option].default}" for option in declaration.attributes]
        taken = ", ".join([declaration.residual, *declaration.operands])
        equations = f"${declaration.equation}$<br>${declaration.slope}$"
        lines.append(f"| {', '.join([f'`{name}`', *numbers])} | {equations} | {taken} |")
    return lines


# ------------------------------------------------------------------------------------------------- the plot


def is_current():
    """Tell whether the plot has every function: its file names them."""
    return " ".join(DECLARED).encode() in PLOT.read_bytes()


def plot(path=PLOT):
    """Draw every function and its derivative, small multiples with the same axes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ink, value_color, slope_color = "#333333", "#1f6fb4", "#d9730d"
    style = {
        "font.size": 9,
        "text.color": ink,
        "axes.edgecolor": "#bbbbbb",
        "xtick.color": ink,
        "ytick.color": ink,
    }
    with plt.rc_context(style):
        rows = math.ceil(len(CURVES) / 4)
        figure, panels = plt.subplots(
            rows, 4, figsize=(10, 1 + 2 * rows), sharex=True, sharey=True, layout="constrained"
        )
        for panel in panels.flat[len(CURVES) :]:
            panel.set_visible(False)
        for panel, curve in zip(panels.flat, CURVES, strict=False):
            panel.axhline(0, color="#cccccc", linewidth=0.8, zorder=0)
            panel.axvline(0, color="#cccccc", linewidth=0.8, zorder=0)
            _draw(panel, curve, curve.value, color=value_color, linewidth=2.2)
            _draw(panel, curve, curve.slope, color=slope_color, linewidth=1.3)
            kinks = np.asarray(curve.kinks, dtype=float)
            if kinks.size:
                panel.plot(kinks, curve.slope(kinks), "o", color=slope_color, markersize=4, clip_on=False)
            panel.set_title(curve.title, fontsize=9.5, fontweight="bold")
            panel.set(xlim=(-4, 4), ylim=(-2, 2.5), xticks=(-4, -2, 0, 2, 4), yticks=(-2, -1, 0, 1, 2))
            panel.tick_params(length=0)
            panel.spines[["top", "right"]].set_visible(False)
        lines = [plt.Line2D([], [], color=value_color, linewidth=2), plt.Line2D([], [], color=slope_color)]
        dot = plt.Line2D([], [], color=slope_color, marker="o", markersize=4, linestyle="")
        figure.legend(
            [*lines, dot],
            ["function", "derivative", "derivative at a kink"],
            loc="outside upper center",
            ncols=3,
            frameon=False,
            fontsize=10,
        )
        figure.savefig(path, dpi=110, metadata={"Software": None, "Subject": " ".join(DECLARED)})
        plt.close(figure)


def _draw(panel, curve, function, **style):
    """A function in pieces between the kinks, because it may jump there."""
    ends = [-4.0, *map(float, curve.kinks), 4.0]
    for left, right in itertools.pairwise(ends):
        inside = np.linspace(left, right, 1001)[1:-1]
        panel.plot(inside, function(inside), **style)


# ----------------------------------------------------------------------------------------------- the table

FLOOR = 0.01  # below this value errors are relative to it: at a zero crossing no dtype can do better


def points():
    """The points for errors: dense around 0, and far out."""
    far = np.geomspace(1e-6, 1e4, 2001)
    return np.concatenate([np.linspace(-30, 30, 60_001), far, -far])


def array(values, dtype):
    """Values as a NumPy array, or a tensor if NumPy lacks the dtype."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    import torch

    return torch.from_numpy(values).to(torch.bfloat16)


def error(got, exact):
    """The largest error, relative to the exact value, or to `FLOOR` if that is larger."""
    exact = to_numpy(exact)
    return float(np.max(np.abs(to_numpy(got) - exact) / np.maximum(np.abs(exact), FLOOR)))


def errors(curve, dtype):
    """The largest errors of value and derivative in a dtype: against float64, from the same x and y."""
    x = array(points(), dtype)
    y = curve.value(x)
    wide = to_numpy(x)
    if curve.takes == "X":
        return error(y, curve.value(wide)), error(curve.slope(x), curve.slope(wide))
    dX, exact = curve.slope_from(y), curve.slope_from(to_numpy(y))
    return error(y, curve.value(wide)), error(dX, exact)


def table(dtypes=("float32", "float16", "bfloat16")):
    """The table of errors, as lines of Markdown."""
    lines = [
        f"| function | {' | '.join(f'{dtype}: value | derivative' for dtype in dtypes)} |",
        f"| --- |{' ---: | ---: |' * len(dtypes)}",
    ]
    for curve in CURVES:
        cells = [f"{e:.1e}" for dtype in dtypes for e in errors(curve, dtype)]
        lines.append(f"| {curve.name} | {' | '.join(cells)} |")
    return lines


def main():
    """Draw, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    args = parser.parse_args()
    plot()
    for mark, made in ((FUNCTIONS, functions()), (MARK, table())):
        lines = "\n".join(made)
        print(lines)
        if args.write:
            before, _, rest = PAGE.read_text(encoding="utf-8").partition(mark)
            after = rest.lstrip("\n").partition("\n\n")[2]
            PAGE.write_text(f"{before}{mark}\n{lines}\n\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
