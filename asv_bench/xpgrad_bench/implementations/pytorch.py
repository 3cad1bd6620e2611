"""PyTorch's own modules, functions and backward kernels; loops over time if it has no module."""

from typing import Any

from .. import elementwise, floor, recurrent
from . import need, tensors

# ------------------------------------------------------------------------------------------- recurrent


def _peephole_loop(inputs: int, hidden: int) -> Any:
    """A peephole LSTM as a torch module, written as its users write it: a Python loop over time."""
    torch = need("torch")

    class PeepholeLSTM(torch.nn.LSTM):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__(inputs, hidden)
            self.weight_peephole_l0 = torch.nn.Parameter(torch.empty(3 * hidden))

        def forward(self, X: Any, state: Any) -> Any:
            h, c = state[0][0], state[1][0]
            p_i, p_o, p_f = self.weight_peephole_l0.chunk(3)
            outputs = []
            # unbind is one node in the graph; X[t] would make a full-sized gradient at every step
            for x in torch.nn.functional.linear(X, self.weight_ih_l0, self.bias_ih_l0).unbind():
                gates = x + torch.nn.functional.linear(h, self.weight_hh_l0, self.bias_hh_l0)
                i, f, g, o = gates.chunk(4, dim=1)
                i, f = torch.sigmoid(i + p_i * c), torch.sigmoid(f + p_f * c)
                c = f * c + i * torch.tanh(g)
                h = torch.sigmoid(o + p_o * c) * torch.tanh(c)
                outputs.append(h)
            return torch.stack(outputs), (h[None], c[None])

    return PeepholeLSTM()


def _reset_before_loop(inputs: int, hidden: int) -> Any:
    """A GRU with the reset before the product, which torch lacks, written in the same way."""
    torch = need("torch")

    class ResetBeforeGRU(torch.nn.GRU):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__(inputs, hidden)

        def forward(self, X: Any, state: Any) -> Any:
            h = state[0]
            gates_weight, candidate_weight = self.weight_hh_l0.split([2 * hidden, hidden])
            gates_bias, candidate_bias = self.bias_hh_l0.split([2 * hidden, hidden])
            outputs = []
            for x in torch.nn.functional.linear(X, self.weight_ih_l0, self.bias_ih_l0).unbind():
                x_gates, x_candidate = x.split([2 * hidden, hidden], dim=1)
                gates = torch.sigmoid(x_gates + torch.nn.functional.linear(h, gates_weight, gates_bias))
                r, z = gates.chunk(2, dim=1)
                n = torch.nn.functional.linear(r * h, candidate_weight, candidate_bias)
                n = torch.tanh(x_candidate + n)
                h = n + z * (h - n)
                outputs.append(h)
            return torch.stack(outputs), h[None]

    return ResetBeforeGRU()


LOOPS = {"lstm-peephole": _peephole_loop, "gru-reset-before": _reset_before_loop}


class PackedRun(tensors.RecurrentRun):
    """A module on a packed sequence, the only way to give lengths to torch's own modules."""

    def __init__(self, work: recurrent.Recurrent, module: Any) -> None:
        super().__init__(work, module)
        self._lengths = self._torch.from_numpy(work.sequence_lens())

    def forward(self) -> None:
        """Pack, run, pad."""
        rnn = self._torch.nn.utils.rnn
        packed = rnn.pack_padded_sequence(self._X, self._lengths, enforce_sorted=False)
        output, _ = self.module(packed, self._state)
        self._H_all, _ = rnn.pad_packed_sequence(output)


def _recurrent(work: recurrent.Recurrent) -> Any:
    torch, sizes = need("torch"), work.shape[2:]
    if work.operator in LOOPS:
        if work.lengths is not None:
            raise NotImplementedError(f"no loop over {work.operator} takes lengths")
        return tensors.RecurrentRun(work, LOOPS[work.operator](*sizes))
    module = getattr(torch.nn, recurrent.OPERATORS[work.operator].module)(*sizes)
    return (tensors.RecurrentRun if work.lengths is None else PackedRun)(work, module)


# ----------------------------------------------------------------------------------------- elementwise


def _elu(alpha: float = 1.0, scale: float = 1.0) -> Any:
    return "elu_backward", lambda dY, X, Y: (dY, alpha, scale, 1.0, False, X)


