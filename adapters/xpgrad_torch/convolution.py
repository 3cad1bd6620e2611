"""Convolution in PyTorch: functions with PyTorch's arguments, and modules that take the place of its own."""

# ruff: noqa: A002 - PyTorch's names for the arguments

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec

import torch
from torch import Tensor, nn

from xpgrad._operators.words import ConvMethod
from xpgrad_torch._autocast import autocasts, lowered
from xpgrad_torch._autograd import TorchKernel, apply, call_again, is_followed
from xpgrad_torch._docs import described_as, in_words
from xpgrad_torch._errors import CallerNames
from xpgrad_torch._fx import Proxy, Unscripted, as_node
from xpgrad_torch._kernel import check_dense
from xpgrad_torch._library import registered
from xpgrad_torch._opacus import Sampled
from xpgrad_torch._private import ConvNd, ConvTransposeNd, output_padding_of, padding_ends
from xpgrad_torch._programs import Head, find, head_of

__all__ = [
    "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "conv1d",
    "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"
]  # fmt: skip

Sizes = int | Sequence[int]

_CONV = registered(TorchKernel("conv", planned=True, images=True))
_CONV_TRANSPOSE = registered(TorchKernel("conv_transpose", planned=True, images=True))
_ATTRIBUTES = {"stride": "strides", "padding": "pads", "dilation": "dilations"}  # ONNX's names
_ARGUMENTS = {"X": "input", "W": "weight", "B": "bias", "group": "groups"}
_ARGUMENTS |= {theirs: ours for ours, theirs in _ATTRIBUTES.items()}
_WORDS = {
    f"conv{kind}{n}d": CallerNames(_ARGUMENTS, f"conv{kind}{n}d")
    for kind in ("", "_transpose")
    for n in (1, 2, 3)
}
# PyTorch's words for ONNX's auto_pad: an odd row of padding stands at the end.
_AUTO_PAD = {"same": "SAME_UPPER", "valid": "VALID"}


# --------------------------------------------------------------------------------------- what all share


def _convolve(
    name: str,
    kernel: TorchKernel,
    operands: Sequence[Any],
    sizes: Mapping[str, Any],
    groups: int,
    method: str,
) -> Tensor:
    """Run a kernel on input, weight and bias, the input with or without an axis for the batch.

    `sizes` are the arguments that have a number for each dimension. The name ends with the number of these.
    """
    try:
        return _run(name, kernel, operands, sizes, groups, method)
    except (TypeError, ValueError) as error:
        _WORDS[name].put_into(error, kernel.name)
        raise


def _run(
    name: str,
    kernel: TorchKernel,
    operands: Sequence[Any],
    sizes: Mapping[str, Any],
    groups: int,
    method: str,
) -> Tensor:
    kernel.check(operands)
    head = None
    if not is_followed() and not torch.is_autocast_enabled("cpu") and operands[0].dim() == int(name[-2]) + 2:
        head = head_of(name, (*sizes.values(), groups, method))
        given = operands if operands[2] is not None else operands[:2]
        ready = find(head, given)
        if ready is not None:
            return call_again(ready, given)[0]
    return _checked(name, kernel, operands, _attributes(name, kernel, sizes, groups, method), head)


def _attributes(
    name: str, kernel: TorchKernel, sizes: Mapping[str, Any], groups: int, method: str
) -> dict[str, Any]:
    """Return the kernel's attributes for PyTorch's arguments."""
    attributes: dict[str, Any] = {"group": groups, "method": method}
    for argument, value in sizes.items():
        if argument == "padding" and isinstance(value, str) and kernel is _CONV:
            attributes["auto_pad"] = _auto_pad(name, value, sizes["stride"])
        else:
            attributes[_ATTRIBUTES.get(argument, argument)] = _sizes(name, argument, value)
    return attributes


