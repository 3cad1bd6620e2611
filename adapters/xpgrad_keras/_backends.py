"""What the layers need of the backend that Keras runs on: a kernel on its tensors."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from xpgrad_keras._calls import LayerCall

__all__ = ["KerasBackend", "backend", "computed", "operands"]

_MODULES = {"jax": "_jax", "numpy": "_numpy", "tensorflow": "_tensorflow", "torch": "_torch"}


class KerasBackend:
    """A backend without kernels, and what the others have in common."""

    supports_jit = True
    """Whether a compiler of the backend takes the kernels."""
    starts_at_state = False
    """Whether the output is the initial state as long as a mask has kept no step; else zero."""
    where: Any
    """Takes the one or the other by a condition; Keras' own rounds float64 to float32."""

    def takes(self, X: Any, mask: Any) -> bool:
        """Whether kernels run on the device of these tensors."""
        return False

    def choose(self, condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        """Return what one of two functions returns, by a condition that a trace may not know yet."""
        return yes() if condition else no()

    def run(
        self, call: LayerCall, X: Any, weights: Mapping[str, Any], states: Sequence[Any], lengths: Any
    ) -> tuple[Any, list[Any]]:
        """Return the outputs at all steps (N, T, H), None if nobody reads them, and the last states (N, H).

        Nobody asks for it where `takes` says no.

        Parameters
        ----------
        call : LayerCall
            What to compute.
        X : tensor
            The input (N, T, I).
        weights : mapping of str to tensor
            By Keras' names, without those that are missing.
        states : sequence of tensor
            The initial states (N, H).
        lengths : tensor or None
            Of each sequence.
        """
        raise NotImplementedError


def backend() -> KerasBackend:
    """Return the backend that Keras runs on in this process."""
    module = _MODULES.get(keras.backend.backend())
    if module is None:
        return KerasBackend()
    return importlib.import_module(f"xpgrad_keras.{module}").BACKEND


def operands(
    xp: Any, layout: int, X: Any, weights: Mapping[str, Any], states: Sequence[Any], lengths: Any
) -> dict[str, Any]:
    """Return a kernel's operands by name, arrays of the namespace xp; weights are views of Keras' own."""
    found = {
        "X": X if layout else xp.swapaxes(X, 0, 1),
        "W": _in_one_direction(xp, weights["kernel"]),
        "R": _in_one_direction(xp, weights["recurrent_kernel"]),
        "B": _both_biases(xp, weights.get("bias")),
    }
    return found | {
        "sequence_lens": lengths,
        **{
            f"initial_{name}": _in_one_direction(xp, x, layout) for name, x in zip("hc", states, strict=False)
        },
    }


def _in_one_direction(xp: Any, x: Any, axis: int = 0) -> Any:
    """Return a matrix with an axis for directions; the gradient is a view too, unlike that of an index."""
    return xp.reshape(x, (-1, 1, x.shape[-1]) if axis else (1, -1, x.shape[-1]))


def _both_biases(xp: Any, bias: Any) -> Any:
    """Return input and recurrence biases (1, 2 GH) from Keras' one (GH,) or two (2, GH)."""
    if bias is None:
        return None
    both = bias if len(bias.shape) == 2 else xp.stack([bias, xp.zeros_like(bias)])
    return xp.reshape(both, (1, -1))


def computed(
    run: Callable[[str, dict[str, Any], int], Sequence[Any]],
    xp: Any,
    call: LayerCall,
    *arrays: Any,
    layout: int = 0,
) -> tuple[Any, list[Any]]:
    """Return what `KerasBackend.run` returns.

    `run` takes the kernel's name, its arguments, and how many of its results are wanted. xp is the namespace
    of the arrays. In layout 1 samples are a kernel's first axis as they are Keras': then nothing is copied
    around it, but a kernel turns whatever it keeps for its gradient, unless that is kept as rows.
    """
    count, attributes = 3 if call.kernel == "lstm" else 2, call.attributes | {"layout": layout}
    H_all, *ends = run(call.kernel, operands(xp, layout, *arrays) | attributes, count)
    if not call.all_steps:
        H_all = None
    elif layout:
        H_all = xp.squeeze(H_all, 2)
    else:
        H_all = xp.swapaxes(xp.squeeze(H_all, 1), 0, 1)
    return H_all, [xp.squeeze(x, layout) for x in ends]
