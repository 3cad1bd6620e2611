"""Gradients as operation objects, as a compiler's intermediate representation has them.

An operation names its result, its inputs and which gradient it is; it can be checked, printed and called.
Calling it computes that one gradient and nothing else.

References
----------
The operations follow AiDotNet's backward operations (``GradLSTMCellInputOp`` and its kin), whose gradients
were never written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from xpgrad._arguments import check_given
from xpgrad.convert import convert
from xpgrad.gru import gru_cell_grad
from xpgrad.lstm import lstm_cell_grad

_TYPES = {"Float16": "float16", "BFloat16": "bfloat16", "Float32": "float32", "Float64": "float64"}


class Validation(tuple[str, ...]):
    """What is wrong with an operation, a sentence each; true where nothing is."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return len(self) == 0

    def __str__(self) -> str:
        return "valid" if self else "; ".join(self)


@dataclass
class GradOperation:
    """A gradient with respect to one input of a recurrent cell, as an operation.

    Parameters
    ----------
    hidden_size : int
        H.
    input_index : int
        Which gradient, by the number of the input.
    output_id : int
        The tensor that the operation makes.
    input_ids : sequence of int
        The tensors that it takes: the cotangents of the cell's outputs, and what the forward saved.
    output_type : str
        ``"Float16"``, ``"BFloat16"``, ``"Float32"`` or ``"Float64"``.
    output_shape : sequence of int
        Shape of the gradient.
    """

    hidden_size: int
    input_index: int
    output_id: int
    input_ids: tuple[int, ...]
    output_type: str
    output_shape: tuple[int, ...]

    #: Of the whole class: its name in print, its inputs by number, how many gates, the fewest input tensors.
    operation: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]]
    gates: ClassVar[int]
    fewest_inputs: ClassVar[int]

    def __post_init__(self) -> None:
        self.input_ids, self.output_shape = tuple(self.input_ids), tuple(self.output_shape)

    def validate(self) -> Validation:
        """Check the operation by itself.

        Returns
        -------
        Validation
            True where nothing is wrong; else, as a tuple and in print, what is.
        """
        problems = [*self._wrong_numbers(), *self._wrong_shape()]
        if self.output_type not in _TYPES:
            problems.append(f"output_type is {self.output_type!r}, expected one of {', '.join(_TYPES)}")
        return Validation(f"{self.operation}: {problem}" for problem in problems)

    def _wrong_numbers(self) -> list[str]:
        problems = []
        if self.output_id < 0:
            problems.append(f"output_id is {self.output_id}, expected at least 0")
        if self.output_id in self.input_ids:
            problems.append(f"output_id is {self.output_id}, expected none of the input_ids {self.input_ids}")
        if len(self.input_ids) < self.fewest_inputs:
            problems.append(
                f"input_ids has {len(self.input_ids)} tensors, expected at least {self.fewest_inputs}: the "
                "cotangents and what the forward saved"
            )
        problems += [
            f"input_ids has {number}, expected at least 0" for number in self.input_ids if number < 0
        ]
        if self.hidden_size <= 0:
            problems.append(f"hidden_size is {self.hidden_size}, expected at least 1")
        if not 0 <= self.input_index < len(self.inputs):
            problems.append(
                f"input_index is {self.input_index}, expected 0 to {len(self.inputs) - 1} for "
                f"{', '.join(self.inputs)}"
            )
        return problems

    def _wrong_shape(self) -> list[str]:
        if not 0 <= self.input_index < len(self.inputs):
            return []
        name, H, G = self.inputs[self.input_index], self.hidden_size, self.gates
        symbols, expected = {
            "input": ("N, I", (None, None)),
            "h_prev": ("N, H", (None, H)),
            "c_prev": ("N, H", (None, H)),
            "W_ih": (f"{G}H, I", (G * H, None)),
            "W_hh": (f"{G}H, H", (G * H, H)),
            "bias": (f"{G}H,", (G * H,)),
        }[name]
        shape = self.output_shape
        fits = len(shape) == len(expected) and all(
            size >= 0 and wanted in (None, size) for size, wanted in zip(shape, expected, strict=True)
        )
        if fits:
            return []
        sizes = ", ".join("any" if wanted is None else str(wanted) for wanted in expected)
        return [f"output_shape is {shape}, expected ({symbols}) = ({sizes}) for {name}"]

    @property
    def input_name(self) -> str:
        """The input whose gradient this is."""
        return self.inputs[self.input_index]

    def __str__(self) -> str:
        known = 0 <= self.input_index < len(self.inputs)
        name = self.input_name if known else f"input[{self.input_index}]"
        taken = ", ".join(f"t{number}" for number in self.input_ids)
        return (
            f"t{self.output_id} = {self.operation}[{name}, hidden={self.hidden_size}]({taken}) : "
            f"{self.output_type} [{', '.join(map(str, self.output_shape))}]"
        )

    def _before(self, arrays: dict[str, Any]) -> None:
        """Raise ValueError for an operation that is not valid, TypeError for an array that is missing."""
        validation = self.validate()
        if not validation:
            raise ValueError(str(validation))
        check_given(self.operation, arrays)

    def _checked(self, result: Any) -> Any:
        """The result, which must be what the operation declares."""
        if tuple(result.shape) != self.output_shape:
            raise ValueError(
                f"{self.operation}: the gradient of {self.input_name} has shape {tuple(result.shape)}, "
                f"expected output_shape = {self.output_shape}"
            )
        dtype = str(result.dtype).rpartition(".")[2]
        if dtype != _TYPES[self.output_type]:
            raise TypeError(
                f"{self.operation}: the gradient of {self.input_name} has dtype {dtype}, expected "
                f"output_type = {self.output_type}"
            )
        return result

    def _from_onnx(self, operator: str, grads: Any, fields: dict[str, str]) -> Any:
        """This operation's gradient out of a kernel's, in PyTorch's order of gates."""
        name = self.input_name
        gradient = getattr(grads, fields[name])
        if name in ("input", "h_prev", "c_prev"):
            return gradient
        onnx = {"W_ih": "W", "W_hh": "R", "bias": "B"}[name]
        torch = {"W_ih": "weight_ih", "W_hh": "weight_hh", "bias": "bias_ih"}[name]
        return convert(operator, {onnx: gradient}, "onnx", "torch", gradients=True)[torch]


