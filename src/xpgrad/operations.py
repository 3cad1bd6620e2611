"""Gradients as operation objects, as in a compiler's intermediate representation.

An operation names its result, its inputs and its gradient. It can be checked, printed and called. A call
computes only this gradient.

References
----------
AiDotNet's backward operations (``GradLSTMCellInputOp`` and similar), whose gradients were never written.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

from array_api_compat import array_namespace

from xpgrad._operators.arguments import check_arrays, check_cotangents, check_given, check_shape
from xpgrad._operators.types import A, Array
from xpgrad._operators.words import Operator
from xpgrad.convert import convert
from xpgrad.gru import gru_cell_grad
from xpgrad.lstm import lstm_cell_grad

_TYPES = {"Float16": "float16", "BFloat16": "bfloat16", "Float32": "float32", "Float64": "float64"}


class Validation(tuple[str, ...]):
    """The errors of an operation, one sentence each; true if there are none."""

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
        The number of the input whose gradient is computed.
    output_id : int
        The tensor that the operation makes.
    input_ids : sequence of int
        The tensors that it takes: the cotangents of the cell's outputs, and arrays that the forward saved.
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

    # Of each class: its printed name, its inputs by number with the kernel's names, the kernel's operator,
    # the number of gates, and the weights that each gradient depends on ("" is the default).
    operation: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]]
    kernel_names: ClassVar[tuple[str, ...]]
    operator: ClassVar[Operator]
    gates: ClassVar[int]
    weights_used: ClassVar[dict[str, tuple[str, ...]]]

    def __post_init__(self) -> None:
        self.input_ids, self.output_shape = tuple(self.input_ids), tuple(self.output_shape)

    def validate(self) -> Validation:
        """Check the operation.

        Returns
        -------
        Validation
            True if nothing is wrong; otherwise the errors, as a tuple and when printed.
        """
        problems = self._wrong_types() or [*self._wrong_numbers(), *self._wrong_shape()]
        if not isinstance(self.output_type, str) or self.output_type not in _TYPES:
            problems.append(f"output_type is {self.output_type!r}, expected one of {', '.join(_TYPES)}")
        return Validation(f"{self.operation}: {problem}" for problem in problems)

    def _wrong_types(self) -> list[str]:
        numbers = {
            "hidden_size": self.hidden_size,
            "input_index": self.input_index,
            "output_id": self.output_id,
        }
        problems = [
            f"{name} is {number!r}, expected an integer"
            for name, number in numbers.items()
            if not isinstance(number, Integral)
        ]
        rows = {"input_ids": self.input_ids, "output_shape": self.output_shape}
        return problems + [
            f"{name} has {number!r}, expected integers"
            for name, row in rows.items()
            for number in row
            if not isinstance(number, Integral)
        ]

    def _wrong_numbers(self) -> list[str]:
        problems = []
        if self.output_id < 0:
            problems.append(f"output_id is {self.output_id}, expected at least 0")
        if self.output_id in self.input_ids:
            problems.append(f"output_id is {self.output_id}, expected none of the input_ids {self.input_ids}")
        if len(self.input_ids) < 2:
            problems.append(
                f"input_ids has length {len(self.input_ids)}, expected at least 2: a cotangent and a "
                "saved array"
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
        }.get(name, (f"{G}H,", (G * H,)))
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
        is_known = self.input_index in range(len(self.inputs))
        name = self.inputs[int(self.input_index)] if is_known else f"input[{self.input_index}]"
        taken = ", ".join(f"t{number}" for number in self.input_ids)
        return (
            f"t{self.output_id} = {self.operation}[{name}, hidden={self.hidden_size}]({taken}) : "
            f"{self.output_type} [{', '.join(map(str, self.output_shape))}]"
        )

    def _before(self, arrays: dict[str, Any], optional: dict[str, Any]) -> None:
        """Raise ValueError for an invalid operation, TypeError for a missing array or a non-array."""
        if not (validation := self.validate()):
            raise ValueError(str(validation))
        check_given(self.operation, arrays)
        check_arrays(self.operation, arrays | optional)
        N, H = arrays["h_prev"].shape[:1], self.hidden_size
        check_shape(self.operation, "h_prev", arrays["h_prev"], "N, hidden_size", (*N, H))
        gates, count = ("ifgo", 4) if self.operator == "lstm" else ("rzn", 3)
        check_shape(self.operation, gates, arrays[gates], f"N, {count} hidden_size", (*N, count * H))

    def _checked(self, result: Any) -> Any:
        """The result; it must match the operation's declaration."""
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

    @property
    def _kernel_name(self) -> str:
        """The kernel's name of the input."""
        return self.kernel_names[self.input_index]

    def _gates_to_onnx(self, gates: Any) -> Any:
        """Gates (N, G * H) from PyTorch's order to ONNX's."""
        return convert(self.operator, {"weight_ih": gates.T}, "torch", "onnx")["W"].T

    def _weights_to_onnx(self, W_ih: Any, W_hh: Any) -> tuple[Any, Any]:
        """The kernel's W and R; weights that this gradient does not depend on are not reordered."""
        torch = {"weight_ih": W_ih, "weight_hh": W_hh}
        used = self.weights_used.get(self.input_name, self.weights_used[""])
        onnx = convert(self.operator, {name: torch[name] for name in used}, "torch", "onnx")
        return onnx.get("W", W_ih), onnx.get("R", W_hh)

    def _out_of(self, grads: Any) -> Any:
        """Select the operation's gradient from the kernel's, in PyTorch's order of gates."""
        gradient = getattr(grads, f"d{self._kernel_name}")
        if self._kernel_name in ("X", "H", "C"):
            return gradient
        named = {self._kernel_name: gradient}
        converted = convert(self.operator, named, "onnx", "torch", linear_before_reset=1, gradients=True)
        torch = {"W_ih": "weight_ih", "W_hh": "weight_hh", "b_hh": "bias_hh"}
        return converted[torch.get(self.input_name, "bias_ih")]


