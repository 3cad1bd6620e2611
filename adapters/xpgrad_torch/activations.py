"""Activations and softmax in PyTorch: functions under autograd, and modules with PyTorch's interface.

Functions of `torch.nn.functional` have its names and arguments; the others have the kernel's.
"""

# ruff: noqa: A002 - PyTorch's names for the arguments

import inspect
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from xpgrad._operators.words import Approximate
from xpgrad_torch._autocast import autocasts, lowered, raised
from xpgrad_torch._autograd import TorchKernel, apply
from xpgrad_torch._errors import INPUT, CallerNames
from xpgrad_torch._fx import Proxy, Unscripted, as_node
from xpgrad_torch._kernel import check_flag
from xpgrad_torch._library import registered
from xpgrad_torch._quick import run, run_over

__all__ = [
    "CELU", "ELU", "GELU", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid", "LogSoftmax",
    "Mish", "PReLU", "QuickGELU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softmax", "Softplus",
    "Softsign", "Tanh", "Threshold", "celu", "elu", "gelu", "hard_sigmoid", "hardsigmoid", "hardswish",
    "hardtanh", "leaky_relu", "log_softmax", "logsigmoid", "mish", "prelu", "quick_gelu", "relu", "relu6",
    "scaled_tanh", "selu", "sigmoid", "silu", "softmax", "softplus", "softsign", "tanh", "threshold",
    "thresholded_relu"
]  # fmt: skip


def _kernel(name: str, operator: str | None = None, **replaced: str) -> TorchKernel:
    return registered(TorchKernel(name, replaced=replaced, operator=operator))


# ------------------------------------------------------------------------------- functions, PyTorch's names

_RELU = _kernel("relu", X="Y")
_LEAKY_RELU = _kernel("leaky_relu")
_SIGMOID = _kernel("sigmoid")
_TANH = _kernel("tanh")
_QUICK_GELU = _kernel("quick_gelu")
_GELU = _kernel("gelu")
_SILU = _kernel("silu")
_MISH = _kernel("mish")
_SOFTPLUS = _kernel("softplus")
_SOFTSIGN = _kernel("softsign")
_ELU = _kernel("elu")
_SELU = _kernel("selu")
_SELU_CONSTANTS = {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805}  # ONNX rounds them to float32
_CELU = _kernel("celu")
_HARD_SIGMOID = _kernel("hard_sigmoid")
_HARD_SWISH = _kernel("hard_swish")
_HARD_TANH = _kernel("hard_tanh", X="Y")  # its slope is 0 where Y is at a bound
_HARD_TANH_BY_INPUT = _kernel("hard_tanh", "hard_tanh_by_input")  # for bounds that Y's dtype rounds
_THRESHOLDED_RELU = _kernel("thresholded_relu")
_SCALED_TANH = _kernel("scaled_tanh")
_LOG_SIGMOID = _kernel("log_sigmoid")
_SOFTMAX = _kernel("softmax")
_LOG_SOFTMAX = _kernel("log_softmax")
_PRELU = _kernel("prelu")

