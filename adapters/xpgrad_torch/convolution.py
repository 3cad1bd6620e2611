"""Convolution in PyTorch: functions with PyTorch's arguments, and modules that take the place of its own."""

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from xpgrad._axes import AXES
from xpgrad_torch._autograd import Kernel, apply, autocasts
from xpgrad_torch._kernel import check_dense
from xpgrad_torch._library import registered
from xpgrad_torch._opacus import Sampled
from xpgrad_torch._private import ConvNd, ConvTransposeNd, output_padding_of, padding_ends

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
]

Sizes = int | Sequence[int]

_CONV = registered(Kernel("conv", ("Y",), ("dY",), shapes=AXES["conv"], images=True))
_CONV_TRANSPOSE = registered(
    Kernel("conv_transpose", ("Y",), ("dY",), shapes=AXES["conv_transpose"], images=True)
)
# PyTorch's words for ONNX's auto_pad: an odd row of padding stands at the end.
_AUTO_PAD = {"same": "SAME_UPPER", "valid": "VALID"}


# --------------------------------------------------------------------------------------- what all share


def _run(
    name: str, kernel: Kernel, dimensions: int, operands: Sequence[Any], attributes: dict[str, Any]
) -> Tensor:
    """Run a kernel on input, weight and bias, the input with or without an axis for the batch."""
    kernel.check(operands)
    X = operands[0]
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
        device = X.device.type
        operands = [_autocast(x, torch.get_autocast_dtype(device)) for x in operands]
    (Y,) = apply(kernel, operands, attributes)
    return Y.squeeze(0) if single else Y