def _checked(
    name: str, kernel: TorchKernel, operands: Sequence[Any], attributes: Mapping[str, Any], head: Head
) -> Tensor:
    """Run a kernel on operands that may not fit."""
    X, dimensions = operands[0], int(name[-2])
    check_dense(name, "input", X)
    if X.dim() not in (dimensions + 1, dimensions + 2):
        raise ValueError(
            f"{name}: input has {X.dim()} dimensions with shape {tuple(X.shape)}, expected "
            f"{dimensions + 2}, or {dimensions + 1} without a batch"
        )
    single = X.dim() == dimensions + 1
    if single:
        operands = (X.unsqueeze(0), *operands[1:])
    if autocasts(X):
        operands = [lowered(x, X.device.type) for x in operands]
    (Y,) = apply(kernel, operands, attributes, head=head)
    return Y.squeeze(0) if single else Y


def _sizes(name: str, argument: str, value: Any) -> Any:
    """Return a sequence of one number, which stands for all dimensions, as that number.

    A number that `torch.compile` takes for one that may change becomes one that does not: an operator's list
    of integers takes no such number alone.
    """
    if isinstance(value, bytes | bytearray | str):
        raise TypeError(f"{name}: {argument} is {value!r}, expected whole numbers")
    one = value[0] if isinstance(value, Sequence) and len(value) == 1 else value
    if isinstance(one, list):
        return tuple(one)  # a known call's attributes do not change
    return operator.index(one) if isinstance(one, int) and torch.compiler.is_compiling() else one


def _auto_pad(name: str, padding: str, stride: Any) -> str:
    """Return ONNX's word for a padding in PyTorch's words."""
    if padding not in _AUTO_PAD:
        raise ValueError(f"{name}: padding is {padding!r}, expected 'same', 'valid' or numbers")
    strides = stride if isinstance(stride, Sequence) else (stride,)
    if padding == "same" and any(s != 1 for s in strides):
        raise ValueError(f"{name}: padding is 'same' and stride is {stride}, expected stride 1 with 'same'")
    return _AUTO_PAD[padding]


# What the docstrings for images say in place of those for one dimension.
_2D = {
    "conv1d": "conv2d", "L": "H, W", "L'": "H', W'", "kL": "kH, kW",
    "5": "3, 3", "20": "9, 8", "10": "5, 4", "40": "18, 16", "42": "18, 16",
}  # fmt: skip
_3D = {
    "conv1d": "conv3d", "L": "D, H, W", "L'": "D', H', W'", "kL": "kD, kH, kW",
    "5": "3, 3, 3", "20": "5, 6, 7", "10": "3, 3, 4", "40": "10, 12, 14", "42": "10, 12, 14",
}  # fmt: skip

_WORDS_FOR: Mapping[int, Mapping[str, str]] = {1: {}, 2: _2D, 3: _3D}

# ------------------------------------------------------------------------------------------- functions

_P = ParamSpec("_P")


def _over_dimensions(
    function: Callable[Concatenate[str, _P], Tensor], n: int, words: Mapping[str, str]
) -> Callable[_P, Tensor]:
    """Return a function over n dimensions, whose docstring is that for one dimension with other words."""
    name = f"{function.__name__.removeprefix('_')}{n}d"

    def convolve(*args: _P.args, **kwargs: _P.kwargs) -> Tensor:
        return function(name, *args, **kwargs)

    named: Any = convolve
    named.__name__ = named.__qualname__ = name
    named.__doc__ = in_words(function.__doc__, name.replace(f"{n}d", "1d"), name, words)
    signature = inspect.signature(function)
    named.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])
    named.__annotations__ = {key: kind for key, kind in function.__annotations__.items() if key != "name"}
    return convolve


