"""Lengths of sequences: as tensors, and in memory for programs."""

import contextlib
import re
from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from xpgrad import engine as engines
from xpgrad._operators.arguments import check_integers
from xpgrad._operators.for_adapters import lengths_of
from xpgrad._operators.resets import are_booleans, check_reset, joined
from xpgrad.engine.process.memory import address_of
from xpgrad_torch._errors import CallerNames
from xpgrad_torch.engine import is_plain

LENGTHS = "sequence_lens"  # as kernels name them
_FEW = 256  # for so few numbers Python's `min` is faster than a call of NumPy


def lengths_tensor(operator: str, name: str, lengths: Any) -> Tensor | None:
    """Return lengths, any sequence or array of integers, as a tensor; None for None."""
    if lengths is None or isinstance(lengths, Tensor):
        return lengths
    if torch.compiler.is_compiling():  # the kernel checks the numbers when it runs
        return torch.as_tensor(lengths)
    if type(lengths) in (list, tuple) and set(map(type, lengths)) == {int}:
        # the fastest way: between two programs torch.tensor(lengths) takes 40 us
        with contextlib.suppress(OverflowError):
            return torch.frombuffer(array("q", lengths), dtype=torch.int64)
    numbers = check_integers(operator, name, lengths)
    if any(number.bit_length() > 63 for number in numbers):
        raise ValueError(f"{operator}: {name} is {numbers}, expected numbers from 0 to T")
    return torch.tensor(numbers, dtype=torch.int64)


def with_resets(operator: str, X: Any, lengths: Tensor | None, reset: Any, layout: Any) -> Tensor | None:
    """Return lengths with resets (N, 1 + T) as kernels take them; without a reset the unchanged lengths.

    `reset` has booleans, (T, N) in layout 0 and (N, T) in layout 1. The kernel checks X and the lengths.
    """
    if isinstance(X, Tensor) and X.is_meta and not (lengths is None and reset is None):
        raise ValueError(
            f"{operator}: {'reset' if lengths is None else 'sequence_lens'} is given with an input on the "
            "meta device, expected None: a meta tensor has no numbers"
        )
    if reset is None or not isinstance(X, Tensor) or X.dim() != 3 or layout not in (0, 1):
        return lengths
    T, N = (X.shape[1], X.shape[0]) if layout else X.shape[:2]
    # compilers cannot trace array_api_compat's check of a tensor
    is_bool = reset.dtype is torch.bool if isinstance(reset, Tensor) else are_booleans(operator, reset)
    check_reset(operator, reset, is_bool, T, N, layout)
    if not isinstance(reset, Tensor):
        reset = torch.as_tensor(reset)
    if not torch.compiler.is_compiling() and is_plain(reset) and not reset.any():
        return lengths
    own = torch.full((N,), T, dtype=torch.int64) if lengths is None else lengths
    if own.dim() != 1 or own.is_floating_point() or own.dtype is torch.bool:
        return lengths  # wrong: the kernel raises the error
    return joined(torch, own.to(X.device, torch.int64), (reset if layout else reset.T).to(X.device))


def in_time_major(x: Any, axes: int, single: bool, batch_first: bool) -> Any:
    """Return a module's array (T, N, ...), with `axes` axes for one sequence; a wrong array unchanged."""
    if getattr(x, "ndim", None) != axes + (not single):
        return x
    return x[:, None] if single else x.swapaxes(0, 1) if batch_first else x


def name_lengths(error: Exception, layer: str) -> None:
    """Let a kernel's error about lengths name the layer and the layer's argument."""
    operator, _, text = str(error.args[0] if error.args else "").partition(": ")
    if re.match(rf"{LENGTHS}\b", text):
        CallerNames({LENGTHS: "lengths"}, layer).put_into(error, operator)


class LengthsMemory(NamedTuple):
    """Lengths in memory: contiguous 64-bit integers; `held` keeps the memory, `kind` is as in `Lengths`."""

    held: Any
    address: int
    kind: int = 1


FULL = LengthsMemory(None, 0, 0)
"""The lengths of sequences that all have length T."""


def lengths_in_memory(
    X: Tensor | None, lengths: Tensor | None, options: Mapping[str, Any]
) -> LengthsMemory | None:
    """Return a copy of a call's lengths for its program; None if they are wrong or no program takes them."""
    engine = engines.of_type(X)
    if engine is None or X is None or lengths is None:
        return None
    layout, is_packed = options.get("layout", 0), bool(options.get("packed"))
    if (
        lengths.dtype is torch.int64
        and is_plain(lengths)
        and X.dim() == 3
        and type(layout) is int
        and lengths.shape == (X.shape[0 if layout else 1],)
        and lengths.stride() == (1,)
        and 0 < lengths.shape[0] <= _FEW
    ):
        numbers, steps = lengths.tolist(), X.shape[1 if layout else 0]
        least = min(numbers)
        if least < 0 or max(numbers) > steps:
            return None
        if least == steps and not is_packed:
            return FULL
        copy = array("q", numbers)
        return LengthsMemory(copy, copy.buffer_info()[0])
    given = {"X": X, "sequence_lens": lengths}
    found = lengths_of(engine, given, {"layout": layout, "packed": is_packed})
    if not found.usable:
        return None
    if found.numbers is None:
        return FULL
    copied = found.numbers.copy()
    return LengthsMemory(copied, address_of(copied), found.kind)
