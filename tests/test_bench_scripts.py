"""The scripts beside the benchmarks: pages from runs, the track record, and the verdict on a change."""

import datetime
import importlib
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "asv_bench"


@pytest.fixture
def script(monkeypatch):
    """Import one of the scripts, which find one another in their folder."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


# -------------------------------------------------------------------------------------- between marks


def test_text_between_marks_is_replaced(script, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n<!-- y: begin -->\n<!-- y: end -->\n")
    script("page").write_between(page, "x", "new")
    assert page.read_text() == (
        "a\n<!-- x: begin -->\nnew\n<!-- x: end -->\nb\n<!-- y: begin -->\n<!-- y: end -->\n"
    )


def test_a_page_without_marks_is_left_alone(script, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- x: begin -->\nold\n")
    with pytest.raises(ValueError, match="has no marks <!-- x: begin -->"):
        script("page").write_between(page, "x", "new")
    assert page.read_text() == "<!-- x: begin -->\nold\n"


# ------------------------------------------------------------------------------------ matrix products


def test_the_table_of_products(script, monkeypatch):
    """Every way computes, few rows and many, and a row of the table has a cell for each."""
    pytest.importorskip("torch", reason="torch is not installed: its products stand beside ours")
    pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no products of our own")
    products = script("products")
    monkeypatch.setattr(products, "FEW", [(3, 20, 30)])
    monkeypatch.setattr(products, "MANY", [(9, 7, 20, "A"), (9, 7, 20, "B")])
    lines = list(products.table(["float32", "float64"], seconds=0.0001))
    assert len(lines) == 2 + 6
    assert {line.count("|") for line in lines} == {7}
    assert "few, float32" in lines[2]
    assert "A turned" in lines[3]


# --------------------------------------------------------------------------------------- instructions


def test_the_table_of_instructions(script, monkeypatch):
    """A step's products have the operations that its sizes say, and every kind has a time."""
    pytest.importorskip("torch", reason="torch is not installed: the steps are its modules'")
    pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no programs")
    instructions = script("instructions")
    program = instructions.Program
    monkeypatch.setattr(program, "__init__", instructions.note(program.__init__))
    monkeypatch.setattr(instructions, "PRODUCTS", ((3, 4, 5),))
    T, N, I, H = shape = (3, 2, 5, 7)
    step = instructions.training_step("LSTM", shape, {})
    whole, parts, *shares, operations = instructions.measure(step, 1e3, turns=2, seconds=0.001)
    assert set(parts) == {"products", "packing", "arithmetic", "time loops"}
    assert min(parts["products"], parts["time loops"], *shares) > 0
    assert whole > parts["time loops"]
    # the input's three products, and the recurrent weight's gradient: the first step has no state before it
    assert operations == 2 * N * 4 * H * (T * 3 * I + (T - 1) * H)


# --------------------------------------------------------------------------------- the page of a run


TITLES = {"lstm": "LSTM, torch.nn.LSTM", "jax": "LSTM, JAX"}


def _side(median):
    return {"median": median, "low": 0.9 * median, "high": 1.1 * median, "calls": 3}


def _report(family, peer, rows, **changes):
    lines = [
        {
            "work": work, "ours": _side(ours), "peer": _side(theirs), "ratio": theirs / ours,
            "path": "ATen, mm", "missing": None, "others": 0.0,
            "operations": 10**9, "traffic": 10**6, "dtype": "float32",
        }
        for work, ours, theirs in rows
    ]  # fmt: skip
    ratios = [row["ratio"] for row in lines]
    group = {
        "family": family, "title": TITLES[family], "peer": peer, "ours": "xpgrad-numpy",
        "what": "step", "aim": 2.0, "least": 0.95, "ratio": math.prod(ratios) ** (1 / len(ratios)),
        "lowest": min(ratios), "highest": max(ratios), "rows": lines, **changes,
    }  # fmt: skip
    return {
        "xpgrad": "0.1.0",
        "measured": "2026-11-23",
        "machine": {"cpu": "Some CPU", "cores": 2, "threads": 2, "variables": {}},
        "rates": {"products": {"float32": 1e12}, "bandwidth": 1e10},
        "implementations": {peer: f"{peer} 1.0"},
        "missing": {},
        "groups": [group],
    }


