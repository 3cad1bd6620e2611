"""Converts the parameters of Flax' and Equinox' cells to and from PyTorch's layout; see `convert`.

Both frameworks have one bias instead of two that would be added: for the LSTM at its recurrent products
(Flax) or separate (Equinox), for the GRU's gates r and z, for the RNN at its input's product (Flax; Equinox
has no RNN). The GRU's candidate has two, because its reset gate multiplies the recurrence bias.

References
----------
``flax.linen.OptimizedLSTMCell``, ``flax.linen.GRUCell``, ``flax.linen.SimpleCell``,
``equinox.nn.LSTMCell`` and ``equinox.nn.GRUCell``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_GATES: Mapping[str, Sequence[str]] = {"lstm": "ifgo", "gru": "rzn", "rnn": ("",)}
_BIASED = {"lstm": "h", "gru": "i", "rnn": "i"}
"""The side of Flax' product that has the single bias."""

Parameters = Mapping[str, Any]


def flattened(operator: str, layout: str, parameters: Parameters) -> dict[str, Any]:
    """All arrays of a cell by name; ValueError for an unknown or a missing part."""
    if layout == "equinox":
        biases = ["bias", "bias_n"] if operator == "gru" else ["bias"]
        known = ["weight_ih", "weight_hh", *biases]
        given = {name: array for name, array in parameters.items() if array is not None}
        wrong = [name for name in given if name not in known]
        if any(name in given for name in biases):
            wrong += [name for name in biases if name not in given]
    else:
        known, given = [side + gate for side in "ih" for gate in _GATES[operator]], {}
        wrong = [part for part in parameters if part not in known]
        wrong += [part for part in known if part not in parameters]
    if wrong:
        raise ValueError(
            f"convert: parameters has no or an unknown {wrong[0]!r}, expected the parts of the layout "
            f"{layout!r}: {', '.join(known)}"
        )
    if layout == "flax":
        _check_flax(operator, parameters)
        given = {f"{part}/{name}": x for part, own in parameters.items() for name, x in own.items()}
    return given


def read_flax(xp: Any, operator: str, parameters: Parameters, gradients: bool) -> dict[str, Any]:
    """From ``{"ii": {"kernel": (I, H)}, "hi": {"kernel": (H, H), "bias": (H,)}, ...}``."""
    gates, result = _GATES[operator], {}
    for side, weight in (("i", "weight_ih"), ("h", "weight_hh")):
        kernels = [parameters[side + gate]["kernel"] for gate in gates]
        result[weight] = xp.concat([xp.matrix_transpose(kernel) for kernel in kernels], axis=-2)
    single = _BIASED[operator]
    if "bias" in parameters[single + gates[0]]:
        single_bias = xp.concat([parameters[single + gate]["bias"] for gate in gates], axis=-1)
        candidate = parameters["hn"]["bias"] if operator == "gru" else None
        result |= _two_biases(xp, single_bias, candidate, gradients)
    return result


def _check_flax(operator: str, parameters: Parameters) -> None:
    """Raise ValueError for a part without a kernel, with a name that flax lacks, or without others' bias."""
    biased = [_BIASED[operator] + gate for gate in _GATES[operator]] + ["hn"] * (operator == "gru")
    for part, own in parameters.items():
        if not hasattr(own, "items"):
            raise ValueError(f"convert: {part} is {type(own).__name__}, expected a mapping with kernel")
        known = ("kernel", "bias") if part in biased else ("kernel",)
        if "kernel" not in own or not set(own) <= set(known):
            raise ValueError(
                f"convert: {part} has {', '.join(own) or 'nothing'}, expected {', '.join(known)}"
            )
    lacking = [part for part in biased if "bias" not in parameters[part]]
    if lacking and len(lacking) < len(biased):
        raise ValueError(
            f"convert: {lacking[0]} has no bias, expected one, as others have: {', '.join(biased)}"
        )


