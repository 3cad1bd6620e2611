"""PyTorch's modules beside ours, for the tests: pairs with the same parameters, and how to compare them."""

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils.rnn import PackedSequence

import xpgrad_torch

T, N, I, H = 5, 3, 2, 4
THEIRS = {name: getattr(nn, name) for name in ("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell")}
OURS = {name: getattr(xpgrad_torch, name) for name in THEIRS}


def pair(name, *args, seed=0, dtype=torch.float64, **kwargs):
    """Return PyTorch's module and ours with the same parameters."""
    torch.manual_seed(seed)
    theirs = THEIRS[name](*args, **kwargs, dtype=dtype)
    ours = OURS[name](*args, **kwargs, dtype=dtype)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def random_states(module, batch=(N,), dtype=torch.float64):
    """Return a tuple of random initial states: two for an LSTM, else one."""
    sizes = [module.hidden_size] * (2 if type(module).__name__.startswith("LSTM") else 1)
    layers = ()
    if isinstance(module, nn.RNNBase):
        layers = (module.num_layers * (2 if module.bidirectional else 1),)
        sizes[0] = module.proj_size or module.hidden_size
    return tuple(torch.randn(*layers, *batch, size, dtype=dtype).requires_grad_() for size in sizes)


def as_hx(states):
    """Return states as a module takes them."""
    return states if len(states) > 1 else states[0]


def flat(result):
    """Return what a module returned as a list of tensors."""
    if isinstance(result, torch.Tensor):
        return [result]
    flattened = []
    for part in result:
        if isinstance(part, PackedSequence):
            flattened.append(part.data)
        else:
            flattened += part if isinstance(part, tuple) else [part]
    return flattened


def under_autocast(theirs, inputs, dtype, device="cpu"):
    """Return what PyTorch's module returns under autocast.

    On a CPU torch.nn.LSTM raises there for bfloat16 without AVX-512 (ONEDNN_MAX_CPU_ISA=AVX2 shows it
    anywhere), for float16 on most: oneDNN lacks the kernels. Then the oracle is its float32 kernel on
    parameters and inputs rounded to the dtype, with outputs that are rounded too.
    """
    try:
        with torch.autocast(device, dtype=dtype):
            return flat(theirs(*inputs))
    except RuntimeError as error:
        if type(theirs) is not nn.LSTM or "could not create a primitive descriptor" not in str(error):
            raise
    rounded = {name: p.to(dtype).to(p.dtype) for name, p in theirs.named_parameters()}
    outputs = functional_call(theirs, rounded, tuple(x.to(dtype).to(x.dtype) for x in inputs))
    return [y.to(dtype) for y in flat(outputs)]


def gradients(module, leaves, call, cotangents=None):
    """Return outputs, and gradients of all leaves and parameters for random cotangents."""
    outputs = flat(call(module))
    if cotangents is None:
        cotangents = [torch.randn_like(y) for y in outputs]
    leaves = [*leaves, *module.parameters()]
    return outputs, torch.autograd.grad(outputs, leaves, cotangents), cotangents


def assert_same(theirs, ours, leaves, call, tolerance=1e-10):
    """Outputs and every gradient are the same."""
    expected, expected_grads, cotangents = gradients(theirs, leaves, call)
    got, got_grads, _ = gradients(ours, leaves, call, cotangents)
    for a, b in zip([*got, *got_grads], [*expected, *expected_grads], strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        assert (a - b).abs().max() <= tolerance * max(1.0, b.abs().max())


def as_function(module, lengths=None):
    """Return the module as a function of its input, states and parameters."""
    names = [name for name, _ in module.named_parameters()]
    kwargs = {} if lengths is None else {"lengths": lengths}

    def call(X, *tensors):
        states, parameters = tensors[: -len(names)], tensors[-len(names) :]
        values = dict(zip(names, parameters, strict=True))
        return tuple(flat(torch.func.functional_call(module, values, (X, as_hx(states)), kwargs)))

    return call