@pytest.mark.parametrize(
    ("cpu", "name"),
    [("Intel(R) Xeon(R) Processor", "intel_xeon"), ("AMD EPYC", "amd_epyc"), ("Some CPU @ 2.00GHz", "some")],
)
def test_names_of_pages(script, cpu, name):
    assert script("page").slug(cpu) == name


def test_the_pages_of_two_machines(script, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: the page has a picture")
    pages, gains, performance = (script(name) for name in ("page", "gains", "performance"))
    monkeypatch.setattr(pages, "MACHINES", tmp_path / "machines")
    monkeypatch.setattr(gains, "MACHINES", tmp_path / "machines")
    monkeypatch.setattr(gains, "TABLE", tmp_path / "gains.py")
    for attribute, mark in (("PAGE", "machines"), ("README", "performance")):
        page = tmp_path / f"{attribute}.md"
        page.write_text(f"<!-- {mark}: begin -->\n<!-- {mark}: end -->\n")
        monkeypatch.setattr(performance, attribute, page)
    lstm = _report("lstm", "torch", [("small", 0.004, 0.002), ("large", 0.002, 0.016)])
    jax = _report("jax", "jax", [("scan", 0.001, 0.002)])
    other = _report("lstm", "torch", [("small", 0.001, 0.003)])
    other["machine"]["cpu"] = "Another CPU"
    other["measured"] = "2026-11-24"

    def run(*reports):
        files = [tmp_path / f"{k}.json" for k, _ in enumerate(reports)]
        for file, report in zip(files, reports, strict=True):
            file.write_text(json.dumps(report))
        monkeypatch.setattr(sys, "argv", ["performance.py", *map(str, files)])
        performance.main()

    run(lstm, jax)
    run(other)

    page = (tmp_path / "machines" / "some.md").read_text()
    assert "| LSTM, torch.nn.LSTM | 2.00 | 2, least 0.95 | 0.50 | 8.00 | 35% | 18% |" in page
    assert "| small | 4 | 20% | 2 | 20% | 0.50 | 1 | products | 25% | 50% |" in page
    assert "The peer's path, by the time it takes: ATen, mm." in page
    assert "- measured: 2026-11-23\n- machine: Some CPU, 2 cores, 2 threads\n" in page
    behind = page.partition("<!-- behind: begin -->")[2].partition("<!-- behind: end -->")[0]
    assert behind.strip().splitlines()[2:] == ["| small | LSTM, torch.nn.LSTM | 0.50 |"]
    for table in (performance.README.read_text(), performance.PAGE.read_text()):
        assert table.splitlines()[1:-1] == [
            "| compared with | Another CPU, 2 threads | Some CPU, 2 threads |",
            "| --- | ---: | ---: |",
            "| LSTM, torch.nn.LSTM | 3.00 (3.00 to 3.00) | 2.00 (0.50 to 8.00) |",
            "| LSTM, JAX | - | 2.00 (2.00 to 2.00) |",
            "",
            "Measured: Another CPU on 2026-11-24; Some CPU on 2026-11-23. "
            "A dash: newer than the measurement, or not installed.",
        ]
    assert (tmp_path / "machines" / "some.png").stat().st_size > 10_000
    assert '"LSTM": (3.0, 3.0, 3.0)' in gains.TABLE.read_text()


def test_every_ratio_on_the_pages_is_a_speedup():
    """Above 1 ours is faster, in every table: shares of a limit are percent."""
    docs = FOLDER.parent / "docs"
    pages = [*(docs / "machines").glob("*.md"), docs / "performance.md", FOLDER.parent / "README.md"]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"ours / (peer|floor)|peer / floor", text), page
        behind = text.partition("<!-- behind: begin -->")[2].partition("<!-- behind: end -->")[0]
        assert all(float(row) < 1 for row in re.findall(r"\| ([\d.]+) \|$", behind, re.M))
        assert re.search(r"[Mm]easured: .*20\d\d-\d\d-\d\d", text), page


