"""The elementary functions of compiled formulas: float32 against float64, float64 against 200 bits."""

import importlib
import re

import numpy as np
import pytest

from xpgrad.engine import Elementwise, Formula, NumpyEngine, Operand, Span
from xpgrad.engine.formulas.special import gaussian, logistic, normal_cdf, tail_ratio

pytest.importorskip("llvmlite", reason="llvmlite is not installed: nothing is compiled")

from compiled_calls import written
from xpgrad.engine.compiled.machine_code import features, target
from xpgrad.engine.compiled.native import elements, inside
from xpgrad.engine.compiled.scalar_common import wide_vectors


def products_are_fused():
    """Whether this processor has fused multiply-adds: all have but old x86 ones."""
    return "fma" in features() or not target()[0].startswith("x86")


def _exp(xp, x):
    return (xp.exp(x),)


def _expm1(xp, x):
    return (xp.expm1(x),)


def _log(xp, x):
    return (xp.log(x),)


def _log1p(xp, x):
    return (xp.log1p(x),)


def _logistic(xp, x):
    return (logistic(xp, x),)


def _tanh(xp, x):
    return (xp.tanh(x),)


def _abs(xp, x):
    return (xp.abs(x),)


def _gaussian(xp, x):
    return (gaussian(xp, x),)


def _tail_ratio(xp, x):
    return (tail_ratio(xp, x),)


def _normal_cdf(xp, x):
    return (normal_cdf(xp, x, gaussian(xp, x)),)


def evaluate(function, x):
    """A formula of one operand, compiled."""
    evaluator = NumpyEngine()
    out = evaluator.rows(1, x.size, like=x)
    stage = Elementwise(Formula(function, {}), [Operand(x[None])], [Operand(out)])
    evaluator.scan([stage], np.asarray([Span(1)]))
    return out[0]


class TestSingle:
    """float32."""

    def test_exp(self):
        x = np.linspace(-86.6, 88.7, 300_001, dtype=np.float32)
        expected = np.exp(x.astype(np.float64))
        assert np.max(np.abs(evaluate(_exp, x) / expected - 1)) < 1e-7

    def test_exp_ends(self):
        """Numbers up to the largest one, then inf; 0 in place of the smallest ones."""
        top = np.log(np.finfo(np.float32).max.astype(np.float64))
        x = np.linspace(top - 1e-3, top + 1, 10_001).astype(np.float32)
        large = x.astype(np.float64)
        np.testing.assert_array_equal(np.isinf(evaluate(_exp, x)), large > top)
        np.testing.assert_array_equal(np.isinf(evaluate(_expm1, x)), large > top)
        low = evaluate(_exp, np.linspace(-200, -86, 100_001, dtype=np.float32))
        assert np.all(np.diff(low) >= 0)
        assert np.all((low == 0) | (low > 2.0**-126))

    def test_logistic(self):
        x = np.linspace(-87.3, 100, 300_001, dtype=np.float32)
        expected = 1 / (1 + np.exp(-x.astype(np.float64)))
        assert np.max(np.abs(evaluate(_logistic, x) / expected - 1)) < 2e-7
        low = np.linspace(-110, -86, 100_001, dtype=np.float32)
        subnormal = np.exp(low.astype(np.float64))
        subnormal[subnormal < 1 / np.finfo(np.float32).max] = 0
        np.testing.assert_allclose(evaluate(_logistic, low), subnormal, rtol=2e-7, atol=2e-45)

    def test_tanh(self):
        x = np.concatenate([np.linspace(-12, 12, 300_001), np.logspace(-30, 0, 10_001)]).astype(np.float32)
        expected = np.tanh(x.astype(np.float64))
        error = np.abs(evaluate(_tanh, x) - expected) / np.maximum(np.abs(expected), 1e-37)
        assert np.max(error) < (3e-7 if products_are_fused() else 3.5e-7)

    def test_tanh_saturates(self):
        x = np.asarray([9.1, 20, 1e30, -9.1, -20, -1e30], dtype=np.float32)
        np.testing.assert_array_equal(evaluate(_tanh, x), [1, 1, 1, -1, -1, -1])

    def test_expm1(self):
        near = np.geomspace(1e-30, 1, 20_001)
        x = np.concatenate([np.linspace(-30, 88.7, 300_001), near, -near]).astype(np.float32)
        x = x[x != 0]
        assert np.max(np.abs(evaluate(_expm1, x) / np.expm1(x.astype(np.float64)) - 1)) < 1.5e-7

    def test_log1p(self):
        near = np.geomspace(1e-30, 0.999, 20_001)
        x = np.concatenate([np.linspace(-0.9999, 10, 300_001), np.geomspace(1e-30, 1e38, 50_001), -near])
        x = x.astype(np.float32)
        x = x[x != 0]
        assert np.max(np.abs(evaluate(_log1p, x) / np.log1p(x.astype(np.float64)) - 1)) < 1.5e-7
        ends = np.asarray([-1, -2, np.inf, np.nan, 0], dtype=np.float32)
        np.testing.assert_array_equal(evaluate(_log1p, ends), [-np.inf, np.nan, np.inf, np.nan, 0])

    def test_log(self):
        x = np.geomspace(1e-37, 1e38, 50_001).astype(np.float32)
        np.testing.assert_allclose(evaluate(_log, x), np.log(x.astype(np.float64)), rtol=1e-7, atol=1e-9)

    def test_gaussian(self):
        """Also where z**2 is large, whose rounding alone would be an error of 4e-6."""
        x = np.linspace(-13, 13, 300_001, dtype=np.float32)
        expected = np.exp(-0.5 * x.astype(np.float64) ** 2)
        assert np.max(np.abs(evaluate(_gaussian, x) / expected - 1)) < 2e-7

    @pytest.mark.parametrize("function", [_exp, _expm1, _logistic, _tanh, _abs, _gaussian])
    def test_special_values(self, function):
        check_special_values(function, np.float32)


