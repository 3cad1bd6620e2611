"""Losses in PyTorch: functions under autograd, and modules with PyTorch's interface.

They have PyTorch's names and arguments, except that functions do not take the deprecated `size_average` and
`reduce`.
"""

# ruff: noqa: A002 - PyTorch's names for the arguments

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from xpgrad._operators.words import Reduction
from xpgrad_torch._autocast import autocasts, raised
from xpgrad_torch._autograd import TorchKernel
from xpgrad_torch._errors import CallerNames
from xpgrad_torch._fx import Proxy, Unscripted, as_node
from xpgrad_torch._kernel import check_dense
from xpgrad_torch._library import registered
from xpgrad_torch._private import are_transforms_active
from xpgrad_torch._quick import run

__all__ = [
    "BCEWithLogitsLoss", "CrossEntropyLoss", "binary_cross_entropy_with_logits", "cross_entropy"
]  # fmt: skip

_CROSS_ENTROPY = registered(TorchKernel("softmax_cross_entropy"))
_BINARY_CROSS_ENTROPY = registered(TorchKernel("binary_cross_entropy_with_logits"))
_CROSS_ENTROPY_NAMES = CallerNames({"X": "input", "labels": "target", "weights": "weight"}, "cross_entropy")
_BINARY_NAMES = CallerNames({"X": "input", "targets": "target"})


def _run(
    kernel: TorchKernel,
    words: CallerNames,
    X: Tensor,
    target: Tensor,
    weights: dict[str, Tensor | None],
    attributes: dict[str, Any],
) -> Tensor:
    """Return the loss of logits X; weights have the kernel's names."""
    name = words.caller or kernel.name
    for argument, value in (("input", X), ("target", target)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name}: {argument} is {type(value).__name__}, expected torch.Tensor")
    for key, weight in weights.items():
        if weight is not None and not isinstance(weight, Tensor):
            argument = words.arguments.get(key, key)
            raise TypeError(f"{name}: {argument} is {type(weight).__name__}, expected torch.Tensor or None")
    others = {kernel.operands[1]: target, **weights}
    if autocasts(X):  # PyTorch's losses then compute in float32
        X, others = raised(X), {key: raised(value) for key, value in others.items()}
    if not torch.compiler.is_compiling() and are_transforms_active():
        return _mapped(kernel, X, others, attributes, words)
    return run(kernel, X, attributes, others=others, words=words)


def _mapped(
    kernel: TorchKernel, X: Tensor, others: dict[str, Any], attributes: dict[str, Any], words: CallerNames
) -> Tensor:
    """Return the loss under `torch.func`: the kernel computes each sample's loss, and PyTorch reduces them.

    Under vmap the samples of all mapped calls join the kernel's batch, which must not become one number.
    """
    reduction, target = attributes["reduction"], others[kernel.operands[1]]
    if reduction not in ("mean", "sum"):
        return run(kernel, X, attributes, others=others, words=words)
    losses = run(kernel, X, attributes | {"reduction": "none"}, others=others, words=words)
    if reduction == "sum":
        return losses.sum()
    if target.is_floating_point():
        return losses.mean()
    # PyTorch's sum of the targets' weights.
    weights = others["weights"]
    weights = losses.new_ones(X.shape[min(1, X.dim() - 1)]) if weights is None else weights
    each = weights.unflatten(0, (-1, *(1,) * (X.dim() - 2))).expand(X.shape)
    index = {"ignore_index": attributes["ignore_index"], "reduction": "sum"}
    return losses.sum() / nn.functional.nll_loss(-each, target, **index)


