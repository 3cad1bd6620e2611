"""Training steps of the newer recurrences and of loops in PyTorch: resets, sLSTM with heads, GRU-D.

    python asv_bench/recurrences.py            print the table
    python asv_bench/recurrences.py --rounds 9

Each figure is the median of interleaved rounds, forward and backward, float32. A loop computes the products
with its inputs at once, before its steps. If `xlstm` is installed, its plain backend is measured with the
sLSTM; if `torchrl` is, its LSTMModule with resets, unchanged and after `xpgrad_torch.swap`.

The floor is the time of the first row's matrix products at the rate of a large product by `torch.mm`: of each
weight forward and for its own gradient, and of R for the gradient of the state. X needs no gradient here.
"""

import argparse
import importlib.util
import statistics
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import xpgrad_torch
from xpgrad_bench.timing import in_turns

Works = dict[str, Callable[[], Tensor]]
SHAPES = ((50, 32, 64, 64), (50, 32, 256, 256), (200, 16, 128, 512))
RESETS = (128, 64, 64, 256)
HEADS = 4
LARGE = 1536  # rows and columns of the matrices that show the machine's rate


def resets(T: int, N: int, I: int, H: int) -> Works:
    """An LSTM on rows of many episodes: 3 % resets."""
    ours, theirs = xpgrad_torch.LSTM(I, H), torch.nn.LSTM(I, H)
    theirs.load_state_dict(ours.state_dict())
    X, reset = torch.randn(T, N, I), torch.rand(T, N) < 0.03

    def loop() -> Tensor:
        states, outputs = (torch.zeros(1, N, H), torch.zeros(1, N, H)), []
        for t in range(T):
            kept = (~reset[t]).float()[None, :, None]
            output, states = theirs(X[t : t + 1], tuple(state * kept for state in states))
            outputs.append(output)
        return torch.cat(outputs)

    works: Works = {
        "with resets": lambda: ours(X, reset=reset)[0],
        "without resets": lambda: ours(X)[0],
        "a loop of torch.nn.LSTM": loop,
    }
    if importlib.util.find_spec("torchrl") is not None:
        works["torchrl"] = _of_torchrl(ours, X, reset, swapped=False)
        works["torchrl, swapped"] = _of_torchrl(ours, X, reset, swapped=True)
    return works


def _of_torchrl(ours: torch.nn.Module, X: Tensor, reset: Tensor, swapped: bool) -> Callable[[], Tensor]:
    from tensordict import TensorDict
    from torchrl.modules import LSTMModule

    keys = {"in_keys": ["x", "h", "c"], "out_keys": ["y", ("next", "h"), ("next", "c")]}
    module = LSTMModule(X.shape[2], ours.hidden_size, default_recurrent_mode=True, **keys)
    module.lstm.load_state_dict(ours.state_dict())
    if swapped:
        xpgrad_torch.swap(module)
    data = {"x": X.transpose(0, 1), "is_init": reset.T[..., None]}
    return lambda: module(TensorDict(data, reset.T.shape))["y"].transpose(0, 1)


def slstm(T: int, N: int, I: int, H: int) -> Works:
    """The sLSTM with several heads and with one."""
    layer, one, X = xpgrad_torch.SLSTM(I, H, heads=HEADS), xpgrad_torch.SLSTM(I, H), torch.randn(T, N, I)
    width = H // HEADS

    def loop() -> Tensor:
        products, R = X @ layer.W[0].T + layer.B[0], layer.R[0].view(4, HEADS, width, width)
        R = R.permute(1, 3, 0, 2).reshape(HEADS, width, 4 * width)
        h = c = n = m = torch.zeros(N, H)
        outputs = []
        for t in range(T):
            own = torch.bmm(h.view(N, HEADS, width).transpose(0, 1), R)
            own = own.view(HEADS, N, 4, width).permute(1, 2, 0, 3).reshape(N, 4 * H)
            i, f, z, o = (products[t] + own).chunk(4, -1)
            kept = torch.nn.functional.logsigmoid(f) + m
            m = torch.maximum(i, kept) if t else i
            i, f = torch.exp(i - m), torch.exp(kept - m)
            c, n = f * c + i * torch.tanh(z), f * n + i
            h = torch.sigmoid(o) * c / n
            outputs.append(h)
        return torch.stack(outputs)

    works: Works = {
        f"heads {HEADS}": lambda: layer(X)[0],
        "heads 1": lambda: one(X)[0],
        "a loop": loop,
    }
    if importlib.util.find_spec("xlstm") is not None:
        works["xlstm"] = _of_xlstm(X, H)
    return works