@pytest.mark.parametrize(
    ("page", "claim", "title", "lowest", "highest"),
    [
        ("README.md", "a training step of a GRU takes less than a third of", "GRU, torch.nn.GRU", 3, 99),
        (
            "README.md",
            "with lengths from 10 to 50 takes less than a third of",
            "LSTM and GRU, lengths 10 to 50, torch.nn on packed sequences",
            3,
            99,
        ),
        ("docs/index.md", "a training step of a GRU takes less than a third of", "GRU, torch.nn.GRU", 3, 99),
        (
            "docs/pytorch.md",
            "A loop of such cells is between a tenth slower and a quarter faster than a loop of PyTorch's",
            "LSTM and GRU cells, 8 steps in a loop, torch.nn",
            0.9,
            1.25,
        ),
    ],
)
def test_claims_on_speed_hold_on_every_measured_machine(page, claim, title, lowest, highest):
    root = FOLDER.parent
    assert claim in " ".join((root / page).read_text(encoding="utf-8").split())
    runs = [json.loads(file.read_text()) for file in (root / "docs" / "machines").glob("*.json")]
    means = [run["groups"][title][0] for run in runs if title in run["groups"]]
    assert means
    assert all(lowest <= mean <= highest for mean in means)


def test_the_pages_have_the_marks(script):
    docs = FOLDER.parent / "docs"
    pages = {page: script("page").MARKS for page in sorted((docs / "machines").glob("*.md"))}
    assert pages, "no machine was measured"
    pages |= {docs / "performance.md": ["machines"], docs / "history.md": ["track"]}
    pages[FOLDER.parent / "README.md"] = ["performance"]
    for page, names in pages.items():
        text = page.read_text(encoding="utf-8")
        for name in names:
            assert text.count(f"<!-- {name}: begin -->") == text.count(f"<!-- {name}: end -->") == 1


# ----------------------------------------------------------------------------------- the track record


@pytest.fixture
def results(tmp_path):
    """What asv keeps of two commits, the newer one stored first; the older one lacks a benchmark."""
    asv_results = pytest.importorskip("asv.results", reason="asv is not installed")
    runner = importlib.import_module("asv.runner")
    params = [["'a'", "'b'"], ["'xpgrad-torch'", "'torch'"]]

    def benchmark(name):
        return {"name": name, "version": "1", "params": params, "type": "track", "param_names": ["x", "impl"]}

    def kept(commit, date, values):
        result = asv_results.Results(
            {"machine": "m", "cpu": "Some CPU", "num_cpu": "2"}, {}, commit, date, "3.11", "env", {}
        )
        for name, found in values.items():
            given = runner.BenchmarkResult(found, [None] * 4, [None] * 4, 0, "", {})
            result.add_result(benchmark(name), given, datetime.datetime.now(datetime.UTC))
        result.save(str(tmp_path / "results"))

    ratio, time = "suite.StepRatio.track_ratio_step", "suite.Step.time_step"
    kept("b" * 40, 2000, {ratio: [0.5, 9.0, 0.25, 9.0], time: [0.01, 9.0, 0.02, 9.0]})
    kept("a" * 40, 1000, {ratio: [2.0, 9.0, math.nan, None]})
    (tmp_path / "results" / "m" / "machine.json").write_text('{"machine": "m", "version": 1}')
    return tmp_path / "results"


def test_tracks_are_ours_in_the_order_of_commits(script, results):
    tracks = script("track").read(results)
    ratio, time = "suite.StepRatio.track_ratio_step", "suite.Step.time_step"
    values = {key: [(point.commit[0], point.value) for point in points] for key, points in tracks.items()}
    assert values == {
        (ratio, ("a",)): [("a", 2.0), ("b", 0.5)],
        (ratio, ("b",)): [("b", 0.25)],
        (time, ("a",)): [("b", 0.01)],
        (time, ("b",)): [("b", 0.02)],
    }


