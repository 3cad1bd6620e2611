"""Shared by modules and functions with PyTorch's interface, ours and PyTorch's own."""

import functools
import importlib
from typing import Any

from .. import convolutions, elementwise, recurrent
from . import need


class RecurrentRun:
    """A module on a padded batch; every parameter, the input and the states get gradients."""

    def __init__(self, work: recurrent.Recurrent, module: Any, **call: Any) -> None:
        self._torch = torch = need("torch")
        operator = recurrent.OPERATORS[work.operator]
        parameters, arrays = recurrent.data(work)
        onnx = {name: a[0] for name, a in parameters.items()}
        weights = need("xpgrad").convert(
            operator.kernel, onnx, "onnx", "torch",
            linear_before_reset=operator.attributes.get("linear_before_reset", 0),
        )  # fmt: skip
        state = {f"{name}_l0": torch.from_numpy(a) for name, a in weights.items()}
        if operator.is_cell:
            state = {f"cell.{name.removesuffix('_l0')}": a for name, a in state.items()}
            module = _steps(torch, module)
        self.module = module.to(getattr(torch, work.dtype))
        module.load_state_dict(state)
        self._call = call
        self._X = torch.from_numpy(arrays["X"]).requires_grad_()
        states = [torch.from_numpy(arrays[name]).requires_grad_() for name in operator.states]
        self._state = states[0] if len(states) == 1 else tuple(states)
        self._cotangent = torch.from_numpy(arrays["grad_H_all"][:, 0])
        self._wanted = [self._X, *states, *module.parameters()]
        self._H_all: Any = None

    def forward(self) -> None:
        """Build the graph."""
        self._H_all, _ = self.module(self._X, self._state, **self._call)

    def backward(self) -> Any:
        """All gradients. The graph is kept, so the backward can be timed repeatedly."""
        if self._H_all is None:
            self.forward()
        return self._torch.autograd.grad(self._H_all, self._wanted, self._cotangent, retain_graph=True)

    def step(self) -> Any:
        """Forward and backward."""
        self.forward()
        H_all, self._H_all = self._H_all, None
        return self._torch.autograd.grad(H_all, self._wanted, self._cotangent)


def _steps(torch: Any, cell: Any) -> Any:
    """A module that runs a cell step by step, in a loop as its users write it."""

    class Steps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = cell

        def forward(self, X: Any, state: Any) -> Any:
            has_two = isinstance(state, tuple)
            now = tuple(s[0] for s in state) if has_two else state[0]
            outputs = []
            for x in X.unbind():
                now = self.cell(x, now)
                outputs.append(now[0] if has_two else now)
            return torch.stack(outputs), now

    return Steps()


class ConvolutionRun:
    """A function with gradients of the input and both parameters."""

    def __init__(self, work: convolutions.Convolution, functions: Any) -> None:
        self._torch = torch = need("torch")
        name = f"conv{'_transpose' * work.transposed}{len(work.size)}d"
        self._function: Any = getattr(functions, name, None)
        if self._function is None:
            raise NotImplementedError(f"this version has no {name}")
        self._leaves = [torch.from_numpy(a).requires_grad_() for a in convolutions.data(work)]
        self._options = {
            "stride": work.stride, "padding": work.pad, "groups": work.group, "dilation": work.dilation,
        }  # fmt: skip
        self._cotangent = torch.from_numpy(convolutions.cotangent(work))
        self._Y: Any = None

    def backward(self) -> Any:
        """All gradients. The graph is kept, so the backward can be timed repeatedly."""
        if self._Y is None:
            self._Y = self._function(*self._leaves, **self._options)
        return self._torch.autograd.grad(self._Y, self._leaves, self._cotangent, retain_graph=True)

    def step(self) -> Any:
        """Forward and backward."""
        Y = self._function(*self._leaves, **self._options)
        return self._torch.autograd.grad(Y, self._leaves, self._cotangent)


def _module(modules: Any, name: str, **options: Any) -> Any:
    kind = getattr(modules, name, None)
    if kind is None:
        raise NotImplementedError(f"this version has no {name}")
    return kind(**options)


class ElementwiseRun:
    """A gradient, by a function that makes it, and a module's step; each is made at its first use."""

    def __init__(self, work: elementwise.Elementwise, make_backward: Any, modules: Any) -> None:
        self._work, self._make_backward, self._modules = work, make_backward, modules

    @functools.cached_property
    def backward(self) -> Any:
        """A function that computes only the gradient."""
        return self._make_backward(self._work)

    @functools.cached_property
    def step(self) -> Any:
        """A function that runs a module's forward and backward."""
        torch, work = need("torch"), self._work
        name = elementwise.FUNCTIONS[work.function].module
        if name is None:
            raise NotImplementedError(f"no module has the function {work.function}")
        module = _module(self._modules, name, **work.along("dim"))
        X, dY = map(tensor, elementwise.data(work))
        leaf = X.requires_grad_()
        return lambda: torch.autograd.grad(module(leaf), leaf, dY)[0]


def tensor(array: Any) -> Any:
    """A tensor over an array's memory; it repeats elements where the array does."""
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)
    few = array[once]
    return need("torch").from_numpy(few.copy() if few.size < array.size else few).expand(array.shape)


class LossRun:
    """A loss and the gradient of its logits."""

    def __init__(self, work: elementwise.Loss, modules: Any) -> None:
        self._torch = torch = need("torch")
        self._module = _module(modules, elementwise.LOSSES[work.function][1])
        X, dY = map(torch.from_numpy, elementwise.data(work))
        self._leaf, self._dY = X.requires_grad_(), dY.reshape(-1)[0]
        self._target = torch.from_numpy(elementwise.targets(work))

    def step(self) -> Any:
        """Both."""
        loss = self._module(self._leaf, self._target)
        return self._torch.autograd.grad(loss, self._leaf, self._dY)[0]


def threads() -> str:
    """PyTorch's version and number of threads."""
    torch = need("torch")
    return f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads"


def xpgrad_engine(name: str) -> str:
    """How an engine of xpgrad works here, in one line."""
    return str(importlib.import_module("xpgrad.engine").describe_engines()[name])