def _has_no_class(X: Tensor) -> bool:
    """Tell whether logits (C,) or (N, C, ...) have no class."""
    check_dense("cross_entropy", "input", X)
    return X.dim() > 0 and not X.shape[min(1, X.dim() - 1)]


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross-entropy of softmax(input) and targets, which are classes or probabilities.

    The kernel is `xpgrad.softmax_cross_entropy`: one formula of the logits, finite wherever the loss is.

    Parameters
    ----------
    input : Tensor
        Logits, (C,), (N, C) or (N, C, ...).
    target : Tensor
        Classes from 0 to C - 1, integers, (), (N,) or (N, ...); or probabilities of the shape and dtype of
        `input`. With probabilities that require a gradient, PyTorch's own operators compute the backward.
    weight : Tensor, optional
        A weight for each class, (C,). With C = 0 PyTorch's function computes the loss.
    ignore_index : int
        A target that is ignored: its loss and gradient are 0, and the mean leaves it out.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the sum of the targets' weights, for probabilities by the number of targets.
    label_smoothing : float
        The share of each target that is spread evenly over all classes, from 0 to 1.

    Returns
    -------
    Tensor
        A number, or for "none" a loss for each target. Under autocast it is not in half precision.

    Raises
    ------
    TypeError
        If an operand is not a tensor, or floating-point dtypes or devices differ.
    ValueError
        If shapes do not fit, or an attribute or a class is out of its range.

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch.functional import cross_entropy
    >>> logits = torch.zeros(2, 4, requires_grad=True)
    >>> cross_entropy(logits, torch.tensor([1, -100])).backward()
    >>> logits.grad
    tensor([[ 0.2500, -0.7500,  0.2500,  0.2500],
            [ 0.0000,  0.0000,  0.0000,  0.0000]])
    """
    attributes: dict[str, Any] = {
        "reduction": reduction, "label_smoothing": label_smoothing, "ignore_index": ignore_index
    }  # fmt: skip
    if isinstance(input, Tensor) and _has_no_class(input):
        # Softmax needs a class, and the kernel refuses C = 0. PyTorch's result is a convention.
        return nn.functional.cross_entropy(input, target, weight, **attributes)
    if not isinstance(target, Tensor) or (target.is_floating_point() and ignore_index < 0):
        del attributes["ignore_index"]  # as in PyTorch, probabilities ignore no class below 0
    return _run(_CROSS_ENTROPY, _CROSS_ENTROPY_NAMES, input, target, {"weights": weight}, attributes)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    reduction: Reduction = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of sigmoid(input) and probabilities, elementwise.

    The kernel is `xpgrad.binary_cross_entropy_with_logits`: one formula of the logits, finite wherever the
    loss is.

    Parameters
    ----------
    input : Tensor
        Logits, any shape.
    target : Tensor
        Probabilities, shape and dtype of `input`. If they require a gradient, PyTorch's own operators compute
        the backward.
    weight : Tensor, optional
        A factor for each loss; broadcast to the shape of `input`.
    reduction : {"mean", "sum", "none"}
        Whether to return the mean, the sum, or each loss.
    pos_weight : Tensor, optional
        A factor for the positive part of each loss; broadcast to the shape of `input`.

    Returns
    -------
    Tensor
        A number, or for "none" the shape of `input`. Under autocast it is not in half precision.

    Raises
    ------
    TypeError
        If an operand is not a tensor, or dtypes or devices differ.
    ValueError
        If shapes do not fit, or `reduction` is another word.

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch.functional import binary_cross_entropy_with_logits
    >>> logits = torch.zeros(2, requires_grad=True)
    >>> binary_cross_entropy_with_logits(logits, torch.tensor([1.0, 0.0])).backward()
    >>> logits.grad
    tensor([-0.2500,  0.2500])
    """
    weights = {"weight": weight, "pos_weight": pos_weight}
    return _run(_BINARY_CROSS_ENTROPY, _BINARY_NAMES, input, target, weights, {"reduction": reduction})


class CrossEntropyLoss(Unscripted, nn.CrossEntropyLoss):
    """`torch.nn.CrossEntropyLoss` on `functional.cross_entropy`."""

    if TYPE_CHECKING:  # torch.nn.Module says that a call returns Any

        def __call__(self, input: Tensor, target: Tensor) -> Tensor: ...  # noqa: D102

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss of logits `input`, (N, C, ...), for `target`, classes (N, ...) or probabilities."""
        if isinstance(input, Proxy):
            return as_node(self, input, target)
        return cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=cast(Reduction, self.reduction),
            label_smoothing=self.label_smoothing,
        )


class BCEWithLogitsLoss(Unscripted, nn.BCEWithLogitsLoss):
    """`torch.nn.BCEWithLogitsLoss` on `functional.binary_cross_entropy_with_logits`."""

    if TYPE_CHECKING:  # torch.nn.Module says that a call returns Any

        def __call__(self, input: Tensor, target: Tensor) -> Tensor: ...  # noqa: D102

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss of logits `input` for probabilities `target` of the same shape."""
        if isinstance(input, Proxy):
            return as_node(self, input, target)
        return binary_cross_entropy_with_logits(
            input, target, self.weight, reduction=cast(Reduction, self.reduction), pos_weight=self.pos_weight
        )
