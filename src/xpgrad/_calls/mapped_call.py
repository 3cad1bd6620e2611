"""A kernel mapped over an axis, for the `vmap` of adapters: the mapped axis joins the kernel's batch axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xpgrad._operators.kernel_description import KernelDescription

__all__ = ["MappedCall"]

Arrays = Mapping[str, Any]
Attributes = Mapping[str, Any]
Mapped = tuple[list[Any], list[int]]
"""Results, and the place of the mapped axis in each."""


class MappedCall:
    """A call of a kernel or of its gradient, mapped over an axis of some of the arrays.

    Parameters
    ----------
    xp : namespace
        The arrays' namespace.
    kernel : KernelDescription
        The kernel.
    arrays : mapping of str to array
        The arrays that are given.
    dims : mapping of str to int or None
        The mapped axis of each array; None for an array that is the same in all calls.
    attributes : mapping of str to object
        The call's attributes.

    Attributes
    ----------
    arrays : dict of str to array
        The same arrays, with the mapped axis in front.
    mapped : set of str
        The names of the arrays with a mapped axis.
    size : int
        The number of calls.
    """

    def __init__(
        self, xp: Any, kernel: KernelDescription, arrays: Arrays, dims: Mapping[str, int | None],
        attributes: Attributes,
    ) -> None:  # fmt: skip
        self._xp, self._kernel, self._attributes = xp, kernel, attributes
        self.mapped = {name for name in arrays if dims[name] is not None}
        self.arrays = {
            name: x if (dim := dims[name]) is None else _moved(xp, x, dim, 0) for name, x in arrays.items()
        }
        self.size = next(self.arrays[name].shape[0] for name in self.mapped)
        self._lacks_batch = "X" in arrays and kernel.lacks_batch("X", len(self._shape("X")), attributes)
        # each call has one sample, and the kernel also takes samples without a batch axis
        self._single = self._lacks_batch and kernel.shapes["X"].endswith("...")

    def is_separate(self, wrt: Sequence[str] = ()) -> bool:
        """Whether the calls cannot be one call on a larger batch.

        They cannot if each returns one number or has its own weights, if the batch axis is missing, or if
        `wrt` has parameters and the kernel has no per-sample gradients.
        """
        kernel, attributes = self._kernel, self._attributes
        if kernel.elementwise or kernel.reduces(attributes):
            return kernel.reduces(attributes)
        if None in self._axes(self.mapped) or (self._lacks_batch and not self._single):
            return True
        return None in self._axes(wrt) and not kernel.has_per_sample

    def forward(self, run: Callable[[Arrays, Attributes], Sequence[Any]]) -> Mapped:
        """The outputs; `run` calls the kernel with arrays and attributes."""
        if self._kernel.elementwise:
            outputs = run(*self._with_axis_in_front())
            return list(outputs), [0] * len(outputs)
        outputs = run(self._joined(), self._attributes)
        axes = [axis or 0 for axis in self._axes(self._kernel.outputs)]
        return [self._parted(y, axis) for y, axis in zip(outputs, axes, strict=True)], axes

    def gradient(
        self, run: Callable[[Arrays, Attributes, bool], Sequence[Any]], wrt: Sequence[str], per_sample: bool
    ) -> Mapped:
        """The gradients in `wrt`; for parameters the kernel's per-sample gradients, summed over each batch.

        `run` calls the gradient with arrays, attributes, and whether it is per sample.
        """
        if self._kernel.elementwise:
            grads = run(*self._with_axis_in_front(wrt), False)
            pairs = zip(wrt, grads, strict=True)
            shapes = {name: (self.size, *self._shape(name)) for name in self.arrays}
            shaped = [self._xp.reshape(g, shapes[name]) if name in shapes else g for name, g in pairs]
            return shaped, [0] * len(shaped)
        axes, results = self._axes(wrt), []
        grads = run(self._joined(), self._attributes, None in axes)
        for grad, axis in zip(grads, axes, strict=True):
            parts = self._parted(grad, axis or 0)
            if axis is None and not per_sample:
                one = parts.shape[1] == 1
                parts = self._xp.squeeze(parts, axis=1) if one else self._xp.sum(parts, axis=1)
            results.append(parts)
        return results, [axis or 0 for axis in axes]

    def _shape(self, name: str) -> tuple[int, ...]:
        """The shape of an array in each call."""
        return tuple(self.arrays[name].shape[int(name in self.mapped) :])

    def _axes(self, names: Sequence[str] | set[str]) -> list[int | None]:
        return [self._kernel.batch_axis(name, self._attributes) for name in names]

    def _joined(self) -> dict[str, Any]:
        """The arrays with the mapped axis and the batch axis as one axis."""
        xp, joined = self._xp, dict(self.arrays)
        for name, x in self.arrays.items():
            (axis,) = self._axes([name])
            if axis is not None:
                if name in self.mapped:
                    x = _moved(xp, x, 0, axis)
                else:
                    shape = (*x.shape[:axis], self.size, *x.shape[axis:])
                    x = xp.broadcast_to(xp.expand_dims(x, axis=axis), shape)
                if not self._single:
                    together = x.shape[axis] * x.shape[axis + 1]
                    x = xp.reshape(x, (*x.shape[:axis], together, *x.shape[axis + 2 :]))
                joined[name] = x
        return joined

    def _parted(self, x: Any, axis: int) -> Any:
        """The inverse of `_joined`: the mapped axis, then the batch axis of each call."""
        if self._single:
            return x
        return self._xp.reshape(x, (*x.shape[:axis], self.size, self._batch(), *x.shape[axis + 1 :]))

    def _batch(self) -> int:
        """The batch size of each call, also if there is no call."""
        axes = zip(self.arrays, self._axes([*self.arrays]), strict=True)
        return next(self._shape(name)[axis] for name, axis in axes if axis is not None)

    def _with_axis_in_front(self, wrt: Sequence[str] = ()) -> tuple[dict[str, Any], Attributes]:
        """The arrays of an elementwise kernel, all of one rank, and attributes that count the new axis."""
        xp, attributes, moved = self._xp, self._attributes, {}
        rank = max(len(self._shape(name)) for name in self.arrays)
        for name, x in self.arrays.items():
            shape = self._shape(name)
            # an operand that broadcasts may have fewer axes
            shape = (self.size if name in self.mapped else 1, *(1,) * (rank - len(shape)), *shape)
            moved[name] = xp.reshape(x, shape)
            if name in self._kernel.shapes or name in wrt:
                moved[name] = xp.broadcast_to(moved[name], (self.size, *shape[1:]))
        if attributes.get("axis", -1) >= 0:
            attributes = {**attributes, "axis": attributes["axis"] + 1}
        return moved, attributes


def _moved(xp: Any, x: Any, source: int, target: int) -> Any:
    """The array with an axis in another place; PyTorch cannot map `moveaxis` itself."""
    order = [axis for axis in range(x.ndim) if axis != source]
    order.insert(target, source)
    return xp.permute_dims(x, tuple(order))
