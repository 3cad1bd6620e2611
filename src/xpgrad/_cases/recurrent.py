"""Options and oracles of the recurrent operators and of their single steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._testing import (
    gru_grad_reference,
    gru_reference,
    lstm_grad_reference,
    lstm_reference,
    rnn_grad_reference,
    rnn_reference,
    to_numpy,
)
from .case import (
    Array,
    Arrays,
    Case,
    KernelCases,
    Oracle,
    draw,
    from_differences,
    named_results,
    oracles_of,
    resets_of,
    run_vjp,
    seeded,
    sum_or_stack,
)

__all__ = ["CELLS", "SEQUENCES"]


class RecurrentCases(NamedTuple):
    """The differences between the recurrent operators."""

    name: str
    gates: int
    states: tuple[str, ...]
    outputs: tuple[str, ...]
    """Those that have a cotangent."""
    saved: tuple[str, ...]
    reference: Callable[..., Any]
    gradient_reference: Callable[..., Any]
    module: str
    """The one of torch.nn; its cell is that name and Cell."""
    places: tuple[int, ...]
    """For each of the module's gates the place among ours."""
    native: Mapping[str, Any]
    """The attributes with which the operator is the module's."""


_LSTM = RecurrentCases(
    name="lstm",
    gates=4,
    states=("initial_h", "initial_c"),
    outputs=("H_all", "H_t", "C_t"),
    saved=("H_all", "C_all", "iofc"),
    reference=lstm_reference,
    gradient_reference=lstm_grad_reference,
    module="LSTM",
    places=(0, 2, 3, 1),  # i f g o among i o f c
    native={},
)
_GRU = RecurrentCases(
    name="gru",
    gates=3,
    states=("initial_h",),
    outputs=("H_all", "H_t"),
    saved=("H_all", "zrh"),
    reference=gru_reference,
    gradient_reference=gru_grad_reference,
    module="GRU",
    places=(1, 0, 2),  # r z n among z r h
    native={"linear_before_reset": 1},
)
_RNN = RecurrentCases(
    name="rnn",
    gates=1,
    states=("initial_h",),
    outputs=("H_all", "H_t"),
    saved=("H_all",),
    reference=rnn_reference,
    gradient_reference=rnn_grad_reference,
    module="RNN",
    places=(0,),
    native={},
)

_PEEPHOLES = {"peepholes": True}


def _sample_axis(name: str, layout: int) -> int:
    return 0 if layout else 2 if name in ("H_all", "C_all") else 1


def _sequence_case(
    op: RecurrentCases,
    *,
    seed: int,
    steps: int = 5,
    peepholes: bool = False,
    bias: bool = True,
    states: bool = True,
    lengths: bool = False,
    resets: bool = False,
    masks: Sequence[str] = (),
    projection: int | None = None,
    cell_states: bool = False,
    gradient: Mapping[str, Any] | None = None,
    weights: bool = False,
    **attributes: Any,
) -> Case:
    """A small problem in which no two sizes are equal."""
    T, N, I, H, G = steps, 3, 2, 4, op.gates
    D = 2 if attributes.get("direction") == "bidirectional" else 1
    rng = np.random.default_rng(seed)
    width = projection or H
    arguments: dict[str, Any] = {
        "X": draw(rng, T, N, I),
        "W": draw(rng, D, G * H, I),
        "R": draw(rng, D, G * H, width) / 2,
    }
    if bias:
        arguments["B"] = draw(rng, D, 2 * G * H)
    if states:
        arguments |= {name: draw(rng, D, N, width if name == "initial_h" else H) for name in op.states}
    if peepholes:
        arguments["P"] = draw(rng, D, 3 * H)
    if projection is not None:
        arguments["S"] = draw(rng, D, projection, H)
    cotangents = {
        name: draw(rng, *((T, D) if name == "H_all" else (D,)), N, H if name == "C_t" else width)
        for name in op.outputs
    }
    if cell_states:
        cotangents["C_all"] = draw(rng, T, D, N, H)
    integers: dict[str, Any] = {
        name: np.abs(
            draw(rng, *((D,) if name == "recurrent_mask" else (T, D)), N, H if name == "zoneout_c" else width)
        )
        / 4
        for name in masks
    }
    if lengths:
        integers["sequence_lens"] = np.asarray([3, 0, 5], dtype=np.int64)
        for n, length in enumerate(integers["sequence_lens"]):
            arguments["X"][length:, n] = np.nan
            for name in {"H_all", "C_all"} & set(cotangents):
                cotangents[name][length:, :, n] = np.nan
    if resets:
        integers["reset"] = resets_of(rng, T, N)
    if attributes.get("layout") == 1:
        for name in {"X", *op.states} & set(arguments):
            arguments[name] = arguments[name].swapaxes(0, 1)
        integers |= {name: integers[name].T for name in {"reset"} & set(integers)}
        cotangents = {k: np.moveaxis(v, _sample_axis(k, 0), 0) for k, v in cotangents.items()}
    sample_axes = {
        name: _sample_axis(name, attributes.get("layout", 0)) for name in ("X", *op.states, *cotangents)
    }
    own = {"sample_weight": draw(rng, N)} if weights else {}
    return Case(arguments, integers, attributes, cotangents, gradient or {}, sample_axes, weights=own)