def test_the_track_record_is_drawn_and_written(script, results, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    track = script("track")
    page = tmp_path / "page.md"
    page.write_text("<!-- track: begin -->\n<!-- track: end -->\n")
    monkeypatch.setattr(track, "PAGE", page)
    monkeypatch.setattr(track, "PICTURE", tmp_path / "track.png")
    monkeypatch.setattr(track, "subjects", lambda commits: {c: f"{c[:7]} subject" for c in commits})
    monkeypatch.setattr(sys, "argv", ["track.py", "--results", str(results)])
    track.main()
    assert page.read_text().splitlines()[1:-1] == [
        "| commit | a | b |",
        "| --- | ---: | ---: |",
        "| aaaaaaa subject | 0.50 | - |",
        "| bbbbbbb subject | 2.00 | 4.00 |",
        "",
        "Measured on Some CPU, 2 cores.",
    ]
    assert track.PICTURE.stat().st_size > 10_000


# ---------------------------------------------------------------------------------------- the verdict


@pytest.fixture
def project(tmp_path):
    """A repository whose commits wait 5, 5.2 and 10 milliseconds, with asv's configuration."""
    pytest.importorskip("asv", reason="asv is not installed")
    copy = "shutil.copy('{build_dir}/slow.py', site.getsitepackages()[0])"
    config = {
        "version": 1, "project": "slow", "repo": ".", "branches": ["main"], "dvcs": "git",
        "environment_type": "virtualenv", "benchmark_dir": "suites", "build_command": [],
        "install_command": [f'in-dir={{env_dir}} python -c "import shutil, site; {copy}"'],
        "uninstall_command": ['return-code=any python -c "pass"'],
    }  # fmt: skip
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "__init__.py").touch()
    suite = "import slow\n\nclass Suite:\n    rounds, repeat, sample_time, warmup_time = 1, 9, 0.0, 0.0\n"
    suite += "    def time_it(self):\n        slow.work()\n"
    (tmp_path / "suites" / "suite.py").write_text(suite)
    (tmp_path / "asv.conf.json").write_text(json.dumps(config))

    def git(*words):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)

    git("init", "--initial-branch", "main")
    for seconds in ("0.005", "0.0052", "0.01"):
        (tmp_path / "slow.py").write_text(f"import time\n\ndef work():\n    time.sleep({seconds})\n")
        git("add", "-A")
        git("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-m", seconds)
    return tmp_path / "asv.conf.json"


@pytest.mark.exhaustive
def test_a_slowdown_fails_and_noise_does_not(script, project, capfd, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))  # where asv keeps the name of the machine
    compare = script("compare")
    options = ["--bench", "Suite", "--config", str(project)]
    assert compare.main(["main~2", "main~1", *options]) == 0
    assert "NOT SIGNIFICANTLY CHANGED" in capfd.readouterr().out
    assert compare.main(["main~1", "main", *options]) == 1
    assert "PERFORMANCE DECREASED" in capfd.readouterr().out


def test_the_table_of_elementwise_gradients(script):
    pytest.importorskip("torch", reason="torch is not installed: it is the peer")
    head, _, row, *_ = script("elementwise").table(["relu"], ["numpy"], 0.01)
    assert head.count("|") == row.count("|") == 4
    name, ratio, cost = (cell.strip() for cell in row.strip("|").split("|"))
    assert name == "relu"
    assert float(ratio) > 0
    assert float(cost) > 0


# ---------------------------------------------------------------------------------------- first calls


def test_the_tables_of_first_calls(script):
    """Every step runs, and what is kept costs less the second time."""
    first_calls = script("first_calls")
    imports, steps = "\n".join(first_calls.table(1, ["gelu, NumPy"])).split("\n\n")
    assert len(imports.splitlines()) == 2 + len(first_calls.IMPORTS)
    *_, row = steps.splitlines()
    assert row.startswith("| gelu, NumPy | ")
    for text in first_calls.STEPS.values():
        compile(text, "step", "exec")


