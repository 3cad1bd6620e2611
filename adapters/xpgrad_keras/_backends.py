"""The interface between the layers and Keras' backend: a kernel on the backend's tensors."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from xpgrad_keras._calls import LayerCall

_MODULES = {"jax": "_jax", "numpy": "_numpy", "tensorflow": "_tensorflow", "torch": "_torch"}


class KerasBackend:
    """A backend without kernels, and the base of backends with kernels."""

    supports_jit = True
    """Whether the backend's compiler accepts the kernels."""
    starts_at_state = False
    """Whether the output before the first kept step is the initial state; else zero."""
    where: Any
    """The backend's ``where``; Keras' own rounds float64 to float32."""

    def takes(self, X: Any, W: Any, mask: Any) -> bool:
        """Whether kernels run on the device of these tensors: the inputs, a weight and the mask."""
        return False

    def choose(self, condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        """Return the result of one of two functions, by a condition that a trace may not know."""
        return yes() if condition else no()

    def run(
        self, call: LayerCall, X: Any, weights: Mapping[str, Any], states: Sequence[Any], lengths: Any
    ) -> tuple[Any, list[Any]]:
        """Return the outputs at all steps (N, T, H), None if nobody reads them, and the last states (N, H).

        X is (N, T, I), the weights have Keras' names, the initial states are (N, H), and the lengths (N,), or
        None. Only called if `takes` is True.
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
    """Return a kernel's operands by name, arrays of the namespace xp; weights are views of Keras' weights."""
    pairs = zip("hc", states, strict=False)
    return {
        "X": X if layout else xp.swapaxes(X, 0, 1),
        "W": _in_one_direction(xp, weights["kernel"]),
        "R": _in_one_direction(xp, weights["recurrent_kernel"]),
        "B": _both_biases(xp, weights.get("bias")),
        "sequence_lens": lengths,
        **{f"initial_{name}": _in_one_direction(xp, x, layout) for name, x in pairs},
    }


def _in_one_direction(xp: Any, x: Any, axis: int = 0) -> Any:
    """Return a matrix with an axis for directions; unlike an index, a reshape has a view as gradient."""
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
    """Return the results of `KerasBackend.run`.

    `run` takes the kernel's name, its arguments, and the number of wanted results. xp is the namespace of the
    arrays. In layout 1 the kernel takes samples as the first axis, as Keras does: then nothing is copied
    before and after the kernel, but it transposes the arrays that it keeps for its gradient, unless it keeps
    rows. In layout 0 steps are the first axis.
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