def _conv(
    name: str,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    method: ConvMethod = "auto",
) -> Tensor:
    """Convolution: `torch.nn.functional.conv1d` with xpgrad's kernels.

    `xpgrad.conv` has the equations. The gradient is `xpgrad.conv_grad`, computed only for operands that
    require one. It is itself differentiable (``create_graph=True``), then in PyTorch's own operators, which
    is slower.

    Parameters
    ----------
    input : Tensor
        (N, C, L), or (C, L) without a batch.
    weight : Tensor
        (O, C/groups, kL).
    bias : Tensor, optional
        (O,).
    stride, dilation : int or sequence of int
        One number for all dimensions, or one for each.
    padding : int, sequence of int, "same" or "valid"
        One number for all ends, one for each dimension, or all begins and then all ends. With ``"same"``,
        which needs stride 1, the output is as large as the input; ``"valid"`` is no padding.
    groups : int
        The number of groups of channels; each output group sees one input group.
    method : str
        The algorithm: see `xpgrad.conv`.

    Returns
    -------
    Tensor
        (N, O, L'), without N where the input has none.

    Raises
    ------
    TypeError
        If an operand is not a tensor, or operands differ in dtype or device.
    ValueError
        If shapes or attributes do not fit together.

    Notes
    -----
    Source: the operator Conv of the ONNX specification, version 11.

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch.functional import conv1d
    >>> x, weight = torch.randn(4, 3, 20), torch.randn(6, 3, 5, requires_grad=True)
    >>> y = conv1d(x, weight, padding="same")
    >>> y.shape
    torch.Size([4, 6, 20])
    >>> y.sum().backward()
    >>> weight.grad.shape
    torch.Size([6, 3, 5])
    """
    sizes = {"stride": stride, "dilation": dilation, "padding": padding}
    return _convolve(name, _CONV, (input, weight, bias), sizes, groups, method)


conv1d, conv2d, conv3d = (_over_dimensions(_conv, n, words) for n, words in _WORDS_FOR.items())


