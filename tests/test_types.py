"""Types that a checker of a user's code sees. CI checks the uses in tests/typing with mypy and pyright."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_overloads, get_type_hints

import pytest

import xpgrad
from xpgrad import losses
from xpgrad._operators import words as _words
from xpgrad._operators.types import A, AnyArray, Array, Lengths, array_arguments, result_type
from xpgrad._operators.units import UNITS

ROOT = Path(__file__).parent.parent
FUNCTIONS = [
    name
    for name in xpgrad.__all__
    if inspect.isfunction(getattr(xpgrad, name)) and name not in ("convert", "use_engine", "vjp")
]


def test_words_are_those_that_kernels_take() -> None:
    """A type of words has the very choices of the check at run time."""
    from xpgrad._conv import choice, geometry
    from xpgrad._recurrent.checked_call import DIRECTIONS

    _convert = importlib.import_module("xpgrad.convert")

    runtime = {
        _words.TimeDirection: DIRECTIONS,
        _words.AutoPad: geometry.AUTO_PADS,
        _words.ConvMethod: ("auto", *choice.METHODS),
        _words.Reduction: losses._REDUCTIONS,
        _words.Layout: (
            *_convert._LAYOUTS["lstm"],
            *_convert._cell_layouts.CELLS["lstm"],
            *_convert._head_layouts.LAYOUTS,
        ),
        _words.Operator: (*_convert._LAYOUTS, "slstm"),
    }
    for type_, choices in runtime.items():
        assert set(get_args(type_)) == set(choices)


def test_vjp_has_an_overload_for_each_form_of_results() -> None:
    """Of a recurrent operator's named tuples."""
    returns = " ".join(form.__annotations__["return"] for form in get_overloads(xpgrad.vjp))
    for unit in UNITS.values():
        for function in unit.functions.values():
            assert re.search(rf"\b{result_type(function).__name__}\[", returns), function.__name__


@pytest.mark.parametrize("module", ["xpgrad.cells", "xpgrad_torch.functional"])
def test_completion_shows_public_names_only(module: str) -> None:
    found = pytest.importorskip(module, reason="torch is not installed")
    assert dir(found) == sorted(found.__all__)


@pytest.mark.parametrize(
    "package", ["src/xpgrad", *(f"adapters/xpgrad_{x}" for x in ("jax", "onnx", "torch"))]
)
def test_packages_are_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()
    assert not list((ROOT / package).rglob("*.pyi"))


# ------------------------------------------------------------------------------- the sources' signatures


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_public_signature_says_any(name: str) -> None:
    """Of an array it says which; labels and resets are not of the dtype of the other arrays."""
    signature = inspect.signature(getattr(xpgrad, name))
    texts = {p.name: p.annotation for p in signature.parameters.values()}
    of_any = {n for n, text in texts.items() if re.search(r"\bAny\b", text)}
    assert of_any <= {"labels", "reset"}
    assert re.fullmatch(r"A|\w+\[A( \| MaybeNone)?\]", signature.return_annotation)
    selects = "MaybeNone" in signature.return_annotation
    assert selects == ("wrt" in texts) == (texts.get("wrt") == "Wanted[MaybeNone] | None")
    get_type_hints(getattr(xpgrad, name))  # every name in them is one of the module


@pytest.mark.parametrize("name", [n for n in xpgrad.__all__ if hasattr(getattr(xpgrad, n), "_fields")])
def test_named_tuples_are_of_the_type_of_their_arrays(name: str) -> None:
    kind = getattr(xpgrad, name)
    if name == "Validation":
        return
    assert kind.__parameters__ == (AnyArray,)
    assert set(get_type_hints(kind).values()) <= {AnyArray, AnyArray | Any}
    assert kind(*kind._fields) == kind._fields  # a plain tuple at run time
    assert kind[int].__origin__ is kind


# ------------------------------------------------------------------------- which arguments are arrays


@pytest.mark.parametrize(
    ("name", "arrays"),
    [
        ("relu", "X"),
        ("leaky_relu_grad", "dY Y"),
        ("softmax_cross_entropy", "X labels weights"),
        ("binary_cross_entropy_with_logits", "X targets weight pos_weight"),
        ("conv_grad", "dY X W sample_weight"),
        ("gru", "X W R B sequence_lens initial_h reset recurrent_mask zoneout_h"),
        ("lstm_cell_grad", "X H C W R C_next iofc grad_H grad_C B P sample_weight"),
    ],
)
def test_arguments_that_are_arrays(name: str, arrays: str) -> None:
    """Without `out`, which is memory for a result."""
    assert array_arguments(getattr(xpgrad, name)) == tuple(arrays.split())


def test_the_arguments_of_a_cell_that_are_arrays() -> None:
    def simple(xp: Any, x: Any, h: Any, W: Any, R: Any) -> Any:
        return xp.tanh(W.z(x) + R.z(h))

    cell = xpgrad.Cell(simple, W="z", R="z")
    assert array_arguments(cell) == ("X", "W", "R", "sequence_lens", "initial_h", "reset")
    assert {"H_all", "grad_H_all", "sample_weight"} <= set(array_arguments(cell.grad))
    assert not {"direction", "layout", "wrt", "per_sample"} & set(array_arguments(cell.grad))
    with pytest.raises(TypeError, match=r"expected \(X, W, R, sequence_lens=None, initial_h=None, \*, "):
        cell()


def test_an_argument_of_any_type_is_no_array() -> None:
    """Only `Array` and `Lengths` make one, under whatever name a module imports them."""
    As = Array

    def function(X, note, lengths=None, *, B=None):
        pass

    function.__annotations__ = {
        "X": As[A], "note": Any, "lengths": Lengths | None, "B": Array | None, "return": A,
    }  # fmt: skip
    assert array_arguments(function) == ("X", "lengths", "B")
    assert result_type(function) is None


@pytest.mark.parametrize(
    ("function", "result"),
    [(xpgrad.lstm, xpgrad.LSTMForward), (xpgrad.prelu_grad, xpgrad.PReLUGrads), (xpgrad.tanh, None)],
)
def test_results(function: Callable[..., Any], result: Any) -> None:
    assert result_type(function) is result
