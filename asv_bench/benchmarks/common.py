"""What the suites share: the shapes, the data, and one training step per implementation."""

import importlib
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

# (T, N, I, H): time, batch, input, hidden
SHAPES = {
    "50x1x64x64": (50, 1, 64, 64),
    "50x32x64x64": (50, 32, 64, 64),
    "50x32x256x256": (50, 32, 256, 256),
    "100x64x128x512": (100, 64, 128, 512),
    "35x20x650x650": (35, 20, 650, 650),
    "200x128x64x128": (200, 128, 64, 128),
}
IMPLEMENTATIONS = ("xpgrad-numpy", "xpgrad-torch", "torch")
SMOKE = bool(os.environ.get("XPGRAD_BENCH_SMOKE"))  # set by smoke.sh: does it work, whatever it takes?


def need(name):
    """Import an optional module, or tell asv to skip the benchmark."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotImplementedError(f"{name} is not installed") from error


# ---------------------------------------------------------------------------------------- what is timed


class Operator(NamedTuple):
    """A recurrent operator: its kernels' arrays, and what its torch module is called."""

    name: str
    module: str
    gates: int
    states: tuple[str, ...]
    saved: tuple[str, ...]


LSTM = Operator("lstm", "LSTM", 4, ("initial_h", "initial_c"), ("H_all", "C_all", "iofc"))
GRU = Operator("gru", "GRU", 3, ("initial_h",), ("H_all", "zrh"))


def _peephole_loop(inputs, hidden):
    """A peephole LSTM as a torch module, written as its users write it: a Python loop over time."""
    torch = need("torch")

    class PeepholeLSTM(torch.nn.LSTM):
        def __init__(self):
            super().__init__(inputs, hidden)
            self.weight_peephole_l0 = torch.nn.Parameter(torch.empty(3 * hidden))

        def forward(self, X, state):
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


def _reset_before_loop(inputs, hidden):
    """A GRU with the reset before the product, which torch lacks, written in the same way."""
    torch = need("torch")

    class ResetBeforeGRU(torch.nn.GRU):
        def __init__(self):
            super().__init__(inputs, hidden)

        def forward(self, X, state):
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


class Case(NamedTuple):
    """An operator with options: of the kernel, of xpgrad's module, and the peer where torch has no module."""

    operator: Operator
    attributes: dict[str, Any]
    options: dict[str, Any]
    loop: Callable[[int, int], Any] | None = None


CASES = {
    "lstm": Case(LSTM, {}, {}),
    "gru": Case(GRU, {"linear_before_reset": 1}, {}),
    "lstm-peephole": Case(LSTM, {}, {"peephole": True}, _peephole_loop),
    "gru-reset-before": Case(GRU, {"linear_before_reset": 0}, {"reset_after": False}, _reset_before_loop),
}


# ------------------------------------------------------------------------------------------------ data


def data(case, shape, seed=0):
    """Random float32 arrays in ONNX's layouts: the parameters, and X, states and a cotangent of H_all."""
    T, N, I, H = shape
    gates = case.operator.gates
    rng = np.random.default_rng(seed)

    def uniform(*size):
        return (rng.uniform(-1, 1, size) / np.sqrt(H)).astype(np.float32)

    parameters = {
        "W": uniform(1, gates * H, I),
        "R": uniform(1, gates * H, H),
        "B": uniform(1, 2 * gates * H),
    }
    if "peephole" in case.options:
        parameters["P"] = uniform(1, 3 * H)
    arrays = {
        "X": rng.standard_normal((T, N, I), dtype=np.float32),
        "grad_H_all": rng.standard_normal((T, 1, N, H), dtype=np.float32),
    }
    for name in case.operator.states:
        arrays[name] = rng.standard_normal((1, N, H), dtype=np.float32) / 2
    return parameters, arrays


