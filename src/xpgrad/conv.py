r"""Convolution and transposed convolution, with their gradients, for any number of spatial dimensions.

Notation, with the sizes that docstrings use:

=============  ===============================================================================
N, C, O, G     samples, input channels, output channels, groups
size, kernel   spatial sizes of X and of W
=============  ===============================================================================

All four kernels compute one sum. With stride s, dilation d and padding p (in every dimension alike)

.. math:: Y_{n,o,j} = B_o + \sum_{c,k} W_{o,c,k}\,X_{n,c,\,js + kd - p}

is `conv`; its gradients are two other sums over the same pairs of elements,

.. math::

    dX_{n,c,i} = \sum_{o,\,(j,k):\,js + kd - p = i} W_{o,c,k}\,dY_{n,o,j} \qquad
    dW_{o,c,k} = \sum_{n,j} dY_{n,o,j}\,X_{n,c,\,js + kd - p} \qquad
    dB_o = \sum_{n,j} dY_{n,o,j}

and `conv_transpose` is the first of these gradients. Its own gradients are a `conv`, and the same dW with X
and dY exchanged.

One `ConvGeometry` defines the pairs; the methods of `xpgrad._conv` compute the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Generic, NamedTuple, cast

from array_api_compat import device

from xpgrad._calls.adapter_calls import PLAIN, public
from xpgrad._calls.call_arrays import call_arrays
from xpgrad._calls.plans import Asked, Operation, planned_call
from xpgrad._conv.choice import choose
from xpgrad._conv.geometry import ConvGeometry, conv_geometry, conv_transpose_geometry, known_geometry
from xpgrad._conv.method import with_bias
from xpgrad._conv.norms import elements_of_patches, square_norms_by_patches, takes_pairs_of_patches
from xpgrad._operators.arguments import check_arrays, check_given, check_shape
from xpgrad._operators.types import A, AnyArray, Array, MaybeNone, Wanted
from xpgrad._operators.words import AutoPad, ConvMethod, PerSample
from xpgrad._recurrent.per_sample import samples_at_a_time, square_norms
from xpgrad.engine.protocol import Engine

_FORWARD, _GRADIENT = ("X", "W", "B"), ("dY", "X", "W", "sample_weight")
_SIZED = "dY", "X", "sample_weight"


class ConvGrads(NamedTuple, Generic[AnyArray]):
    """The gradients of `conv_grad`; None for gradients that were not asked for.

    Parameters
    ----------
    dX : array, shape (N, C, *size)
        Gradient of the input.
    dW : array, shape (O, C/G, *kernel)
        Gradient of the weights; with ``per_sample=True`` (N, O, C/G, *kernel); with ``"norm"`` (N,).
    dB : array, shape (O,)
        Gradient of the biases; with ``per_sample=True`` (N, O); with ``"norm"`` (N,).
    """

    dX: AnyArray
    dW: AnyArray
    dB: AnyArray


class ConvTransposeGrads(NamedTuple, Generic[AnyArray]):
    """The gradients of `conv_transpose_grad`; None for gradients that were not asked for.

    Parameters
    ----------
    dX : array, shape (N, C, *size)
        Gradient of the input.
    dW : array, shape (C, O/G, *kernel)
        Gradient of the weights; with ``per_sample=True`` (N, C, O/G, *kernel); with ``"norm"`` (N,).
    dB : array, shape (O,)
        Gradient of the biases; with ``per_sample=True`` (N, O); with ``"norm"`` (N,).
    """

    dX: AnyArray
    dW: AnyArray
    dB: AnyArray


# --- convolution -----------------------------------------------------------------------------------------


@public
def conv(
    X: Array[A],
    W: Array[A],
    B: Array[A] | None = None,
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: AutoPad = "NOTSET",
    method: ConvMethod = "auto",
    _foreign: object = PLAIN,
) -> A:
    r"""Convolution over any number of spatial dimensions, ONNX's Conv.

    .. math:: Y_{n,o,j} = B_o + \sum_{c,k} W_{o,c,k}\,X_{n,c,\,j s + k d - p}

    Parameters
    ----------
    X : array, shape (N, C, *size)
        Input. float32 or float64; float16 and bfloat16 where the namespace has them, with sums in float32.
        All arrays share namespace, dtype and device.
    W : array, shape (O, C/group, *kernel)
        Weights. The output channels form `group` groups; each group sees its own C/group input channels.
    B : array, shape (O,), optional
        Biases.
    strides : int or sequence of int
        Step of the kernel s, one number, or one for each spatial dimension.
    pads : int or sequence of int
        Zeros around the input: one number, one for each spatial dimension (at both ends), or twice as many,
        all begins before all ends.
    dilations : int or sequence of int
        Distance d between the kernel's taps.
    group : int
        Number of groups; C for a depthwise convolution.
    auto_pad : {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"}
        SAME pads to an output of ceil(size / stride) elements, with an odd zero at the end (UPPER) or at the
        beginning (LOWER); VALID does not pad. Both replace `pads`, which then must be 0.
    method : str
        The algorithm: "pointwise", "winograd", "patches", "clipped", "shifted", "taps" or "fft". ``"auto"``
        chooses by a cost rule.

    Returns
    -------
    array, shape (N, O, *output_size)
        With ``output_size = (size + pads - (kernel - 1) * dilation - 1) // stride + 1``.

    Raises
    ------
    ValueError
        If a shape, an attribute or a method breaks its rule.
    TypeError
        If an argument is not an array or a whole number, or arrays differ in namespace, dtype or device.

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
    return planned_call(_CONV, locals()).Y


@public
def conv_grad(
    dY: Array[A],
    X: Array[A],
    W: Array[A],
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: AutoPad = "NOTSET",
    method: ConvMethod = "auto",
    per_sample: PerSample = False,
    sample_weight: Array[A] | None = None,
    wrt: Wanted[MaybeNone] | None = None,
    _foreign: object = PLAIN,
) -> ConvGrads[A | MaybeNone]:
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
        The arguments of `conv`.
    strides, pads, dilations, group, auto_pad, method
        As in `conv`.
    per_sample : bool or "norm"
        True gives dW and dB a leading axis of samples instead of the sum over them. ``"norm"`` gives only
        their Euclidean norms, (N,); its memory does not grow with N times the weights.
    sample_weight : array, shape (N,), optional
        A factor for each sample's dW and dB, applied before they are summed, returned separately or
        normed. It has no effect on dX.
    wrt : iterable of str, optional
        Which gradients to compute, of "X", "W", "B"; all by default. Other gradients take no time.

    Returns
    -------
    ConvGrads
        ``(dX, dW, dB)``, None for gradients that were not asked for.

    Raises
    ------
    ValueError
        If a shape, an attribute, a method or a name breaks its rule.
    TypeError
        If an argument is not an array or a whole number, or arrays differ in namespace, dtype or device.

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
    return planned_call(_CONV_GRAD, locals())


def _compute_conv(asked: Asked, *, method: str, **attributes: Any) -> _Result:
    sums = _Sums(asked, ("X", "W"), conv_geometry, attributes, method)
    check_shape(asked.operator, "B", asked.arrays["B"], "O,", (sums.geometry.outputs,))
    return _Result(sums.forward("X", "W", "B"))


def _compute_conv_grad(
    asked: Asked, *, method: str, per_sample: bool | str, wanted: Collection[str], **attributes: Any
) -> ConvGrads:
    sums = _Sums(asked, ("dY", "X", "W"), conv_geometry, attributes, method, per_sample)
    sums.check_cotangent(sums.geometry.output_shape)
    return ConvGrads(
        sums.input_gradient("dY", "W") if "X" in wanted else None,
        sums.weight_gradient("dY", "X") if "W" in wanted else None,
        sums.bias_gradient("dY") if "B" in wanted else None,
    )


# --- transposed convolution ------------------------------------------------------------------------------


@public
def conv_transpose(
    X: Array[A],
    W: Array[A],
    B: Array[A] | None = None,
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: AutoPad = "NOTSET",
    output_padding: int | Sequence[int] = 0,
    output_shape: Sequence[int] | None = None,
    method: ConvMethod = "auto",
    _foreign: object = PLAIN,
) -> A:
    r"""Transposed convolution over any number of spatial dimensions, ONNX's ConvTranspose.

    .. math:: Y_{n,o,i} = B_o + \sum_{c,\,(j,k):\,js + kd - p = i} W_{c,o,k}\,X_{n,c,j}

    Parameters
    ----------
    X : array, shape (N, C, *size)
        Input. float32 or float64; float16 and bfloat16 where the namespace has them, with sums in float32.
        All arrays share namespace, dtype and device.
    W : array, shape (C, O/group, *kernel)
        Weights. The input channels form `group` groups; each group yields O/group output channels.
    B : array, shape (O,), optional
        Biases.
    strides : int or sequence of int
        Distance s between the outputs of neighbouring inputs, one number, or one for each spatial dimension.
    pads : int or sequence of int
        Elements cropped from the output's ends: one number, one for each spatial dimension (at both ends), or
        twice as many, all begins before all ends.
    dilations : int or sequence of int
        Distance d between the kernel's taps.
    group : int
        Number of groups.
    auto_pad : {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"}
        SAME crops to an output of size * stride elements, with an odd element at the end (UPPER) or at the
        beginning (LOWER); VALID does not crop. Both replace `pads`, which then must be 0.
    output_padding : int or sequence of int
        Elements added at the output's end, less than stride or dilation.
    output_shape : sequence of int, optional
        The output's spatial sizes. They determine the crop at the ends, as with SAME. Outputs without a
        product are the bias. It replaces `pads`, which then must be 0.
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
        If a shape, an attribute or a method breaks its rule.
    TypeError
        If an argument is not an array or a whole number, or arrays differ in namespace, dtype or device.

    See Also
    --------
    conv_transpose_grad : The gradient.
    conv : This operator is its adjoint in X.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import conv_transpose
    >>> X = np.asarray([[[1.0, 2.0, 3.0]]])
    >>> conv_transpose(X, np.asarray([[[1.0, 10.0]]]), strides=2)
    array([[[ 1., 10.,  2., 20.,  3., 30.]]])
    """
    return planned_call(_CONV_TRANSPOSE, locals()).Y


@public
def conv_transpose_grad(
    dY: Array[A],
    X: Array[A],
    W: Array[A],
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: AutoPad = "NOTSET",
    output_padding: int | Sequence[int] = 0,
    output_shape: Sequence[int] | None = None,
    method: ConvMethod = "auto",
    per_sample: PerSample = False,
    sample_weight: Array[A] | None = None,
    wrt: Wanted[MaybeNone] | None = None,
    _foreign: object = PLAIN,
) -> ConvTransposeGrads[A | MaybeNone]:
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
        The arguments of `conv_transpose`.
    strides, pads, dilations, group, auto_pad, output_padding, output_shape, method
        As in `conv_transpose`.
    per_sample : bool or "norm"
        True gives dW and dB a leading axis of samples instead of the sum over them. ``"norm"`` gives only
        their Euclidean norms, (N,); its memory does not grow with N times the weights.
    sample_weight : array, shape (N,), optional
        A factor for each sample's dW and dB, applied before they are summed, returned separately or
        normed. It has no effect on dX.
    wrt : iterable of str, optional
        Which gradients to compute, of "X", "W", "B"; all by default. Other gradients take no time.

    Returns
    -------
    ConvTransposeGrads
        ``(dX, dW, dB)``, None for gradients that were not asked for.

    Raises
    ------
    ValueError
        If a shape, an attribute, a method or a name breaks its rule.
    TypeError
        If an argument is not an array or a whole number, or arrays differ in namespace, dtype or device.

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
    return planned_call(_CONV_TRANSPOSE_GRAD, locals())


def _compute_conv_transpose(asked: Asked, *, method: str, **attributes: Any) -> _Result:
    sums = _Sums(asked, ("X", "W"), conv_transpose_geometry, attributes, method)
    check_shape(asked.operator, "B", asked.arrays["B"], "O,", (sums.geometry.channels,))
    return _Result(sums.input_gradient("X", "W", "B"))


def _compute_conv_transpose_grad(
    asked: Asked, *, method: str, per_sample: bool | str, wanted: Collection[str], **attributes: Any
) -> ConvTransposeGrads:
    sums = _Sums(asked, ("dY", "X", "W"), conv_transpose_geometry, attributes, method, per_sample)
    sums.check_cotangent(sums.geometry.input_shape)
    return ConvTransposeGrads(
        sums.forward("dY", "W") if "X" in wanted else None,
        sums.weight_gradient("X", "dY") if "W" in wanted else None,
        sums.bias_gradient("dY") if "B" in wanted else None,
    )


# --- the sums of one call --------------------------------------------------------------------------------


class _Result(NamedTuple):
    """The result of a forward."""

    Y: Any


class _Sums:
    """A call's sums, named as a convolution's; they take the names of the call's arrays.

    Parameters
    ----------
    asked : Asked
        The operator and its arrays.
    needed : sequence of str
        Names of the required arrays, including X and W.
    geometry_of : callable
        Checks shapes and attributes, and returns the geometry.
    attributes : mapping
        The operator's attributes.
    method : str
        The name of the method.
    per_sample : bool or str
        Whether parameter gradients are kept for each sample, or only their norms.
    """

    def __init__(
        self, asked: Asked, needed: Sequence[str], geometry_of: Callable[..., ConvGeometry],
        attributes: Mapping[str, Any], method: str, per_sample: bool | str = False,
    ) -> None:  # fmt: skip
        operator, arrays = asked.operator, asked.arrays
        check_given(operator, {name: arrays[name] for name in needed})
        xp = check_arrays(operator, dict(arrays))
        self._operator, self._arrays, self._name, self._per_sample = operator, arrays, method, per_sample
        self._given = call_arrays(asked, xp, [arrays[name] for name in needed])
        X, W = map(self._sized, ("X", "W"))
        self.geometry = known_geometry(geometry_of, operator, X.shape, W.shape, dict(attributes))
        self._engine = cast(Engine, self._given.engine)  # a recorder has all methods that are used here
        # an impossible method is an error even if no gradient is wanted
        if not isinstance(method, str) or method != "auto":
            choose(operator, method, self._engine, self.geometry)

    def check_cotangent(self, shape: Sequence[int]) -> None:
        """Check the arguments that only gradients have: dY, of this shape, and sample_weight."""
        operator = self._operator
        check_shape(operator, "dY", self._sized("dY"), "N, O, *output_size", shape)
        check_shape(operator, "sample_weight", self._sized("sample_weight"), "N,", (self.geometry.batch,))

    def _sized(self, name: str) -> Any:
        """Something of the shape of this array."""
        return None if self._arrays[name] is None else self._given.sized(name, self._arrays[name])

    def _lift(self, name: str | None) -> Any:
        """The engine's array of this name; None if it was not given."""
        if name is None or (array := self._arrays[name]) is None:
            return None
        return self._given.lift(name, array)

    def forward(self, X: str, W: str, B: str | None = None) -> Any:
        """Y, (N, O, *output_size)."""
        return self._with_bias("forward", self.geometry.output_shape, X, W, B)

    def input_gradient(self, dY: str, W: str, B: str | None = None) -> Any:
        """dX, (N, C, *size), plus B (C,)."""
        return self._with_bias("input_gradient", self.geometry.input_shape, dY, W, B)

    def _with_bias(self, sums: str, shape: Sequence[int], *names: str | None) -> Any:
        engine, geometry = self._engine, self.geometry
        with engine.quiet(), engine.lane(0):
            a, W, B = map(self._lift, names)
            if geometry.empty:
                return self._given.lower(with_bias(engine, _zeros(engine.xp, shape, a), B))
            return self._given.lower(self._sum(sums, geometry, shape, a, W, B))

    def _sum(self, sums: str, geometry: ConvGeometry, shape: Sequence[int], *arrays: Any) -> Any:
        """One of the three sums, of this shape."""

        def compute(engine: Engine, *arrays: Any) -> Any:
            method = choose(self._operator, self._name, engine, geometry, sums)
            return getattr(method, sums)(engine, geometry, *arrays)

        return self._engine.whole(compute, arrays, shape, (sums, self._name, geometry))

    def weight_gradient(self, dY: str, X: str) -> Any:
        """dW, (O, C / group, *kernel), or each sample's dW, or their norms."""
        engine, geometry, per_sample = self._engine, self.geometry, self._per_sample
        with engine.quiet(), engine.lane(1):
            factors, weight = (self._lift(dY), self._lift(X)), self._lift("sample_weight")
            if weight is not None:
                factors = _weighted(engine.xp, *factors, weight)
            if per_sample == "norm":
                return self._given.lower(self._weight_norms(*factors))
            shape = (geometry.batch, *geometry.weight_shape) if per_sample else geometry.weight_shape
            if geometry.empty or 0 in shape:
                return self._given.lower(_zeros(engine.xp, shape, factors[0]))
            if per_sample:
                return self._given.lower(engine.xp.reshape(self._own_weight_gradients(*factors), shape))
            return self._given.lower(self._sum("weight_gradient", geometry, shape, *factors))

    def _own_weight_gradients(self, dY: Any, X: Any) -> Any:
        """Each sample's dW, (n * O, C / group, *kernel): the gradient with groups for each sample."""
        if self.geometry.is_one_product:  # with groups it is none
            xp, n = self._engine.xp, X.shape[0]
            products = xp.reshape(dY, (n, -1, 1)) * xp.reshape(X, (n, 1, -1))
            return xp.reshape(products, (-1, *self.geometry.weight_shape[1:]))
        geometry, xp = replace(self.geometry, batch=X.shape[0]).per_sample(), self._engine.xp
        dY, X = xp.reshape(dY, geometry.output_shape), xp.reshape(X, geometry.input_shape)
        return self._sum("weight_gradient", geometry, geometry.weight_shape, dY, X)

    def _weight_norms(self, dY: Any, X: Any) -> Any:
        """The norms of each sample's dW, (N,), computed for as many samples at a time as fit a cache."""
        engine, geometry = self._engine, self.geometry
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

    def bias_gradient(self, dY: str) -> Any:
        """dB, the sum of dY over positions and samples, or each sample's dB, or their norms."""
        engine, xp = self._engine, self._engine.xp
        with engine.quiet(), engine.lane(1):
            rows, weight = self._lift(dY), self._lift("sample_weight")
            batch, channels, *size = rows.shape
            sums = engine.last_axis_sums(xp.reshape(rows, (batch, channels, prod(size))))
            if weight is not None:
                sums = sums * xp.reshape(weight, (batch, 1))
            if self._per_sample == "norm":
                return self._given.lower(engine.roots(square_norms(engine, sums)))
            return self._given.lower(sums if self._per_sample else xp.sum(sums, axis=0))


def _weighted(xp: Any, dY: Any, X: Any, weight: Any) -> tuple[Any, Any]:
    """The two factors of dW, the smaller one multiplied by the samples' weights."""
    weight = xp.reshape(weight, (-1,) + (1,) * (X.ndim - 1))
    return (dY * weight, X) if prod(dY.shape) <= prod(X.shape) else (dY, X * weight)


def _zeros(xp: Any, shape: Sequence[int], like: Any) -> Any:
    return xp.zeros(tuple(shape), dtype=like.dtype, device=device(like))


_CONV = Operation("conv", _compute_conv, _FORWARD, sized=_SIZED)
_CONV_TRANSPOSE = Operation("conv_transpose", _compute_conv_transpose, _FORWARD, sized=_SIZED)
_CONV_GRAD = Operation("conv_grad", _compute_conv_grad, _GRADIENT, _FORWARD, sized=_SIZED)
_CONV_TRANSPOSE_GRAD = Operation(
    "conv_transpose_grad", _compute_conv_transpose_grad, _GRADIENT, _FORWARD, sized=_SIZED
)