# The functions' names and arguments, if the kernel's differ.
_DIM = CallerNames({"X": "input", "axis": "dim"})
_SLOPE = CallerNames({"X": "input", "alpha": "negative_slope"})
_THRESHOLD = CallerNames({"X": "input", "alpha": "threshold"}, "threshold")
_RELU6, _HARDTANH, _HARDSIGMOID, _HARDSWISH, _LOGSIGMOID = (
    CallerNames(INPUT.arguments, name)
    for name in ("relu6", "hardtanh", "hardsigmoid", "hardswish", "logsigmoid")
)


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """ReLU: max(0, x), elementwise; its slope at 0 is 0.

    Parameters
    ----------
    input : Tensor
        Any shape; float16, bfloat16, float32 or float64, as in every activation.
    inplace : bool
        Whether to write the result over `input` and return `input`.

    Returns
    -------
    Tensor
        Shape, dtype and device of `input`.

    Raises
    ------
    TypeError
        If `input` is not a tensor, or has another dtype.
    RuntimeError
        If `inplace`, and `input` is a leaf that requires a gradient.

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch.functional import relu
    >>> x = torch.tensor([-1.0, 2.0], requires_grad=True)
    >>> relu(x).sum().backward()
    >>> x.grad
    tensor([0., 1.])
    """
    return run(_RELU, input, {}, inplace)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """ReLU6: min(6, max(0, x)), elementwise; its slope at 0 and at 6 is 0."""
    return run(_HARD_TANH, input, {"min_val": 0.0, "max_val": 6.0}, inplace, words=_RELU6)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """Leaky ReLU: x for x > 0, else negative_slope · x, elementwise."""
    if isinstance(input, Tensor) and _is_negative(negative_slope):  # the output lacks the input's sign
        check_flag("leaky_relu", "inplace", inplace)
        return run_over(lambda X: prelu(X, X.new_full((), negative_slope)), input, inplace)
    return run(_LEAKY_RELU, input, {"alpha": negative_slope}, inplace, words=_SLOPE)


def _is_negative(slope: float) -> bool:
    try:
        return slope < 0
    except TypeError:  # no number: the kernel raises the error
        return False


def sigmoid(input: Tensor) -> Tensor:
    """Logistic function σ: 1 / (1 + e⁻ˣ), elementwise."""
    return run(_SIGMOID, input, {})


def tanh(input: Tensor) -> Tensor:
    """Hyperbolic tangent, elementwise."""
    return run(_TANH, input, {})


def gelu(input: Tensor, approximate: Approximate = "none") -> Tensor:
    """GELU: x Φ(x) with the normal distribution's Φ, elementwise.

    Parameters
    ----------
    input : Tensor
        Any shape.
    approximate : {"none", "tanh"}
        Whether Φ is exact, or (1 + tanh(√(2 / π) (x + 0.044715 x³))) / 2.

    Returns
    -------
    Tensor
        Shape, dtype and device of `input`.

    Raises
    ------
    ValueError
        For another word.
    """
    return run(_GELU, input, {"approximate": approximate})


def quick_gelu(input: Tensor, alpha: float = 1.702, inplace: bool = False) -> Tensor:
    """QuickGELU, ONNX Runtime's: x σ(alpha x), elementwise."""
    return run(_QUICK_GELU, input, {"alpha": alpha}, inplace)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """SiLU: x σ(x), elementwise."""
    return run(_SILU, input, {}, inplace)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """Mish: x tanh(log(1 + eˣ)), elementwise."""
    return run(_MISH, input, {}, inplace)


def softplus(input: Tensor, beta: float = 1.0, threshold: float | None = 20.0) -> Tensor:
    """Softplus: log(1 + e^(beta x)) / beta, elementwise; x itself where beta x > threshold.

    Parameters
    ----------
    input : Tensor
        Any shape.
    beta : float
        A factor of x; the larger, the sharper the bend.
    threshold : float, optional
        None: the formula everywhere, which never overflows.

    Returns
    -------
    Tensor
        Shape, dtype and device of `input`.
    """
    return run(_SOFTPLUS, _autocast(input), {"beta": beta, "threshold": threshold})


def softsign(input: Tensor) -> Tensor:
    """Softsign: x / (1 + abs(x)), elementwise."""
    return run(_SOFTSIGN, input, {})


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """ELU: x for x > 0, else alpha (eˣ - 1), elementwise."""
    return run(_ELU, input, {"alpha": alpha}, inplace)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """SELU: γ x for x > 0, else γ α (eˣ - 1), elementwise, γ and α the paper's constants."""
    return run(_SELU, input, _SELU_CONSTANTS, inplace)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """CELU: x for x > 0, else alpha (e^(x / alpha) - 1), elementwise."""
    return run(_CELU, input, {"alpha": alpha}, inplace)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """Hard sigmoid, PyTorch's: min(1, max(0, x / 6 + 1 / 2)), elementwise."""
    return run(_HARD_SIGMOID, input, {"alpha": 1 / 6, "beta": 0.5}, inplace, words=_HARDSIGMOID)


