"""A classifier of sequences, trained with differential privacy by Opacus: our LSTM and Opacus' own.

An LSTM reads handwritten digits (scikit-learn's, 8 rows of 8 pixels) row by row. Training must not reveal
whether a given digit was among the data: Opacus clips each digit's gradient, adds noise, and computes the
epsilon at delta = 1e-3.

Opacus' DPLSTM keeps the gradient of every weight for every digit. Ours computes the norms of these gradients
in the backward of its kernel, without the gradients themselves ("ghost clipping").

    python examples/private_training.py

prints accuracy, time and peak memory of both, each in its own process.

Source: Abadi et al., "Deep Learning with Differential Privacy" (2016); Li et al., "Large Language Models Can
Be Strong Differentially Private Learners" (2022), for clipping by norms alone.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path

import opacus
import torch
from opacus.layers import DPLSTM
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import xpgrad_torch

DELTA, BATCH, HIDDEN = 1e-3, 512, 128
KINDS = {"xpgrad_torch.LSTM, ghost": ("ours", "ghost"), "Opacus DPLSTM, hooks": ("theirs", "hooks")}


class Reader(nn.Module):
    """An LSTM over the rows of a digit, and a linear layer on its last output."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        lstm = xpgrad_torch.LSTM if kind == "ours" else DPLSTM
        self.lstm, self.head = lstm(8, HIDDEN, batch_first=True), nn.Linear(HIDDEN, 10)

    def forward(self, rows: Tensor) -> Tensor:
        """Scores (N, 10) of digits (N, 8, 8)."""
        return self.head(self.lstm(rows)[0][:, -1])


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Digits to train on, and others to test with."""
    X, y = load_digits(return_X_y=True)
    images = torch.tensor(X.reshape(-1, 8, 8) / 8 - 1, dtype=torch.float32)
    split = train_test_split(images, torch.tensor(y), test_size=360, random_state=0)
    return TensorDataset(split[0], split[2]), TensorDataset(split[1], split[3])


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """The share of digits that are read correctly."""
    rows, labels = data.tensors
    model.eval()
    with torch.no_grad():
        right = (model(rows).argmax(1) == labels).double().mean()
    model.train()
    return float(right)


def train(kind: str, mode: str, *, epsilon: float = 8.0, epochs: int = 25, seed: int = 0) -> dict:
    """Train, and return the results.

    Parameters
    ----------
    kind : {"ours", "theirs"}
        Whose LSTM.
    mode : str
        Opacus' `grad_sample_mode`.
    epsilon : float
        The privacy budget; infinity trains without privacy.
    epochs, seed : int
        The number of epochs, and the seed of all random numbers.

    Returns
    -------
    dict
        The accuracy after each epoch, the spent epsilon, seconds, and MB of memory beyond the process's
        earlier memory.
    """
    torch.manual_seed(seed)
    warnings.filterwarnings("ignore", module="opacus")
    training, test = digits()
    model = Reader(kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    criterion = nn.CrossEntropyLoss()
    loader = DataLoader(training, batch_size=BATCH, shuffle=True)
    engine = opacus.PrivacyEngine(accountant="rdp")
    if epsilon < float("inf"):
        model, optimizer, *more = engine.make_private_with_epsilon(
            module=model, optimizer=optimizer, criterion=criterion, data_loader=loader,
            target_epsilon=epsilon, target_delta=DELTA, epochs=epochs, max_grad_norm=1.0,
            grad_sample_mode=mode,
        )  # fmt: skip
        *own, loader = more
        criterion = own[0] if own else criterion
    # memory that is allocated once, such as compiled code, is not memory of training
    criterion(model(training.tensors[0][:4]), training.tensors[1][:4]).backward()
    optimizer.zero_grad()
    held = peak_memory()
    right, seconds = [], 0.0
    for _ in range(epochs):
        start = time.perf_counter()
        for rows, labels in loader:
            optimizer.zero_grad()
            criterion(model(rows), labels).backward()
            optimizer.step()
        seconds += time.perf_counter() - start
        right.append(accuracy(model, test))
    peak = peak_memory() - held
    spent = engine.get_epsilon(DELTA) if epsilon < float("inf") else epsilon
    return {"accuracy": right, "epsilon": spent, "seconds": seconds, "MB": peak / 1024}


def peak_memory() -> int:
    """The process's peak in KiB; on Linux its own, as getrusage's begins with that of the parent."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(next(line.split()[1] for line in status.read_text().splitlines() if "VmHWM" in line))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def in_a_process(kind: str, mode: str, **options: float) -> dict:
    """The result of `train` in its own process, because memory is never returned to the system."""
    command = [sys.executable, __file__, "--one", kind, mode]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=8.0, help="what may be spent")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--one", nargs=2, metavar=("KIND", "MODE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    chosen = {"epsilon": options.epsilon, "epochs": options.epochs}
    if options.one:
        print(json.dumps(train(*options.one, **chosen)))
        return
    for name, (kind, mode) in KINDS.items():
        found = in_a_process(kind, mode, **chosen)
        print(
            f"{name}: {found['accuracy'][-1]:.1%} of unseen digits right "
            f"at epsilon = {found['epsilon']:.2f}, {found['seconds']:.1f} s, "
            f"{found['MB']:.0f} MB of memory for training"
        )


if __name__ == "__main__":
    main()