def check_special_values(function, dtype):
    x = np.asarray([-np.inf, -1e4, -0.0, 0.0, 1e4, np.inf, np.nan], dtype=dtype)
    expected = {
        _exp: [0, 0, 1, 1, np.inf, np.inf, np.nan],
        _expm1: [-1, -1, -0.0, 0, np.inf, np.inf, np.nan],
        _logistic: [0, 0, 0.5, 0.5, 1, 1, np.nan],
        _tanh: [-1, -1, -0.0, 0, 1, 1, np.nan],
        _abs: [np.inf, 1e4, 0, 0, 1e4, np.inf, np.nan],
        _log: [np.nan, np.nan, -np.inf, -np.inf, np.log(1e4), np.inf, np.nan],
        _log1p: [np.nan, np.nan, -0.0, 0, np.log1p(1e4), np.inf, np.nan],
        _gaussian: [0, 0, 1, 1, 0, 0, np.nan],
    }[function]
    result = evaluate(function, x)
    np.testing.assert_allclose(result, expected, rtol=2e-7 if dtype == np.float32 else 3e-16)
    if dtype == np.float64 and function is not _abs:
        np.testing.assert_array_equal(np.signbit(result[:-1]), np.signbit(expected[:-1]))


# ------------------------------------------------------------------------------------------------- float64

RNG = np.random.default_rng(5)
TINY, HUGE = 5e-324, np.finfo(np.float64).max


def around(values):
    """Values, and the numbers before and behind each."""
    values = np.asarray(values, dtype=np.float64)
    return np.concatenate([values, np.nextafter(values, -np.inf), np.nextafter(values, np.inf)])


def magnitudes(low, high, count):
    """Numbers of every size from 2**low to 2**high."""
    return np.exp2(RNG.uniform(low, high, count))


def exponents():
    """Numbers for exp and its kin: everywhere, where a power of two changes, and at both ends."""
    near = magnitudes(-1074, 9, 1500)
    return np.concatenate([
        RNG.uniform(-750, 712, 2000), RNG.uniform(-745.2, -708, 800), RNG.uniform(-3, 3, 3000), near, -near,
        around((np.arange(-1076, 1026) + 0.5) * np.log(2))[::2],
        around([0, 1, -1, 709.782712893384, -745.1332191019412, -708.3964185322641, TINY, -TINY]),
        [HUGE, -HUGE],
    ])  # fmt: skip


def positives():
    """Numbers for log: of every size, near 1, and where the power of two changes."""
    powers = 2.0 ** np.arange(-1074, 1024)
    return np.concatenate([
        magnitudes(-1074, 1024, 2000), RNG.uniform(0.5, 2, 3000), 1 + RNG.uniform(-1e-6, 1e-6, 500),
        around(powers[1::2])[:-1], around(powers[52:] * np.sqrt(0.5))[::2], around([1, np.sqrt(2), HUGE / 2]),
    ])  # fmt: skip