def hard_sigmoid(input: Tensor, alpha: float = 0.2, beta: float = 0.5, inplace: bool = False) -> Tensor:
    """Hard sigmoid, ONNX's: min(1, max(0, alpha x + beta)), elementwise."""
    return run(_HARD_SIGMOID, input, {"alpha": alpha, "beta": beta}, inplace)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """Hard swish: x · hardsigmoid(x), elementwise."""
    return run(_HARD_SWISH, input, {}, inplace, words=_HARDSWISH)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """Hard tanh: min(max_val, max(min_val, x)), elementwise; its slope at the bounds is 0."""
    half = isinstance(input, Tensor) and input.dtype in (torch.float16, torch.bfloat16)
    told = not half or (_told_by_output(min_val) and _told_by_output(max_val))
    kernel = _HARD_TANH if told else _HARD_TANH_BY_INPUT
    return run(kernel, input, {"min_val": min_val, "max_val": max_val}, inplace, words=_HARDTANH)


def _told_by_output(bound: float) -> bool:
    """Tell whether half precision represents this bound, so that an output shows that it was clipped."""
    try:
        return abs(bound) <= 256 and round(bound) == bound
    except TypeError:  # no number: the kernel raises the error
        return True


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """Threshold: x for x > threshold, else value, elementwise.

    Parameters
    ----------
    input : Tensor
        Any shape.
    threshold : float
        The largest x that is replaced.
    value : float
        The replacement.
    inplace : bool
        As in `relu`.

    Returns
    -------
    Tensor
        Shape, dtype and device of `input`.
    """
    if value == 0:
        return run(_THRESHOLDED_RELU, input, {"alpha": threshold}, inplace, words=_THRESHOLD)
    check_flag("threshold", "inplace", inplace)

    def compute(X: Tensor) -> Tensor:
        Y = run(_THRESHOLDED_RELU, X, {"alpha": threshold}, words=_THRESHOLD)
        # the kernel compares half precision in float32; PyTorch's le would round the threshold first
        wide = X if X.dtype in (torch.float32, torch.float64) else X.float()
        return torch.where(wide.le(threshold), value, Y)

    return run_over(compute, input, inplace)


def thresholded_relu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Thresholded ReLU, ONNX's: x for x > alpha, else 0, elementwise."""
    return run(_THRESHOLDED_RELU, input, {"alpha": alpha}, inplace)


def scaled_tanh(input: Tensor, alpha: float = 1.0, beta: float = 1.0, inplace: bool = False) -> Tensor:
    """Scaled tanh, ONNX's: alpha tanh(beta x), elementwise."""
    return run(_SCALED_TANH, input, {"alpha": alpha, "beta": beta}, inplace)


def logsigmoid(input: Tensor) -> Tensor:
    """Log-sigmoid: log σ(x), elementwise."""
    return run(_LOG_SIGMOID, input, {}, words=_LOGSIGMOID)


