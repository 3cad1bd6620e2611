"""A character LSTM learns to write like Python's manual: in plain NumPy, and for comparison in JAX and torch.

The model is an embedding, one LSTM and a linear layer that predicts the next character. On the NumPy side
xpgrad computes the forward and backward of the LSTM and of the loss; the rest, down to Adam, is written out
below. The JAX side is `xpgrad_jax.lstm` under ``jax.jit`` and ``jax.grad``. The torch side is
`torch.nn.LSTM` with torch's own autograd and optimizer.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ... import lstm, lstm_grad, softmax_cross_entropy, softmax_cross_entropy_grad
from ..console import curve, message
from .training import (
    Adam,
    AdamSettings,
    Parameters,
    TorchAdam,
    Training,
    compare,
    load_torch_weights,
    plot_differences,
    plot_losses,
    save_plot,
    show_training,
    train,
    train_all,
)

__all__ = ["Corpus", "read_corpus", "run", "train_jax", "train_numpy", "train_torch"]

BATCH = 32  # streams of text that are read side by side
TIME = 64  # characters per training step: the window of the truncated backpropagation
EMBEDDING = 64
HELD_OUT = 20_000  # characters at the end of the text that training never sees
ADAM = AdamSettings(rate=1e-2, max_norm=0.2)
DTYPE = np.float32
SAMPLE, TEMPERATURE = 400, 0.6

TYPOGRAPHIC = (
    "\N{LEFT SINGLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}"
    "\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}\N{EN DASH}\N{EM DASH}"
)


# ------------------------------------------------------------------------------------------------ text


class Corpus(NamedTuple):
    """A text as character numbers."""

    alphabet: str
    train: np.ndarray
    held_out: np.ndarray

    @property
    def unigram_entropy(self) -> float:
        """The loss (nats per character) of a prediction from the characters' frequencies only."""
        p = np.bincount(self.train) / len(self.train)
        p = p[p > 0]
        return float(-(p * np.log(p)).sum())


def read_corpus() -> Corpus:
    """Read the topics of Python's own help as one cleaned text; ImportError if Python lacks them."""
    from pydoc_data.topics import topics

    text = clean("\n".join(topics[name] for name in sorted(topics)))
    alphabet = "".join(sorted(set(text)))
    number = {character: k for k, character in enumerate(alphabet)}
    codes = np.array([number[character] for character in text])
    return Corpus(alphabet, codes[:-HELD_OUT], codes[-HELD_OUT:])


def clean(text: str) -> str:
    """Plain prose in ASCII: no indentation, no ruled lines, no characters that occur only once or twice."""
    text = text.translate(dict(zip(map(ord, TYPOGRAPHIC), "''\"\"--", strict=True)))
    frequent = {c for c, n in Counter(text).items() if n >= 20 and c.isascii()}
    text = "".join(c for c in text if c in frequent)
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if any(c.isalpha() for c in line))


def batches(codes: np.ndarray, steps: int) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """Yield inputs and targets (T, N), and whether the streams start here.

    The text is cut into N streams that are read side by side, T characters at a time. At their end they start
    over, and so does the state that one window passes to the next.
    """
    windows = (len(codes) // BATCH - 1) // TIME
    length = windows * TIME
    streams = np.stack([codes[k * (length + 1) :][: length + 1] for k in range(BATCH)], axis=1)
    for step in range(steps):
        start = step % windows * TIME
        yield streams[start : start + TIME], streams[start + 1 : start + TIME + 1], start == 0


# --------------------------------------------------------------------------------------- the NumPy side


def initial_parameters(characters: int, hidden: int, seed: int) -> Parameters:
    """Uniform in +-1/sqrt(H) like torch's; biases zero except the forget gate's, which starts open."""
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


def loss_and_gradients(
    p: Parameters, inputs: np.ndarray, targets: np.ndarray, state: tuple[np.ndarray, np.ndarray]
) -> tuple[float, Parameters, tuple[np.ndarray, np.ndarray]]:
    """One window forward and backward: the loss, its gradient for every parameter, and the next state."""
    # Forward.
    X = p["embedding"][inputs]  # (T, N, I)
    saved = lstm(X, p["W"], p["R"], p["B"], initial_h=state[0], initial_c=state[1])
    H = saved.H_all[:, 0]  # (T, N, H): the only direction
    flat, labels = H.reshape(-1, H.shape[-1]), targets.ravel()
    logits = flat @ p["V"].T + p["b"]
    loss = softmax_cross_entropy(logits, labels)

    # Backward, in the opposite order.
    dlogits = softmax_cross_entropy_grad(np.ones_like(loss), logits, labels)
    grads = {"V": dlogits.T @ flat, "b": dlogits.sum(axis=0)}
    dH = (dlogits @ p["V"]).reshape(saved.H_all.shape)
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
    return float(loss), grads, (saved.H_t, saved.C_t)


def _train(name: str, p: Parameters, codes: np.ndarray, steps: int, step: Callable[..., Any]) -> Training:
    """Train with `step`: from inputs, targets and the state before them to the loss and the next state."""
    state: Any = None

    def stateful(batch: tuple[np.ndarray, np.ndarray, bool]) -> float:
        nonlocal state
        inputs, targets, fresh = batch
        loss, state = step(inputs, targets, zero_state(BATCH, p["V"].shape[1]) if fresh else state)
        return float(loss)

    return train(name, batches(codes, steps), steps, stateful)


def train_numpy(p: Parameters, codes: np.ndarray, steps: int) -> Training:
    """Train p in place."""
    adam = Adam(p, ADAM)

    def step(inputs: np.ndarray, targets: np.ndarray, state: tuple[np.ndarray, np.ndarray]) -> Any:
        loss, grads, state = loss_and_gradients(p, inputs, targets, state)
        adam.step(grads)
        return loss, state

    return _train("xpgrad (NumPy)", p, codes, steps, step)


def evaluate(p: Parameters, codes: np.ndarray) -> float:
    """The loss on a text, read as one stream."""
    state = zero_state(1, p["V"].shape[1])
    H_all = lstm(
        p["embedding"][codes[:-1, None]], p["W"], p["R"], p["B"], initial_h=state[0], initial_c=state[1]
    ).H_all
    logits = H_all[:, 0, 0] @ p["V"].T + p["b"]
    return float(softmax_cross_entropy(logits, codes[1:]))


def write(p: Parameters, alphabet: str, length: int, seed: int) -> str:
    """Let the model write: each character is drawn from its prediction, and is the next step's input."""
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


# ----------------------------------------------------------------------------------------- the JAX side


def train_jax(p: Parameters, codes: np.ndarray, steps: int) -> Training:
    """Train p in place, with gradients from a compiled function of JAX."""
    import jax

    import xpgrad_jax

    def loss(p: Any, inputs: Any, targets: Any, state: Any) -> Any:
        H_all, H, C = xpgrad_jax.lstm(p["embedding"][inputs], p["W"], p["R"], p["B"], None, *state)
        logits = H_all.reshape(-1, H_all.shape[-1]) @ p["V"].T + p["b"]
        return xpgrad_jax.softmax_cross_entropy(logits, targets.reshape(-1)), (H, C)

    gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))
    adam = Adam(p, ADAM)

    def step(inputs: np.ndarray, targets: np.ndarray, state: Any) -> Any:
        # copies: JAX's arrays on the CPU may share NumPy's memory, which Adam writes to
        given = {name: jax.numpy.array(value) for name, value in p.items()}
        value_and_state, grads = gradients(given, inputs, targets, state)
        adam.step({name: np.asarray(grad) for name, grad in grads.items()})
        return value_and_state

    return _train("xpgrad_jax (jit)", p, codes, steps, step)


