"""The comparisons: groups of works, our implementation and the peer, and the target ratio."""

from typing import Any, NamedTuple

from .convolutions import CONVOLUTIONS, LARGE_KERNELS, SMALL
from .elementwise import ALONG_AXIS, POINTWISE, Elementwise, Loss
from .keras_models import EXAMPLES, KerasStep
from .networks import NETWORKS
from .recurrent import SHAPES, Recurrent

TENSORS_FIRST = ("xpgrad-torch", "xpgrad-numpy")
COMPOSED = ("quick_gelu", "scaled_tanh", "softsign")  # without a backward kernel in PyTorch


class Group(NamedTuple):
    """Works of a kind, for ours and one peer."""

    family: str
    """The word that selects it on the command line."""
    title: str
    peer: str
    works: tuple[Any, ...]
    what: str = "step"
    """``step`` (forward and backward), ``backward`` (from saved arrays), ``memory`` (the peak of a step)."""
    ours: tuple[str, ...] = TENSORS_FIRST
    """Our implementations; the first installed one runs."""
    aim: float | None = None
    """The goal for the geometric mean of peer over ours."""
    least: float | None = None
    """The goal for each ratio."""


def _recurrent(operator: str, **options: Any) -> tuple[Recurrent, ...]:
    return tuple(Recurrent(operator, shape, **options) for shape in SHAPES.values())


def _batches(operator: str) -> tuple[Recurrent, ...]:
    """Shapes with enough rows for a batch."""
    return tuple(work for work in _recurrent(operator) if work.shape[1] > 1)


def _packed(operator: str, shortest: int, longest: int, *sizes: tuple[int, int, int]) -> tuple[Any, ...]:
    return tuple(Recurrent(operator, (longest, *size), (shortest, longest)) for size in sizes)


_KERAS_AIMS = {"torch": 4.0, "jax": 2.0, "tensorflow": 2.0}
_BATCHES = [shape[1:] for shape in SHAPES.values() if shape[1] > 1]
_NARROW = [(32, 16, 16), (128, 16, 16)]
_STEPS = [(8, 1, 64, 64), (8, 32, 256, 256)]
_FEW = [(35, 1, 512, 512), (35, 8, 512, 512), (35, 1, 1024, 1024), (35, 8, 1024, 1024)]