_ANY_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "no initial state": {"states": False},
    "no initial state, bidirectional": {"states": False, "direction": "bidirectional"},
    "no initial state, lengths, NaN padding": {"states": False, "lengths": True},
    "reverse": {"direction": "reverse"},
    "bidirectional": {"direction": "bidirectional"},
    "lengths, NaN padding": {"lengths": True},
    "lengths, bidirectional": {"lengths": True, "direction": "bidirectional"},
    "layout 1": {"layout": 1},
}
_RESETS: dict[str, dict[str, Any]] = {  # behind the others, whose numbers follow from their places
    "resets, layout 1": {"resets": True, "layout": 1},
    "resets, lengths, bidirectional": {"resets": True, "lengths": True, "direction": "bidirectional"},
}
_SAMPLES: dict[str, dict[str, Any]] = {
    "per_sample": {"gradient": {"per_sample": True}},
    "per_sample, norm": {"lengths": True, "gradient": {"per_sample": "norm"}},
    "sample_weight": {"lengths": True, "weights": True},
}
_LSTM_OPTIONS: dict[str, dict[str, Any]] = {
    **_ANY_OPTIONS,
    "peepholes, full": {**_PEEPHOLES, "gradient": {"peephole": "full"}},
    "peepholes, truncated": {**_PEEPHOLES, "gradient": {"peephole": "truncated"}},
    "clip": {**_PEEPHOLES, "clip": 0.7013},
    "projection": {"lengths": True, "projection": 3},
    "projection, masks": {
        **_PEEPHOLES,
        "lengths": True,
        "direction": "bidirectional",
        "projection": 3,
        "masks": ("recurrent_mask", "zoneout_h", "zoneout_c"),
        "gradient": {"per_sample": True},
    },
    "input_forget": {**_PEEPHOLES, "input_forget": True},
    "activations": {
        "direction": "bidirectional",
        "activations": ["HardSigmoid", "Relu", "LeakyRelu", "Softplus", "Softsign", "ScaledTanh"],
        "activation_alpha": [0.3, 0.1, 0.8],
        "activation_beta": [0.45, 0.6],
    },
    "activations, alpha < 0": {
        "activations": ["Sigmoid", "Elu", "LeakyRelu"],
        "activation_alpha": [-0.5, -0.2],
    },
    "per_sample": {**_PEEPHOLES, "gradient": {"per_sample": True}},
    "per_sample, norm": {**_PEEPHOLES, "lengths": True, "gradient": {"per_sample": "norm"}},
    "sample_weight": {**_PEEPHOLES, "lengths": True, "weights": True},
    "everything": {
        **_PEEPHOLES,
        "lengths": True,
        "direction": "bidirectional",
        "clip": 1.3007,
        "input_forget": True,
        "layout": 1,
        "activations": ["Sigmoid", "Elu", "Affine", "HardSigmoid", "ThresholdedRelu", "Tanh"],
        "activation_alpha": [0.7, 0.9, 0.25, 0.1],
        "activation_beta": [-0.1, 0.55],
        "gradient": {"per_sample": True},
    },
    "cell states": {**_PEEPHOLES, "lengths": True, "direction": "bidirectional", "cell_states": True},
    **_RESETS,
}
_GRU_CHOICES: dict[str, dict[str, Any]] = {
    "clip": {"clip": 0.8013},
    "masks": {"lengths": True, "masks": ("recurrent_mask", "zoneout_h")},
    "activations": {
        "direction": "bidirectional",
        "activations": ["HardSigmoid", "LeakyRelu", "Softsign", "ScaledTanh"],
        "activation_alpha": [0.3, 0.1, 0.8],
        "activation_beta": [0.45, 0.6],
    },
    "activations, alpha < 0": {
        "activations": ["Sigmoid", "LeakyRelu"],
        "activation_alpha": [-0.2],
    },
    **_SAMPLES,
    "everything": {
        "lengths": True,
        "direction": "bidirectional",
        "clip": 1.3007,
        "layout": 1,
        "activations": ["Sigmoid", "Elu", "HardSigmoid", "Affine"],
        "activation_alpha": [0.7, 0.25, 0.8],
        "activation_beta": [0.55, -0.1],
        "gradient": {"per_sample": True},
    },
}