@dataclass
class GradLSTMCellInputOp(GradOperation):
    """One gradient of one LSTM step.

    Parameters
    ----------
    input_index : int
        0 input, 1 h_prev, 2 c_prev, 3 W_ih, 4 W_hh, 5 bias.
    hidden_size, output_id, input_ids, output_type, output_shape
        See `GradOperation`; at least two tensors are inputs.

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
    GradLSTMCell: input_ids has length 1, expected at least 2: a cotangent and a saved array; \
GradLSTMCell: output_shape is (32, 64), expected (N, H) = (any, 128) for h_prev
    """

    operation: ClassVar[str] = "GradLSTMCell"
    inputs: ClassVar[tuple[str, ...]] = ("input", "h_prev", "c_prev", "W_ih", "W_hh", "bias")
    kernel_names: ClassVar[tuple[str, ...]] = ("X", "H", "C", "W", "R", "B")
    operator: ClassVar[Operator] = "lstm"
    gates: ClassVar[int] = 4
    weights_used: ClassVar[dict[str, tuple[str, ...]]] = {
        "input": ("weight_ih",),
        "h_prev": ("weight_hh",),
        "": (),
    }

    def __call__(
        self,
        grad_h: Array[A] | None,
        grad_c: Array[A] | None,
        input: Array[A],  # noqa: A002 - the cell's own name for it
        h_prev: Array[A],
        c_prev: Array[A],
        W_ih: Array[A],
        W_hh: Array[A],
        *,
        c_next: Array[A],
        ifgo: Array[A],
    ) -> A:
        """Compute this operation's gradient, and no other.

        Parameters
        ----------
        grad_h, grad_c : array, shape (N, H), or None
            Cotangents of the step's output and cell state; one may be None for zero.
        input, h_prev, c_prev : array, shapes (N, I), (N, H), (N, H)
            The step's arguments.
        W_ih, W_hh : array, shapes (4H, I), (4H, H)
            Weights, gates in the order i f g o.
        c_next, ifgo : array, shapes (N, H), (N, 4H)
            Saved by the forward: the cell state after the step, and the gates after their activations.

        Returns
        -------
        array, shape output_shape
            The gradient.

        Raises
        ------
        ValueError
            If the operation is not valid, a shape breaks its rule, or the gradient has another shape than
            declared.
        TypeError
            If arrays are missing or do not agree, or the gradient has another dtype than declared.
        """
        arrays = {"input": input, "h_prev": h_prev, "c_prev": c_prev, "W_ih": W_ih, "W_hh": W_hh}
        cotangents = {"grad_h": grad_h, "grad_c": grad_c}
        self._before({**arrays, "c_next": c_next, "ifgo": ifgo}, cotangents)
        check_cotangents(self.operation, cotangents)
        W, R = self._weights_to_onnx(W_ih, W_hh)
        iofc = self._gates_to_onnx(ifgo)
        grads = lstm_cell_grad(
            input, h_prev, c_prev, W, R, C_next=c_next, iofc=iofc, grad_H=grad_h, grad_C=grad_c,
            wrt=(self._kernel_name,),
        )  # fmt: skip
        return self._checked(self._out_of(grads))


