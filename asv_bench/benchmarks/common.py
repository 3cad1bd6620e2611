"""What the suites share: the shapes, the data, and one training step per implementation."""

import statistics
import time

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


def data(shape, seed=0):
    """Random float32 arrays for an LSTM in ONNX's layouts, and a random cotangent of H_all."""
    T, N, I, H = shape
    rng = np.random.default_rng(seed)

    def uniform(*size):
        return (rng.uniform(-1, 1, size) / np.sqrt(H)).astype(np.float32)

    return {
        "X": rng.standard_normal((T, N, I), dtype=np.float32),
        "W": uniform(1, 4 * H, I),
        "R": uniform(1, 4 * H, H),
        "B": uniform(1, 8 * H),
        "P": uniform(1, 3 * H),
        "initial_h": rng.standard_normal((1, N, H), dtype=np.float32) / 2,
        "initial_c": rng.standard_normal((1, N, H), dtype=np.float32) / 2,
        "grad_H_all": rng.standard_normal((T, 1, N, H), dtype=np.float32),
    }


def lengths(shape, seed=0):
    """Lengths between a quarter of T and T, the longest T itself."""
    T, N = shape[:2]
    values = np.random.default_rng(seed).integers(T // 4, T + 1, N)
    values[0] = T
    return values


def need(name):
    """Import an optional module, or tell asv to skip the benchmark."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotImplementedError(f"{name} is not installed") from error


class NumpyRun:
    """xpgrad on NumPy arrays, with P and sequence_lens where asked for."""

    def __init__(self, shape, *, peephole=False, sequence_lens=None):
        from xpgrad import lstm, lstm_grad

        self._lstm, self._lstm_grad = lstm, lstm_grad
        arrays = data(shape)
        self._X, self._W, self._R = (arrays.pop(name) for name in ("X", "W", "R"))
        self._cotangent = arrays.pop("grad_H_all")
        if not peephole:
            del arrays["P"]
        self._rest = {**arrays, "sequence_lens": sequence_lens}
        self.forward()

    def forward(self):
        self._saved = self._lstm(self._X, self._W, self._R, **self._rest)

    def backward(self):
        saved = {name: getattr(self._saved, name) for name in ("H_all", "C_all", "iofc")}
        return self._lstm_grad(self._X, self._W, self._R, **saved, **self._rest, grad_H_all=self._cotangent)

    def step(self):
        self.forward()
        return self.backward()


class TorchRun:
    """A torch module on a padded batch; every parameter, the input and the states get gradients."""

    def __init__(self, shape, module, **call):
        import torch

        torch.manual_seed(0)
        *_, I, H = shape
        arrays = {name: torch.from_numpy(a) for name, a in data(shape).items()}
        self._torch = torch
        self._call = call
        self._module = module(I, H)
        self._X = arrays["X"].requires_grad_()
        self._state = tuple(arrays[name].requires_grad_() for name in ("initial_h", "initial_c"))
        self._cotangent = arrays["grad_H_all"][:, 0].contiguous()
        self._wanted = [self._X, *self._state, *self._module.parameters()]
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
    """torch.nn.LSTM on a packed sequence, the only way in which it takes lengths."""

    def __init__(self, shape, values):
        self._lengths = values
        super().__init__(shape, need("torch").nn.LSTM)

    def forward(self):
        rnn = self._torch.nn.utils.rnn
        packed = rnn.pack_padded_sequence(self._X, self._lengths, enforce_sorted=False)
        output, _ = self._module(packed, self._state)
        self._H_all, _ = rnn.pad_packed_sequence(output)


class PeepholeLoop:
    """A peephole LSTM as a torch module, written as its users write it: a Python loop over time."""

    def __new__(cls, inputs, hidden):
        torch = need("torch")

        class Module(torch.nn.LSTM):
            def __init__(self):
                super().__init__(inputs, hidden)
                self.peepholes = torch.nn.Parameter(torch.rand(3, hidden) / hidden**0.5)

            def forward(self, X, state):
                h, c = state[0][0], state[1][0]
                p_i, p_f, p_o = self.peepholes
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

        return Module()


def make(impl, shape):
    """The plain LSTM of one implementation."""
    if impl == "xpgrad-numpy":
        return NumpyRun(shape)
    torch = need("torch")
    return TorchRun(shape, need("xpgrad_torch").LSTM if impl == "xpgrad-torch" else torch.nn.LSTM)


def make_lengths(impl, shape):
    """The same on sequences of uneven length: peers pack them, ours take the lengths."""
    values = lengths(shape)
    if impl == "xpgrad-numpy":
        return NumpyRun(shape, sequence_lens=values)
    torch = need("torch")
    if impl == "torch":
        return PackedRun(shape, torch.from_numpy(values))
    return TorchRun(shape, need("xpgrad_torch").LSTM, lengths=torch.from_numpy(values))


def make_peephole(impl, shape):
    """The same with peepholes: the peer is the loop that users write."""
    if impl == "xpgrad-numpy":
        return NumpyRun(shape, peephole=True)
    need("torch")
    if impl == "torch":
        return TorchRun(shape, PeepholeLoop)
    ours = need("xpgrad_torch").LSTM
    return TorchRun(shape, lambda inputs, hidden: ours(inputs, hidden, peephole=True))


def ratio(ours, peer, seconds=1.0, least=5):
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
