"""The geometry of a convolution: made once from shapes and attributes, and used by all computations.

A transposed convolution is the input gradient of a convolution. Both have the same geometry, so their
forwards and gradients cannot disagree: the output of one is the input of the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from xpgrad._operators.arguments import as_integer, check_choice, explained, is_list
from xpgrad.engine.process.remembered import Remembered
from xpgrad.engine.symbols import SizeSymbol

_MOST = 2**31 - 1  # limit of an attribute: sums of products of a few attributes fit into 64 bits
_MOST_ELEMENTS = 2**48  # limit of an array with its padding: a thousand times the memory of a machine

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class ConvGeometry:
    """Which input element and weight contribute to which output element.

    In every spatial dimension tap ``k`` of output ``o`` multiplies the input's element
    ``o * stride + k * dilation - begin``; elements outside the input are zero.

    Parameters
    ----------
    batch, channels, outputs, group : int
        N, C (of the convolution's input), O (of its output) and the number of groups.
    size, kernel, output_size : tuple of int
        Spatial sizes of input, weight and output.
    strides, dilations : tuple of int
        By spatial dimension.
    begin : tuple of int
        Padding before the first element of each spatial dimension.
    """

    batch: int
    channels: int
    outputs: int
    group: int
    size: Sizes
    kernel: Sizes
    output_size: Sizes
    strides: Sizes
    dilations: Sizes
    begin: Sizes

    @property
    def rank(self) -> int:
        """The number of spatial dimensions."""
        return len(self.size)

    @property
    def input_shape(self) -> Sizes:
        """The shape of X, (N, C, *size)."""
        return (self.batch, self.channels, *self.size)

    @property
    def output_shape(self) -> Sizes:
        """The shape of Y, (N, O, *output_size)."""
        return (self.batch, self.outputs, *self.output_size)

    @property
    def weight_shape(self) -> Sizes:
        """The shape of W, (O, C / group, *kernel)."""
        return (self.outputs, self.channels // self.group, *self.kernel)

    @cached_property
    def extent(self) -> Sizes:
        """The extent of the padded input that the outputs cover, in each dimension."""
        sizes = zip(self.output_size, self.strides, self.kernel, self.dilations, strict=True)
        return tuple((o - 1) * s + (k - 1) * d + 1 for o, s, k, d in sizes)

    @cached_property
    def end(self) -> Sizes:
        """Padding behind the last element; negative if the last elements contribute to no output."""
        return tuple(e - b - s for e, b, s in zip(self.extent, self.begin, self.size, strict=True))

    @cached_property
    def taps(self) -> list[Sizes]:
        """Every position in the kernel, in row-major order."""
        return list(itertools.product(*(range(k) for k in self.kernel)))

    @cached_property
    def multiplications(self) -> int:
        """Multiplications of the direct sum, equal for the forward and the two gradients."""
        return prod(self.output_shape) * (self.channels // self.group) * prod(self.kernel)

    @cached_property
    def static(self) -> bool:
        """Whether all sizes are numbers or a recorder's symbols, which compare like numbers."""
        return all(type(size) in (int, SizeSymbol) for size in (*self.input_shape, *self.weight_shape))

    @cached_property
    def is_known(self) -> bool:
        """Whether all sizes are numbers. Symbols cannot be keys of a cache."""
        return all(type(size) is int for size in (*self.input_shape, *self.weight_shape))

    @property
    def empty(self) -> bool:
        """Whether an array of the convolution has no elements."""
        return not (self.batch and self.channels and self.outputs)

    @property
    def is_one_product(self) -> bool:
        """Whether each kernel covers a whole image; then the sums over the batch are single products.

        False for a compiler's symbols.
        """
        covers = self.static and self.kernel == self.size == self.extent and not any(self.begin)
        return covers and self.group == 1

    def adjoint(self) -> ConvGeometry:
        """The geometry of dX at stride 1: dY is the input; weights are flipped and transposed."""
        reach = zip(self.kernel, self.dilations, self.begin, strict=True)
        return replace(
            self,
            channels=self.outputs,
            outputs=self.channels,
            size=self.output_size,
            output_size=self.size,
            begin=tuple((k - 1) * d - b for k, d, b in reach),
        )

    def of_a_group(self) -> ConvGeometry:
        """The geometry of one group."""
        channels, outputs = self.channels // self.group, self.outputs // self.group
        return replace(self, group=1, channels=channels, outputs=outputs)

    def per_sample(self) -> ConvGeometry:
        """The geometry with separate weights for each sample: the samples are groups of one image."""
        n = max(self.batch, 1)
        return replace(
            self, batch=1, group=n * self.group, channels=n * self.channels, outputs=n * self.outputs
        )


# --- from a call's shapes and attributes -----------------------------------------------------------------


def known_geometry(
    geometry_of: Callable[..., ConvGeometry],
    operator: str,
    X: Sequence[int],
    W: Sequence[int],
    attributes: Mapping[str, Any],
) -> ConvGeometry:
    """The result of `conv_geometry` or `conv_transpose_geometry`, kept for calls of the same form."""
    values = tuple(tuple(v) if type(v) is list else v for v in attributes.values())
    key = (geometry_of, tuple(X), tuple(W), *values)
    if not all(map(_is_plain, key[1:])):
        return geometry_of(operator, X, W, **attributes)
    found = _known.get(key)
    if found is None:
        found = _known[key] = geometry_of(operator, X, W, **attributes)
    return found


# No `lru_cache`: keys have tuples instead of lists, but messages show attributes as the caller wrote them.
_known: Remembered[ConvGeometry] = Remembered()


def _is_plain(value: Any) -> bool:
    """Whether equal values mean the same: True equals 1, and a compiler's symbol equals any number."""
    if type(value) is tuple:
        return all(type(number) is int for number in value)
    return value is None or type(value) in (int, str)


class _ConvAttributes(NamedTuple):
    """The attributes of both operators, with a number for each dimension."""

    strides: Sizes
    dilations: Sizes
    begin: Sizes
    end: Sizes
    group: int
    auto_pad: str

    @property
    def same(self) -> bool:
        return self.auto_pad.startswith("SAME")


@explained
def conv_geometry(
    operator: str, X: Sequence[int], W: Sequence[int], *,
    strides: Any, pads: Any, dilations: Any, group: Any, auto_pad: str,
) -> ConvGeometry:  # fmt: skip
    """The geometry of `conv` from the shapes of X (N, C, *size) and W (O, C / group, *kernel)."""
    X, W = _check_shapes(operator, X, W, "O, C/group")
    at = _attributes(operator, len(X) - 2, strides, pads, dilations, group, auto_pad)
    if X[1] != W[1] * at.group:
        raise ValueError(
            f"{operator}: X has {X[1]} channels, expected group * W.shape[1] = {at.group} * {W[1]} = "
            f"{at.group * W[1]}"
        )
    if W[0] % at.group:
        raise ValueError(f"{operator}: W.shape[0] is {W[0]}, expected a multiple of group = {at.group}")
    size, kernel = X[2:], W[2:]
    reach = _reach(kernel, at)
    if at.same:
        output_size = tuple(-(-s // stride) for s, stride in zip(size, at.strides, strict=True))
        spans = zip(output_size, at.strides, reach, size, strict=True)
        begin = _before(((o - 1) * stride + r - s for o, stride, r, s in spans), at.auto_pad)
    else:
        begin = at.begin
        free = []
        for axis, (s, b, e, r) in enumerate(zip(size, begin, at.end, reach, strict=True)):
            if r > s + b + e:
                raise ValueError(
                    f"{operator}: W spans {r} elements of spatial dimension {axis} (kernel {kernel[axis]}, "
                    f"dilation {at.dilations[axis]}), expected at most the padded input's {b} + {s} + {e} = "
                    f"{b + s + e}"
                )
            free.append(s + b + e - r)
        output_size = tuple(f // stride + 1 for f, stride in zip(free, at.strides, strict=True))
    N, C = X[:2]
    geometry = ConvGeometry(N, C, W[0], at.group, size, kernel, output_size, at.strides, at.dilations, begin)
    return _of_possible_size(operator, geometry)


@explained
def conv_transpose_geometry(
    operator: str, X: Sequence[int], W: Sequence[int], *,
    strides: Any, pads: Any, dilations: Any, group: Any, auto_pad: str,
    output_padding: Any, output_shape: Any,
) -> ConvGeometry:  # fmt: skip
    """The geometry of the convolution whose input gradient is `conv_transpose`.

    X is (N, C, *size), W is (C, O / group, *kernel). In the geometry X's channels are the `outputs`, and X's
    size is the `output_size`; the operator's output is (batch, channels, *size).
    """
    X, W = _check_shapes(operator, X, W, "C, O/group")
    n = len(X) - 2
    at = _attributes(operator, n, strides, pads, dilations, group, auto_pad)
    if X[1] != W[0]:
        raise ValueError(f"{operator}: X has {X[1]} channels, expected W.shape[0] = {W[0]}")
    if X[1] % at.group:
        raise ValueError(f"{operator}: X has {X[1]} channels, expected a multiple of group = {at.group}")
    added = _sizes(operator, "output_padding", output_padding, n, least=0)
    for axis, (a, s, d) in enumerate(zip(added, at.strides, at.dilations, strict=True)):
        if a >= max(s, d):
            raise ValueError(
                f"{operator}: output_padding is {a} in spatial dimension {axis}, expected less than the "
                f"larger of stride {s} and dilation {d}"
            )
    spans = zip(X[2:], at.strides, added, _reach(W[2:], at), strict=True)
    full = tuple(s * (i - 1) + a + r for i, s, a, r in spans)
    if output_shape is not None:
        given = f"where output_shape is given, it is {output_shape!r}"
        if any(at.begin) or any(at.end):
            raise ValueError(f"{operator}: pads is {(*at.begin, *at.end)}, expected 0 {given}")
        if at.auto_pad == "VALID":
            raise ValueError(
                f"{operator}: auto_pad is 'VALID', expected 'SAME_UPPER', 'SAME_LOWER' or 'NOTSET' {given}"
            )
        size = _sizes(operator, "output_shape", output_shape, n, least=1, scalar=False)
    elif at.same:
        size = tuple(i * s for i, s in zip(X[2:], at.strides, strict=True))
    else:
        size = tuple(f - b - e for f, b, e in zip(full, at.begin, at.end, strict=True))
        for axis, (s, f, b, e) in enumerate(zip(size, full, at.begin, at.end, strict=True)):
            if s < 1:
                raise ValueError(
                    f"{operator}: pads {b} + {e} in spatial dimension {axis} leave {s} elements of the "
                    f"output's {f}, expected at least 1"
                )
    begin = at.begin
    if output_shape is not None or at.same:
        begin = _before((f - s for f, s in zip(full, size, strict=True)), at.auto_pad)
    channels = W[1] * at.group
    geometry = ConvGeometry(
        X[0], channels, X[1], at.group, size, W[2:], X[2:], at.strides, at.dilations, begin
    )
    return _of_possible_size(operator, geometry)


def _of_possible_size(operator: str, geometry: ConvGeometry) -> ConvGeometry:
    """The geometry; ValueError if its arrays would exceed any machine's memory."""
    g = geometry
    padded, output = (g.batch, g.channels, *g.extent), (g.batch, g.outputs, *g.output_size)
    for name, sizes in (("padded input", padded), ("output", output)):
        if all(type(number) is int for number in sizes) and prod(sizes) > _MOST_ELEMENTS:
            raise ValueError(
                f"{operator}: pads, strides, dilations and output_shape make a {name} of shape {sizes}, "
                f"expected one of at most {_MOST_ELEMENTS} elements"
            )
    return geometry


def _check_shapes(
    operator: str, X: Sequence[int], W: Sequence[int], symbols: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    X, W = tuple(X), tuple(W)
    if len(X) < 3:
        raise ValueError(
            f"{operator}: X has {len(X)} dimensions with shape {X}, expected at least 3, (N, C, *size)"
        )
    if len(W) != len(X):
        raise ValueError(
            f"{operator}: W has {len(W)} dimensions with shape {W}, expected X's {len(X)}, "
            f"({symbols}, *kernel)"
        )
    for name, shape in (("X", X), ("W", W)):
        if 0 in shape[2:]:
            raise ValueError(
                f"{operator}: {name} has shape {shape}, expected spatial dimensions of at least 1"
            )
    return X, W


def _attributes(
    operator: str, n: int, strides: Any, pads: Any, dilations: Any, group: Any, auto_pad: str
) -> _ConvAttributes:
    check_choice(operator, "auto_pad", auto_pad, AUTO_PADS)
    begin, end = _pads(operator, pads, n)
    if auto_pad != "NOTSET" and (any(begin) or any(end)):
        raise ValueError(f"{operator}: pads is {pads!r}, expected 0 where auto_pad is {auto_pad!r}")
    return _ConvAttributes(
        _sizes(operator, "strides", strides, n, least=1),
        _sizes(operator, "dilations", dilations, n, least=1),
        begin,
        end,
        _whole(operator, "group", group, least=1),
        auto_pad,
    )


def _reach(kernel: Sizes, at: _ConvAttributes) -> Sizes:
    """The number of elements that a dilated kernel spans."""
    return tuple((k - 1) * d + 1 for k, d in zip(kernel, at.dilations, strict=True))


def _before(totals: Iterable[int], auto_pad: str) -> Sizes:
    """The part of the padding in front; SAME_UPPER puts the odd zero behind."""
    extra = 0 if auto_pad == "SAME_UPPER" else 1
    return tuple((max(total, 0) + extra) // 2 for total in totals)


def _pads(operator: str, pads: Any, n: int) -> tuple[Sizes, Sizes]:
    if is_list(pads) and len(pads) == 2 * n:
        both = _sizes(operator, "pads", pads, 2 * n, least=0)
        return both[:n], both[n:]
    if is_list(pads) and len(pads) != n:
        raise ValueError(
            f"{operator}: pads is {pads!r} of length {len(pads)}, expected one number, {n} (both ends of "
            f"each spatial dimension) or {2 * n} (all begins, then all ends)"
        )
    each = _sizes(operator, "pads", pads, n, least=0)
    return each, each


def _sizes(operator: str, name: str, value: Any, n: int, *, least: int, scalar: bool = True) -> Sizes:
    """An integer for each of n dimensions, from n integers or, if allowed, from a single integer."""
    if is_list(value):
        if len(value) != n:
            raise ValueError(
                f"{operator}: {name} is {value!r} of length {len(value)}, expected {n}, one for each "
                "spatial dimension"
            )
        return tuple(_whole(operator, name, each, least=least) for each in value)
    if not scalar:
        raise TypeError(f"{operator}: {name} is {value!r}, expected a sequence of {n} whole numbers")
    return (_whole(operator, name, value, least=least),) * n


def _whole(operator: str, name: str, value: Any, *, least: int) -> int:
    number = as_integer(value)
    if number is None:
        raise TypeError(
            f"{operator}: {name} is {value!r} of type {type(value).__name__}, expected whole numbers"
        )
    if number < least:
        raise ValueError(f"{operator}: {name} is {number}, expected at least {least}")
    if number > _MOST:
        raise ValueError(f"{operator}: {name} is {number}, expected at most {_MOST}")
    return number