def _both_resets(options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    resets = {"reset before": {"linear_before_reset": 0}, "reset after": {"linear_before_reset": 1}}
    return {
        f"{name}, {r}": {**option, **reset} for name, option in options.items() for r, reset in resets.items()
    }


_GRU_OPTIONS = _both_resets({**_ANY_OPTIONS, **_GRU_CHOICES, **_RESETS})
_RNN_OPTIONS: dict[str, dict[str, Any]] = {
    **_ANY_OPTIONS,
    "relu": {"activations": ["Relu"]},
    "clip": {"clip": 0.8013},
    "activations": {
        "direction": "bidirectional",
        "activations": ["LeakyRelu", "ScaledTanh"],
        "activation_alpha": [0.3, 0.8],
        "activation_beta": [0.6],
    },
    "activations, alpha < 0": {"activations": ["LeakyRelu"], "activation_alpha": [-0.2]},
    **_SAMPLES,
    "everything": {
        "lengths": True,
        "direction": "bidirectional",
        "clip": 1.3007,
        "layout": 1,
        "activations": ["Elu", "Affine"],
        "activation_alpha": [0.7, 0.8],
        "activation_beta": [-0.1],
        "gradient": {"per_sample": True},
    },
    **_RESETS,
}


def _from_reference(op: RecurrentCases, case: Case) -> Arrays:
    forward = op.reference(**case.arguments, **case.integers, **case.attributes)
    saved = {name: getattr(forward, name) for name in op.saved}
    cotangents = {f"grad_{name}": value for name, value in case.cotangents.items()}
    inputs = {**case.arguments, **case.integers, **case.attributes, **case.gradient_attributes}
    inputs |= case.weights
    grads = op.gradient_reference(**inputs, **saved, **cotangents)
    return named_results(case, forward, grads)


def _from_autograd(op: RecurrentCases, case: Case) -> Arrays:
    import torch

    arguments: dict[str, Any] = {
        name: torch.tensor(a, requires_grad=True) for name, a in case.arguments.items()
    }
    truncated = case.gradient_attributes.get("peephole") == "truncated"
    detach = {"detach": torch.Tensor.detach} if truncated else {}
    fixed = {name: torch.tensor(a) if a.dtype.kind == "f" else a for name, a in case.integers.items()}
    forward = op.reference(**arguments, **fixed, **case.attributes, **detach)

    def pullback(cotangents: Arrays) -> dict[str, np.ndarray]:
        found = torch.autograd.grad(
            [getattr(forward, name) for name in cotangents],
            list(arguments.values()),
            [torch.tensor(cotangent) for cotangent in cotangents.values()],
            retain_graph=True,
        )
        return {name: to_numpy(gradient) for name, gradient in zip(arguments, found, strict=True)}

    return sum_or_stack(case, pullback)


def _from_torch_nn(op: RecurrentCases, case: Case, *, cell: bool = False) -> Arrays | None:
    """PyTorch's module or cell in float64, for the options that it has."""
    attributes = {k: v for k, v in case.attributes.items() if k not in ("direction", "layout")}
    if set(case.arguments) != {"X", "W", "R", "B", *op.states} or attributes != op.native:
        return None
    if case.integers or case.attributes.get("direction") == "reverse":
        return None
    if case.gradient_attributes or case.weights:
        return None
    if set(case.cotangents) != set(op.outputs):
        return None
    import torch

    W, R = case.arguments["W"], case.arguments["R"]
    D, H, I, G = W.shape[0], R.shape[2], W.shape[2], op.gates
    batch_first = case.attributes.get("layout", 0) == 1
    options = {} if cell else {"bidirectional": D == 2, "batch_first": batch_first}
    module = getattr(torch.nn, op.module + "Cell" * cell)(I, H, dtype=torch.float64, **options)
    parts: dict[str, tuple[str, int, slice]] = {}
    for d in range(D):
        suffix = "" if cell else "_l0" + "_reverse" * d
        parts[f"weight_ih{suffix}"] = "W", d, slice(None)
        parts[f"weight_hh{suffix}"] = "R", d, slice(None)
        parts[f"bias_ih{suffix}"] = "B", d, slice(0, G * H)
        parts[f"bias_hh{suffix}"] = "B", d, slice(G * H, 2 * G * H)

    def reorder(rows: np.ndarray, gates: Any) -> np.ndarray:
        return rows.reshape(G, H, *rows.shape[1:])[list(gates)].reshape(rows.shape)

    with torch.no_grad():
        for name, (source, d, rows) in parts.items():
            getattr(module, name).copy_(torch.tensor(reorder(case.arguments[source][d, rows], op.places)))
    x, *states = (torch.tensor(case.arguments[name], requires_grad=True) for name in ("X", *op.states))
    # the module's states are (D, N, H) in either layout, the cell's (N, H) and its input (N, I)
    given = [s[0] if cell else s.swapaxes(0, 1) if batch_first else s for s in states]
    results = module(x[0] if cell else x, tuple(given) if len(given) > 1 else given[0])
    ends = results if cell else results[1]
    ends = list(ends) if len(given) > 1 else [ends]
    if cell:
        found = [ends[0][None, None], *(end[None] for end in ends)]
    else:
        y = results[0].unflatten(-1, (D, H))  # (T, N, D, H), or (N, T, D, H)
        found = [y, *(end.swapaxes(0, 1) for end in ends)] if batch_first else [y.swapaxes(1, 2), *ends]
    torch.autograd.backward(found, [torch.tensor(case.cotangents[name]) for name in op.outputs])

    grads = {name: np.zeros_like(case.arguments[name]) for name in ("W", "R", "B")}
    for name, (source, d, rows) in parts.items():
        grads[source][d, rows] = reorder(to_numpy(getattr(module, name).grad), np.argsort(op.places))
    grads |= {name: to_numpy(a.grad) for name, a in zip(("X", *op.states), (x, *states), strict=True)}
    outputs = {name: to_numpy(a) for name, a in zip(op.outputs, found, strict=True)}
    return outputs | {f"gradient of {name}": gradient for name, gradient in grads.items()}


def _sequence_kernel(op: RecurrentCases, options: Mapping[str, Mapping[str, Any]]) -> KernelCases:
    return KernelCases(
        op.name,
        seeded(_sequence_case, op, options),
        functools.partial(run_vjp, op.name),
        (
            *oracles_of(op.name, op, _from_reference, _from_autograd),
            Oracle("torch.nn", functools.partial(_from_torch_nn, op), module="torch"),
        ),
    )


# The single-step cells: a sequence of one step, without the axes of time and direction ----------------------

_LSTM_CELL_OPTIONS: dict[str, dict[str, Any]] = {
    name: {k: v for k, v in _LSTM_OPTIONS[name].items() if k != "direction"}
    for name in (
        "plain",
        "no bias",
        "peepholes, full",
        "peepholes, truncated",
        "clip",
        "input_forget",
        "activations, alpha < 0",
        "per_sample",
    )
}
_GRU_CELL_OPTIONS: dict[str, dict[str, Any]] = {
    f"{name}, {reset}": _GRU_OPTIONS[f"{name}, {reset}"]
    for name in ("plain", "no bias", "clip", "activations, alpha < 0", "per_sample")
    for reset in ("reset before", "reset after")
}
_RNN_CELL_OPTIONS = {
    name: _RNN_OPTIONS[name]
    for name in ("plain", "no bias", "relu", "clip", "activations, alpha < 0", "per_sample")
}
_CELL_NAMES = {"initial_h": "H", "initial_c": "C", "H_t": "H_next", "C_t": "C_next"}


def _to_cell(op: RecurrentCases, case: Case, name: str, array: Array) -> tuple[str, Array] | None:
    """The cell's name and array for a sequence's; None if the cell has none."""
    if name in ("H_all", "C_all"):
        return None
    _, prefix, bare = name.rpartition("gradient of ")
    if name == op.saved[-1]:  # over time
        array = array[0, ...]
    elif case.gradient_attributes.get("per_sample") and prefix and bare in ("W", "R", "B", "P"):
        return name, array[:, 0, ...]
    return prefix + _CELL_NAMES.get(bare, bare), array[0, ...]


def _cell_results(op: RecurrentCases, case: Case, results: Arrays | None) -> Arrays | None:
    if results is None:
        return None
    return dict(filter(None, (_to_cell(op, case, name, array) for name, array in results.items())))


def _cell_case(op: RecurrentCases, **options: Any) -> Case:
    """The first step of a sequence."""
    case = _sequence_case(op, steps=1, **options)
    return case._replace(
        arguments={_CELL_NAMES.get(name, name): array[0] for name, array in case.arguments.items()},
        cotangents={_CELL_NAMES[name]: a[0] for name, a in case.cotangents.items() if name != "H_all"},
        sample_axes=dict.fromkeys(["X", *_CELL_NAMES.values()], 0),
    )


def _as_sequence(op: RecurrentCases, case: Case) -> Case:
    """A cell's problem as a sequence of one step."""
    names = {cell: sequence for sequence, cell in _CELL_NAMES.items()}
    cotangents = {names[name]: array[None] for name, array in case.cotangents.items()}
    cotangents["H_all"] = np.zeros((1, *cotangents["H_t"].shape))
    arguments = {names.get(name, name): array[None] for name, array in case.arguments.items()}
    sample_axes = {name: _sample_axis(name, 0) for name in ("X", *cotangents)}
    return case._replace(arguments=arguments, cotangents=cotangents, sample_axes=sample_axes)


def _cell_kernel(op: RecurrentCases, options: Mapping[str, Mapping[str, Any]]) -> KernelCases:
    def through(oracle: Callable[..., Arrays | None], **more: Any) -> Callable[[Case], Arrays | None]:
        return lambda case: _cell_results(op, case, oracle(op, _as_sequence(op, case), **more))

    name = f"{op.name}_cell"
    return KernelCases(
        name,
        seeded(_cell_case, op, options),
        functools.partial(run_vjp, name),
        (
            Oracle("reference", through(_from_reference)),
            Oracle("differences", functools.partial(from_differences, name), floor=1e-7),
            Oracle("autograd", through(_from_autograd), module="torch"),
            Oracle("torch.nn", through(_from_torch_nn, cell=True), module="torch"),
        ),
    )


SEQUENCES = tuple(
    _sequence_kernel(op, options)
    for op, options in ((_LSTM, _LSTM_OPTIONS), (_GRU, _GRU_OPTIONS), (_RNN, _RNN_OPTIONS))
)
CELLS = tuple(
    _cell_kernel(op, options)
    for op, options in ((_LSTM, _LSTM_CELL_OPTIONS), (_GRU, _GRU_CELL_OPTIONS), (_RNN, _RNN_CELL_OPTIONS))
)