# A name in torch.ops.aten and its arguments from (dY, X, Y); if there is none, a function of X whose gradient
# autograd composes.
BACKWARDS: dict[str, Any] = {
    "relu": ("threshold_backward", lambda dY, X, Y: (dY, X, 0)),
    "leaky_relu": ("leaky_relu_backward", lambda dY, X, Y: (dY, X, 0.01, False)),
    "thresholded_relu": ("threshold_backward", lambda dY, X, Y: (dY, X, 1.0)),
    "elu": _elu(),
    "selu": _elu(1.6732632423543772, 1.0507009873554805),
    "celu": _elu(),
    "softplus": ("softplus_backward", lambda dY, X, Y: (dY, X, 1.0, 20.0)),
    "gelu": ("gelu_backward", lambda dY, X, Y: (dY, X)),
    "quick_gelu": lambda X: X * (1.702 * X).sigmoid(),
    "silu": ("silu_backward", lambda dY, X, Y: (dY, X)),
    "mish": ("mish_backward", lambda dY, X, Y: (dY, X)),
    "sigmoid": ("sigmoid_backward", lambda dY, X, Y: (dY, Y)),
    "log_sigmoid": ("log_sigmoid_backward", lambda dY, X, Y: (dY, X, (-X.abs()).exp())),
    "hard_sigmoid": ("hardsigmoid_backward", lambda dY, X, Y: (dY, X)),
    "hard_swish": ("hardswish_backward", lambda dY, X, Y: (dY, X)),
    "tanh": ("tanh_backward", lambda dY, X, Y: (dY, Y)),
    "scaled_tanh": lambda X: X.tanh(),
    "hard_tanh": ("hardtanh_backward", lambda dY, X, Y: (dY, X, -1.0, 1.0)),
    "softsign": lambda X: X / (1 + X.abs()),
    "softmax": ("_softmax_backward_data", lambda dY, X, Y, dim: (dY, Y, dim, Y.dtype)),
    "log_softmax": ("_log_softmax_backward_data", lambda dY, X, Y, dim: (dY, Y, dim, Y.dtype)),
}
SAVE_OUTPUT = ("sigmoid", "tanh", "softmax", "log_softmax")


def _backward(work: elementwise.Elementwise) -> Any:
    """PyTorch's own backward kernel, or its autograd's gradient of the formula, as a function."""
    torch = need("torch")
    X, dY = map(tensors.tensor, elementwise.data(work))
    peer = BACKWARDS[work.function]
    if callable(peer):
        leaf = X.requires_grad_()
        Y = peer(leaf)
        return lambda: torch.autograd.grad(Y, leaf, dY, retain_graph=True)[0]
    along = work.along("dim")
    Y = getattr(X, work.function)(**along) if work.function in SAVE_OUTPUT else None
    name, arguments = peer
    given, run = arguments(dY, X, Y, *along.values()), getattr(torch.ops.aten, name)
    return lambda: run(*given)


# ------------------------------------------------------------------------------------------- all works


RUNS: dict[str, Any] = {
    "Recurrent": _recurrent,
    "Convolution": lambda work: tensors.ConvolutionRun(work, need("torch").nn.functional),
    "Elementwise": lambda work: tensors.ElementwiseRun(work, _backward, need("torch").nn),
    "Loss": lambda work: tensors.LossRun(work, need("torch").nn),
}


def describe() -> str:
    """The version of PyTorch, and the libraries of its products and fused layers."""
    torch = need("torch")
    mkl = "MKL" if torch.backends.mkl.is_available() else "no MKL"
    onednn = "oneDNN" if torch.backends.mkldnn.is_available() else "no oneDNN"
    return f"{tensors.threads()}; {mkl}, {onednn}, {torch.backends.cpu.get_cpu_capability()} kernels"


def path(run: Any, what: str) -> str:
    """The operator that takes most of a call's time, from PyTorch's profiler."""
    torch = need("torch")
    for _ in range(2):  # in the first run, preparations would count as an operator's time
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            getattr(run, what)()
    longest = max(profile.key_averages(), key=lambda event: event.self_cpu_time_total).key
    return f"{'oneDNN' if 'mkldnn' in longest else 'ATen'}, {longest.removeprefix('aten::')}"


def product_rate(dtype: str, seconds: float) -> float:
    """Operations per second of PyTorch's matrix product."""
    torch = need("torch")

    def product(m: int, k: int, n: int) -> Any:
        kind = getattr(torch, dtype)
        a, b, out = (torch.ones(size, dtype=kind) for size in ((m, k), (k, n), (m, n)))
        return lambda: torch.mm(a, b, out=out)

    return floor.best_rate(product, seconds)
