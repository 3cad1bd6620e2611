"""Random calls, each made three times with fresh numbers, compared with the standard engine.

The first call of a form records its program, and later calls run the program, in the adapters by a shorter
path. Each must agree with the standard engine, for any operator, options, memory layouts and dtypes, in one
to three threads. Half of the sizes are small. The others lie around the sizes at which compiled code switches
its method (`_testing.thresholds`). The lengths of sequences differ between calls: a program is planned for
the longest lengths, and runs with all others. Every third call of a recurrent operator has fresh resets.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints
from unittest import mock

import numpy as np

import xpgrad
from xpgrad._calls import families
from xpgrad._elementwise.activation_formulas import ONNX_ACTIVATIONS
from xpgrad._operators.axes import gradient_name, in_layout, shape_of
from xpgrad._operators.declaration import DECLARED
from xpgrad._operators.units import UNITS, Unit
from xpgrad.engine.compiled import machine

from .._testing.comparing import to_numpy
from .._testing.thresholds import near, thresholds
from . import check_jax
from .console import Progress, message

__all__ = ["RandomCall", "draw_call", "failure", "run_random"]

Array = Any
_TOLERANCE = {"float64": 1e-9, "float32": 2e-4, "float16": 2e-2, "bfloat16": 1.6e-1}
"""Relative to the largest value of an array: sums in another order, and states rounded at every step."""
_ACTIVATIONS = tuple(activation.name for activation in ONNX_ACTIVATIONS.values())
_BOUNDED = ("HardSigmoid", "ScaledTanh", "Sigmoid", "Softsign", "Tanh")
_IN_JAX = ("lstm", "gru", "rnn")
_CHOSEN = {"lstm": 3, "gru": 2, "rnn": 1, "layer_norm_lstm": 3, "layer_norm_gru": 2}
_CHOSEN |= {f"{name}_cell": _CHOSEN[name] for name in _IN_JAX}
"""The number of activations of a direction, by operator."""
_LIKELY = {"lstm": 8, "gru": 8, "rnn": 2}
"""Relative frequencies of the operators; 1 for all others."""
_WORK = 1 << 23
"""The most multiply-adds of a recurrent call's forward: the standard engine computes it too."""
_LAYOUTS = ("plain", "fortran", "strided", "negative", "unaligned", "record", "read-only", "broadcast")


class RandomCall(NamedTuple):
    """A call without its numbers: a function, and the shapes and memory layouts of its arrays."""

    function: str
    shapes: Mapping[str, tuple[int, ...]]
    options: Mapping[str, Any] = {}
    lengths: tuple[int, ...] | None = None
    gradient_options: Mapping[str, Any] = {}
    seed: int = 0
    namespace: str = "numpy"
    dtype: str = "float64"
    layouts: Mapping[str, str] = {}
    resets: float | None = None
    """The share of steps with a reset; None for a call without `reset`."""
    chunk: int | None = None
    """The rows of a chunk of the backward loop, and programs of its own; None for the machine's."""

    def __str__(self) -> str:
        arrays = ", ".join(f"{n} {s} {self.layouts[n]}" for n, s in self.shapes.items())
        more = {**self.options, **self.gradient_options}
        if self.lengths is not None:
            more["sequence_lens"] = self.lengths
        if self.resets is not None:
            more["resets"] = f"{self.resets:.0%}"
        if self.chunk is not None:
            more["chunk"] = self.chunk
        options = ", ".join(f"{name}={value!r}" for name, value in more.items())
        return f"seed {self.seed}: {self.function} on {self.namespace} {self.dtype}: {arrays}; {options}"


# ------------------------------------------------------------------------------------------------ drawing

_Shapes = dict[str, tuple[int, ...]]


