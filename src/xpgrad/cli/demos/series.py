"""A GRU forecasts the yearly sunspot numbers: in plain NumPy, and for comparison in torch.

The sun's activity rises and falls in cycles of 9 to 14 years. Each cycle is one sequence, so the sequences
have different lengths. From every year the model forecasts the next: the same number, plus a change that a
linear layer computes from the GRU's state. The NumPy side uses `xpgrad.gru` and `xpgrad.gru_grad`, the torch
side `torch.nn.GRU` on packed sequences.
"""

import argparse
from collections.abc import Iterator, Sequence
from importlib import resources
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ... import gru, gru_grad
from ..console import table
from .training import (
    AdamSettings,
    Parameters,
    TorchAdam,
    Training,
    compare,
    load_torch_weights,
    plot_losses,
    save_plot,
    show_training,
    train,
    train_all,
    train_by_adam,
)

__all__ = ["Sunspots", "cycles", "read_sunspots", "run", "train_numpy", "train_torch"]

WINDOW = 4  # years: a minimum is the lowest number within this distance
HELD_OUT = 5  # cycles at the end that training never sees
BATCH = 8  # cycles in a training step
SCALE = 100.0  # in this unit sunspot numbers have a scale that suits a GRU
LAGS = 9  # years that the linear model looks back
ADAM = AdamSettings(rate=3e-3, max_norm=1.0)
DRAWN = 22  # held-out years in the plot of characters: two cycles


# ------------------------------------------------------------------------------------------------ data


class Sunspots(NamedTuple):
    """The yearly numbers, every year from the first to the last."""

    years: np.ndarray
    numbers: np.ndarray


def read_sunspots() -> Sunspots:
    """Read the numbers that come with the package; data/README.md says where they come from."""
    source = resources.files("xpgrad").joinpath("data", "sunspots.csv")
    years, numbers = np.loadtxt(source.read_text("utf-8").splitlines(), delimiter=",", unpack=True)
    return Sunspots(years.astype(int), numbers)


def cycles(numbers: np.ndarray) -> list[slice]:
    """The cycles, each from its minimum up to the year before the next minimum.

    A year is a minimum if the `WINDOW` years before it are all higher, and none of the `WINDOW` years after
    it, within the data, is lower. Windows of 3, 4 and 5 years give the same minima.
    """
    minima = [
        k
        for k in range(WINDOW, len(numbers))
        if numbers[k] < numbers[k - WINDOW : k].min() and numbers[k] <= numbers[k : k + WINDOW + 1].min()
    ]
    return [slice(a, b) for a, b in pairwise(minima)]


class Cycles(NamedTuple):
    """Cycles side by side: this year's numbers (T, N, 1), lengths (N,), next year's numbers (T, N).

    The arrays hold NaN after a cycle's end. It would appear in the loss if anything read it.
    """

    X: np.ndarray
    lengths: np.ndarray
    targets: np.ndarray

    @property
    def valid(self) -> np.ndarray:
        """Which steps belong to a cycle, (T, N)."""
        return np.arange(len(self.X))[:, None] < self.lengths


def batch_of(numbers: np.ndarray, chosen: Sequence[slice]) -> Cycles:
    """Put cycles side by side, padded to the longest, in the unit of the model."""
    lengths = np.array([part.stop - part.start for part in chosen])
    X, targets = np.full((2, lengths.max(), len(chosen)), np.nan)
    for k, (part, length) in enumerate(zip(chosen, lengths, strict=True)):
        X[:length, k] = numbers[part] / SCALE
        targets[:length, k] = numbers[part.start + 1 : part.stop + 1] / SCALE
    return Cycles(X[..., None], lengths, targets)


def batches(numbers: np.ndarray, training: Sequence[slice], steps: int, seed: int) -> Iterator[Cycles]:
    """Yield batches of cycles drawn without repetition within a batch."""
    rng = np.random.default_rng(seed)
    size = min(BATCH, len(training))
    for _ in range(steps):
        yield batch_of(numbers, [training[k] for k in rng.choice(len(training), size, replace=False)])


# --------------------------------------------------------------------------------------- the NumPy side


def initial_parameters(hidden: int, seed: int) -> Parameters:
    """Uniform in +-1/sqrt(H) like torch's, biases zero; float64 throughout."""
    rng = np.random.default_rng(seed)
    bound = 1 / np.sqrt(hidden)
    return {
        "W": rng.uniform(-bound, bound, (1, 3 * hidden, 1)),  # gates stand in ONNX's order z, r, h
        "R": rng.uniform(-bound, bound, (1, 3 * hidden, hidden)),
        "B": np.zeros((1, 6 * hidden)),
        "V": rng.uniform(-bound, bound, (1, hidden)),
        "b": np.zeros(1),
    }