GROUPS = (
    Group("lstm", "LSTM, torch.nn.LSTM", "torch", _recurrent("lstm"), aim=1.0, least=0.95),
    Group("gru", "GRU, torch.nn.GRU", "torch", _recurrent("gru"), aim=2.5),
    Group("rnn", "RNN, torch.nn.RNN", "torch", _recurrent("rnn"), aim=1.0),
    Group(
        "few", "LSTM and GRU, few sequences and large weights, torch.nn", "torch",
        tuple(Recurrent(operator, shape) for operator in ("lstm", "gru") for shape in _FEW), aim=1.5,
    ),
    Group(
        "packed", "LSTM and GRU, lengths 10 to 50, torch.nn on packed sequences", "torch",
        _packed("lstm", 10, 50, *_BATCHES) + _packed("gru", 10, 50, *_BATCHES), aim=2.5,
    ),
    Group(
        "packed", "LSTM and GRU, lengths 100 to 1000, H = 16, torch.nn on packed sequences", "torch",
        _packed("lstm", 100, 1000, *_NARROW) + _packed("gru", 100, 1000, *_NARROW), aim=10.0,
    ),
    Group(
        "float64", "LSTM and GRU, float64, torch.nn", "torch",
        _recurrent("lstm", dtype="float64") + _recurrent("gru", dtype="float64"), aim=1.5,
    ),
    Group(
        "peephole", "LSTM with peepholes, a loop in PyTorch", "torch", _recurrent("lstm-peephole"), aim=3.0
    ),
    Group(
        "cells", "LSTM and GRU cells, 8 steps in a loop, torch.nn", "torch",
        tuple(Recurrent(cell, shape) for cell in ("lstm-cell", "gru-cell") for shape in _STEPS),
        ours=("xpgrad-torch",), aim=1.0, least=0.9,
    ),
    Group("conv", "Convolutions, torch.nn.functional", "torch", (*CONVOLUTIONS.values(),), aim=0.8),
    Group("conv", "Small convolutions, torch.nn.functional", "torch", (*SMALL.values(),), aim=1.0),
    Group(
        "conv", "Convolutions, large kernels, torch.nn.functional", "torch", (*LARGE_KERNELS.values(),),
        aim=3.0,
    ),
    *(
        Group("layers", f"Convolutions of {name}, torch.nn.functional", "torch", works, aim=1.0)
        for name, works in NETWORKS.items()
    ),
    Group(
        "elementwise", "Gradients of activations and softmax, torch.ops.aten", "torch",
        tuple(Elementwise(name, (4096, 1024)) for name in (POINTWISE | ALONG_AXIS) if name not in COMPOSED),
        what="backward",
    ),
    Group(
        "elementwise", "Softmax and losses of images, cotangents of means, torch.nn", "torch",
        (
            *(Elementwise(name, (8, 64, 56, 56), axis=1) for name in ALONG_AXIS),
            Elementwise("softmax", (2, 32000, 16), axis=1),
            Elementwise("gelu", (16, 256, 1024), repeated=(1,)),
            Elementwise("relu", (8, 64, 56, 56), repeated=(2, 3)),
            Loss("cross_entropy", (8, 21, 128, 128)),
            Loss("cross_entropy", (32, 64, 500)),
            Loss("binary_cross_entropy_with_logits", (8, 1, 256, 256)),
        ),
    ),
    Group(
        "elementwise", "Activations of large layers, torch.nn", "torch",
        (
            Elementwise("gelu", (8, 512, 4096)), Elementwise("silu", (8, 512, 4096)),
            Elementwise("relu", (8, 64, 224, 224)), Elementwise("softmax", (8, 12, 512, 512)),
        ),
    ),
    Group(
        "ort", "LSTM and GRU, the backward alone, ONNX Runtime's LSTMGrad and GRUGrad", "ort",
        tuple(w for w in _batches("lstm") + _batches("gru") if w.shape[1] >= 32), what="backward",
        ours=("xpgrad-numpy",), aim=8.0,
    ),
    Group(
        "ort", "Convolutions, the backward alone, ONNX Runtime's ConvGrad", "ort",
        (*CONVOLUTIONS.values(),), what="backward", ours=("xpgrad-numpy",),
    ),
    Group("jax", "LSTM, JAX", "jax", _recurrent("lstm"), aim=2.0),
    Group("jax", "GRU, JAX", "jax", _recurrent("gru"), aim=2.0),
    Group(
        "jax", "LSTM inside jit, JAX", "jax", _recurrent("lstm"), ours=("xpgrad-jax",), aim=2.0, least=1.0
    ),
    Group("jax", "GRU inside jit, JAX", "jax", _recurrent("gru"), ours=("xpgrad-jax",), aim=2.0, least=1.0),
    Group(
        "jax", "Convolutions inside jit, JAX", "jax", (*CONVOLUTIONS.values(),), ours=("xpgrad-jax",), aim=1.0
    ),
    *(
        Group(
            "keras", f"Training steps of Keras' models on {backend}", f"keras-{backend}",
            tuple(map(KerasStep, EXAMPLES)), ours=(f"xpgrad-keras-{backend}",), aim=aim, least=1.0,
        )
        for backend, aim in _KERAS_AIMS.items()
    ),
    Group(
        "memory", "LSTM, peak memory of a step, torch.nn.LSTM", "torch", _recurrent("lstm"),
        what="memory", aim=1.0,
    ),
)  # fmt: skip
FAMILIES = tuple(dict.fromkeys(group.family for group in GROUPS))