def draw_call(seed: int, of_lengths: bool = False) -> RandomCall:
    """The call with this number: the same on every machine with the same frameworks.

    With `of_lengths` it is a recurrent operator on sequences of uneven lengths, with few formulas to compile.
    """
    rng = np.random.default_rng(seed)
    functions = [_sequence, _sequence, _step, _convolution, _convolution, _activation, _along_axis, _loss]
    drawn = _sequence(rng, plain=True) if of_lengths else functions[rng.integers(len(functions))](rng)
    found = importlib.util.find_spec
    if of_lengths and drawn.function in _IN_JAX and found("jax") is not None and rng.random() < 0.05:
        drawn = drawn._replace(gradient_options={})
        namespace, dtype = "jax", str(_pick(rng, ["float32", "float64"]))
    elif found("torch") is not None and rng.random() < 0.4:
        namespace = "torch"
        dtype = str(rng.choice(["float64", "float32", "float16", "bfloat16"], p=[0.3, 0.4, 0.15, 0.15]))
    else:
        namespace, dtype = "numpy", str(rng.choice(["float64", "float32", "float16"], p=[0.3, 0.5, 0.2]))
    plain = 1.0 if namespace == "jax" else 0.6
    layouts = {name: "plain" if rng.random() < plain else str(rng.choice(_LAYOUTS)) for name in drawn.shapes}
    has_resets = drawn.function in UNITS and rng.random() < 1 / 3
    resets = float(_pick(rng, [0.03, 0.3, 1.0])) if has_resets else None
    chunk = None
    if drawn.function in UNITS and rng.random() < 0.5:
        chunk = int(rng.integers(1, np.prod(drawn.shapes["X"][:2], dtype=int) + 2))
    return drawn._replace(
        seed=seed, namespace=namespace, dtype=dtype, layouts=layouts, resets=resets, chunk=chunk
    )


def _maybe(rng: np.random.Generator, shapes: _Shapes, **optional: tuple[int, ...]) -> None:
    """Add each of the optional arrays, or not."""
    for name, shape in optional.items():
        if rng.random() < 0.5:
            shapes[name] = shape


def _pick(rng: np.random.Generator, values: Any) -> Any:
    return values[rng.integers(len(values))]


def _size(rng: np.random.Generator, most: int = 9) -> int:
    """A size: mostly small, sometimes 0, or large enough for vectors and threads."""
    if rng.random() < 0.04:
        return 0
    return int(rng.integers(33, 70)) if rng.random() < 0.08 else int(rng.integers(1, most))