def lengths(shape, seed=0):
    """Lengths between a quarter of T and T, the longest T itself."""
    T, N = shape[:2]
    values = np.random.default_rng(seed).integers(T // 4, T + 1, N)
    values[0] = T
    return values


# ------------------------------------------------------------------------------------- implementations


class NumpyRun:
    """xpgrad's kernels on NumPy arrays."""

    def __init__(self, case, shape, sequence_lens=None):
        xpgrad = importlib.import_module("xpgrad")
        name = case.operator.name
        self._forward, self._gradient = getattr(xpgrad, name), getattr(xpgrad, f"{name}_grad")
        parameters, arrays = data(case, shape)
        self._cotangent = arrays.pop("grad_H_all")
        self._arguments = {**parameters, **arrays, **case.attributes, "sequence_lens": sequence_lens}
        self._names = case.operator.saved
        self.forward()

    def forward(self):
        self._saved = self._forward(**self._arguments)

    def backward(self):
        saved = {name: getattr(self._saved, name) for name in self._names}
        return self._gradient(**self._arguments, **saved, grad_H_all=self._cotangent)

    def step(self):
        self.forward()
        return self.backward()


class TorchRun:
    """A torch module on a padded batch; every parameter, the input and the states get gradients."""

    def __init__(self, case, shape, module, **call):
        self._torch = torch = need("torch")
        xpgrad = importlib.import_module("xpgrad")
        parameters, arrays = data(case, shape)
        onnx = {name: a[0] for name, a in parameters.items()}
        weights = xpgrad.convert(
            case.operator.name, onnx, "onnx", "torch",
            linear_before_reset=case.attributes.get("linear_before_reset", 0),
        )  # fmt: skip
        self._module = module
        module.load_state_dict({f"{name}_l0": torch.from_numpy(a) for name, a in weights.items()})
        self._call = call
        self._X = torch.from_numpy(arrays["X"]).requires_grad_()
        states = [torch.from_numpy(arrays[name]).requires_grad_() for name in case.operator.states]
        self._state = states[0] if len(states) == 1 else tuple(states)
        self._cotangent = torch.from_numpy(arrays["grad_H_all"][:, 0])
        self._wanted = [self._X, *states, *module.parameters()]
        self.forward()

    def forward(self):
        self._H_all, _ = self._module(self._X, self._state, **self._call)

    def backward(self):
        # The graph is kept, so that the backward alone can be timed more than once.
        return self._torch.autograd.grad(self._H_all, self._wanted, self._cotangent, retain_graph=True)

    def step(self):
        self.forward()
        return self._torch.autograd.grad(self._H_all, self._wanted, self._cotangent)


class PackedRun(TorchRun):
    """A torch module on a packed sequence, the only way in which torch's own take lengths."""

    def __init__(self, case, shape, module, values):
        self._lengths = values
        super().__init__(case, shape, module)

    def forward(self):
        rnn = self._torch.nn.utils.rnn
        packed = rnn.pack_padded_sequence(self._X, self._lengths, enforce_sorted=False)
        output, _ = self._module(packed, self._state)
        self._H_all, _ = rnn.pad_packed_sequence(output)


def make(impl, case, shape, *, uneven=False):
    """One implementation of a case; on sequences of uneven length peers pack them, ours take the lengths."""
    case = CASES[case]
    values = lengths(shape) if uneven else None
    if impl == "xpgrad-numpy":
        return NumpyRun(case, shape, values)
    torch = need("torch")
    sizes = shape[2:]
    if impl == "xpgrad-torch":
        module = getattr(need("xpgrad_torch"), case.operator.module)(*sizes, **case.options)
        return TorchRun(case, shape, module, **({"lengths": torch.from_numpy(values)} if uneven else {}))
    module = case.loop(*sizes) if case.loop else getattr(torch.nn, case.operator.module)(*sizes)
    return (
        PackedRun(case, shape, module, torch.from_numpy(values)) if uneven else TorchRun(case, shape, module)
    )


def ratio(ours, peer, seconds=0.0 if SMOKE else 1.0, least=1 if SMOKE else 5):
    """The median time of ours over the peer's, both timed in turns, so that drift hits them alike."""
    ours(), peer()
    times = ([], [])
    end = time.perf_counter() + seconds
    while len(times[0]) < least or time.perf_counter() < end:
        for function, record in zip((ours, peer), times, strict=True):
            start = time.perf_counter()
            function()
            record.append(time.perf_counter() - start)
    return statistics.median(times[0]) / statistics.median(times[1])