def _forward(p: Parameters, batch: Cycles) -> tuple[Any, np.ndarray]:
    """The GRU's saved arrays, and the forecasts (T, N), NaN after a cycle's end."""
    saved = gru(batch.X, p["W"], p["R"], p["B"], sequence_lens=batch.lengths, linear_before_reset=1)
    return saved, batch.X[..., 0] + (saved.H_all[:, 0] @ p["V"].T + p["b"])[..., 0]


def loss_and_gradients(p: Parameters, batch: Cycles) -> tuple[float, Parameters]:
    """The mean squared error of a batch, and its gradient for every parameter."""
    saved, forecasts = _forward(p, batch)
    errors = np.where(batch.valid, forecasts - batch.targets, 0.0)
    count = batch.lengths.sum()
    loss = float((errors**2).sum() / count)

    d = (2 / count * errors)[:, None, :, None]  # of the forecasts, with H_all's axes T, D, N, H
    grads = gru_grad(
        batch.X,
        p["W"],
        p["R"],
        B=p["B"],
        sequence_lens=batch.lengths,
        H_all=saved.H_all,
        zrh=saved.zrh,
        grad_H_all=d * p["V"],
        linear_before_reset=1,
        wrt=("W", "R", "B"),
    )
    dV = (d * saved.H_all).sum(axis=(0, 1, 2))[None]
    return loss, {"W": grads.dW, "R": grads.dR, "B": grads.dB, "V": dV, "b": d.sum(keepdims=True).ravel()}


def train_numpy(p: Parameters, stream: Iterator[Cycles], steps: int) -> Training:
    """Train p in place."""
    return train_by_adam(p, ADAM, loss_and_gradients, stream, steps)


# --------------------------------------------------------------------------------------- the torch side


def train_torch(p: Parameters, stream: Iterator[Cycles], steps: int) -> Training:
    """Train torch's own GRU on packed sequences, from p, which stays unchanged."""
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    hidden = p["V"].shape[1]
    model = torch.nn.ModuleDict(
        {
            "gru": torch.nn.GRU(1, hidden, dtype=torch.float64),
            "output": torch.nn.Linear(hidden, 1, dtype=torch.float64),
        }
    )
    load_torch_weights(model["gru"], "gru", p)
    model["output"].load_state_dict({"weight": torch.tensor(p["V"]), "bias": torch.tensor(p["b"])})
    adam = TorchAdam(model, ADAM)

    def step(batch: Cycles) -> float:
        X = torch.from_numpy(batch.X)
        packed = pack_padded_sequence(X, torch.from_numpy(batch.lengths), enforce_sorted=False)
        H_all, _ = pad_packed_sequence(model["gru"](packed)[0])
        forecasts = (X + model["output"](H_all))[..., 0]
        valid = torch.from_numpy(batch.valid)
        loss = torch.nn.functional.mse_loss(forecasts[valid], torch.from_numpy(batch.targets)[valid])
        adam.step(loss)
        return loss.item()

    return train("torch.nn.GRU", stream, steps, step)


# --------------------------------------------------------------------------------------- the forecasts


class Forecast(NamedTuple):
    """Forecasts one year ahead for each year of some cycles, in sunspot numbers."""

    name: str
    values: np.ndarray


def forecast_gru(p: Parameters, numbers: np.ndarray, chosen: Sequence[slice]) -> Forecast:
    """The model's forecasts, cycle by cycle from a zero state."""
    batch = batch_of(numbers, chosen)
    _, forecasts = _forward(p, batch)
    return Forecast("GRU", SCALE * forecasts.T[batch.valid.T])


def forecast_linear(numbers: np.ndarray, training_end: int, at: np.ndarray) -> Forecast:
    """An autoregression on the last years, fitted by least squares to the years before `training_end`."""

    def rows(of: np.ndarray) -> np.ndarray:
        return np.stack([numbers[of - lag] for lag in range(LAGS)] + [np.ones(len(of))], axis=1)

    known = np.arange(LAGS - 1, training_end)
    weights = np.linalg.lstsq(rows(known), numbers[known + 1], rcond=None)[0]
    return Forecast(f"linear, {LAGS} years", rows(at) @ weights)


def rmse(forecast: Forecast, truth: np.ndarray) -> float:
    """The root of the mean squared error."""
    return float(np.sqrt(np.mean((forecast.values - truth) ** 2)))