# --------------------------------------------------------------------------------------- the torch side


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
    load_torch_weights(model["lstm"], "lstm", p)
    model["embedding"].load_state_dict({"weight": torch.tensor(p["embedding"])})
    model["output"].load_state_dict({"weight": torch.tensor(p["V"]), "bias": torch.tensor(p["b"])})
    return model


def train_torch(p: Parameters, codes: np.ndarray, steps: int) -> Training:
    """Train torch's own LSTM on the same batches, from p, which stays unchanged."""
    import torch

    model = torch_model(p)
    adam = TorchAdam(model, ADAM)

    def step(inputs: np.ndarray, targets: np.ndarray, state: Any) -> Any:
        before = tuple(map(torch.as_tensor, state))
        H, after = model["lstm"](model["embedding"](torch.from_numpy(inputs)), before)
        logits = model["output"](H).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(targets).flatten())
        adam.step(loss)
        return loss.item(), tuple(s.detach() for s in after)

    return _train("torch.nn.LSTM", p, codes, steps, step)


# ------------------------------------------------------------------------------------------- the report


def run(args: argparse.Namespace) -> int:
    """Train, plot, write, compare; 1 if the implementations disagree."""
    try:
        corpus = read_corpus()
    except ImportError:
        message("demo: this Python lacks pydoc_data, whose text the demo reads (Debian: libpython3-stdlib)")
        return 1
    print(
        f"Text: Python's manual, {len(corpus.train)} characters, {len(corpus.alphabet)} different ones.\n"
        f"Model: embedding {EMBEDDING}, LSTM {args.hidden}, softmax; {BATCH} x {TIME} characters a step.",
        flush=True,
    )

    parameters = initial_parameters(len(corpus.alphabet), args.hidden, args.seed)
    runs = train_all(args, parameters, lambda: corpus.train, train_numpy, train_torch, train_jax)

    held_out = evaluate(parameters, corpus.held_out)
    print("\nThe NumPy model writes:\n")
    print(_indent(write(parameters, corpus.alphabet, SAMPLE, args.seed)), end="\n\n")
    entropy = corpus.unigram_entropy
    save_plot(
        args.plot,
        "Loss curve",
        lambda figure: _plot(figure, runs, entropy),
        lambda: curve(
            runs[0].losses, label="Loss per step (dashes: letter frequencies alone)", reference=entropy
        ),
    )
    footer = (
        f"Loss in nats per character. Text it has not seen: {held_out:.4f}. "
        f"By letter frequencies alone: {entropy:.4f}."
    )
    show_training(runs, footer)
    return compare(runs)


def _indent(text: str) -> str:
    return "\n".join("    " + line for line in text.strip().splitlines())


def _plot(figure: Any, runs: list[Training], entropy: float) -> None:
    if len(runs) > 1:
        figure.set_size_inches(8, 6)
        axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        plot_differences(below, runs)
        below.set(xlabel="step")
    else:
        figure.set_size_inches(8, 4.5)
        axes = figure.subplots()
        axes.set(xlabel="step")
    plot_losses(axes, runs)
    axes.axhline(entropy, color="0.4", ls="--", lw=1, label="letter frequencies alone")
    axes.set(ylabel="loss, nats per character", title="Character LSTM on Python's manual")
    axes.legend()
