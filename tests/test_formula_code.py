"""What stands for a formula in the key of its compiled code: another formula has another one."""

import os
import subprocess
import sys

import numpy as np
import pytest

from xpgrad import activations
from xpgrad._elementwise import activation_formulas as _activation_formulas
from xpgrad.engine.formulas.formula import Formula

pytest.importorskip("llvmlite")
from xpgrad.engine.compiled.arrays import compiled_elements
from xpgrad.engine.compiled.formula_code import ScalarFormula, _digest

FACTOR = 2.0


def _helper(xp, x):
    return FACTOR * x


def _formula(xp, x, *, a):
    return (_helper(xp, x) + a,)


def _around(number):
    return lambda xp, x, *, a: (number * x + a,)


def _selecting(xp, x, *, a):
    return (x if a in {1.0, 2.0, "three", "four"} else -x,)


def _described(function, **constants):
    return ScalarFormula(*Formula(function, constants or {"a": 1.0}).key).description


def test_whatever_a_formula_reads_is_in_its_description(monkeypatch):
    first = _described(_formula)
    assert first == _described(_formula)
    assert first != _described(_formula, a=2.0)
    assert _described(_formula, a=0.0) != _described(_formula, a=-0.0)
    assert _described(_around(2.0)) != _described(_around(3.0))
    assert _described(_formula, a=_around(2.0)) != _described(_formula, a=_around(3.0))
    for name, value in {"FACTOR": 3.0, "_helper": lambda xp, x: 2.0 * x}.items():
        with monkeypatch.context() as patch:
            patch.setitem(globals(), name, value)
            _digest.cache_clear()
            assert _described(_formula) != first
    _digest.cache_clear()
    assert _described(_formula) == first


def test_a_function_behind_its_module_is_in_the_description(monkeypatch):
    formula = activations._prelu
    first = _described(formula)
    monkeypatch.setattr(_activation_formulas, "leaky_relu", lambda xp, x, alpha, beta: x)
    _digest.cache_clear()
    assert _described(formula) != first
    monkeypatch.undo()
    _digest.cache_clear()
    assert _described(formula) == first


def test_another_process_describes_it_alike():
    code = f"import {__name__} as t; print(t._described(t._selecting), t._described(t._formula), sep='\\n')"
    expected = f"{_described(_selecting)}\n{_described(_formula)}\n"
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", code], cwd=os.path.dirname(__file__), capture_output=True, text=True,
            env=os.environ | {"PYTHONHASHSEED": seed}, check=True,
        )  # fmt: skip
        assert run.stdout == expected


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_formula_needs_no_file(dtype):
    """A lambda around a number, with a number for each call, as no source could tell it."""
    formula = Formula(lambda xp, x, *, a, b: (xp.where(x > a, xp.exp(-x) * b, 0.5),), {"a": 0.25}, ("b",))
    code = compiled_elements(formula, ("each",), None, dtype)
    x = np.linspace(-1, 1, 33, dtype=dtype)
    y = np.empty_like(x)
    code.run(0, x.size, x.ctypes.data, y.ctypes.data, 3.0)
    np.testing.assert_allclose(y, np.where(x > 0.25, np.exp(-x) * 3, 0.5), rtol=4 * np.finfo(dtype).eps)
