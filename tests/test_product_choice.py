"""Whose products are taken: measured once, remembered, forced; and that a BLAS still serves."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no products to choose from")

from xpgrad import engine
from xpgrad.engine import NumpyEngine
from xpgrad.engine.compiled.products import choice as product_choice
from xpgrad.engine.compiled.products import matrix as products
from xpgrad.engine.process import blas as process_blas
from xpgrad.engine.programs.recorded import row_major
from xpgrad.engine.programs.recorder import Recorder


@pytest.fixture
def numpy_engine(monkeypatch, tmp_path):
    """An engine with a BLAS for which nothing was chosen yet, and an empty cache folder."""
    one = NumpyEngine()
    if one.blas is None:
        pytest.skip("NumPy's BLAS exports no gemm under a known name")
    monkeypatch.setattr(product_choice, "_chosen", {})
    monkeypatch.setattr(product_choice, "_path", lambda: tmp_path / "products.json")
    monkeypatch.delenv("XPGRAD_PRODUCTS", raising=False)
    return one


@pytest.fixture
def measured(monkeypatch):
    """Which classes were measured; a BLAS is so many times as fast as `measured.ratio` says."""

    class Calls(list):
        ratio, is_steady = 2.0, True

    calls = Calls()

    def measure(engine, blas, dtype, kind):
        calls.append((dtype, kind))
        return product_choice.Measured(calls.ratio, calls.is_steady)

    monkeypatch.setattr(product_choice, "_measure", measure)
    return calls


def choose(one, dtype="float32", kind="few rows"):
    return product_choice.choice(one, dtype, kind).way


def test_measured_once_and_remembered(numpy_engine, measured, monkeypatch):
    assert choose(numpy_engine) == choose(numpy_engine) == "blas"
    assert measured == [("float32", "few rows")] * 2  # it has to win twice
    monkeypatch.setattr(product_choice, "_chosen", {})  # another process
    assert choose(numpy_engine) == "blas"
    assert len(measured) == 2
    measured.ratio = 1.01
    assert choose(numpy_engine, kind="many rows") == "own"
    assert measured[2:] == [("float32", "many rows")]
    monkeypatch.setattr(product_choice, "_name", lambda *_: "another machine")
    monkeypatch.setattr(product_choice, "_chosen", {})
    assert choose(numpy_engine) == "own"
    assert len(measured) == 4


def test_a_blas_that_wins_once_only(numpy_engine, monkeypatch):
    """What took the cores from one measurement is gone at the next."""
    ratios = iter([6.5, 0.8])
    monkeypatch.setattr(product_choice, "_measure", lambda *_: product_choice.Measured(next(ratios), True))
    assert choose(numpy_engine) == "own"


def test_what_others_disturbed_is_measured_again_in_the_next_process(numpy_engine, measured, monkeypatch):
    def later_process(ratio, is_steady):
        monkeypatch.setattr(product_choice, "_chosen", {})
        measured.ratio, measured.is_steady = ratio, is_steady
        before = len(measured)
        way = choose(numpy_engine)
        assert choose(numpy_engine) == way  # for as long as the process lives
        return way, len(measured) - before

    assert later_process(0.5, False) == ("own", 1)
    assert later_process(3.0, False) == ("own", 2)  # a BLAS has to win every time
    assert later_process(3.0, True) == ("blas", 2)
    assert later_process(0.5, True) == ("blas", 0)


def test_a_machine_that_is_never_quiet_settles(numpy_engine, measured, monkeypatch):
    measured.is_steady, ways = False, []
    for ratio in (3.0, 2.5, 1.9, 2.2, 4.0, 0.1, 0.2):
        monkeypatch.setattr(product_choice, "_chosen", {})
        measured.ratio = ratio
        ways.append(choose(numpy_engine))
    assert ways == ["blas"] * 7
    assert len(measured) == 2 * product_choice._TRIES


@pytest.mark.parametrize("text", ['[0.5, "fast"]', "[null, -1.0]", "[]"])
def test_damaged_tries_are_left_out(text, numpy_engine, measured):
    name = product_choice._name(numpy_engine.blas, numpy_engine.team.size(), "float32", "few rows")
    product_choice._path().write_text(f'{{"{name}": {text}}}')
    measured.is_steady = False
    assert choose(numpy_engine) == ("own" if "0.5" in text else "blas")


@pytest.mark.parametrize(("share", "is_steady"), [(1.0, True), (0.8, True), (0.6, False), (0.5, False)])
def test_threads_that_wait_for_a_core_disturb(share, is_steady, numpy_engine, monkeypatch):
    """Our threads' time on processors tells it, of all rounds of all sizes together."""
    threads = numpy_engine.team.size()
    monkeypatch.setattr(product_choice, "_ratio", lambda *_: (1.5, share * threads * 0.2, 0.2))
    found = product_choice._measure(numpy_engine, numpy_engine.blas, "float32", "many rows")
    assert found == (pytest.approx(1.5), is_steady)