def _autocast(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Convert as autocast does: all but float64."""
    return x if x is None or x.dtype == torch.float64 else x.to(dtype)


def _sizes(name: str, argument: str, value: Any) -> Any:
    """Return a sequence of one number, which stands for all dimensions, as that number.

    A number that `torch.compile` takes for one that may change becomes one that does not: an operator's list
    of integers takes no such number alone.
    """
    if isinstance(value, bytes | bytearray | str):
        raise TypeError(f"{name}: {argument} is {value!r}, expected whole numbers")
    one = value[0] if isinstance(value, Sequence) and len(value) == 1 else value
    return operator.index(one) if isinstance(one, int) and torch.compiler.is_compiling() else one


def _padding(name: str, padding: Any, stride: Any) -> dict[str, Any]:
    """Return the kernel's attributes for a padding in PyTorch's words or numbers."""
    if not isinstance(padding, str):
        return {"pads": _sizes(name, "padding", padding)}
    if padding not in _AUTO_PAD:
        raise ValueError(f"{name}: padding is {padding!r}, expected 'same', 'valid' or numbers")
    strides = stride if isinstance(stride, Sequence) else (stride,)
    if padding == "same" and any(s != 1 for s in strides):
        raise ValueError(f"{name}: padding is 'same' and stride is {stride}, expected stride 1 with 'same'")
    return {"auto_pad": _AUTO_PAD[padding]}


def _convolve(
    name: str, dimensions: int, operands: Sequence[Any], stride: Any, padding: Any, dilation: Any, **more: Any
) -> Tensor:
    attributes = {
        "strides": _sizes(name, "stride", stride),
        "dilations": _sizes(name, "dilation", dilation),
        **_padding(name, padding, stride),
        **more,
    }
    return _run(name, _CONV, dimensions, operands, attributes)


def _convolve_transposed(
    name: str,
    dimensions: int,
    operands: Sequence[Any],
    stride: Any,
    padding: Any,
    output_padding: Any,
    dilation: Any,
    **others: Any,
) -> Tensor:
    attributes = {
        "strides": _sizes(name, "stride", stride),
        "pads": _sizes(name, "padding", padding),
        "output_padding": _sizes(name, "output_padding", output_padding),
        "dilations": _sizes(name, "dilation", dilation),
        **others,
    }
    return _run(name, _CONV_TRANSPOSE, dimensions, operands, attributes)


# ------------------------------------------------------------------------------------------- functions


def conv1d(
    input: Tensor,  # noqa: A002, PyTorch's name for it
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    method: str = "auto",
) -> Tensor:
    """Convolution: `torch.nn.functional.conv1d` with xpgrad's kernels.

    What it computes is described in `xpgrad.conv`; the gradient is `xpgrad.conv_grad`, which is asked only
    for the operands that require one. The gradient is itself differentiable (``create_graph=True``), then
    through PyTorch's own operators, which is slower.

    Parameters
    ----------
    input : Tensor
        (N, C, L), or (C, L) without a batch; X in the kernel's messages.
    weight : Tensor
        (O, C/groups, kL); W in the kernel's messages.
    bias : Tensor, optional
        (O,).
    stride, dilation : int or sequence of int
        One number for all dimensions, or one for each.
    padding : int, sequence of int, "same" or "valid"
        One number for all ends, one for each dimension, or all begins and then all ends. With ``"same"``,
        which needs stride 1, the output is as large as the input; ``"valid"`` is no padding.
    groups : int
        The channels fall into that many parts, which do not meet.
    method : str
        The algorithm: see `xpgrad.conv`.

    Returns
    -------
    Tensor
        (N, O, L'), without N where the input has none.

    Raises
    ------
    TypeError
        Where an operand is no tensor, or the operands differ in dtype or device.
    ValueError
        Where shapes or attributes do not fit together.

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
    return _convolve(
        "conv1d", 1, (input, weight, bias), stride, padding, dilation, group=groups, method=method
    )


def conv2d(
    input: Tensor,  # noqa: A002, PyTorch's name for it
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    method: str = "auto",
) -> Tensor:
    """Convolution: `torch.nn.functional.conv2d` with xpgrad's kernels.

    What it computes is described in `xpgrad.conv`; the gradient is `xpgrad.conv_grad`, which is asked only
    for the operands that require one. The gradient is itself differentiable (``create_graph=True``), then
    through PyTorch's own operators, which is slower.

    Parameters
    ----------
    input : Tensor
        (N, C, H, W), or (C, H, W) without a batch; X in the kernel's messages.
    weight : Tensor
        (O, C/groups, kH, kW); W in the kernel's messages.
    bias : Tensor, optional
        (O,).
    stride, dilation : int or sequence of int
        One number for all dimensions, or one for each.
    padding : int, sequence of int, "same" or "valid"
        One number for all ends, one for each dimension, or all begins and then all ends. With ``"same"``,
        which needs stride 1, the output is as large as the input; ``"valid"`` is no padding.
    groups : int
        The channels fall into that many parts, which do not meet.
    method : str
        The algorithm: see `xpgrad.conv`.

    Returns
    -------
    Tensor
        (N, O, H', W'), without N where the input has none.

    Raises
    ------
    TypeError
        Where an operand is no tensor, or the operands differ in dtype or device.
    ValueError
        Where shapes or attributes do not fit together.

    Notes
    -----
    Source: the operator Conv of the ONNX specification, version 11.

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch.functional import conv2d
    >>> x, weight = torch.randn(4, 3, 9, 8), torch.randn(6, 3, 3, 3, requires_grad=True)
    >>> y = conv2d(x, weight, padding="same")
    >>> y.shape
    torch.Size([4, 6, 9, 8])
    >>> y.sum().backward()
    >>> weight.grad.shape
    torch.Size([6, 3, 3, 3])
    """
    return _convolve(
        "conv2d", 2, (input, weight, bias), stride, padding, dilation, group=groups, method=method
    )


def conv3d(
    input: Tensor,  # noqa: A002, PyTorch's name for it
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    method: str = "auto",
) -> Tensor:
    """Convolution: `torch.nn.functional.conv3d` with xpgrad's kernels.

    What it computes is described in `xpgrad.conv`; the gradient is `xpgrad.conv_grad`, which is asked only
    for the operands that require one. The gradient is itself differentiable (``create_graph=True``), then
    through PyTorch's own operators, which is slower.

    Parameters
    ----------
    input : Tensor
        (N, C, D, H, W), or (C, D, H, W) without a batch; X in the kernel's messages.
    weight : Tensor
        (O, C/groups, kD, kH, kW); W in the kernel's messages.
    bias : Tensor, optional
        (O,).
    stride, dilation : int or sequence of int
        One number for all dimensions, or one for each.
    padding : int, sequence of int, "same" or "valid"
        One number for all ends, one for each dimension, or all begins and then all ends. With ``"same"``,
        which needs stride 1, the output is as large as the input; ``"valid"`` is no padding.
    groups : int
        The channels fall into that many parts, which do not meet.
    method : str
        The algorithm: see `xpgrad.conv`.

    Returns
    -------
    Tensor
        (N, O, D', H', W'), without N where the input has none.

    Raises
    ------
    TypeError
        Where an operand is no tensor, or the operands differ in dtype or device.
    ValueError
        Where shapes or attributes do not fit together.

    Notes
    -----
    Source: the operator Conv of the ONNX specification, version 11.

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch.functional import conv3d
    >>> x, weight = torch.randn(4, 3, 5, 6, 7), torch.randn(6, 3, 3, 3, 3, requires_grad=True)
    >>> y = conv3d(x, weight, padding="same")
    >>> y.shape
    torch.Size([4, 6, 5, 6, 7])
    >>> y.sum().backward()
    >>> weight.grad.shape
    torch.Size([6, 3, 3, 3, 3])
    """
    return _convolve(
        "conv3d", 3, (input, weight, bias), stride, padding, dilation, group=groups, method=method
    )


def conv_transpose1d(
    input: Tensor,  # noqa: A002, PyTorch's name for it
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    method: str = "auto",
) -> Tensor:
    """Transposed convolution: `torch.nn.functional.conv_transpose1d` with xpgrad's kernels.

    What it computes is described in `xpgrad.conv_transpose`; the gradient is `xpgrad.conv_transpose_grad`.
    As with `conv1d`, only what requires a gradient is computed, and the gradient is itself differentiable.

    Parameters
    ----------
    input : Tensor
        (N, C, L), or (C, L) without a batch; X in the kernel's messages.
    weight : Tensor
        (C, O/groups, kL); W in the kernel's messages.
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
        The channels fall into that many parts, which do not meet.
    method : str
        The algorithm: see `xpgrad.conv_transpose`.

    Returns
    -------
    Tensor
        (N, O, L'), without N where the input has none.

    Raises
    ------
    TypeError
        Where an operand is no tensor, or the operands differ in dtype or device.
    ValueError
        Where shapes or attributes do not fit together.

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
    return _convolve_transposed(
        "conv_transpose1d", 1, (input, weight, bias), stride, padding, output_padding, dilation,
        group=groups, method=method,
    )  # fmt: skip


def conv_transpose2d(
    input: Tensor,  # noqa: A002, PyTorch's name for it
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    method: str = "auto",
) -> Tensor:
    """Transposed convolution: `torch.nn.functional.conv_transpose2d` with xpgrad's kernels.

    What it computes is described in `xpgrad.conv_transpose`; the gradient is `xpgrad.conv_transpose_grad`.
    As with `conv2d`, only what requires a gradient is computed, and the gradient is itself differentiable.

    Parameters
    ----------
    input : Tensor
        (N, C, H, W), or (C, H, W) without a batch; X in the kernel's messages.
    weight : Tensor
        (C, O/groups, kH, kW); W in the kernel's messages.
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
        The channels fall into that many parts, which do not meet.
    method : str
        The algorithm: see `xpgrad.conv_transpose`.

    Returns
    -------
    Tensor
        (N, O, H', W'), without N where the input has none.

    Raises
    ------
    TypeError
        Where an operand is no tensor, or the operands differ in dtype or device.
    ValueError
        Where shapes or attributes do not fit together.

    Notes
    -----
    Source: the operator ConvTranspose of the ONNX specification, version 11.

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch.functional import conv_transpose2d
    >>> x, weight = torch.randn(4, 3, 9, 8), torch.randn(3, 6, 3, 3, requires_grad=True)
    >>> y = conv_transpose2d(x, weight, stride=2, padding=1, output_padding=1)
    >>> y.shape
    torch.Size([4, 6, 18, 16])
    >>> y.sum().backward()
    >>> weight.grad.shape
    torch.Size([3, 6, 3, 3])
    """
    return _convolve_transposed(
        "conv_transpose2d", 2, (input, weight, bias), stride, padding, output_padding, dilation,
        group=groups, method=method,
    )  # fmt: skip


def conv_transpose3d(
    input: Tensor,  # noqa: A002, PyTorch's name for it
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    method: str = "auto",
) -> Tensor:
    """Transposed convolution: `torch.nn.functional.conv_transpose3d` with xpgrad's kernels.

    What it computes is described in `xpgrad.conv_transpose`; the gradient is `xpgrad.conv_transpose_grad`.
    As with `conv3d`, only what requires a gradient is computed, and the gradient is itself differentiable.

    Parameters
    ----------
    input : Tensor
        (N, C, D, H, W), or (C, D, H, W) without a batch; X in the kernel's messages.
    weight : Tensor
        (C, O/groups, kD, kH, kW); W in the kernel's messages.
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
        The channels fall into that many parts, which do not meet.
    method : str
        The algorithm: see `xpgrad.conv_transpose`.

    Returns
    -------
    Tensor
        (N, O, D', H', W'), without N where the input has none.

    Raises
    ------
    TypeError
        Where an operand is no tensor, or the operands differ in dtype or device.
    ValueError
        Where shapes or attributes do not fit together.

    Notes
    -----
    Source: the operator ConvTranspose of the ONNX specification, version 11.

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch.functional import conv_transpose3d
    >>> x, weight = torch.randn(4, 3, 5, 6, 7), torch.randn(3, 6, 3, 3, 3, requires_grad=True)
    >>> y = conv_transpose3d(x, weight, stride=2, padding=1, output_padding=1)
    >>> y.shape
    torch.Size([4, 6, 10, 12, 14])
    >>> y.sum().backward()
    >>> weight.grad.shape
    torch.Size([3, 6, 3, 3, 3])
    """
    return _convolve_transposed(
        "conv_transpose3d", 3, (input, weight, bias), stride, padding, output_padding, dilation,
        group=groups, method=method,
    )  # fmt: skip


# --------------------------------------------------------------------------------------------- modules


class _Convolution(Sampled, ConvNd):
    """A convolution module of PyTorch's, on xpgrad's kernel."""

    _FUNCTION: ClassVar[Any]

    if TYPE_CHECKING:  # torch.nn.Module says that a call returns Any

        def __call__(self, input: Tensor) -> Tensor: ...  # noqa: A002

    def _kernel_parameters(self) -> list[nn.Parameter]:
        return [p for p in (self.weight, self.bias) if p is not None]

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return the convolution of the input, (N, C, ...) or without N."""
        return self._conv_forward(input, self.weight, self.bias)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: A002
        # Subclasses of PyTorch's modules call this with weights of their own.
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input, padding = nn.functional.pad(input, padding_ends(self), mode=self.padding_mode), 0  # noqa: A001
        return type(self)._FUNCTION(input, weight, bias, self.stride, padding, self.dilation, self.groups)


class _TransposedConvolution(Sampled, ConvTransposeNd):
    """A transposed convolution module of PyTorch's, on xpgrad's kernel."""

    _FUNCTION: ClassVar[Any]

    if TYPE_CHECKING:  # torch.nn.Module says that a call returns Any

        def __call__(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor: ...  # noqa: A002

    def _kernel_parameters(self) -> list[nn.Parameter]:
        return [p for p in (self.weight, self.bias) if p is not None]

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:  # noqa: A002
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
    `torch.nn.Conv1d`: state_dicts load both ways. Padding may be ``"same"`` or ``"valid"``, and of every
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
        From the constructor as in `torch.nn.Conv1d`; from a call where the input does not fit.

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


class Conv2d(_Convolution, nn.Conv2d):
    """Convolution over two dimensions: `torch.nn.Conv2d`, with xpgrad's kernels.

    Constructor, parameters, their names and random initialisation, inputs and outputs are those of
    `torch.nn.Conv2d`: state_dicts load both ways. Padding may be ``"same"`` or ``"valid"``, and of every
    `padding_mode`.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode
        As in `torch.nn.Conv2d`.
    device, dtype
        As in `torch.nn.Conv2d`.

    Raises
    ------
    TypeError, ValueError
        From the constructor as in `torch.nn.Conv2d`; from a call where the input does not fit.

    Notes
    -----
    Source: the operator Conv of the ONNX specification, version 11.

    Examples
    --------
    >>> import torch
    >>> import xpgrad_torch
    >>> layer = xpgrad_torch.Conv2d(3, 6, 3, stride=2, padding=1, padding_mode="reflect")
    >>> layer(torch.randn(4, 3, 9, 8)).shape
    torch.Size([4, 6, 5, 4])
    """

    _FUNCTION = staticmethod(conv2d)


class Conv3d(_Convolution, nn.Conv3d):
    """Convolution over three dimensions: `torch.nn.Conv3d`, with xpgrad's kernels.

    Constructor, parameters, their names and random initialisation, inputs and outputs are those of
    `torch.nn.Conv3d`: state_dicts load both ways. Padding may be ``"same"`` or ``"valid"``, and of every
    `padding_mode`.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode
        As in `torch.nn.Conv3d`.
    device, dtype
        As in `torch.nn.Conv3d`.

    Raises
    ------
    TypeError, ValueError
        From the constructor as in `torch.nn.Conv3d`; from a call where the input does not fit.

    Notes
    -----
    Source: the operator Conv of the ONNX specification, version 11.

    Examples
    --------
    >>> import torch
    >>> import xpgrad_torch
    >>> layer = xpgrad_torch.Conv3d(3, 6, 3, stride=2, padding=1, padding_mode="reflect")
    >>> layer(torch.randn(4, 3, 5, 6, 7)).shape
    torch.Size([4, 6, 3, 3, 4])
    """

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
        From the constructor as in `torch.nn.ConvTranspose1d`; from a call where the input does not fit.

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


class ConvTranspose2d(_TransposedConvolution, nn.ConvTranspose2d):
    """Transposed convolution over two dimensions: `torch.nn.ConvTranspose2d`, with xpgrad's kernels.

    Constructor, parameters, their names and random initialisation, inputs (`output_size` too) and outputs
    are those of `torch.nn.ConvTranspose2d`: state_dicts load both ways.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias, dilation
        As in `torch.nn.ConvTranspose2d`.
    padding_mode, device, dtype
        As in `torch.nn.ConvTranspose2d`.

    Raises
    ------
    TypeError, ValueError
        From the constructor as in `torch.nn.ConvTranspose2d`; from a call where the input does not fit.

    Notes
    -----
    Source: the operator ConvTranspose of the ONNX specification, version 11.

    Examples
    --------
    >>> import torch
    >>> import xpgrad_torch
    >>> layer = xpgrad_torch.ConvTranspose2d(3, 6, 3, stride=2, padding=1)
    >>> layer(torch.randn(4, 3, 9, 8), output_size=[18, 16]).shape
    torch.Size([4, 6, 18, 16])
    """

    _FUNCTION = staticmethod(conv_transpose2d)


class ConvTranspose3d(_TransposedConvolution, nn.ConvTranspose3d):
    """Transposed convolution over three dimensions: `torch.nn.ConvTranspose3d`, with xpgrad's kernels.

    Constructor, parameters, their names and random initialisation, inputs (`output_size` too) and outputs
    are those of `torch.nn.ConvTranspose3d`: state_dicts load both ways.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias, dilation
        As in `torch.nn.ConvTranspose3d`.
    padding_mode, device, dtype
        As in `torch.nn.ConvTranspose3d`.

    Raises
    ------
    TypeError, ValueError
        From the constructor as in `torch.nn.ConvTranspose3d`; from a call where the input does not fit.

    Notes
    -----
    Source: the operator ConvTranspose of the ONNX specification, version 11.

    Examples
    --------
    >>> import torch
    >>> import xpgrad_torch
    >>> layer = xpgrad_torch.ConvTranspose3d(3, 6, 3, stride=2, padding=1)
    >>> layer(torch.randn(4, 3, 5, 6, 7), output_size=[10, 12, 14]).shape
    torch.Size([4, 6, 10, 12, 14])
    """

    _FUNCTION = staticmethod(conv_transpose3d)