def above_minus_one():
    """Numbers for log1p: those for log, and towards -1 and 0."""
    near = magnitudes(-1074, 0, 1500)
    return np.concatenate(
        [positives(), RNG.uniform(-1, 1, 2000), near, -near[near < 1], -1 + near[near > 1e-16]]
    )


def normal_points():
    """Numbers for the normal distribution, as far as its tail is a normal number."""
    near = magnitudes(-1074, 5, 500)
    return np.concatenate([RNG.uniform(-37.5, 9, 6000), RNG.uniform(-3, 3, 4000), near, -near])


def exact_functions():
    mp = pytest.importorskip("mpmath", reason="mpmath is not installed: no numbers of 200 bits")
    mp.mp.prec = 200
    return {
        _exp: (mp.exp, exponents),
        _expm1: (mp.expm1, exponents),
        _logistic: (lambda x: 1 / (1 + mp.exp(-x)), exponents),
        _tanh: (mp.tanh, exponents),
        _log: (mp.log, positives),
        _log1p: (mp.log1p, above_minus_one),
        _gaussian: (lambda z: mp.exp(-z * z / 2), lambda: RNG.uniform(-39, 39, 6000)),
        _tail_ratio: (
            lambda z: mp.exp(z * z / 2) * mp.erfc(z / mp.sqrt(2)) / 2,
            lambda: np.concatenate([RNG.uniform(0, 39, 4000), magnitudes(-1074, 5, 2000), [0]]),
        ),
        _normal_cdf: (lambda z: mp.erfc(-z / mp.sqrt(2)) / 2, normal_points),
    }, mp


def units_in_the_last_place(results, x, exact, mp):
    """The errors of the results in units of the last place of the exact values."""
    errors = []
    for result, value in zip(results.tolist(), x.tolist(), strict=True):
        expected = exact(mp.mpf(value))
        rounded = float(expected)
        if np.isinf(rounded) or np.isinf(result):
            errors.append(0 if result == rounded or min(abs(result), abs(rounded)) > 0.99 * HUGE else np.inf)
            continue
        errors.append(float(abs(mp.mpf(result) - expected) / mp.mpf(float(np.spacing(abs(rounded))))))
    return np.asarray(errors)


FUNCTIONS = [_exp, _expm1, _logistic, _tanh, _log, _log1p, _gaussian, _tail_ratio, _normal_cdf]


class TestDouble:
    """float64."""

    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_errors_in_units_of_the_last_place(self, function):
        """Subnormal arguments and results too, and where results become inf and 0."""
        functions, mp = exact_functions()
        exact, points = functions[function]
        x = points()
        errors = units_in_the_last_place(evaluate(function, x), x, exact, mp)
        worst = np.argmax(errors)
        assert errors[worst] < (8 if function in (_tail_ratio, _normal_cdf) else 2.5), x[worst]

    @pytest.mark.parametrize("function", [_exp, _expm1, _logistic, _tanh, _abs, _log, _log1p, _gaussian])
    def test_special_values(self, function):
        check_special_values(function, np.float64)

    def test_loops_become_vector_instructions(self):
        """All functions in one loop: a single call or branch in any would keep the whole from it."""
        from llvmlite import binding

        from xpgrad.engine.compiled.machine_code import linker

        s = importlib.import_module("xpgrad.engine.compiled.scalar_float64")

        @inside("contract")
        def loop(source, target, size):
            wide_vectors()
            x, y = elements(source, 0, np.float64), elements(target, 0, np.float64)
            for i in range(size):
                v = x[i]
                e = s.normal_cdf(v, s.gaussian(v)) + s.exp(v)
                y[i] = e + s.expm1(v) + s.logistic(v) + s.tanh(v) + s.log(v) + s.log1p(v)

        def run(source, target, size):
            loop(source, target, size)

        module = binding.parse_assembly(str(written(run, "void(int64, int64, int64)")[0]))
        linker().optimize(module)
        text = str(module)
        assert re.search(r"fdiv contract <\d+ x double>", text)
        assert not re.search(r"call double @(?!llvm\.)", text)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normal_distribution_on_arrays(dtype):
    """The same formulas evaluated by NumPy, and compiled."""
    functions, mp = exact_functions()
    x = np.linspace(-12.7, 8, 2001).astype(dtype)
    for function in (_gaussian, _normal_cdf):
        expected = np.asarray([float(functions[function][0](mp.mpf(float(v)))) for v in x])
        for result in (function(np, x)[0], evaluate(function, x)):
            assert result.dtype == dtype
            np.testing.assert_allclose(result, expected, rtol=5e-7 if dtype == np.float32 else 1e-15)