@dataclass
class GradLSTMCellInputOp(GradOperation):
    """One gradient of one LSTM step.

    Parameters
    ----------
    hidden_size : int
        H.
    input_index : int
        0 input, 1 h_prev, 2 c_prev, 3 W_ih, 4 W_hh, 5 bias.
    output_id : int
        The tensor that the operation makes.
    input_ids : sequence of int
        The tensors that it takes, at least two.
    output_type : str
        ``"Float16"``, ``"BFloat16"``, ``"Float32"`` or ``"Float64"``.
    output_shape : sequence of int
        Shape of the gradient.

    See Also
    --------
    lstm_cell_grad : All gradients of a step at once, with ONNX's order of gates.

    Notes
    -----
    Weights and gates are in PyTorch's order i f g o. The equations are those of `lstm_grad`, for one step.

    Examples
    --------
    >>> from xpgrad import GradLSTMCellInputOp
    >>> op = GradLSTMCellInputOp(128, 1, 9, (4, 5), "Float32", (32, 128))
    >>> print(op)
    t9 = GradLSTMCell[h_prev, hidden=128](t4, t5) : Float32 [32, 128]
    >>> bool(op.validate())
    True
    >>> print(GradLSTMCellInputOp(128, 1, 9, (4,), "Float32", (32, 64)).validate())
    GradLSTMCell: input_ids has 1 tensors, expected at least 2: the cotangents and what the forward saved; \
GradLSTMCell: output_shape is (32, 64), expected (N, H) = (any, 128) for h_prev
    """

    operation: ClassVar[str] = "GradLSTMCell"
    inputs: ClassVar[tuple[str, ...]] = ("input", "h_prev", "c_prev", "W_ih", "W_hh", "bias")
    gates: ClassVar[int] = 4
    fewest_inputs: ClassVar[int] = 2

    def __call__(
        self,
        grad_h: Any,
        grad_c: Any,
        input: Any,  # noqa: A002 - the cell's own name for it
        h_prev: Any,
        c_prev: Any,
        W_ih: Any,
        W_hh: Any,
        *,
        c_next: Any,
        ifgo: Any,
    ) -> Any:
        """Compute this operation's gradient, and no other.

        Parameters
        ----------
        grad_h, grad_c : array, shape (N, H), or None
            Cotangents of the step's output and cell state; None for zero.
        input, h_prev, c_prev : array, shapes (N, I), (N, H), (N, H)
            What the step took.
        W_ih, W_hh : array, shapes (4H, I), (4H, H)
            Weights, gates in the order i f g o.
        c_next, ifgo : array, shapes (N, H), (N, 4H)
            What the forward saved: the cell state after the step, and the gates after their activations.

        Returns
        -------
        array, shape output_shape
            The gradient.

        Raises
        ------
        ValueError
            For an operation that is not valid, a shape out of its rule, or a gradient of another shape than
            declared.
        TypeError
            For arrays that are missing or do not agree, or a gradient of another dtype than declared.
        """
        arrays = {"input": input, "h_prev": h_prev, "c_prev": c_prev, "W_ih": W_ih, "W_hh": W_hh}
        self._before({**arrays, "c_next": c_next, "ifgo": ifgo})
        wrt = {"input": "X", "h_prev": "H", "c_prev": "C", "W_ih": "W", "W_hh": "R", "bias": "B"}
        # a weight's rows are only put in order where the gradient depends on it
        if self.input_name == "input":
            W_ih = convert("lstm", {"weight_ih": W_ih}, "torch", "onnx")["W"]
        if self.input_name == "h_prev":
            W_hh = convert("lstm", {"weight_hh": W_hh}, "torch", "onnx")["R"]
        iofc = _gates_to_onnx(ifgo)
        grads = lstm_cell_grad(
            input, h_prev, c_prev, W_ih, W_hh, C_next=c_next, iofc=iofc, grad_H=grad_h, grad_C=grad_c,
            wrt=(wrt[self.input_name],),
        )  # fmt: skip
        fields = dict(zip(self.inputs, ("dX", "dH", "dC", "dW", "dR", "dB"), strict=True))
        return self._checked(self._from_onnx("lstm", grads, fields))
