r"""Convolution and transposed convolution, with their gradients, for any number of spatial dimensions.

Notation, with the sizes that docstrings use:

=============  ===============================================================================
N, C, O, G     samples, input channels, output channels, groups
size, kernel   spatial sizes of X and of W
=============  ===============================================================================

One sum is behind all four kernels. With stride s, dilation d and padding p (in every dimension alike)

.. math:: Y_{n,o,j} = B_o + \sum_{c,k} W_{o,c,k}\,X_{n,c,\,js + kd - p}

is `conv`; its gradients are the two other sums over the same pairs of elements,

.. math::

    dX_{n,c,i} = \sum_{o,\,(j,k):\,js + kd - p = i} W_{o,c,k}\,dY_{n,o,j} \qquad
    dW_{o,c,k} = \sum_{n,j} dY_{n,o,j}\,X_{n,c,\,js + kd - p} \qquad
    dB_o = \sum_{n,j} dY_{n,o,j}

and `conv_transpose` is the first of them. Its gradients are then a `conv`, and the same dW with the roles
of X and dY exchanged.

Which pairs meet stands in one `ConvGeometry`; how the sums are computed, in the methods of `xpgrad._conv`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from array_api_compat import device

from xpgrad._arguments import check_arrays, check_choice, check_given, check_shape, check_wrt
from xpgrad._computation import Computation
from xpgrad._conv.choice import choose
from xpgrad._conv.geometry import (
    ConvGeometry,
    conv_geometry,
    conv_transpose_geometry,
    known_geometry,
)
from xpgrad._conv.method import Method, with_bias
from xpgrad._conv.norms import elements_of_patches, square_norms_by_patches, takes_pairs_of_patches
from xpgrad._per_sample import PER_SAMPLE, samples_at_a_time, square_norms
from xpgrad.engine.protocol import Engine

_NAMES = ("X", "W", "B")


class ConvGrads(NamedTuple):
    """What `conv_grad` returns: a gradient each, None where it was not asked for.

    Parameters
    ----------
    dX : array, shape (N, C, *size)
        Of the input.
    dW : array, shape (O, C/G, *kernel)
        Of the weights; with ``per_sample=True`` (N, O, C/G, *kernel); with ``"norm"`` (N,).
    dB : array, shape (O,)
        Of the biases; with ``per_sample=True`` (N, O); with ``"norm"`` (N,).
    """

    dX: Any
    dW: Any
    dB: Any


class ConvTransposeGrads(NamedTuple):
    """What `conv_transpose_grad` returns: a gradient each, None where it was not asked for.

    Parameters
    ----------
    dX : array, shape (N, C, *size)
        Of the input.
    dW : array, shape (C, O/G, *kernel)
        Of the weights; with ``per_sample=True`` (N, C, O/G, *kernel); with ``"norm"`` (N,).
    dB : array, shape (O,)
        Of the biases; with ``per_sample=True`` (N, O); with ``"norm"`` (N,).
    """

    dX: Any
    dW: Any
    dB: Any


# --- convolution -----------------------------------------------------------------------------------------


def conv(
    X: Any,
    W: Any,
    B: Any = None,
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: str = "NOTSET",
    method: str = "auto",
) -> Any:
    r"""Convolution over any number of spatial dimensions, ONNX's Conv.

    .. math:: Y_{n,o,j} = B_o + \sum_{c,k} W_{o,c,k}\,X_{n,c,\,j s + k d - p}

    Parameters
    ----------
    X : array, shape (N, C, *size)
        Input. float32 or float64; float16 and bfloat16 where the namespace has them, with sums in float32.
        All arrays share namespace, dtype and device.
    W : array, shape (O, C/group, *kernel)
        Weights. Output channels come in `group` groups, each of which sees its own C/group input channels.
    B : array, shape (O,), optional
        Biases.
    strides : int or sequence of int
        Step of the kernel s, one number, or one for each spatial dimension.
    pads : int or sequence of int
        Zeros around the input: one number, one for each spatial dimension (at both ends), or twice as many,
        all begins before all ends.
    dilations : int or sequence of int
        Distance d of the kernel's taps.
    group : int
        Number of groups; C for a depthwise convolution.
    auto_pad : {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"}
        SAME pads so that the output has ceil(size / stride) elements, an odd zero behind (UPPER) or before
        (LOWER); VALID does not pad. Both replace `pads`, which then must be 0.
    method : str
        How to compute: ``"auto"`` chooses by a cost rule; the others are named in the documentation of
        convolutions.

    Returns
    -------
    array, shape (N, O, *output_size)
        With ``output_size = (size + pads - (kernel - 1) * dilation - 1) // stride + 1``.

    Raises
    ------
    ValueError
        For a shape, an attribute or a method out of its rule.
    TypeError
        For what is no array or no whole number, or arrays that do not share namespace, dtype and device.

    See Also
    --------
    conv_grad : The gradient.
    conv_transpose : The transposed operator.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import conv
    >>> X = np.arange(6.0).reshape(1, 1, 6)
    >>> conv(X, np.asarray([[[1.0, 0.0, -1.0]]]), pads=1)
    array([[[-1., -2., -2., -2., -2.,  4.]]])
    """
    call = _Call(
        "conv", {"X": X, "W": W}, {"B": B}, conv_geometry,
        strides=strides, pads=pads, dilations=dilations, group=group, auto_pad=auto_pad,
    )  # fmt: skip
    check_shape("conv", "B", B, "O,", (call.geometry.outputs,))
    return call.sums(method).forward(X, W, B)


def conv_grad(
    dY: Any,
    X: Any,
    W: Any,
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: str = "NOTSET",
    method: str = "auto",
    per_sample: bool | str = False,
    sample_weight: Any = None,
    wrt: Iterable[str] | None = None,
) -> ConvGrads:
    r"""Gradient of `conv`.

    .. math::

        dX_{n,c,i} = \sum_{o,\,(j,k):\,js + kd - p = i} W_{o,c,k}\,dY_{n,o,j} \qquad
        dW_{o,c,k} = \sum_{n,j} dY_{n,o,j}\,X_{n,c,\,js + kd - p} \qquad
        dB_o = \sum_{n,j} dY_{n,o,j}

    Parameters
    ----------
    dY : array, shape (N, O, *output_size)
        Cotangent of the output.
    X, W : array, shapes (N, C, *size), (O, C/group, *kernel)
        As `conv` was given them.
    strides, pads, dilations, group, auto_pad, method
        As in `conv`.
    per_sample : bool or "norm"
        True gives dW and dB a leading axis of samples instead of the sum over them. ``"norm"`` gives the
        Euclidean norms of each sample's alone, (N,), in memory that does not grow with N times the weights.
    sample_weight : array, shape (N,), optional
        What each sample's dW and dB are multiplied with, before they are added up, kept apart or measured.
        It has no effect on dX.
    wrt : iterable of str, optional
        What to compute, among "X", "W", "B"; all by default. The work for the others is left out.

    Returns
    -------
    ConvGrads
        ``(dX, dW, dB)``, None where not asked for.

    Raises
    ------
    ValueError
        For a shape, an attribute, a method or a name out of its rule.
    TypeError
        For what is no array or no whole number, or arrays that do not share namespace, dtype and device.

    See Also
    --------
    conv : The forward.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import conv, conv_grad
    >>> rng = np.random.default_rng(0)
    >>> X, W = rng.normal(size=(2, 4, 9, 8)), rng.normal(size=(6, 2, 3, 3))
    >>> Y = conv(X, W, strides=2, group=2, auto_pad="SAME_UPPER")
    >>> grads = conv_grad(rng.normal(size=Y.shape), X, W, strides=2, group=2, auto_pad="SAME_UPPER")
    >>> grads.dX.shape, grads.dW.shape, grads.dB.shape
    ((2, 4, 9, 8), (6, 2, 3, 3), (6,))
    """
    call = _Call(
        "conv_grad", {"dY": dY, "X": X, "W": W}, {"sample_weight": sample_weight}, conv_geometry,
        strides=strides, pads=pads, dilations=dilations, group=group, auto_pad=auto_pad,
    )  # fmt: skip
    wanted = call.check_gradient(call.geometry.output_shape, per_sample, wrt)
    here = call.sums(method)
    return ConvGrads(
        here.input_gradient(dY, W) if "X" in wanted else None,
        here.weight_gradient(dY, X, per_sample, sample_weight) if "W" in wanted else None,
        here.bias_gradient(dY, per_sample, sample_weight) if "B" in wanted else None,
    )


# --- transposed convolution ------------------------------------------------------------------------------


def conv_transpose(
    X: Any,
    W: Any,
    B: Any = None,
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: str = "NOTSET",
    output_padding: int | Sequence[int] = 0,
    output_shape: Sequence[int] | None = None,
    method: str = "auto",
) -> Any:
    r"""Transposed convolution over any number of spatial dimensions, ONNX's ConvTranspose.

    .. math:: Y_{n,o,i} = B_o + \sum_{c,\,(j,k):\,js + kd - p = i} W_{c,o,k}\,X_{n,c,j}

    Parameters
    ----------
    X : array, shape (N, C, *size)
        Input. float32 or float64; float16 and bfloat16 where the namespace has them, with sums in float32.
        All arrays share namespace, dtype and device.
    W : array, shape (C, O/group, *kernel)
        Weights. Input channels come in `group` groups, each of which makes its own O/group output channels.
    B : array, shape (O,), optional
        Biases.
    strides : int or sequence of int
        Distance s of the outputs of neighbouring inputs, one number, or one for each spatial dimension.
    pads : int or sequence of int
        Elements taken off the output's ends: one number, one for each spatial dimension (at both ends), or
        twice as many, all begins before all ends.
    dilations : int or sequence of int
        Distance d of the kernel's taps.
    group : int
        Number of groups.
    auto_pad : {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"}
        SAME takes off so much that the output has size * stride elements, an odd one at the end (UPPER) or
        at the begin (LOWER); VALID takes nothing off. Both replace `pads`, which then must be 0.
    output_padding : int or sequence of int
        Elements added at the output's end, less than stride or dilation.
    output_shape : sequence of int, optional
        The output's spatial sizes. What is taken off follows from them, as with SAME; where the outputs do
        not reach that far, the rest is the bias alone. It replaces `pads`, which then must be 0.
    method : str
        As in `conv`.

    Returns
    -------
    array, shape (N, O, *output_size)
        With ``output_size = stride * (size - 1) + output_padding + (kernel - 1) * dilation + 1 - pads``,
        unless `auto_pad` or `output_shape` sets it.

    Raises
    ------
    ValueError
        For a shape, an attribute or a method out of its rule.
    TypeError
        For what is no array or no whole number, or arrays that do not share namespace, dtype and device.

    See Also
    --------
    conv_transpose_grad : The gradient.
    conv : The operator whose adjoint in X this is.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import conv_transpose
    >>> X = np.asarray([[[1.0, 2.0, 3.0]]])
    >>> conv_transpose(X, np.asarray([[[1.0, 10.0]]]), strides=2)
    array([[[ 1., 10.,  2., 20.,  3., 30.]]])
    """
    call = _Call(
        "conv_transpose", {"X": X, "W": W}, {"B": B}, conv_transpose_geometry,
        strides=strides, pads=pads, dilations=dilations, group=group, auto_pad=auto_pad,
        output_padding=output_padding, output_shape=output_shape,
    )  # fmt: skip
    check_shape("conv_transpose", "B", B, "O,", (call.geometry.channels,))
    return call.sums(method).input_gradient(X, W, B)


def conv_transpose_grad(
    dY: Any,
    X: Any,
    W: Any,
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: str = "NOTSET",
    output_padding: int | Sequence[int] = 0,
    output_shape: Sequence[int] | None = None,
    method: str = "auto",
    per_sample: bool | str = False,
    sample_weight: Any = None,
    wrt: Iterable[str] | None = None,
) -> ConvTransposeGrads:
    r"""Gradient of `conv_transpose`.

    .. math::

        dX_{n,c,j} = \sum_{o,k} W_{c,o,k}\,dY_{n,o,\,js + kd - p} \qquad
        dW_{c,o,k} = \sum_{n,j} X_{n,c,j}\,dY_{n,o,\,js + kd - p} \qquad
        dB_o = \sum_{n,i} dY_{n,o,i}

    Parameters
    ----------
    dY : array, shape (N, O, *output_size)
        Cotangent of the output.
    X, W : array, shapes (N, C, *size), (C, O/group, *kernel)
        As `conv_transpose` was given them.
    strides, pads, dilations, group, auto_pad, output_padding, output_shape, method
        As in `conv_transpose`.
    per_sample : bool or "norm"
        True gives dW and dB a leading axis of samples instead of the sum over them. ``"norm"`` gives the
        Euclidean norms of each sample's alone, (N,), in memory that does not grow with N times the weights.
    sample_weight : array, shape (N,), optional
        What each sample's dW and dB are multiplied with, before they are added up, kept apart or measured.
        It has no effect on dX.
    wrt : iterable of str, optional
        What to compute, among "X", "W", "B"; all by default. The work for the others is left out.

    Returns
    -------
    ConvTransposeGrads
        ``(dX, dW, dB)``, None where not asked for.

    Raises
    ------
    ValueError
        For a shape, an attribute, a method or a name out of its rule.
    TypeError
        For what is no array or no whole number, or arrays that do not share namespace, dtype and device.

    See Also
    --------
    conv_transpose : The forward.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import conv_transpose, conv_transpose_grad
    >>> rng = np.random.default_rng(0)
    >>> X, W = rng.normal(size=(2, 6, 5, 4)), rng.normal(size=(6, 2, 3, 3))
    >>> Y = conv_transpose(X, W, strides=2, output_padding=1)
    >>> grads = conv_transpose_grad(rng.normal(size=Y.shape), X, W, strides=2, output_padding=1)
    >>> Y.shape, grads.dX.shape, grads.dW.shape, grads.dB.shape
    ((2, 2, 12, 10), (2, 6, 5, 4), (6, 2, 3, 3), (2,))
    """
    call = _Call(
        "conv_transpose_grad", {"dY": dY, "X": X, "W": W}, {"sample_weight": sample_weight},
        conv_transpose_geometry,
        strides=strides, pads=pads, dilations=dilations, group=group, auto_pad=auto_pad,
        output_padding=output_padding, output_shape=output_shape,
    )  # fmt: skip
    wanted = call.check_gradient(call.geometry.input_shape, per_sample, wrt)
    here = call.sums(method)
    return ConvTransposeGrads(
        here.forward(dY, W) if "X" in wanted else None,
        here.weight_gradient(X, dY, per_sample, sample_weight) if "W" in wanted else None,
        here.bias_gradient(dY, per_sample, sample_weight) if "B" in wanted else None,
    )


# --- the sums of one call --------------------------------------------------------------------------------


class _Call:
    """A call whose arrays are checked, and its geometry.

    Parameters
    ----------
    operator : str
        For messages.
    needed, others : mapping of str to array
        The arrays that must be given, X and W among them, and those that may be None.
    geometry_of : callable
        Checks shapes and attributes, and returns the geometry.
    **attributes
        The operator's.
    """

    def __init__(
        self,
        operator: str,
        needed: Mapping[str, Any],
        others: Mapping[str, Any],
        geometry_of: Callable[..., ConvGeometry],
        **attributes: Any,
    ) -> None:
        check_given(operator, needed)
        self._operator, self._arrays = operator, {**needed, **others}
        self._xp = check_arrays(operator, self._arrays)
        self.geometry = known_geometry(
            geometry_of, operator, needed["X"].shape, needed["W"].shape, attributes
        )

    def check_gradient(self, shape: Sequence[int], per_sample: Any, wrt: Iterable[str] | None) -> Any:
        """Check what only a gradient takes, dY of that shape; return the names of what is wanted."""
        operator, given = self._operator, self._arrays
        check_shape(operator, "dY", given["dY"], "N, O, *output_size", shape)
        check_shape(operator, "sample_weight", given["sample_weight"], "N,", (given["X"].shape[0],))
        wanted = check_wrt(operator, wrt, _NAMES)
        check_choice(operator, "per_sample", per_sample, PER_SAMPLE)
        return wanted

    def sums(self, method: str) -> _Sums:
        """The sums of this geometry, by the method of that name."""
        arrays = [array for name, array in self._arrays.items() if name != "sample_weight"]
        return _Sums(self._operator, self._xp, arrays, self.geometry, method)


class _Sums:
    """The sums of one call, on its engine, each by the method of its choice; names are a convolution's."""

    def __init__(
        self, operator: str, xp: Any, arrays: Sequence[Any], geometry: ConvGeometry, method: str
    ) -> None:
        self._here = Computation(operator, xp, arrays)
        self._operator, self._geometry, self._name = operator, geometry, method
        self._chosen: Method | None = None
        if method != "auto":  # one that can't compute this is an error even where nothing is wanted
            self._method(self._here.engine, geometry)

    def _method(self, engine: Engine, geometry: ConvGeometry) -> Method:
        """The method, chosen once; and again for a part of the geometry or an engine in this one's place."""
        if engine is not self._here.engine or geometry is not self._geometry:
            return choose(self._operator, self._name, engine, geometry)
        if self._chosen is None:
            self._chosen = choose(self._operator, self._name, engine, geometry)
        return self._chosen

    def forward(self, X: Any, W: Any, B: Any = None) -> Any:
        """Y, (N, O, *output_size)."""
        return self._with_bias("forward", self._geometry.output_shape, X, W, B)

    def input_gradient(self, dY: Any, W: Any, B: Any = None) -> Any:
        """dX, (N, C, *size), plus B (C,)."""
        return self._with_bias("input_gradient", self._geometry.input_shape, dY, W, B)

    def _with_bias(self, sums: str, shape: Sequence[int], a: Any, W: Any, B: Any) -> Any:
        here, geometry = self._here, self._geometry
        with here.engine.quiet():
            a, W, B = here.lift(a), here.lift(W), None if B is None else here.lift(B)
            if geometry.empty:
                return here.lower(with_bias(here.engine, _zeros(here.xp, shape, a), B))
            return here.lower(self._sum(sums, geometry, shape, a, W, B))

    def _sum(self, sums: str, geometry: ConvGeometry, shape: Sequence[int], *arrays: Any) -> Any:
        """One of the three sums, of this shape, by the method of the engine's choice."""

        def compute(engine: Engine, *arrays: Any) -> Any:
            return getattr(self._method(engine, geometry), sums)(engine, geometry, *arrays)

        return self._here.engine.whole(compute, arrays, shape, (sums, self._name, geometry))

    def weight_gradient(self, dY: Any, X: Any, per_sample: bool | str, sample_weight: Any) -> Any:
        """dW, (O, C / group, *kernel); each sample's own, or the norms of these."""
        here, geometry = self._here, self._geometry
        with here.engine.quiet():
            dY, X = here.lift(dY), here.lift(X)
            if sample_weight is not None:
                dY, X = _weighted(here.xp, dY, X, here.lift(sample_weight))
            if per_sample == "norm":
                return here.lower(self._weight_norms(dY, X))
            shape = (geometry.batch, *geometry.weight_shape) if per_sample else geometry.weight_shape
            if geometry.empty or 0 in shape:
                return here.lower(_zeros(here.xp, shape, X))
            if per_sample:
                return here.lower(here.xp.reshape(self._own_weight_gradients(dY, X), shape))
            return here.lower(self._sum("weight_gradient", geometry, shape, dY, X))

    def _own_weight_gradients(self, dY: Any, X: Any) -> Any:
        """Each sample's dW, (n * O, C / group, *kernel): the gradient of groups that hold one sample each."""
        geometry = replace(self._geometry, batch=X.shape[0]).per_sample()
        dY = self._here.xp.reshape(dY, geometry.output_shape)
        X = self._here.xp.reshape(X, geometry.input_shape)
        return self._sum("weight_gradient", geometry, geometry.weight_shape, dY, X)

    def _weight_norms(self, dY: Any, X: Any) -> Any:
        """The norms of each sample's dW, (N,), for as many samples at a time as a cache holds."""
        engine, geometry = self._here.engine, self._geometry
        size = prod(geometry.weight_shape)
        if geometry.empty or not size:
            return _zeros(engine.xp, (geometry.batch,), X)
        pairs = takes_pairs_of_patches(geometry)
        size = elements_of_patches(geometry) if pairs else size

        def squares(samples: slice) -> Any:
            d, x = dY[samples, ...], X[samples, ...]
            if pairs:
                return square_norms_by_patches(engine, geometry, d, x)
            count = samples.stop - samples.start
            return square_norms(engine, engine.xp.reshape(self._own_weight_gradients(d, x), (count, size)))

        parts = [squares(samples) for samples in samples_at_a_time(geometry.batch, size)]
        return engine.roots(engine.xp.concat(parts, axis=0))

    def bias_gradient(self, dY: Any, per_sample: bool | str, sample_weight: Any) -> Any:
        """dB, the sum of dY over positions, and over samples; or each sample's, or the norms of these."""
        here = self._here
        with here.engine.quiet():
            rows = here.lift(dY)
            rows = here.xp.reshape(rows, (*dY.shape[:2], prod(dY.shape[2:])))
            sums = here.engine.last_axis_sums(rows)
            if sample_weight is not None:
                sums = sums * here.xp.reshape(here.lift(sample_weight), (dY.shape[0], 1))
            if per_sample == "norm":
                return here.lower(here.engine.roots(square_norms(here.engine, sums)))
            return here.lower(sums if per_sample else here.xp.sum(sums, axis=0))


def _weighted(xp: Any, dY: Any, X: Any, weight: Any) -> tuple[Any, Any]:
    """The two factors of dW with every sample's product times its weight: the smaller one is changed."""

    def scaled(array: Any) -> Any:
        return array * xp.reshape(weight, (array.shape[0],) + (1,) * (array.ndim - 1))

    if prod(dY.shape) <= prod(X.shape):
        return scaled(dY), X
    return dY, scaled(X)


def _zeros(xp: Any, shape: Sequence[int], like: Any) -> Any:
    return xp.zeros(tuple(shape), dtype=like.dtype, device=device(like))