# --------------------------------------------------------------------------------------------- models


@pytest.mark.exhaustive
@pytest.mark.long
def test_the_table_of_models(script, monkeypatch):
    """Every network runs on its input; a small one's row has a figure for each column."""
    torch = pytest.importorskip("torch", reason="torch is not installed: the networks are of its modules")
    models = script("models")
    monkeypatch.setenv("XPGRAD_JIT", "0")
    for name, work in models.WORKS.items():
        with torch.device("meta"):
            network = work.make()
        given = [x.to("meta") for x in work.given(1)]
        if "packed" not in name:  # whose lengths must be known
            assert network(*given).ndim >= 2
    tiny = work._replace(make=lambda: torch.nn.GRU(3, 4), given=lambda k: (torch.randn(2 + k, 2, 3),))
    monkeypatch.setattr(models, "step", lambda model, given: model(*given)[0].sum().backward() or 1.0)
    assert models.memory("DeepAR (32x168)", ["layers"]) > 0
    monkeypatch.setattr(models, "memory", lambda _, replaced: 10**6 * (1 + len(replaced)))
    monkeypatch.setattr(models, "WORKS", {"tiny": tiny})
    lines = list(models.table(2, ["tiny"]))
    assert lines[2].startswith("| tiny | 1 | 1.00 | 1.00 | 1.00 | 1000 / 1000 | 1 / 2 | ")


# ---------------------------------------------------------------------------------------- recurrences


def test_the_table_of_recurrences(script, monkeypatch):
    """The loops compute what the layers do, and a row of the table has a figure for each."""
    torch = pytest.importorskip("torch", reason="torch is not installed: its loops stand beside ours")
    recurrences = script("recurrences")
    monkeypatch.setenv("XPGRAD_JIT", "0")
    for make in (recurrences.resets, recurrences.slstm, recurrences.gru_d):
        torch.manual_seed(0)
        works = make(6, 3, 2, 8)
        ours, loop = (next(work for name, work in works.items() if begin in name) for begin in ("", "loop"))
        torch.testing.assert_close(ours(), loop(), rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(recurrences, "SHAPES", [(3, 2, 2, 8)])
    monkeypatch.setattr(recurrences, "RESETS", (3, 2, 2, 4))
    monkeypatch.setattr(recurrences, "LARGE", 8)
    lines = list(recurrences.table(1))
    assert len(lines) == 2 + 3
    assert "with resets" in lines[2]


# ---------------------------------------------------------------------------- the choice of convolutions


def test_the_rule_beside_the_best_methods(script, monkeypatch):
    """Each sum of a case is measured by all methods that compute it, and the largest loss comes first."""
    pytest.importorskip("torch", reason="torch is not installed: the script takes its tensors")
    pytest.importorskip("llvmlite", reason="llvmlite is not installed: the methods are not compiled")
    choice = script("conv_choice")
    monkeypatch.setattr(choice, "OPERATIONS", (1e5, 1e6))
    monkeypatch.setattr(choice, "SIZES", {1: (9, 30), 2: (5, 9), 3: (3, 5)})
    rng = choice.np.random.default_rng(0)
    [*found] = choice.choices(choice.random_case(rng), rounds=1)
    assert {one.sums for one in found} <= {*choice.choice.SUMS}
    assert all(one.taken >= one.least > 0 for one in found)
    case = choice.Case((1, 4, 9), (4, 4, 3), 1, 1, (1, 1))
    lines = [
        *choice.report(
            [
                choice.Choice(case, "forward", "taps", "taps", 1.0, 1.0),
                choice.Choice(case, "input_gradient", "taps", "patches", 3.0, 1.0),
            ]
        )
    ]
    assert lines[0] == "2 sums: the chosen methods take 2.000 of the best ones' time,"
    assert lines[1] == "in the geometric mean 1.732; 50.0% of them more than 1.2"
    assert lines[4].endswith("| input_gradient | taps | patches | 3000.00 | 1000.00 |")