def _of_xlstm(X: Tensor, H: int) -> Callable[[], Tensor]:
    from xlstm.blocks.slstm.cell import sLSTMCell, sLSTMCellConfig

    config = sLSTMCellConfig(hidden_size=H, num_heads=HEADS, backend="vanilla", dtype="float32")
    cell, gates = sLSTMCell(config), torch.nn.Linear(X.shape[2], 4 * H, bias=False)
    return lambda: cell(gates(X.transpose(0, 1)))[0]


def gru_d(T: int, N: int, I: int, H: int) -> Works:
    """GRU-D on a series with half of its values missing."""
    layer = xpgrad_torch.GRUD(I, H)
    X, delta, mask = torch.randn(T, N, I), torch.rand(T, N, I), (torch.rand(T, N, I) < 0.5).float()

    def loop() -> Tensor:
        h, last, outputs = torch.zeros(N, H), torch.zeros(N, I), []
        g = torch.exp(-(layer.decay_x[0, 0] * delta + layer.decay_x[0, 1]).relu())
        k = torch.exp(-(delta @ layer.decay_h[0, :, :I].T + layer.decay_h[0, :, I]).relu())
        R_gates, R_new = layer.R[0, : 2 * H].T, layer.R[0, 2 * H :].T
        for t in range(T):
            last = mask[t] * X[t] + (1 - mask[t]) * last
            filled = mask[t] * X[t] + (1 - mask[t]) * g[t] * last
            p = torch.cat((filled, mask[t]), -1) @ layer.W[0].T + layer.B[0]
            h = k[t] * h
            z, r = torch.sigmoid(p[:, : 2 * H] + h @ R_gates).chunk(2, -1)
            h = h + z * (torch.tanh(p[:, 2 * H :] + (r * h) @ R_new) - h)
            outputs.append(h)
        return torch.stack(outputs)

    return {"GRU-D": lambda: layer(X, mask, delta)[0], "a loop": loop}


def milliseconds(works: Works, rounds: int) -> dict[str, float]:
    """The median of each one, forward and backward; a timed run follows its like, as in training."""
    steps = {name: lambda work=work: work().sum().backward() for name, work in works.items()}
    times = in_turns(steps, least=rounds, warm=True)
    return {name: 1e3 * statistics.median(each) for name, each in times.items()}


def multiplications(make: Callable[..., Works], I: int, H: int) -> tuple[int, int]:
    """Multiplications of one row with an operator's W, and with its R."""
    return {
        resets: (4 * H * I, 4 * H * H),
        slstm: (4 * H * I, 4 * H * H // HEADS),
        gru_d: (3 * H * 2 * I + H * I, 3 * H * H),  # input and mask, and the state's decay
    }[make]


def floor(make: Callable[..., Works], shape: tuple[int, int, int, int], rounds: int) -> float:
    """Milliseconds of a step's matrix products at the best rate of a large product."""
    T, N, I, H = shape
    of_inputs, of_state = multiplications(make, I, H)
    a = torch.randn(LARGE, LARGE)
    [times] = in_turns({"": lambda: torch.mm(a, a)}, least=rounds).values()
    return T * N * (2 * of_inputs + 3 * of_state) * 1e3 * min(times) / LARGE**3


def table(rounds: int) -> Iterator[str]:
    """Lines: operator, shape, milliseconds and their multiples of the first, the floor."""
    yield "| operator | (T, N, I, H) | ms, and times the first | floor, ms, and the first's times of it |"
    yield "| --- | --- | --- | --- |"
    cases = [(resets, RESETS), *((make, shape) for make in (slstm, gru_d) for shape in SHAPES)]
    for make, shape in cases:
        torch.manual_seed(0)
        times = milliseconds(make(*shape), rounds)
        first, least = next(iter(times.values())), floor(make, shape, rounds)
        text = ", ".join(f"{name} {ms:.1f} ({ms / first:.2f})" for name, ms in times.items())
        yield f"| {make.__name__} | {shape} | {text} | {least:.1f} ({first / least:.2f}) |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    for line in table(parser.parse_args().rounds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
