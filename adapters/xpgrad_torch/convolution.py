"""Convolution in PyTorch: functions with PyTorch's arguments, and modules with its interface."""

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
from xpgrad_torch._docs import convolution_docstring
from xpgrad_torch._errors import CallerNames
from xpgrad_torch._fx import Proxy, Unscripted, as_node
from xpgrad_torch._kernel import check_dense
from xpgrad_torch._library import registered
from xpgrad_torch._opacus import Sampled
from xpgrad_torch._overrides import are_replaceable, as_plain, handed_over
from xpgrad_torch._private import output_padding_of, padding_ends
from xpgrad_torch._programs import Head, find, head_of

__all__ = [
    "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "conv1d",
    "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"
]  # fmt: skip

Sizes = int | Sequence[int]
_ConvNd: Any = nn.Conv1d.__base__
_ConvTransposeNd: Any = nn.ConvTranspose1d.__base__

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
# PyTorch's words for ONNX's auto_pad: an odd row of padding is at the end.
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
    """Run a kernel on input, weight and bias; the input may lack the batch axis.

    `sizes` are the arguments with a number for each dimension. The name ends with the number of dimensions.
    """
    if are_replaceable(operands):

        def again(*operands: Any) -> Tensor:
            return _convolve(name, kernel, operands, sizes, groups, method)

        return handed_over(name, again, operands)
    head, operands = None, as_plain(operands)
    try:
        kernel.check(operands)
        batched = operands[0].dim() == int(name[-2]) + 2
        if batched and not is_followed() and not torch.is_autocast_enabled("cpu"):
            head = head_of(name, (*sizes.values(), groups, method))
            given = operands if operands[2] is not None else operands[:2]
            ready = find(head, given)
            if ready is not None:
                return call_again(ready, given)[0]
        return _checked(name, kernel, operands, _attributes(name, kernel, sizes, groups, method), head)
    except (TypeError, ValueError) as error:
        _WORDS[name].put_into(error, kernel.name)
        raise


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
    """Check the operands and run a kernel on them."""
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
    """Return a sequence of one number, which is for all dimensions, as this number.

    Under `torch.compile` a symbolic number becomes constant: an operator's list of integers takes no symbol.
    """
    if isinstance(value, bytes | bytearray | str):
        raise TypeError(f"{name}: {argument} is {value!r}, expected whole numbers")
    one = value[0] if isinstance(value, Sequence) and len(value) == 1 else value
    if isinstance(one, list):
        return tuple(one)  # a known call's attributes must not change
    return operator.index(one) if isinstance(one, int) and torch.compiler.is_compiling() else one


def _auto_pad(name: str, padding: str, stride: Any) -> str:
    """Return ONNX's word for PyTorch's word for a padding."""
    if padding not in _AUTO_PAD:
        raise ValueError(f"{name}: padding is {padding!r}, expected 'same', 'valid' or numbers")
    strides = stride if isinstance(stride, Sequence) else (stride,)
    if padding == "same" and any(s != 1 for s in strides):
        raise ValueError(f"{name}: padding is 'same' and stride is {stride}, expected stride 1 with 'same'")
    return _AUTO_PAD[padding]


# ------------------------------------------------------------------------------------------- functions

_P = ParamSpec("_P")


def _over_dimensions(function: Callable[Concatenate[str, _P], Tensor], n: int) -> Callable[_P, Tensor]:
    """Return a convolution over n dimensions."""
    name = f"{function.__name__.removeprefix('_')}{n}d"

    def convolve(*args: _P.args, **kwargs: _P.kwargs) -> Tensor:
        return function(name, *args, **kwargs)

    named: Any = convolve
    named.__name__ = named.__qualname__ = name
    named.__doc__ = convolution_docstring(name)
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
    sizes = {"stride": stride, "dilation": dilation, "padding": padding}
    return _convolve(name, _CONV, (input, weight, bias), sizes, groups, method)


conv1d, conv2d, conv3d = (_over_dimensions(_conv, n) for n in (1, 2, 3))


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
    sizes = {"stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation}
    return _convolve(name, _CONV_TRANSPOSE, (input, weight, bias), sizes, groups, method)


conv_transpose1d, conv_transpose2d, conv_transpose3d = (
    _over_dimensions(_conv_transpose, n) for n in (1, 2, 3)
)

# --------------------------------------------------------------------------------------------- modules


class _Module(Unscripted, Sampled):
    """The common part of all modules; a class is declared with its `function`."""

    _FUNCTION: ClassVar[Any]

    def __init_subclass__(cls, function: Callable[..., Tensor] | None = None) -> None:
        super().__init_subclass__()
        if function is not None:  # else a user's subclass
            cls._FUNCTION = staticmethod(function)
            if cls.__doc__ is not None:  # as in Python without docstrings
                cls.__doc__ += convolution_docstring(cls.__name__)

    def _kernel_parameters(self) -> list[nn.Parameter]:
        return [p for p in (self.weight, self.bias) if p is not None]  # type: ignore[attr-defined]


class _Convolution(_Module, _ConvNd):
    """A convolution module of PyTorch on xpgrad's kernel."""

    if TYPE_CHECKING:  # torch.nn.Module says that a call returns Any

        def __call__(self, input: Tensor) -> Tensor: ...

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of the input, (N, C, ...) or without N."""
        if isinstance(input, Proxy):
            return as_node(self, input)
        return self._conv_forward(input, self.weight, self.bias)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # Subclasses of PyTorch's modules call this with their own weights.
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input, padding = nn.functional.pad(input, padding_ends(self), mode=self.padding_mode), 0  # noqa: A001
        return type(self)._FUNCTION(input, weight, bias, self.stride, padding, self.dilation, self.groups)


class _TransposedConvolution(_Module, _ConvTransposeNd):
    """A transposed convolution module of PyTorch on xpgrad's kernel."""

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
            (N, O, ...), without N if the input has none.
        """
        if isinstance(input, Proxy):
            return as_node(self, input, output_size)
        if output_size is not None:
            _sizes(type(self).__name__, "output_size", output_size)
        output_padding = output_padding_of(self, input, output_size)
        operands = input, self.weight, self.bias
        return type(self)._FUNCTION(
            *operands, self.stride, self.padding, output_padding, self.groups, self.dilation
        )


class Conv1d(_Convolution, nn.Conv1d, function=conv1d):
    """Convolution over one dimension: `torch.nn.Conv1d`, with xpgrad's kernels."""


class Conv2d(_Convolution, nn.Conv2d, function=conv2d):
    """Convolution over two dimensions: `torch.nn.Conv2d`, with xpgrad's kernels."""


class Conv3d(_Convolution, nn.Conv3d, function=conv3d):
    """Convolution over three dimensions: `torch.nn.Conv3d`, with xpgrad's kernels."""


class ConvTranspose1d(_TransposedConvolution, nn.ConvTranspose1d, function=conv_transpose1d):
    """Transposed convolution over one dimension: `torch.nn.ConvTranspose1d`, with xpgrad's kernels."""


class ConvTranspose2d(_TransposedConvolution, nn.ConvTranspose2d, function=conv_transpose2d):
    """Transposed convolution over two dimensions: `torch.nn.ConvTranspose2d`, with xpgrad's kernels."""


class ConvTranspose3d(_TransposedConvolution, nn.ConvTranspose3d, function=conv_transpose3d):
    """Transposed convolution over three dimensions: `torch.nn.ConvTranspose3d`, with xpgrad's kernels."""