def write_flax(xp: Any, operator: str, arrays: Parameters, gradients: bool) -> dict[str, Any]:
    """The inverse."""
    gates, result = _GATES[operator], dict[str, Any]()
    for side, weight in (("i", "weight_ih"), ("h", "weight_hh")):
        if weight in arrays:
            for gate, block in zip(gates, blocks(arrays[weight], len(gates), -2), strict=True):
                result[side + gate] = {"kernel": xp.matrix_transpose(block)}
    if "bias_ih" in arrays:
        single, candidate = _one_bias(xp, operator, arrays, gradients)
        side = _BIASED[operator]
        for gate, block in zip(gates, blocks(single, len(gates), -1), strict=True):
            result.setdefault(side + gate, {})["bias"] = block
        if candidate is not None:
            result.setdefault("hn", {})["bias"] = candidate
    return result


def read_equinox(xp: Any, operator: str, parameters: Parameters, gradients: bool) -> dict[str, Any]:
    """From ``weight_ih``, ``weight_hh``, ``bias``, and the GRU's ``bias_n``."""
    result = {name: parameters[name] for name in ("weight_ih", "weight_hh") if name in parameters}
    if parameters.get("bias") is not None:
        result |= _two_biases(xp, parameters["bias"], parameters.get("bias_n"), gradients)
    return result


def write_equinox(xp: Any, operator: str, arrays: Parameters, gradients: bool) -> dict[str, Any]:
    """The inverse."""
    result = {name: arrays[name] for name in ("weight_ih", "weight_hh") if name in arrays}
    if "bias_ih" in arrays:
        single, candidate = _one_bias(xp, operator, arrays, gradients)
        result |= {"bias": single} if candidate is None else {"bias": single, "bias_n": candidate}
    return result


def _two_biases(xp: Any, single: Any, candidate: Any, gradients: bool) -> dict[str, Any]:
    """Two biases that act as their sum: (b, 0); as gradients both are the gradient of the sum."""
    second = single if gradients else xp.zeros_like(single)
    if candidate is not None:
        shared = 2 * candidate.shape[-1]
        second = xp.concat([second[..., :shared], candidate], axis=-1)
    return {"bias_ih": single, "bias_hh": second}


def _one_bias(xp: Any, operator: str, arrays: Parameters, gradients: bool) -> tuple[Any, Any]:
    """One bias with the effect of both, and the recurrence bias of the GRU's candidate."""
    first, second = arrays["bias_ih"], arrays["bias_hh"]
    shared = first.shape[-1] // 3 * 2 if operator == "gru" else first.shape[-1]
    ours, theirs = first[..., :shared], second[..., :shared]
    ours = one_gradient(xp, ours, theirs) if gradients else ours + theirs
    if operator != "gru":
        return ours, None
    return xp.concat([ours, first[..., shared:]], axis=-1), second[..., shared:]


def one_gradient(xp: Any, first: Any, second: Any) -> Any:
    """The gradient of a single bias, from the gradients of two that act as their sum.

    Frameworks add up both, so they differ by rounding.
    """
    if 0 in first.shape:
        return first
    finite = xp.isfinite(first) & xp.isfinite(second)
    zero = xp.zeros_like(first)
    gap = xp.max(xp.abs(xp.where(finite, first - second, zero)))
    largest = xp.max(xp.abs(xp.where(finite, first, zero)))
    if bool(gap > float(xp.finfo(first.dtype).eps) ** 0.5 * largest):
        raise ValueError(
            "convert: the gradients of input and recurrence biases differ, expected equal ones for a "
            "single bias"
        )
    return first


def check_names(given: Parameters, known: Sequence[str], layout: str) -> None:
    """Raise ValueError for a name that the layout does not have."""
    for name in given:
        if name not in known:
            raise ValueError(
                f"convert: parameters has {name!r}, expected names of the layout {layout!r}: "
                f"{', '.join(known)}"
            )


def blocks(array: Any, count: int, axis: int) -> list[Any]:
    """Split the array into `count` equal parts along one of its last two axes."""
    width = array.shape[axis] // count
    parts = [slice(number * width, (number + 1) * width) for number in range(count)]
    return [array[..., part] if axis == -1 else array[..., part, :] for part in parts]


CELLS = {"lstm": ("flax", "equinox"), "gru": ("flax", "equinox"), "rnn": ("flax",)}
"""The frameworks with a cell for each operator."""
READERS = {"flax": read_flax, "equinox": read_equinox}
WRITERS = {"flax": write_flax, "equinox": write_equinox}