def test_rounds_take_the_shortest_times_and_count_ours_alone(monkeypatch):
    """The clocks are those of a machine on which ours has both cores, and the other way none."""
    clock = {"wall": 0.0, "used": 0.0}
    times = {"ours": iter([9.0, 3.0, 2.0] + [3.0] * 6), "theirs": iter([9.0, 1.0] + [2.0] * 7)}

    def run(which):
        taken = next(times[which])
        clock["wall"] += taken
        clock["used"] += 2 * taken if which == "ours" else 0

    ways = [functools.partial(run, which) for which in times]
    monkeypatch.setattr(product_choice.time, "perf_counter", lambda: clock["wall"])
    monkeypatch.setattr(product_choice.time, "process_time", lambda: clock["used"])
    assert product_choice._ratio(*ways) == (2.0, 46.0, 23.0)


@pytest.mark.parametrize(("has_pool", "way"), [(True, "own"), (False, "blas")])
def test_a_blas_with_threads_of_its_own_has_to_win_by_more(
    has_pool, way, numpy_engine, measured, monkeypatch
):
    """Within a kernel its threads and ours take turns."""
    measured.ratio = 1.1
    monkeypatch.setattr(NumpyEngine, "blas", numpy_engine.blas._replace(has_pool=has_pool))
    assert choose(numpy_engine) == way
    monkeypatch.setattr(product_choice, "_chosen", {})  # another process
    assert choose(numpy_engine) == way


def test_a_weight_is_packed_as_in_a_time_loop():
    """A BLAS that packs weights is measured with packed ones, those that it packs."""
    pytest.importorskip("torch", reason="PyTorch is not installed: no BLAS packs")
    one = engine._adapter("torch")
    if one is None or one.blas is None or not one.blas.packed:
        pytest.skip("PyTorch's BLAS does not pack")
    large, small = (np.ones(shape, np.float32) for shape in ((650, 2600), (16, 64)))
    assert product_choice._packed_by_blas(one, small) is None
    packed = product_choice._packed_by_blas(one, large)
    found = np.empty((3, 2600), np.float32)
    product_choice._by_blas(one.blas, large, packed, 1, (np.ones((3, 650), np.float32), found))
    assert np.all(found == 650)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"NAME": "fast"}', '{"NAME": -1.0}', '{"NAME": NaN}'])
def test_a_file_that_says_nothing(text, numpy_engine, measured):
    name = product_choice._name(numpy_engine.blas, numpy_engine.team.size(), "float32", "few rows")
    product_choice._path().write_text(text.replace("NAME", name))
    assert choose(numpy_engine) == "blas"
    assert len(measured) == 2