def _conv_transpose(
    name: str,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    method: ConvMethod = "auto",
) -> Tensor:
    """Transposed convolution: `torch.nn.functional.conv_transpose1d` with xpgrad's kernels.

    `xpgrad.conv_transpose` has the equations. The gradient is `xpgrad.conv_transpose_grad`. As with `conv1d`,
    it is computed only for operands that require one, and is itself differentiable.

    Parameters
    ----------
    input : Tensor
        (N, C, L), or (C, L) without a batch.
    weight : Tensor
        (C, O/groups, kL).
    bias : Tensor, optional
        (O,).
    stride, dilation : int or sequence of int
        One number for all dimensions, or one for each.
    padding : int or sequence of int
        By how much the output is cut: one number for all ends, one for each dimension, or all begins and
        then all ends.
    output_padding : int or sequence of int
        How much larger the output is at its ends.
    groups : int
        The number of groups of channels; each output group sees one input group.
    method : str
        The algorithm: see `xpgrad.conv_transpose`.

    Returns
    -------
    Tensor
        (N, O, L'), without N where the input has none.

    Raises
    ------
    TypeError
        If an operand is not a tensor, or operands differ in dtype or device.
    ValueError
        If shapes or attributes do not fit together.

    Notes
    -----
    Source: the operator ConvTranspose of the ONNX specification, version 11.

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch.functional import conv_transpose1d
    >>> x, weight = torch.randn(4, 3, 20), torch.randn(3, 6, 5, requires_grad=True)
    >>> y = conv_transpose1d(x, weight, stride=2, padding=1, output_padding=1)
    >>> y.shape
    torch.Size([4, 6, 42])
    >>> y.sum().backward()
    >>> weight.grad.shape
    torch.Size([3, 6, 5])
    """
    sizes = {"stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation}
    return _convolve(name, _CONV_TRANSPOSE, (input, weight, bias), sizes, groups, method)


conv_transpose1d, conv_transpose2d, conv_transpose3d = (
    _over_dimensions(_conv_transpose, n, words) for n, words in _WORDS_FOR.items()
)

# --------------------------------------------------------------------------------------------- modules


class _Module(Unscripted, Sampled):
    """What all modules share."""

    _FUNCTION: ClassVar[Any]

    def _kernel_parameters(self) -> list[nn.Parameter]:
        return [p for p in (self.weight, self.bias) if p is not None]  # type: ignore[attr-defined]


class _Convolution(_Module, ConvNd):
    """A convolution module of PyTorch's, on xpgrad's kernel."""

    if TYPE_CHECKING:  # torch.nn.Module says that a call returns Any

        def __call__(self, input: Tensor) -> Tensor: ...

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of the input, (N, C, ...) or without N."""
        if isinstance(input, Proxy):
            return as_node(self, input)
        return self._conv_forward(input, self.weight, self.bias)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # Subclasses of PyTorch's modules call this with weights of their own.
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input, padding = nn.functional.pad(input, padding_ends(self), mode=self.padding_mode), 0  # noqa: A001
        return type(self)._FUNCTION(input, weight, bias, self.stride, padding, self.dilation, self.groups)


class _TransposedConvolution(_Module, ConvTransposeNd):
    """A transposed convolution module of PyTorch's, on xpgrad's kernel."""

    if TYPE_CHECKING:  # torch.nn.Module says that a call returns Any

        def __call__(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor: ...

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """Run the module.

        Parameters
        ----------
        input : Tensor
            (N, C, ...), or without N.
        output_size : sequence of int, optional
            The sizes of the output's last dimensions, from which `output_padding` follows.

        Returns
        -------
        Tensor
            (N, O, ...), without N where the input has none.
        """
        if isinstance(input, Proxy):
            return as_node(self, input, output_size)
        if output_size is not None:
            _sizes(type(self).__name__, "output_size", output_size)
        return type(self)._FUNCTION(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            output_padding_of(self, input, output_size),
            self.groups,
            self.dilation,
        )


class Conv1d(_Convolution, nn.Conv1d):
    """Convolution over one dimension: `torch.nn.Conv1d`, with xpgrad's kernels.

    Constructor, parameters, their names and random initialisation, inputs and outputs are those of
    `torch.nn.Conv1d`: state_dicts load both ways. Padding may be ``"same"`` or ``"valid"``, with every
    `padding_mode`.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode
        As in `torch.nn.Conv1d`.
    device, dtype
        As in `torch.nn.Conv1d`.

    Raises
    ------
    TypeError, ValueError
        From the constructor as in `torch.nn.Conv1d`; from a call if the input does not fit.

    Notes
    -----
    Source: the operator Conv of the ONNX specification, version 11.

    Examples
    --------
    >>> import torch
    >>> import xpgrad_torch
    >>> layer = xpgrad_torch.Conv1d(3, 6, 3, stride=2, padding=1, padding_mode="reflect")
    >>> layer(torch.randn(4, 3, 20)).shape
    torch.Size([4, 6, 10])
    """

    _FUNCTION = staticmethod(conv1d)


@described_as(Conv1d, _2D)
class Conv2d(_Convolution, nn.Conv2d):
    """Convolution over two dimensions: `torch.nn.Conv2d`, with xpgrad's kernels."""

    _FUNCTION = staticmethod(conv2d)


@described_as(Conv1d, _3D)
class Conv3d(_Convolution, nn.Conv3d):
    """Convolution over three dimensions: `torch.nn.Conv3d`, with xpgrad's kernels."""

    _FUNCTION = staticmethod(conv3d)


class ConvTranspose1d(_TransposedConvolution, nn.ConvTranspose1d):
    """Transposed convolution over one dimension: `torch.nn.ConvTranspose1d`, with xpgrad's kernels.

    Constructor, parameters, their names and random initialisation, inputs (`output_size` too) and outputs
    are those of `torch.nn.ConvTranspose1d`: state_dicts load both ways.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias, dilation
        As in `torch.nn.ConvTranspose1d`.
    padding_mode, device, dtype
        As in `torch.nn.ConvTranspose1d`.

    Raises
    ------
    TypeError, ValueError
        From the constructor as in `torch.nn.ConvTranspose1d`; from a call if the input does not fit.

    Notes
    -----
    Source: the operator ConvTranspose of the ONNX specification, version 11.

    Examples
    --------
    >>> import torch
    >>> import xpgrad_torch
    >>> layer = xpgrad_torch.ConvTranspose1d(3, 6, 3, stride=2, padding=1)
    >>> layer(torch.randn(4, 3, 20), output_size=[40]).shape
    torch.Size([4, 6, 40])
    """

    _FUNCTION = staticmethod(conv_transpose1d)


@described_as(ConvTranspose1d, _2D)
class ConvTranspose2d(_TransposedConvolution, nn.ConvTranspose2d):
    """Transposed convolution over two dimensions: `torch.nn.ConvTranspose2d`, with xpgrad's kernels."""

    _FUNCTION = staticmethod(conv_transpose2d)


@described_as(ConvTranspose1d, _3D)
class ConvTranspose3d(_TransposedConvolution, nn.ConvTranspose3d):
    """Transposed convolution over three dimensions: `torch.nn.ConvTranspose3d`, with xpgrad's kernels."""

    _FUNCTION = staticmethod(conv_transpose3d)
