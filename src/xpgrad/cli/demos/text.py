"""A character LSTM learns to write like Python's manual: in plain NumPy, and in torch beside it.

The model is an embedding, one LSTM and a linear layer that predicts the next character. The NumPy side
takes its forward and backward from `xpgrad.lstm` and `xpgrad.lstm_grad`; everything else, down to Adam, is
written out below. The torch side is `torch.nn.LSTM` with torch's own autograd and optimizer.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ... import lstm, lstm_grad
from ..console import curve, message, progress, table

__all__ = ["Corpus", "read_corpus", "run", "train_numpy", "train_torch"]

BATCH = 32  # streams of text that are read side by side
TIME = 64  # characters per training step: the window of the truncated backpropagation
EMBEDDING = 64
HELD_OUT = 20_000  # characters at the end of the text that training never sees
LEARNING_RATE = 1e-2
MAX_NORM = 0.2  # of all gradients together; longer ones are scaled down to it
BETA1, BETA2 = 0.9, 0.999  # Adam
# Adam divides by the gradients' usual size plus this. A small value would make steps of full length out of
# gradients that are mostly rounding; then two correct programs soon part ways.
EPSILON = 1e-3
DTYPE = np.float32
TOLERANCE = 1e-4  # between the two loss curves, at any step
SAMPLE, TEMPERATURE = 400, 0.6

TYPOGRAPHIC = (
    "\N{LEFT SINGLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}"
    "\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}\N{EN DASH}\N{EM DASH}"
)

Parameters = dict[str, np.ndarray]


# ------------------------------------------------------------------------------------------------ text


class Corpus(NamedTuple):
    """A text as character numbers."""

    alphabet: str
    train: np.ndarray
    held_out: np.ndarray

    @property
    def unigram_entropy(self) -> float:
        """The loss (nats per character) of who knows the characters' frequencies and nothing else."""
        p = np.bincount(self.train) / len(self.train)
        p = p[p > 0]
        return float(-(p * np.log(p)).sum())


def read_corpus() -> Corpus:
    """Read the topics of Python's own help as one cleaned text; ImportError where Python lacks them."""
    from pydoc_data.topics import topics

    text = clean("\n".join(topics[name] for name in sorted(topics)))
    alphabet = "".join(sorted(set(text)))
    number = {character: k for k, character in enumerate(alphabet)}
    codes = np.array([number[character] for character in text])
    return Corpus(alphabet, codes[:-HELD_OUT], codes[-HELD_OUT:])


def clean(text: str) -> str:
    """Plain prose in ASCII: no indentation, no ruled lines, no characters that stand there once or twice."""
    text = text.translate(dict(zip(map(ord, TYPOGRAPHIC), "''\"\"--", strict=True)))
    frequent = {c for c, n in Counter(text).items() if n >= 20 and c.isascii()}
    text = "".join(c for c in text if c in frequent)
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if any(c.isalpha() for c in line))


