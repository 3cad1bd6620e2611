"""xpgrad's kernels on NumPy arrays."""

import contextlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from .. import convolutions, elementwise, floor, recurrent
from . import kernel


class RecurrentRun:
    """A recurrent kernel and all its gradients."""

    def __init__(self, work: recurrent.Recurrent) -> None:
        operator = recurrent.OPERATORS[work.operator]
        if operator.is_cell:
            raise NotImplementedError("loops of single steps are measured on tensors")
        self._forward, self._gradient = kernel(operator.kernel), kernel(f"{operator.kernel}_grad")
        parameters, arrays = recurrent.data(work)
        self._cotangent = arrays.pop("grad_H_all")
        lengths = {"sequence_lens": work.sequence_lens()}
        self._arguments: dict[str, Any] = {**parameters, **arrays, **operator.attributes, **lengths}
        self._names = operator.saved
        self.forward()

    def forward(self) -> None:
        """Run the forward and keep the gradient's operands."""
        self._saved = self._forward(**self._arguments)

    def backward(self) -> Any:
        """All gradients, from the operands that the last forward kept."""
        saved = {name: getattr(self._saved, name) for name in self._names}
        return self._gradient(**self._arguments, **saved, grad_H_all=self._cotangent)

    def step(self) -> Any:
        """Both."""
        self.forward()
        return self.backward()


class ConvolutionRun:
    """A convolution and its gradient."""

    def __init__(self, work: convolutions.Convolution) -> None:
        name = "conv_transpose" if work.transposed else "conv"
        self._forward, self._gradient = kernel(name), kernel(f"{name}_grad")
        self._operands = convolutions.data(work)
        self._attributes = {
            "strides": work.stride, "pads": work.pad, "group": work.group, "dilations": work.dilation,
        }  # fmt: skip
        self._cotangent = convolutions.cotangent(work)

    def backward(self) -> Any:
        """All gradients."""
        return self._gradient(self._cotangent, *self._operands[:2], **self._attributes)

    def step(self) -> Any:
        """Forward and backward."""
        self._forward(*self._operands, **self._attributes)
        return self.backward()


class ElementwiseRun:
    """The gradient of an activation or softmax, from its saved array; `convert` makes the arrays."""

    def __init__(self, work: elementwise.Elementwise, convert: Any = lambda a: a) -> None:
        function = elementwise.FUNCTIONS[work.function]
        self._forward, self._gradient = kernel(work.function), kernel(f"{work.function}_grad")
        self._X, self._dY = map(convert, elementwise.data(work))
        self._attributes = function.attributes | work.along("axis")
        takes_output = function.takes == "Y"
        self._saved = self._forward(self._X, **self._attributes) if takes_output else self._X
        self.takes_output = takes_output

    def backward(self) -> Any:
        """Only the gradient."""
        return self._gradient(self._dY, self._saved, **self._attributes)

    def step(self) -> Any:
        """Forward and backward."""
        Y = self._forward(self._X, **self._attributes)
        return self._gradient(self._dY, Y if self.takes_output else self._X, **self._attributes)


class LossRun:
    """A loss and the gradient of its logits."""

    def __init__(self, work: elementwise.Loss) -> None:
        name, _ = elementwise.LOSSES[work.function]
        self._forward, self._gradient = kernel(name), kernel(f"{name}_grad")
        self._X, dY = elementwise.data(work)
        self._dY = dY.reshape(-1)[:1].reshape(())
        self._target = elementwise.targets(work)

    def step(self) -> Any:
        """Both."""
        self._forward(self._X, self._target)
        return self._gradient(self._dY, self._X, self._target)


RUNS: dict[str, Any] = {
    "Recurrent": RecurrentRun,
    "Convolution": ConvolutionRun,
    "Elementwise": ElementwiseRun,
    "Loss": LossRun,
}


def describe() -> str:
    """The version of NumPy, its BLAS, and how formulas are compiled, without loading a framework."""
    import numpy as np

    from xpgrad.engine.process.settings import jit_enabled

    build: Any = np.show_config(mode="dicts")
    blas = build.get("Build Dependencies", {}).get("blas", {}).get("name", "an unknown BLAS")
    compiled = "without llvmlite"
    if jit_enabled():
        with contextlib.suppress(PackageNotFoundError):
            compiled = f"formulas compiled by llvmlite {version('llvmlite')}"
    return f"NumPy {np.__version__} with {blas}, {compiled}"


def product_rate(dtype: str, seconds: float) -> float:
    """Operations per second of NumPy's matrix product."""
    import numpy as np

    def product(m: int, k: int, n: int) -> Any:
        a, b, out = np.ones((m, k), dtype), np.ones((k, n), dtype), np.empty((m, n), dtype)
        return lambda: np.matmul(a, b, out=out)

    return floor.best_rate(product, seconds)