def _sequence_sizes(rng: np.random.Generator, gates: int) -> tuple[int, int, int, int]:
    """T, N, I and H: small, or around the thresholds if `_WORK` allows it."""
    if rng.random() < 0.5:
        T, N, I, H = (_size(rng) for _ in range(4))
        return T, N, I, max(H, 1)
    table = thresholds()
    N, rows = near(rng, table.batch, 70), near(rng, table.rows, 1100)
    T = max(1, min(rows // N + int(rng.integers(0, 2)), 200))
    width = max(1, int(np.sqrt(_WORK / (2 * T * N * gates))))
    I, H = (near(rng, table.features, width) if rng.random() < 0.7 else min(_size(rng), width) for _ in "IH")
    return T, N, I, max(H, 1)


def _lengths(rng: np.random.Generator, T: int, N: int) -> tuple[int, ...]:
    """Lengths with any sum from 0 to T N."""
    most = T if rng.random() < 0.5 else int(rng.integers(0, T + 1))
    least = 0 if rng.random() < 0.5 else int(rng.integers(0, most + 1))
    return tuple(int(n) for n in rng.integers(least, most + 1, size=N))


def _wanted(rng: np.random.Generator, names: Sequence[str]) -> dict[str, Any]:
    """The wanted gradients: mostly all."""
    if rng.random() < 0.6:
        return {}
    return {"wrt": tuple(name for name in names if rng.random() < 0.5) or (names[0],)}


def _recurrent_options(rng: np.random.Generator, operator: str, D: int, T: int = 1) -> dict[str, Any]:
    """Random options of an operator or of its single step."""
    options: dict[str, Any] = {}
    has = inspect.signature(getattr(xpgrad, operator)).parameters
    # unbounded activations amplify rounding in several steps, gates beyond 0 to 1 in many
    if "activations" in has and T < 64 and rng.random() < 0.3:
        known = _ACTIVATIONS if T < 6 else _BOUNDED
        options["activations"] = [str(_pick(rng, known)) for _ in range(_CHOSEN[operator] * D)]
    if "clip" in has and rng.random() < 0.25:
        options["clip"] = float(rng.uniform(0.3, 3))
    for flag, value in (("input_forget", True), ("linear_before_reset", 1)):
        if flag in has and rng.random() < 0.4:
            options[flag] = value
    return options


def _unit_shapes(
    rng: np.random.Generator, unit: Unit, function: str, sizes: Mapping[str, int], layout: int = 0
) -> tuple[_Shapes, list[str]]:
    """The shapes of a call of a recurrent operator or of its step, and the names of its operands."""
    is_step = function == unit.step_name
    axes, known = (unit.step_axes, unit.step_arguments) if is_step else (unit.axes, unit.graded)
    has = inspect.signature(getattr(xpgrad, function)).parameters
    names = [
        x for x in known if x != "S" and (has[x].default is inspect.Parameter.empty or rng.random() < 0.5)
    ]
    outputs = unit.shown(function)
    if "m" in unit.states:  # the stabilizer: half precision cannot tell which of two gates is larger
        outputs = tuple(name for name in outputs if name[0] == "H")
    seeds = [name for name in outputs if rng.random() < 0.5] or outputs[:1]
    cotangents = unit.step_cotangents if is_step else unit.cotangents
    places = {name: name for name in names} | {cotangents[name]: name for name in seeds}
    shapes = {name: shape_of(in_layout(axes[place], layout), sizes) for name, place in places.items()}
    return shapes, names


def _sequence(rng: np.random.Generator, plain: bool = False) -> RandomCall:
    """A recurrent operator; with `plain` on uneven lengths, without options that need their own code."""
    likely = np.asarray([_LIKELY.get(name, 1) for name in UNITS])
    unit = UNITS[str(rng.choice([*UNITS], p=likely / likely.sum()))]
    T, N, I, H = _sequence_sizes(rng, unit.rows)
    if unit.name.startswith("layer_norm"):
        H = max(H, 2)  # for H = 1 each number less the mean is 0: the gradient has only rounding errors
    direction = str(_pick(rng, ["forward", "forward", "reverse", "bidirectional"]))
    D, layout = 2 if direction == "bidirectional" else 1, int(rng.random() < 0.3)
    sizes = {"T": T, "N": N, "I": I, "D": D, "?": int(_pick(rng, [1, H])), **dict.fromkeys("HJE", H)}
    shapes, names = _unit_shapes(rng, unit, unit.name, sizes, layout)
    lengths = _lengths(rng, T, N) if plain or rng.random() < 0.5 else None
    options = {} if plain else _recurrent_options(rng, unit.name, D, T)
    options |= {"direction": direction, "layout": layout}
    gradient = _wanted(rng, names)
    if N * I * H < 1 << 16 and rng.random() < 0.2:
        gradient["per_sample"] = (True, "norm")[int(rng.integers(2))]
    if unit.name == "lstm" and rng.random() < 0.1:
        gradient["peephole"] = "truncated"
    return RandomCall(unit.name, shapes, options, lengths, gradient)


def _step(rng: np.random.Generator) -> RandomCall:
    """A single step."""
    unit = _pick(rng, [unit for unit in UNITS.values() if unit.step is not None])
    sizes = {"N": _size(rng), "I": _size(rng), **dict.fromkeys("HE", max(_size(rng), 1))}
    shapes, names = _unit_shapes(rng, unit, unit.step_name, sizes)
    return RandomCall(
        unit.step_name, shapes, _recurrent_options(rng, unit.step_name, 1), None, _wanted(rng, names)
    )


def _convolution(rng: np.random.Generator) -> RandomCall:
    transposed = rng.random() < 0.3
    n, group = int(rng.integers(1, 4)), int(_pick(rng, [1, 1, 1, 2, 3]))
    size = [int(rng.integers(5, 12 if n < 3 else 7)) for _ in range(n)]
    kernel = [int(rng.integers(1, 4)) for _ in range(n)]
    N, C, O = max(_size(rng, 4), 1), group * int(rng.integers(1, 5)), group * int(rng.integers(1, 5))
    options: dict[str, Any] = {"group": group}
    options["strides"] = [int(rng.integers(1, 4)) for _ in range(n)]
    options["dilations"] = [int(rng.integers(1, 3)) for _ in range(n)]
    if rng.random() < 0.3:
        options["auto_pad"] = str(_pick(rng, ["SAME_UPPER", "SAME_LOWER", "VALID"]))
    elif rng.random() < 0.7:
        options["pads"] = [int(rng.integers(0, 2)) for _ in range(2 * n)]
    weight = (C, O // group, *kernel) if transposed else (O, C // group, *kernel)
    shapes: _Shapes = {"X": (N, C, *size), "W": weight}
    _maybe(rng, shapes, B=(O,))
    gradient = _wanted(rng, ["X", "W", "B"])
    if rng.random() < 0.2:
        gradient["per_sample"] = (True, "norm")[int(rng.integers(2))]
    return RandomCall("conv_transpose" if transposed else "conv", shapes, options, None, gradient)


def _activation(rng: np.random.Generator) -> RandomCall:
    declaration = _pick(rng, [*DECLARED.values()])
    shape = _any_shape(rng)
    shapes: _Shapes = {"X": shape}
    for operand in declaration.operands:
        shapes[operand] = _to_broadcast(rng, shape)
    options: dict[str, Any] = {}
    if rng.random() < 0.5:
        function = getattr(xpgrad, declaration.name)
        parameters = inspect.signature(function).parameters
        hints = get_type_hints(function)
        for option in declaration.attributes:
            options[option] = _option(rng, hints[option], parameters[option].default)
    return RandomCall(declaration.name, shapes, options)


def _option(rng: np.random.Generator, hint: Any, default: Any) -> Any:
    """A word of the type, or a number with the default's sign; 3 or more if the default is None."""
    if get_origin(hint) is Literal:
        return str(_pick(rng, get_args(hint)))
    return float(rng.uniform(0.1, 2)) * default if default is not None else float(rng.uniform(3, 9))


def _any_shape(rng: np.random.Generator) -> tuple[int, ...]:
    shape = tuple(_size(rng) for _ in range(int(rng.integers(1, 5))))
    if rng.random() < 0.1:  # a batch of one sample with many channels
        shape = (1, *shape[1:], int(rng.integers(31, 70)))
    return (near(rng, thresholds().elements),) if rng.random() < 0.05 else shape


def _to_broadcast(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to another one: without its first axes, and with axes of size 1."""
    own = shape[int(rng.integers(len(shape))) :]
    return tuple(1 if rng.random() < 0.2 else size for size in own)


def _along_axis(rng: np.random.Generator) -> RandomCall:
    shape = _any_shape(rng)
    options: dict[str, Any] = {"axis": int(rng.integers(-len(shape), len(shape)))}
    if rng.random() < 0.2:
        options["flatten"] = True
    return RandomCall(str(_pick(rng, ["softmax", "log_softmax"])), {"X": shape}, options)


def _loss(rng: np.random.Generator) -> RandomCall:
    options: dict[str, Any] = {"reduction": str(_pick(rng, ["mean", "sum", "none"]))}
    if rng.random() < 0.5:
        shape = _any_shape(rng)
        shapes: _Shapes = {"X": shape, "targets": shape}
        _maybe(rng, shapes, weight=_to_broadcast(rng, shape), pos_weight=_to_broadcast(rng, shape))
        return RandomCall("binary_cross_entropy_with_logits", shapes, options)
    shape = (_size(rng), max(_size(rng), 1), *(_size(rng, 4) for _ in range(int(rng.integers(0, 3)))))
    shapes = {"X": shape}
    _maybe(rng, shapes, weights=(shape[1],))
    if rng.random() < 0.3:
        options["label_smoothing"] = float(rng.uniform(0, 1))
    if rng.random() < 0.3:
        shapes["labels"] = shape
    elif rng.random() < 0.3:
        options["ignore_index"] = int(rng.integers(-1, shape[1]))
    return RandomCall("softmax_cross_entropy", shapes, options)


# ------------------------------------------------------------------------------------------------ running


def _numbers(call: RandomCall, turn: int) -> dict[str, np.ndarray]:
    """Fresh numbers for all arrays, exact in every dtype down to bfloat16."""
    rng = np.random.default_rng((call.seed, turn))
    numbers: dict[str, np.ndarray] = {}
    for name, shape in call.shapes.items():
        scale = 0.3 if name in ("W", "R", "B", "P", "grad_H_all") else 1.0
        if name in ("W", "R"):  # chaotic states would make errors grow
            scale = min(scale, max(1, shape[-1]) ** -0.5)
        numbers[name] = np.round(32 * scale * rng.normal(size=shape)).clip(-127, 127) / 32
        if name in ("targets", "labels", "weight", "weights", "pos_weight"):
            numbers[name] = np.abs(numbers[name]) / 4
        if name == "initial_n":  # the weights of a mean are positive
            numbers[name] = 1 + np.abs(numbers[name])
    if call.function == "softmax_cross_entropy" and "labels" not in numbers:
        N, C, *rest = call.shapes["X"]
        numbers["labels"] = rng.integers(0, C, size=(N, *rest))
    return numbers


def _reset(call: RandomCall, turn: int) -> Array | None:
    """Fresh resets."""
    if call.resets is None:
        return None
    rng = np.random.default_rng((call.seed, turn, 4))
    return _array(call, "reset", rng.random(size=call.shapes["X"][:2]) < call.resets)


def _laid_out(values: np.ndarray, dtype: Any, layout: str) -> np.ndarray:
    """The values in another layout of memory."""
    values = values.astype(dtype)
    if layout == "fortran":
        return np.asfortranarray(values)
    if layout == "strided" and values.ndim:
        wide = np.zeros(tuple(2 * size for size in values.shape), dtype=dtype)
        every_other = tuple(slice(None, None, 2) for _ in values.shape)
        wide[every_other] = values
        return wide[every_other]
    if layout == "negative" and values.ndim:  # along the first axis that has a direction
        axis = next((k for k, size in enumerate(values.shape) if size > 1), 0)
        return np.flip(np.flip(values, axis).copy(), axis)
    if layout == "unaligned":
        memory = np.zeros(values.nbytes + 1, dtype=np.uint8)[1:].view(dtype).reshape(values.shape)
        memory[...] = values
        return memory
    if layout == "record":  # a field of packed records: strides that are no multiple of the element's size
        records = np.zeros(values.shape, dtype=[("tag", np.int8), ("value", dtype)])
        records["value"] = values
        return records["value"]
    if layout == "read-only":
        values.flags.writeable = False
    if layout == "broadcast" and values.ndim and values.shape[0]:
        return np.broadcast_to(values[:1], values.shape)
    return values


def _array(call: RandomCall, name: str, values: np.ndarray) -> Array:
    layout = call.layouts.get(name, "plain")
    if values.dtype.kind != "f":
        if call.namespace != "torch":
            return values
        import torch

        return torch.from_numpy(values)
    if call.namespace in ("numpy", "jax"):
        return _laid_out(values, call.dtype, layout)
    import torch

    dtype = getattr(torch, call.dtype)
    if layout in ("negative", "read-only", "unaligned", "record"):  # tensors lack these layouts
        layout = "plain"
    held = call.dtype if call.dtype != "bfloat16" else "float32"
    if layout == "broadcast" and values.ndim and values.shape[0]:
        return torch.from_numpy(values[:1].astype(held)).to(dtype).expand(values.shape)
    tensor = torch.from_numpy(np.asarray(_laid_out(values, held, layout)))
    if tensor.dtype == dtype:
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype).copy_(tensor)


def _results(
    call: RandomCall,
    arrays: Mapping[str, Array],
    turn: int,
    lengths: tuple[int, ...] | None,
    reset: Array | None,
) -> dict[str, Array]:
    """Outputs and gradients by name."""
    cotangents = {name: array for name, array in arrays.items() if name.startswith("grad_")}
    operands = {name: array for name, array in arrays.items() if name not in cotangents}
    if lengths is not None:
        operands["sequence_lens"] = lengths
    if reset is not None:
        operands["reset"] = reset
    forward = getattr(xpgrad, call.function)
    outputs, pullback = xpgrad.vjp(forward, **operands, **call.options, **call.gradient_options)
    results = outputs._asdict() if hasattr(outputs, "_fields") else {"Y": outputs}
    if not cotangents:
        rng = np.random.default_rng((call.seed, turn, 1))
        dY = np.asarray(np.round(32 * rng.normal(size=tuple(outputs.shape))).clip(-127, 127) / 32)
        cotangents = {"dY": _array(call, "dY", dY)}
    grads = pullback(**cotangents)
    named = grads._asdict() if hasattr(grads, "_fields") else {"dX": grads}
    return {name: array for name, array in {**results, **named}.items() if array is not None}


_jitted: dict[int, Callable[..., Any]] = {}
"""The compiled function of the latest call, by its seed: later turns run it again."""


def _results_in_jax(
    call: RandomCall, arrays: Mapping[str, Array], lengths: tuple[int, ...], reset: Array | None
) -> dict[str, Array]:
    """Outputs and gradients of JAX's function inside jit, with traced lengths and resets."""
    import xpgrad_jax

    outputs = ("H_all", "H_t", "C_t")[: 1 + len(UNITS[call.function].states)]
    operands = {name: array for name, array in arrays.items() if not name.startswith("grad_")}
    others = {"sequence_lens": np.asarray(lengths, np.int32)} | ({} if reset is None else {"reset": reset})
    with check_jax.numbers(call.dtype):
        if call.seed not in _jitted:
            _jitted.clear()
            function = functools.partial(getattr(xpgrad_jax, call.function), **call.options)
            _jitted[call.seed] = check_jax.compiled(function)
        cotangents = tuple(arrays.get(f"grad_{name}") for name in outputs)
        values, grads = _jitted[call.seed](operands, others, cotangents)
        named = dict(zip(outputs, values, strict=True))
        named |= {gradient_name(name): gradient for name, gradient in grads.items()}
        return {name: np.asarray(array) for name, array in named.items()}


def failure(call: RandomCall) -> str | None:
    """The first error of a call that is made three times with fresh numbers, or None."""
    with in_threads(1 + call.seed % 3), _in_chunks(call.chunk):
        return next(filter(None, (_failure_of_turn(call, turn) for turn in range(3))), None)


@contextlib.contextmanager
def in_threads(count: int) -> Iterator[None]:
    """A context with this number of threads, in our own pool and in PyTorch's team."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 0
    with mock.patch.dict(os.environ, XPGRAD_NUM_THREADS=str(count)):
        try:
            if torch:
                torch.set_num_threads(count)
            yield
        finally:
            if torch:
                torch.set_num_threads(before)


@contextlib.contextmanager
def _in_chunks(rows: int | None) -> Iterator[None]:
    """A context with backward loops in chunks of so many rows, and with new programs."""
    if rows is None:
        yield
        return
    chunks = mock.patch.multiple(machine, CHUNK_ROWS=rows, _CHUNK_BYTES=1)
    with chunks, mock.patch.object(families, "known", families.CallCache()):
        yield


def _failure_of_turn(call: RandomCall, turn: int) -> str | None:
    """The error of one call."""
    lengths = call.lengths
    if lengths is not None and turn:
        axis = 1 if call.options["layout"] else 0
        T = call.shapes["X"][axis]
        lengths = _lengths(np.random.default_rng((call.seed, turn, 2)), T, len(lengths))
    numbers, reset = _numbers(call, turn), _reset(call, turn)
    arrays = {name: _array(call, name, values) for name, values in numbers.items()}
    before = {name: to_numpy(array).copy() for name, array in arrays.items()}

    def on_standard(call: RandomCall, arrays: Mapping[str, Array]) -> dict[str, Array]:
        with np.errstate(all="ignore"), xpgrad.use_engine("standard"):
            return _results(call, arrays, turn, lengths, reset)

    def exact() -> dict[str, Array]:
        exactly = call._replace(dtype="float64")
        return on_standard(exactly, {name: _array(exactly, name, each) for name, each in numbers.items()})

    try:
        with np.errstate(all="ignore"):
            if call.namespace == "jax":
                got = _results_in_jax(call, arrays, lengths or (), reset)
            else:
                got = _results(call, arrays, turn, lengths, reset)
        expected = on_standard(call, arrays)
    except Exception as error:  # any exception is a finding
        return f"turn {turn + 1}: {type(error).__name__}: {error}"
    for name, array in arrays.items():
        if not np.array_equal(to_numpy(array), before[name], equal_nan=True):
            return f"turn {turn + 1}: {name} was written to"
    for name, wanted in expected.items():
        if call.namespace == "jax" and name not in got:  # JAX's functions return no saved arrays
            continue
        problem = _difference(call, got[name], wanted)
        if problem is not None and not _is_as_near(got[name], wanted, exact()[name]):
            return f"turn {turn + 1}: {name} {problem}"
    return None


def _is_as_near(got: Array, wanted: Array, exact: Array) -> bool:
    """Whether a result has at most twice the error of the standard engine's, whose roundings differ."""
    if got.dtype != wanted.dtype or tuple(got.shape) != tuple(wanted.shape):
        return False
    errors = [np.abs(to_numpy(one).astype(np.float64) - to_numpy(exact)) for one in (got, wanted)]
    return bool(np.isfinite(errors[1]).all() and errors[0].max(initial=0) <= 2 * errors[1].max(initial=0))


def _difference(call: RandomCall, got: Array, wanted: Array) -> str | None:
    if got.dtype != wanted.dtype or tuple(got.shape) != tuple(wanted.shape):
        expected = f"{wanted.dtype} {tuple(wanted.shape)} as on the standard engine"
        return f"is {got.dtype} {tuple(got.shape)}, expected {expected}"
    a, b = (to_numpy(array).astype(np.float64) for array in (got, wanted))
    finite = np.isfinite(b)
    if not np.array_equal(finite, np.isfinite(a)) or not np.array_equal(
        a[~finite], b[~finite], equal_nan=True
    ):
        return "is not finite where the standard engine's is, or the other way round"
    if not finite.any():
        return None
    error = np.abs(a[finite] - b[finite]).max() / max(np.abs(b[finite]).max(), 1e-3)
    bound = _TOLERANCE[call.dtype]
    if call.function.startswith("layer_norm"):  # it multiplies the rounding errors of nearly equal numbers
        bound *= 10
    if error > bound:
        return f"is off by {error:.1e} of its largest value, expected at most {bound:.0e}"
    return None


def run_random(count: int, seed: int, of_lengths: bool = False) -> int:
    """Make `count` calls from number `seed` on, and print the failing calls; 1 if a call fails."""
    failures = 0
    bar = Progress(range(seed, seed + count), "random calls")
    for number in bar:
        call = draw_call(number, of_lengths)
        found = failure(call)
        if found is not None:
            failures += 1
            message(f"{call}\n    {found}")
            bar.note(f"{failures} failed")
    print(f"{count} random calls, each made three times beside the standard engine: {failures} failed")
    return int(failures > 0)