def softmax(input: Tensor, dim: int | None = None, *, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax: eˣ over its sum along an axis; a slice that is -inf throughout gives 0.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int, optional
        The axis; by default PyTorch's guess, with a warning, as in PyTorch.
    dtype : torch.dtype, optional
        The dtype to which `input` is converted first.

    Returns
    -------
    Tensor
        Shape and device of `input`.

    Raises
    ------
    ValueError
        If there is no such axis.
    """
    return _along(_SOFTMAX, input, dim, dtype)


def log_softmax(input: Tensor, dim: int | None = None, *, dtype: torch.dtype | None = None) -> Tensor:
    """Log-softmax: x - log(sum of eˣ along an axis); arguments as for `softmax`."""
    return _along(_LOG_SOFTMAX, input, dim, dtype)


def _autocast(X: Tensor) -> Tensor:
    """Convert half precision to float32, as autocast does for softmax and softplus on a GPU."""
    return raised(X) if isinstance(X, Tensor) and X.is_cuda and autocasts(X) else X


def _along(kernel: TorchKernel, X: Tensor, dim: int | None, dtype: torch.dtype | None) -> Tensor:
    X = _autocast(X) if dtype is None else X.to(dtype)
    if dim is None and isinstance(X, Tensor):
        warnings.warn(f"{kernel.name}: dim is left out, expected an int; this is deprecated", stacklevel=3)
        dim = 0 if X.dim() in (0, 1, 3) else 1
    if isinstance(X, Tensor) and X.dim() == 0 and dim in (0, -1):  # PyTorch's one element without an axis
        return run(kernel, X.reshape(1), {"axis": 0}, words=_DIM).reshape(())
    if isinstance(X, Tensor) and isinstance(dim, int) and 0 <= dim < X.dim():
        dim -= X.dim()  # the kernel recognises the last axis fastest as -1
    return run(kernel, X, {"axis": dim}, words=_DIM)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """PReLU: x for x > 0, else weight · x, with one weight for all, or one for each channel, axis 1.

    Parameters
    ----------
    input : Tensor
        Any shape if there is one weight, else (N, C, ...).
    weight : Tensor
        () or (1,), or (C,); dtype and device of `input`. Under autocast both are converted to its dtype.

    Returns
    -------
    Tensor
        Shape, dtype and device of `input`.

    Raises
    ------
    TypeError
        If an operand is not a tensor, or dtypes or devices differ.
    ValueError
        If the number of weights is neither 1 nor the number of channels.
    """
    return _by_channel(_PRELU, input, weight, "weight")


def _by_channel(kernel: TorchKernel, X: Tensor, operand: Tensor, word: str) -> Tensor:
    """Return the output of a kernel whose operand has one value or one per channel; its name is `word`."""
    name = kernel.name
    for argument, tensor in (("input", X), (word, operand)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: {argument} is {type(tensor).__name__}, expected torch.Tensor")
    one = operand.numel() == 1
    if operand.dim() > 1 or (not one and (X.dim() < 2 or operand.numel() != X.shape[1])):
        raise ValueError(
            f"{name}: {word} has shape {tuple(operand.shape)}, expected one value, or one for each channel "
            f"of input with shape {tuple(X.shape)}, (N, C, ...)"
        )
    if autocasts(X):
        X, operand = (lowered(x, X.device.type) for x in (X, operand))
    operand = operand.reshape(()) if one else operand.reshape(-1, *(1,) * (X.dim() - 2))
    try:
        (Y,) = apply(kernel, (X, operand), {})
    except (TypeError, ValueError) as error:
        CallerNames({"X": "input", kernel.operands[1]: word}).put_into(error, name)
        raise
    return Y


# ------------------------------------------------------------------------------------- modules, PyTorch's too


class _ActivationModule(Unscripted, nn.Module):
    """A module on one of the functions above; the module's attributes are the function's arguments."""

    _FUNCTION: ClassVar[Callable[..., Tensor]]
    _ARGUMENTS: ClassVar[tuple[str, ...]]

    if TYPE_CHECKING:  # torch.nn.Module says that a call returns Any

        def __call__(self, input: Tensor) -> Tensor: ...

    def __init_subclass__(cls, function: Callable[..., Tensor] | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if function is not None:  # else a user's subclass
            parameters = inspect.signature(function).parameters.values()
            positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
            cls._FUNCTION, cls._ARGUMENTS = staticmethod(function), tuple(positional[1:])

    def forward(self, input: Tensor) -> Tensor:
        """Apply the function.

        Parameters
        ----------
        input : Tensor
            Any shape; float16, bfloat16, float32 or float64.

        Returns
        -------
        Tensor
            Shape, dtype and device of `input`.
        """
        if isinstance(input, Proxy):
            return as_node(self, input)
        return type(self)._FUNCTION(input, *[getattr(self, name) for name in self._ARGUMENTS])


class ReLU(_ActivationModule, nn.ReLU, function=relu):
    """`torch.nn.ReLU` on `functional.relu`."""


class ReLU6(_ActivationModule, nn.ReLU6, function=relu6):
    """`torch.nn.ReLU6` on `functional.relu6`."""


class LeakyReLU(_ActivationModule, nn.LeakyReLU, function=leaky_relu):
    """`torch.nn.LeakyReLU` on `functional.leaky_relu`."""


class PReLU(_ActivationModule, nn.PReLU, function=prelu):
    """`torch.nn.PReLU` on `functional.prelu`."""


class Sigmoid(_ActivationModule, nn.Sigmoid, function=sigmoid):
    """`torch.nn.Sigmoid` on `functional.sigmoid`."""


class Tanh(_ActivationModule, nn.Tanh, function=tanh):
    """`torch.nn.Tanh` on `functional.tanh`."""


class GELU(_ActivationModule, nn.GELU, function=gelu):
    """`torch.nn.GELU` on `functional.gelu`."""


class SiLU(_ActivationModule, nn.SiLU, function=silu):
    """`torch.nn.SiLU` on `functional.silu`."""


class Mish(_ActivationModule, nn.Mish, function=mish):
    """`torch.nn.Mish` on `functional.mish`."""


class Softplus(_ActivationModule, nn.Softplus, function=softplus):
    """`torch.nn.Softplus` on `functional.softplus`."""


class Softsign(_ActivationModule, nn.Softsign, function=softsign):
    """`torch.nn.Softsign` on `functional.softsign`."""


class ELU(_ActivationModule, nn.ELU, function=elu):
    """`torch.nn.ELU` on `functional.elu`."""


class SELU(_ActivationModule, nn.SELU, function=selu):
    """`torch.nn.SELU` on `functional.selu`."""


class CELU(_ActivationModule, nn.CELU, function=celu):
    """`torch.nn.CELU` on `functional.celu`."""


class Hardsigmoid(_ActivationModule, nn.Hardsigmoid, function=hardsigmoid):
    """`torch.nn.Hardsigmoid` on `functional.hardsigmoid`."""


class Hardswish(_ActivationModule, nn.Hardswish, function=hardswish):
    """`torch.nn.Hardswish` on `functional.hardswish`."""


class Hardtanh(_ActivationModule, nn.Hardtanh, function=hardtanh):
    """`torch.nn.Hardtanh` on `functional.hardtanh`."""


class Threshold(_ActivationModule, nn.Threshold, function=threshold):
    """`torch.nn.Threshold` on `functional.threshold`."""


class LogSigmoid(_ActivationModule, nn.LogSigmoid, function=logsigmoid):
    """`torch.nn.LogSigmoid` on `functional.logsigmoid`."""


class Softmax(_ActivationModule, nn.Softmax, function=softmax):
    """`torch.nn.Softmax` on `functional.softmax`."""


class LogSoftmax(_ActivationModule, nn.LogSoftmax, function=log_softmax):
    """`torch.nn.LogSoftmax` on `functional.log_softmax`."""


class QuickGELU(_ActivationModule, function=quick_gelu):
    """x σ(alpha x), which approximates GELU: ONNX Runtime's QuickGelu, on `functional.quick_gelu`.

    Parameters
    ----------
    alpha : float
        The factor of x within σ.
    inplace : bool
        Whether to write the result over the input.

    Examples
    --------
    >>> import torch
    >>> import xpgrad_torch
    >>> xpgrad_torch.QuickGELU()
    QuickGELU(alpha=1.702)
    """

    def __init__(self, alpha: float = 1.702, inplace: bool = False) -> None:
        super().__init__()
        self.alpha, self.inplace = alpha, inplace

    def extra_repr(self) -> str:
        """Return the constructor's arguments."""
        return f"alpha={self.alpha}{', inplace=True' if self.inplace else ''}"