@dataclass
class GradGRUCellInputOp(GradOperation):
    """One gradient of one GRU step, in PyTorch's convention.

    Parameters
    ----------
    input_index : int
        0 input, 1 h_prev, 2 W_ih, 3 W_hh, 4 input bias, 5 recurrence bias.
    hidden_size, output_id, input_ids, output_type, output_shape
        See `GradOperation`; at least two tensors are inputs.

    See Also
    --------
    gru_cell_grad : All gradients of a step at once, with ONNX's order of gates.

    Notes
    -----
    Weights and gates are in PyTorch's order r z n, the reset is after the product. The equations are those of
    `gru_grad`, for one step.

    Examples
    --------
    >>> from xpgrad import GradGRUCellInputOp
    >>> print(GradGRUCellInputOp(128, 3, 9, (4, 5), "Float32", (384, 128)))
    t9 = GradGRUCell[W_hh, hidden=128](t4, t5) : Float32 [384, 128]
    """

    operation: ClassVar[str] = "GradGRUCell"
    inputs: ClassVar[tuple[str, ...]] = ("input", "h_prev", "W_ih", "W_hh", "b_ih", "b_hh")
    kernel_names: ClassVar[tuple[str, ...]] = ("X", "H", "W", "R", "B", "B")
    operator: ClassVar[Operator] = "gru"
    gates: ClassVar[int] = 3
    # the reset gate's cotangent needs the recurrent product
    weights_used: ClassVar[dict[str, tuple[str, ...]]] = {
        "input": ("weight_ih", "weight_hh"),
        "": ("weight_hh",),
    }

    def __call__(
        self,
        grad_h: Array[A],
        input: Array[A],  # noqa: A002 - the cell's own name for it
        h_prev: Array[A],
        W_ih: Array[A],
        W_hh: Array[A],
        b_ih: Array[A] | None = None,
        b_hh: Array[A] | None = None,
        *,
        rzn: Array[A],
    ) -> A:
        """Compute this operation's gradient, and no other.

        Parameters
        ----------
        grad_h : array, shape (N, H)
            Cotangent of the step's output.
        input, h_prev : array, shapes (N, I), (N, H)
            The step's arguments.
        W_ih, W_hh : array, shapes (3H, I), (3H, H)
            Weights, gates in the order r z n.
        b_ih, b_hh : array, shape (3H,), optional
            Biases; the recurrence bias matters for the reset gate's slope.
        rzn : array, shape (N, 3H)
            Saved by the forward: the gates after their activations.

        Returns
        -------
        array, shape output_shape
            The gradient.

        Raises
        ------
        ValueError
            If the operation is not valid, a shape breaks its rule, or the gradient has another shape than
            declared.
        TypeError
            If arrays are missing or do not agree, or the gradient has another dtype than declared.
        """
        needed = {"input": input, "h_prev": h_prev, "W_ih": W_ih, "W_hh": W_hh, "rzn": rzn}
        self._before({"grad_h": grad_h, **needed}, {"b_ih": b_ih, "b_hh": b_hh})
        W, R = self._weights_to_onnx(W_ih, W_hh)
        biases: dict[str, Any] = {"bias_ih": b_ih, "bias_hh": b_hh}
        if (b_ih is None) != (b_hh is None):
            other = b_hh if b_ih is None else b_ih
            zero = array_namespace(other).zeros_like(other)
            biases = {name: zero if bias is None else bias for name, bias in biases.items()}
        grads = gru_cell_grad(
            input, h_prev, W, R, zrh=self._gates_to_onnx(rzn), grad_H=grad_h,
            B=convert("gru", biases, "torch", "onnx").get("B"), linear_before_reset=1,
            wrt=(self._kernel_name,),
        )  # fmt: skip
        return self._checked(self._out_of(grads))