def batches(codes: np.ndarray, steps: int) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """Yield inputs and targets (T, N), and whether the streams start anew here.

    The text is cut into N streams that are read side by side, T characters at a time; at their end they
    start over, and so must the state that is carried from one window to the next.
    """
    windows = (len(codes) // BATCH - 1) // TIME
    length = windows * TIME
    streams = np.stack([codes[k * (length + 1) :][: length + 1] for k in range(BATCH)], axis=1)
    for step in range(steps):
        start = step % windows * TIME
        yield streams[start : start + TIME], streams[start + 1 : start + TIME + 1], start == 0


# --------------------------------------------------------------------------------------- the NumPy side


def initial_parameters(characters: int, hidden: int, seed: int) -> Parameters:
    """Uniform in +-1/sqrt(H) like torch's, the biases zero but the forget gate's, which starts open."""
    rng = np.random.default_rng(seed)
    bound = 1 / np.sqrt(hidden)

    def uniform(*shape: int) -> np.ndarray:
        return rng.uniform(-bound, bound, shape).astype(DTYPE)

    B = np.zeros((1, 8 * hidden), DTYPE)
    B[:, 2 * hidden : 3 * hidden] = 1  # gates stand in ONNX's order i, o, f, c
    return {
        "embedding": rng.standard_normal((characters, EMBEDDING)).astype(DTYPE),
        "W": uniform(1, 4 * hidden, EMBEDDING),
        "R": uniform(1, 4 * hidden, hidden),
        "B": B,
        "V": uniform(characters, hidden),
        "b": np.zeros(characters, DTYPE),
    }


def zero_state(batch: int, hidden: int) -> tuple[np.ndarray, np.ndarray]:
    """The state before a text begins."""
    return np.zeros((1, batch, hidden), DTYPE), np.zeros((1, batch, hidden), DTYPE)


def cross_entropy(logits: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean of -log softmax(logits)[target], and its gradient: softmax minus the target's one."""
    logits = logits - logits.max(axis=-1, keepdims=True)
    probabilities = np.exp(logits)
    sums = probabilities.sum(axis=-1, keepdims=True)
    picked = np.take_along_axis(logits, targets[..., None], axis=-1)
    loss = float(np.mean(np.log(sums) - picked, dtype=np.float64))
    gradient = probabilities / sums
    rows = gradient.reshape(-1, gradient.shape[-1])  # a view
    rows[np.arange(len(rows)), targets.ravel()] -= 1
    gradient /= targets.size
    return loss, gradient


def loss_and_gradients(
    p: Parameters, inputs: np.ndarray, targets: np.ndarray, state: tuple[np.ndarray, np.ndarray]
) -> tuple[float, Parameters, tuple[np.ndarray, np.ndarray]]:
    """One window forward and backward: the loss, its gradient in every parameter, and the next state."""
    # Forward.
    X = p["embedding"][inputs]  # (T, N, I)
    saved = lstm(X, p["W"], p["R"], p["B"], initial_h=state[0], initial_c=state[1])
    H = saved.H_all[:, 0]  # (T, N, H): the only direction
    flat = H.reshape(-1, H.shape[-1])
    logits = (flat @ p["V"].T + p["b"]).reshape(*targets.shape, -1)
    loss, dlogits = cross_entropy(logits, targets)

    # Backward, in the opposite order.
    dflat = dlogits.reshape(len(flat), -1)
    grads = {"V": dflat.T @ flat, "b": dflat.sum(axis=0)}
    dH = (dflat @ p["V"]).reshape(saved.H_all.shape)
    d = lstm_grad(
        X,
        p["W"],
        p["R"],
        B=p["B"],
        initial_h=state[0],
        initial_c=state[1],
        H_all=saved.H_all,
        C_all=saved.C_all,
        iofc=saved.iofc,
        grad_H_all=dH,
        wrt=("X", "W", "R", "B"),
    )
    grads |= {"W": d.dW, "R": d.dR, "B": d.dB, "embedding": np.zeros_like(p["embedding"])}
    np.add.at(grads["embedding"], inputs.ravel(), d.dX.reshape(inputs.size, -1))
    return loss, grads, (saved.H_t, saved.C_t)


class Adam:
    """Adam on a dict of arrays, after clipping the norm of all gradients together."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.mean = {name: np.zeros_like(p) for name, p in parameters.items()}
        self.square = {name: np.zeros_like(p) for name, p in parameters.items()}
        self.steps = 0

    def step(self, grads: Parameters) -> None:
        """Move every parameter, in place."""
        self.steps += 1
        norm = np.sqrt(sum(float(np.vdot(g, g)) for g in grads.values()))
        scale = min(1.0, MAX_NORM / (norm + 1e-6))
        rate = LEARNING_RATE / (1 - BETA1**self.steps)
        correction = np.sqrt(1 - BETA2**self.steps)
        for name, p in self.parameters.items():
            g, m, v = grads[name] * DTYPE(scale), self.mean[name], self.square[name]
            m += (g - m) * (1 - BETA1)
            v *= BETA2
            v += (1 - BETA2) * g * g
            p -= DTYPE(rate) * m / (np.sqrt(v) / DTYPE(correction) + EPSILON)


def train_numpy(
    p: Parameters, codes: np.ndarray, steps: int, *, description: str = "xpgrad (NumPy)"
) -> tuple[list[float], list[float]]:
    """Train p in place; the loss of every step and the seconds it took."""
    losses, seconds = [], []
    adam, hidden = Adam(p), p["V"].shape[1]
    state = zero_state(BATCH, hidden)
    bar = progress(batches(codes, steps), description, steps)
    for inputs, targets, fresh in bar:
        start = time.perf_counter()
        if fresh:
            state = zero_state(BATCH, hidden)
        loss, grads, state = loss_and_gradients(p, inputs, targets, state)
        adam.step(grads)
        seconds.append(time.perf_counter() - start)
        losses.append(loss)
        bar.note(f"loss {loss:.3f}")
    return losses, seconds


def evaluate(p: Parameters, codes: np.ndarray) -> float:
    """The loss on a text, read as one stream."""
    state = zero_state(1, p["V"].shape[1])
    H_all = lstm(
        p["embedding"][codes[:-1, None]], p["W"], p["R"], p["B"], initial_h=state[0], initial_c=state[1]
    ).H_all
    logits = H_all[:, 0] @ p["V"].T + p["b"]
    return cross_entropy(logits, codes[1:, None])[0]


def write(p: Parameters, alphabet: str, length: int, seed: int) -> str:
    """Let the model write: each character is drawn from its prediction and is the next step's input."""
    rng = np.random.default_rng(seed)
    H, C = zero_state(1, p["V"].shape[1])
    code, text = alphabet.index("\n"), []
    for _ in range(length):
        step = lstm(p["embedding"][[[code]]], p["W"], p["R"], p["B"], initial_h=H, initial_c=C)
        H, C = step.H_t, step.C_t
        logits = (p["V"] @ H[0, 0] + p["b"]).astype(np.float64) / TEMPERATURE
        weights = np.exp(logits - logits.max())
        code = int(rng.choice(len(alphabet), p=weights / weights.sum()))
        text.append(alphabet[code])
    return "".join(text)


# --------------------------------------------------------------------------------------- the torch side


def to_torch_gates(a: np.ndarray) -> np.ndarray:
    """Reorder blocks of rows from ONNX's gates i, o, f, c to torch's i, f, g, o (g is ONNX's c)."""
    i, o, f, c = np.split(a, 4)
    return np.concatenate([i, f, c, o])


def torch_model(p: Parameters) -> Any:
    """The same model in torch, from the same parameters."""
    import torch

    characters, hidden = p["V"].shape
    model = torch.nn.ModuleDict(
        {
            "embedding": torch.nn.Embedding(characters, EMBEDDING),
            "lstm": torch.nn.LSTM(EMBEDDING, hidden),
            "output": torch.nn.Linear(hidden, characters),
        }
    )
    input_bias, recurrent_bias = np.split(p["B"][0], 2)
    values = {
        "embedding.weight": p["embedding"],
        "lstm.weight_ih_l0": to_torch_gates(p["W"][0]),
        "lstm.weight_hh_l0": to_torch_gates(p["R"][0]),
        "lstm.bias_ih_l0": to_torch_gates(input_bias),
        "lstm.bias_hh_l0": to_torch_gates(recurrent_bias),
        "output.weight": p["V"],
        "output.bias": p["b"],
    }
    model.load_state_dict({name: torch.tensor(value) for name, value in values.items()})
    return model


def train_torch(
    p: Parameters, codes: np.ndarray, steps: int, *, description: str = "torch.nn.LSTM"
) -> tuple[list[float], list[float]]:
    """Train torch's own LSTM from p, which stays as it is, on the same batches."""
    import torch

    model = torch_model(p)
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE, (BETA1, BETA2), EPSILON)
    hidden = p["V"].shape[1]
    losses, seconds = [], []
    state: Any = None
    bar = progress(batches(codes, steps), description, steps)
    for inputs, targets, fresh in bar:
        start = time.perf_counter()
        if fresh:
            state = tuple(map(torch.from_numpy, zero_state(BATCH, hidden)))
        H, state = model["lstm"](model["embedding"](torch.from_numpy(inputs)), state)
        state = tuple(s.detach() for s in state)
        logits = model["output"](H).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(targets).flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
        bar.note(f"loss {losses[-1]:.3f}")
    return losses, seconds


# ------------------------------------------------------------------------------------------- the report


class Training(NamedTuple):
    """What one implementation did."""

    name: str
    losses: list[float]
    seconds: list[float]


def run(args: argparse.Namespace) -> int:
    """Train, plot, write, compare; 1 where the two implementations disagree."""
    if not args.plot.parent.is_dir():
        message(f"demo: --plot is {args.plot}, expected a path in a folder that exists")
        return 2
    try:
        corpus = read_corpus()
    except ImportError:
        message("demo: this Python lacks pydoc_data, whose text the demo reads (Debian: libpython3-stdlib)")
        return 1
    figure_class = _matplotlib_figure()
    print(
        f"Text: Python's manual, {len(corpus.train)} characters, {len(corpus.alphabet)} different ones.\n"
        f"Model: embedding {EMBEDDING}, LSTM {args.hidden}, softmax; {BATCH} x {TIME} characters a step.",
        flush=True,
    )

    parameters = initial_parameters(len(corpus.alphabet), args.hidden, args.seed)
    start = {name: value.copy() for name, value in parameters.items()}
    runs = [Training("xpgrad (NumPy)", *train_numpy(parameters, corpus.train, args.steps))]
    # Only now, so that torch's threads are not there yet while NumPy's are timed.
    if not args.no_torch and _torch_imports():
        runs.append(Training("torch.nn.LSTM", *train_torch(start, corpus.train, args.steps)))

    held_out = evaluate(parameters, corpus.held_out)
    print("\nThe NumPy model writes:\n")
    print(_indent(write(parameters, corpus.alphabet, SAMPLE, args.seed)), end="\n\n")
    _show_curves(runs, corpus.unigram_entropy, args.plot, figure_class)
    _show_summary(runs, corpus.unigram_entropy, held_out)
    return _compare(runs)


def _torch_imports() -> bool:
    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as error:  # OSError: installed, but a library of its own is missing
        if not (isinstance(error, ModuleNotFoundError) and error.name == "torch"):
            message(f"demo: torch is installed but does not import ({error})")
        else:
            message(
                "demo: torch is not installed, so there is nothing to compare with (xpgrad[torch] adds it)"
            )
        return False
    return True


def _indent(text: str) -> str:
    return "\n".join("    " + line for line in text.strip().splitlines())


def _show_summary(runs: list[Training], entropy: float, held_out: float) -> None:
    rows = [
        (
            run.name,
            f"{run.losses[0]:.4f}",
            f"{run.losses[-1]:.4f}",
            f"{1e3 * float(np.median(run.seconds)):.1f} ms",
            f"{sum(run.seconds):.1f} s",
        )
        for run in runs
    ]
    table(
        "Training",
        ["", "first loss", "last loss", "median step", "all steps"],
        rows,
        footer=f"Loss in nats per character. Text it has not seen: {held_out:.4f}. "
        f"By letter frequencies alone: {entropy:.4f}.",
    )


def _compare(runs: list[Training]) -> int:
    if len(runs) < 2:
        return 0
    differences = np.abs(np.subtract(runs[0].losses, runs[1].losses))
    step = int(np.argmax(differences))  # the first NaN where there is one: then nothing agrees
    worst = float(differences[step])
    found = f"Largest difference between the two loss curves: {worst:.1e}, at step {step + 1}"
    if worst < TOLERANCE:
        print(f"{found}; allowed: below {TOLERANCE:.0e}.")
        return 0
    print(f"{found}; allowed: below {TOLERANCE:.0e}. The two implementations DISAGREE.")
    message(
        "demo: the loss curves of xpgrad and torch differ. Where they part slowly, late in a long run, that "
        "is float32 rounding that training amplifies; 'python -m xpgrad check' tests the gradients"
    )
    return 1


def _matplotlib_figure() -> Any:
    """Matplotlib's figure class, which needs no display, or None where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    return Figure


def _show_curves(runs: list[Training], entropy: float, path: Path, figure_class: Any) -> None:
    if figure_class is not None:
        try:
            _plot(runs, entropy, path, figure_class)
        except (OSError, ValueError) as error:  # a folder without write permission, an unknown file type
            message(f"demo: cannot write the plot to {path} ({error}); here it is as text")
        else:
            print(f"Loss curve: {path.resolve()}\n")
            return
    print(curve(runs[0].losses, label="Loss per step (dashes: letter frequencies alone)", reference=entropy))
    if figure_class is None:
        print("(A PNG file instead: install matplotlib, or xpgrad[demo].)")
    print()


def _plot(runs: list[Training], entropy: float, path: Path, figure_class: Any) -> None:
    figure = figure_class(figsize=(8, 6 if len(runs) > 1 else 4.5), layout="constrained")
    if len(runs) > 1:
        axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        differences = np.abs(np.subtract(runs[0].losses, runs[1].losses))
        below.semilogy(np.arange(1, len(differences) + 1), np.maximum(differences, 1e-9), color="C3", lw=0.8)
        below.axhline(TOLERANCE, color="0.4", ls="--", lw=1)
        below.set(ylabel="difference", xlabel="step")
        below.annotate("allowed", (0.99, TOLERANCE), xycoords=("axes fraction", "data"), ha="right", va="top")
    else:
        axes = figure.subplots()
        axes.set(xlabel="step")
    wide, dotted = {"lw": 2.5, "color": "C0", "alpha": 0.5}, {"lw": 0.9, "color": "k", "ls": ":"}
    for run, style in zip(runs, (wide, dotted)[: len(runs)], strict=True):
        axes.plot(np.arange(1, len(run.losses) + 1), run.losses, label=run.name, **style)
    axes.axhline(entropy, color="0.4", ls="--", lw=1, label="letter frequencies alone")
    axes.set(ylabel="loss, nats per character", title="Character LSTM on Python's manual")
    axes.legend()
    figure.savefig(path, dpi=130)