def test_a_folder_that_cannot_be_written(numpy_engine, measured, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(product_choice, "_path", lambda: tmp_path / "file" / "products.json")
    assert choose(numpy_engine) == "blas"


@pytest.mark.parametrize("what", ["removed", "upgraded"])
def test_the_file_of_a_blas_that_is_loaded_may_change(what, numpy_engine, measured, monkeypatch, tmp_path):
    """Another version's file must not take the loaded one's result."""
    library = tmp_path / "blas.so"
    library.write_bytes(b"old")
    blas = numpy_engine.blas._replace(extension=str(library), size=3)
    monkeypatch.setattr(NumpyEngine, "blas", blas)
    name = product_choice._name(blas, 2, "float32", "few rows")
    library.unlink() if what == "removed" else library.write_bytes(b"a newer one")
    assert product_choice._name(blas, 2, "float32", "few rows") == name
    assert choose(numpy_engine) == "blas"
    assert product_choice.describe(numpy_engine)


def test_a_library_is_found_without_its_file(numpy_engine):
    assert numpy_engine.blas.size == os.stat(numpy_engine.blas.extension).st_size
    assert process_blas._size_of("no such file") == 0


def test_forced(numpy_engine, measured, monkeypatch):
    monkeypatch.setenv("XPGRAD_PRODUCTS", "own")
    assert choose(numpy_engine) == "own"
    monkeypatch.setenv("XPGRAD_PRODUCTS", "blas")
    assert choose(numpy_engine) == "own"  # for as long as the process lives
    assert choose(numpy_engine, kind="many rows") == "blas"
    monkeypatch.setenv("XPGRAD_PRODUCTS", "mine")
    with pytest.raises(ValueError, match="XPGRAD_PRODUCTS is 'mine', expected 'own' or 'blas'"):
        choose(numpy_engine, "float64")
    assert not measured


def test_without_blas_they_are_our_own(numpy_engine, measured, monkeypatch):
    monkeypatch.setenv("XPGRAD_PRODUCTS", "blas")
    monkeypatch.setattr(NumpyEngine, "blas", None)
    assert choose(numpy_engine) == "own"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", product_choice.CLASSES)
def test_what_is_measured_is_one_product(kind, dtype, numpy_engine, monkeypatch):
    """Both ways compute the same."""
    matrices = product_choice._matrices

    def keep(*sizes):
        found = matrices(*sizes)
        rng = np.random.default_rng(0)
        for array in found[:2]:
            array[...] = rng.normal(size=array.shape)
        results.append(found[2])
        return found

    results, pairs = [], []
    monkeypatch.setattr(product_choice, "_matrices", keep)
    monkeypatch.setattr(product_choice, "_ratio", lambda *pair: pairs.append(pair) or (1.5, 1.0, 1.0))
    assert product_choice._measure(numpy_engine, numpy_engine.blas, dtype, kind).ratio == pytest.approx(1.5)
    for (ours, theirs), c in zip(pairs, results, strict=True):
        ours()
        found = c.copy()
        c.fill(np.nan)
        theirs()
        np.testing.assert_allclose(found, c, rtol=0, atol=1e-3 if dtype == "float32" else 1e-11)


def test_classes():
    """Narrow: a first factor by rows, with a short sum or few columns, but not so few that all is packing."""
    shapes = [(64, 512), (512, 64), (128, 512), (129, 512), (31, 512), (512, 16)]
    expected = ["narrow"] * 3 + ["many rows"] * 3
    assert [product_choice.kind_of(*shape, by_rows=True) for shape in shapes] == expected
    assert product_choice.kind_of(64, 512, by_rows=False) == "many rows"


@pytest.mark.parametrize(("kind", "mine"), [("narrow", [0]), ("many rows", [1, 2])])
def test_products_go_by_their_class(kind, mine, monkeypatch):
    """An input's product is narrow; a weight's gradient is not, nor is a product with a larger weight."""
    one = NumpyEngine()
    if one.blas is None:
        pytest.skip("NumPy's BLAS exports no gemm under a known name")
    monkeypatch.setattr(NumpyEngine, "multiplies", lambda self, dtype, asked: asked == kind)
    shapes = [(300, 64), (200, 64), (200, 200)]
    layouts = [(shape, row_major(shape)) for shape in shapes]
    recorder, (x, w, v) = Recorder.of_unnamed(one, layouts, np.dtype("float32"))
    y = recorder.product(x, w.T)
    recorder.program([recorder.product(y.T, x), recorder.product(y, v)])
    kinds = [type(made).__name__ for made in recorder._draft.instructions]
    made = [kind for kind in kinds if kind.endswith("Multiply")]
    assert made == ["Multiply" if number in mine else "BlasMultiply" for number in range(3)]
    own = []
    monkeypatch.setattr(products, "multiply", lambda team, a, b, c, add=False: own.append(a.shape))
    x, w, v = (np.ones(shape, np.float32) for shape in shapes)
    y = np.ones((300, 200), np.float32)
    factors = ((x, w.T), (y.T, x), (y, v))
    for a, b in factors:
        one.product(a, b)
    assert own == [factors[number][0].shape for number in mine]


def test_info_tells_it(numpy_engine, measured, monkeypatch):
    lines = product_choice.describe(numpy_engine)
    assert set(lines.values()) == {"measured when they are first asked for"}
    choose(numpy_engine)
    slower = "blas: a BLAS is 2.00 times as fast"
    assert product_choice.describe(numpy_engine)["numpy, few rows, float32"] == slower
    monkeypatch.setattr(product_choice, "_chosen", {})
    assert product_choice.describe(numpy_engine)["numpy, few rows, float32"] == slower
    monkeypatch.setenv("XPGRAD_PRODUCTS", "own")
    assert (
        product_choice.describe(numpy_engine)["numpy, many rows, float64"] == "own: XPGRAD_PRODUCTS says so"
    )
    assert set(engine.describe_products()) >= set(lines)


CODE = """
    import importlib, sys
    import numpy as np, xpgrad
    for host in sys.argv[1:]:
        importlib.import_module(host)
    rng = np.random.default_rng(0)
    # R is large enough to be packed for a BLAS, the second direction's from where it begins
    X, W, R = (0.1 * rng.normal(size=s).astype("float32") for s in [(13, 8, 32), (2, 768, 32), (2, 768, 192)])
    for call in range(3):
        out = xpgrad.lstm(X, W, R, direction="bidirectional")
        saved = {"H_all": out.H_all, "C_all": out.C_all, "iofc": out.iofc}
        grads = xpgrad.lstm_grad(X, W, R, **saved, grad_H_all=out.H_all, direction="bidirectional")
    found = [*np.moveaxis(out.H_all, 1, 0), grads.dX, *grads.dW, *grads.dR]
    print(*(float(np.abs(a).sum()) for a in found))
"""


def test_every_way_agrees_in_a_process_of_its_own():
    found = []
    hosts = [["torch"]] if importlib.util.find_spec("torch") else []
    for way, host in [("own", []), ("blas", []), *(("blas", host) for host in hosts)]:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(CODE), *host], env=os.environ | {"XPGRAD_PRODUCTS": way},
            check=True, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        found.append(json.loads(f"[{','.join(done.stdout.split())}]"))
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-4)
