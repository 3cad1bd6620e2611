"""Makes the computed parts of docs/activations.md: the plot of the functions and the table of errors.

python docs/activations.py             # print the table, draw the plot beside the page
python docs/activations.py --write     # and put the table into the page
"""

# ruff: noqa: RUF001 - Greek letters in titles

import argparse
import itertools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import xpgrad
from xpgrad.testing import to_numpy

HERE = Path(__file__).parent
PAGE = HERE / "activations.md"
PLOT = HERE / "activations.png"
MARK = "<!-- errors -->"


class Curve(NamedTuple):
    """A function of the page: its kernel's attributes, the kinks, and its gradient's residual."""

    name: str
    kinks: tuple[float, ...] = ()
    takes: str = "X"
    attributes: dict[str, Any] = {}  # noqa: RUF012 - never written to
    title: str = ""

    def value(self, x):
        """f(x)."""
        return getattr(xpgrad, self.name)(x, *self._slope(x), **self.attributes)

    def slope(self, x):
        """The derivative at x."""
        return self.slope_from(self.value(x) if self.takes == "Y" else x)

    def slope_from(self, saved):
        """The derivative from the gradient's residual, x or y: the gradient for a cotangent of ones."""
        gradient = getattr(xpgrad, f"{self.name}_grad")
        if self.name == "prelu":
            return gradient(saved * 0 + 1, saved, *self._slope(saved), wrt="X").dX
        return gradient(saved * 0 + 1, saved, **self.attributes)

    def _slope(self, x):
        return (x[:1] * 0 + 0.25,) if self.name == "prelu" else ()


CURVES = (
    Curve("relu", (0,)),
    Curve("leaky_relu", (0,), takes="Y", attributes={"alpha": 0.1}, title="leaky_relu, α 0.1"),
    Curve("prelu", (0,), title="prelu, slope 0.25"),
    Curve("thresholded_relu", (1,)),
    Curve("elu"),
    Curve("selu", (0,)),
    Curve("celu", attributes={"alpha": 0.5}, title="celu, α 0.5"),
    Curve("softplus"),
    Curve("gelu"),
    Curve("quick_gelu"),
    Curve("silu"),
    Curve("mish"),
    Curve("sigmoid", takes="Y"),
    Curve("hard_sigmoid", (-2.5, 2.5)),
    Curve("log_sigmoid"),
    Curve("hard_swish", (-3, 3)),
    Curve("tanh", takes="Y"),
    Curve("scaled_tanh", attributes={"alpha": 1.5, "beta": 0.5}, title="scaled_tanh, α 1.5, β 0.5"),
    Curve("hard_tanh", (-1, 1)),
    Curve("softsign"),
)


# ------------------------------------------------------------------------------------------------- the plot


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
        figure, panels = plt.subplots(5, 4, figsize=(10, 11), sharex=True, sharey=True, layout="constrained")
        for panel, curve in zip(panels.flat, CURVES, strict=True):
            panel.axhline(0, color="#cccccc", linewidth=0.8, zorder=0)
            panel.axvline(0, color="#cccccc", linewidth=0.8, zorder=0)
            _draw(panel, curve, curve.value, color=value_color, linewidth=2.2)
            _draw(panel, curve, curve.slope, color=slope_color, linewidth=1.3)
            kinks = np.asarray(curve.kinks, dtype=float)
            if kinks.size:
                panel.plot(kinks, curve.slope(kinks), "o", color=slope_color, markersize=4, clip_on=False)
            panel.set_title(curve.title or curve.name, fontsize=9.5, fontweight="bold")
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
        figure.savefig(path, dpi=110, metadata={"Software": None})
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
    lines = "\n".join(table())
    print(lines)
    if args.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARK)
        after = rest.lstrip("\n").partition("\n\n")[2]
        PAGE.write_text(f"{before}{MARK}\n{lines}\n\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