# ------------------------------------------------------------------------------------------- the report


def run(args: argparse.Namespace) -> int:
    """Train, forecast, plot, compare; 1 if the two implementations disagree."""
    years, numbers = read_sunspots()
    known = cycles(numbers)
    training, held_out = known[:-HELD_OUT], known[-HELD_OUT:]
    lengths = [part.stop - part.start for part in known]
    print(
        f"Data: yearly sunspot numbers, {len(known)} cycles of {min(lengths)} to {max(lengths)} years from "
        f"{years[training[0].start]} to {years[held_out[-1].stop]};\n"
        f"the last {HELD_OUT}, from {years[held_out[0].start]} on, are held out.\n"
        f"Model: GRU {args.hidden}, float64; {min(BATCH, len(training))} cycles a step.",
        flush=True,
    )

    parameters = initial_parameters(args.hidden, args.seed)
    runs = train_all(
        args, parameters, lambda: batches(numbers, training, args.steps, args.seed), train_numpy, train_torch
    )

    at = np.concatenate([np.arange(part.start, part.stop) for part in held_out])
    since_minimum = np.concatenate([np.arange(part.stop - part.start) for part in held_out])
    after, truth = years[at + 1], numbers[at + 1]
    forecasts = [
        forecast_gru(parameters, numbers, held_out),
        forecast_linear(numbers, training[-1].stop, at),
        Forecast("as this year", numbers[at]),
    ]
    print()
    save_plot(
        args.plot,
        "Forecast and truth",
        lambda figure: _plot(figure, runs, after, truth, forecasts, years[at[since_minimum == 0]]),
        lambda: _draw(after[-DRAWN:], truth[-DRAWN:], forecasts[0].values[-DRAWN:]),
    )
    _show_errors(forecasts, truth, since_minimum >= WINDOW)
    show_training(runs, f"Loss: mean squared error, in units of {SCALE:.0f} sunspots.")
    return compare(runs)


def _show_errors(forecasts: list[Forecast], truth: np.ndarray, settled: np.ndarray) -> None:
    rows = [
        (f.name, f"{rmse(f, truth):.1f}", f"{rmse(f._replace(values=f.values[settled]), truth[settled]):.1f}")
        for f in forecasts
    ]
    table(
        "Error of the forecast for the next year, on held-out cycles (RMSE, sunspot numbers)",
        ["", "all years", f"from year {WINDOW} on"],
        rows,
        footer=f"Where a cycle begins is known for certain only {WINDOW} years later. The GRU starts at that "
        "year, so\nonly the second column is a fair race; the linear model is not told about cycles.\n",
    )


def _draw(years: np.ndarray, truth: np.ndarray, forecast: np.ndarray, width: int = 60) -> str:
    """Forecast against truth in characters, a line for each year."""
    scale = (width - 1) / max(truth.max(), forecast.max(), 1.0)
    lines = ["The last held-out years: o the sunspot number, * its forecast, @ both"]
    for year, true, predicted in zip(years, truth, forecast, strict=True):
        cells = [" "] * width
        star, circle = max(0, round(predicted * scale)), round(true * scale)
        cells[star] = "*"
        cells[circle] = "@" if circle == star else "o"
        lines.append(f"{year} {true:6.1f} |{''.join(cells)}".rstrip())
    return "\n".join(lines)


def _plot(
    figure: Any,
    runs: list[Training],
    years: np.ndarray,
    truth: np.ndarray,
    forecasts: list[Forecast],
    minima: np.ndarray,
) -> None:
    figure.set_size_inches(9, 7)
    axes, below = figure.subplots(2, 1, height_ratios=(2, 1))
    for k, year in enumerate(minima):
        axes.axvline(year, color="0.85", lw=1, label="minimum: a cycle begins" if k == 0 else None)
    axes.plot(years, truth, color="k", marker="o", ms=3.5, lw=1, label="observed")
    styles = ({"color": "C0", "lw": 2}, {"color": "C1", "lw": 1, "ls": "--"})  # not the repeated number
    for forecast, style in zip(forecasts, styles, strict=False):
        axes.plot(years, forecast.values, label=f"{forecast.name}: RMSE {rmse(forecast, truth):.1f}", **style)
    axes.set(xlabel="year", ylabel="sunspot number", title="Forecast one year ahead, cycles held out")
    axes.legend(loc="upper right", fontsize="small")
    plot_losses(below, runs)
    below.set(xlabel="training step", ylabel="mean squared error")
    below.legend()
