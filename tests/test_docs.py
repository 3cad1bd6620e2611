"""The README's and the documentation's examples run; so do those of the core's docstrings."""

import doctest
import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from xpgrad._operators.units import UNITS

ROOT = Path(__file__).parent.parent


def _blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)


# docs/pytorch.md has a test of its own, which compares what is printed.
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs" / "derivations").glob("*.md"),
    ]
    if path.name != "pytorch.md" and _blocks(path.relative_to(ROOT))
)


def test_pages_have_examples():
    assert {"README.md", "docs/index.md", "docs/start_numpy.md", "docs/derivations/lstm.md"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_page(page):
    blocks = _blocks(page)
    for package in ("torch", "jax", "keras", "equinox", "flax"):
        if any(re.search(rf"^ *(import|from) {package}", block, re.M) for block in blocks):
            pytest.importorskip(package, reason=f"{package} is not installed: the page shows its functions")
    if any("array_api_compat.cupy" in block for block in blocks):
        pytest.importorskip("cupy", reason="cupy is not installed; test_adapters.py runs the page's class")
    names: dict = {}
    for block in blocks:
        if "serialize(" in block and importlib.util.find_spec("flatbuffers") is None:
            continue  # JAX writes files with it
        exec(compile(block, page, "exec"), names)


def test_docstrings_of_jax():
    pytest.importorskip("jax", reason="jax is not installed: the functions are its")
    result = doctest.testmod(importlib.import_module("xpgrad_jax.functional"))
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(
    "module",
    [
        "conv",
        "loops",
        "cells",
        "convert",
        "operations",
        "activations",
        "softmax",
        "losses",
        "_operators.vjp",
        "engine",
        *sorted({unit.functions[unit.name].__module__.removeprefix("xpgrad.") for unit in UNITS.values()}),
    ],
)
def test_docstrings(module):
    result = doctest.testmod(importlib.import_module(f"xpgrad.{module}"))
    assert result.attempted > 0
    assert result.failed == 0


def test_cpp_page(tmp_path):
    """The C++ program of the page compiles, finds its kernel right, and a wrong one wrong."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not installed: the page shows a test in C++")
    page = ROOT / "docs" / "vectors.md"
    names: dict = {}
    for block in _blocks(page.relative_to(ROOT)):
        exec(compile(block, page.name, "exec"), names)
    (tmp_path / "case.h").write_text(names["text"])
    (program,) = re.findall(r"^```cpp\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    for source, right in ((program, True), (program.replace("- sum", "+ sum"), False)):
        (tmp_path / "test.cpp").write_text(source)
        subprocess.run([compiler, "-o", "test", "test.cpp"], cwd=tmp_path, check=True)
        assert (subprocess.run([tmp_path / "test"], check=False).returncode == 0) == right


@pytest.fixture(scope="module")
def activations_script():
    spec = importlib.util.spec_from_file_location("docs_activations", ROOT / "docs" / "activations.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_the_table_of_functions_is_that_of_the_declarations(activations_script):
    page = (ROOT / "docs" / "activations.md").read_text(encoding="utf-8")
    table = page.partition(f"{activations_script.FUNCTIONS}\n")[2].partition("\n\n")[0]
    assert table.splitlines() == activations_script.functions()


def test_errors_are_as_documented(activations_script, monkeypatch):
    """The page's table holds for what is computed here, give or take another processor's last bit."""
    pytest.importorskip("torch", reason="torch is not installed: bfloat16 is its")
    monkeypatch.setenv("XPGRAD_JIT", "0")
    # fewer points: a maximum over a part of them is not above the whole's
    some = activations_script.points()[::7]
    monkeypatch.setattr(activations_script, "points", lambda: some)
    page = (
        (ROOT / "docs" / "activations.md").read_text(encoding="utf-8").partition(activations_script.MARK)[2]
    )
    rows = [line.strip("| ").split(" | ") for line in page.strip().split("\n\n")[0].splitlines()[2:]]
    measured = [line.strip("| ").split(" | ") for line in activations_script.table()[2:]]
    assert [row[0] for row in rows] == [row[0] for row in measured]
    for documented, found in zip(rows, measured, strict=True):
        for a, b in zip(documented[1:], found[1:], strict=True):
            assert float(b) <= 1.5 * float(a) + 1e-7, (documented, found)


def test_every_activation_is_documented(activations_script):
    """In the table of functions, of kinks where the slope jumps, of errors, and in the plot."""
    import xpgrad

    page = (ROOT / "docs" / "activations.md").read_text(encoding="utf-8")
    pairs = {name for name in xpgrad.__all__ if f"{name}_grad" in xpgrad.__all__}
    pairs -= {"gru_d", *(name for unit in UNITS.values() for name in unit.kernels)}
    pairs -= {"gate_inputs", "conv", "conv_transpose"}
    assert pairs <= set(re.findall(r"`(\w+)", page))
    drawn = {curve.name for curve in activations_script.CURVES}
    along_axis = {"softmax", "log_softmax", "softmax_cross_entropy", "binary_cross_entropy_with_logits"}
    assert drawn == pairs - along_axis
    kinks = page.partition("## Derivatives at the kinks")[2].partition("## ")[0]
    assert {curve.name for curve in activations_script.CURVES if curve.kinks} <= set(
        re.findall(r"`(\w+)", kinks)
    )


def test_every_recurrent_operator_is_described():
    page = (ROOT / "docs" / "recurrent.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?<!`)`(?:xpgrad_torch\.)?(\w+)`", page))
    assert {name for unit in UNITS.values() for name in (*unit.kernels, unit.module)} <= named


def test_plot(activations_script, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    activations_script.plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000
    assert (ROOT / "docs" / "activations.png").exists()


def test_every_method_of_convolution_is_described():
    methods = set(importlib.import_module("xpgrad._conv.choice").METHODS)
    _, can, rule = re.split(
        r"^## Methods|^### Which", (ROOT / "docs/convolution.md").read_text("utf-8"), flags=re.M
    )
    for table in (can, rule):
        assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == methods


def _listed(page, module, kinds):
    """The names in a reference page's tables that are of a module."""
    text = (ROOT / "docs" / "reference" / f"{page}.rst").read_text(encoding="utf-8")
    assert f".. currentmodule:: {module}\n" in text
    listed = re.findall(r"^   (\w+)$", text, re.M)
    used = re.findall(r"^\.\. (\w+)::$", text, re.M)
    return listed + [name for kind in used if kind in kinds for name in kinds[kind](module)]


@pytest.mark.parametrize(
    ("module", "pages"),
    [
        ("xpgrad", ["recurrent", "convolution", "activations", "losses", "tools"]),
        ("xpgrad.testing", ["testing"]),
        ("xpgrad.cells", ["cells"]),
        ("xpgrad_torch", ["pytorch"]),
        ("xpgrad_onnx", ["onnx"]),
        ("xpgrad_jax", ["jax"]),
        ("xpgrad_keras", ["keras"]),
        ("xpgrad_torch.functional", ["pytorch_functional"]),
    ],
)
def test_every_public_name_has_a_page(module, pages, monkeypatch):
    pytest.importorskip("sphinx", reason="sphinx is not installed: a directive of its lists activations")
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    kinds = importlib.import_module("declared_names").KINDS
    if module.startswith("xpgrad_torch"):
        pytest.importorskip("torch", reason="torch is not installed")
    for package in ("jax", "keras", "onnx"):
        if module == f"xpgrad_{package}":
            pytest.importorskip(package, reason=f"{package} is not installed")
    listed = [name for page in pages for name in _listed(page, module, kinds)]
    assert len(listed) == len(set(listed))
    assert set(listed) == set(importlib.import_module(module).__all__) - {"__version__", "functional"}


def test_links():
    """Files that the pages point to exist."""
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for target in re.findall(r"\]\(([\w./-]+)\)", prose):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"
        for name in re.findall(r"\{doc\}`[^`]*<tutorials/(\w+)>`", prose):
            assert (ROOT / "examples" / "tutorials" / f"{name}.py").exists(), f"{page.name} points to {name}"


def test_one_version():
    import xpgrad

    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, re.M) == [xpgrad.__version__]
    policy = (ROOT / "docs" / "policy.md").read_text(encoding="utf-8")
    assert re.findall(r"version = \{(.*)\}", policy) == [xpgrad.__version__]


def test_the_readme_of_a_package_index_has_no_link_to_a_file():
    """What a checkout has beside it, an index has not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    hook = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "](docs/" in text
    for change in hook["substitutions"]:
        text = re.sub(change["pattern"], change["replacement"], text)
    assert set(re.findall(r"\]\((\w+:)?", text)) == {"https:"}
    assert "Install, tested versions" in " ".join(text.split())


def _site(folder, **pages):
    for name, text in pages.items():
        path = folder / f"{name.replace('__', '/')}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"<html><body><article>{text}</article></body></html>")
    return folder


@pytest.fixture
def crawl():
    spec = importlib.util.spec_from_file_location("tools_crawl", ROOT / "tools" / "crawl.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_crawl_finds_what_is_dead_lost_or_without_a_link(crawl, tmp_path):
    api = "reference__generated__xpgrad.lstm"
    site = _site(
        tmp_path,
        index='<a href="guide.html#here">a</a> <a href="gone.html">b</a> <a href="guide.html#nowhere">c</a>'
        '<a href="reference/generated/xpgrad.lstm.html">d</a>',
        guide='<h2 id="here">x</h2> <code>xpgrad.lstm</code> <code>xpgrad.lstm(X)</code>'
        '<a href="index.html"><code>xpgrad.lstm</code></a> <pre><code>xpgrad.lstm</code></pre>',
        lost="nobody comes here",
        **{api: "an operator"},
    )
    pages = crawl.read(site)
    assert [*crawl.dead_links(site, pages)] == [
        "index.html: gone.html is no file of the site",
        "index.html: guide.html#nowhere is no anchor of guide.html",
    ]
    assert [*crawl.lost_pages(pages)] == ["lost.html: no way leads here"]
    assert [*crawl.names_without_link(pages)] == [
        "guide.html: xpgrad.lstm has no link",
        "guide.html: xpgrad.lstm(X) has no link",
    ]


def test_the_crawl_measures_pages_on_a_phone(crawl, tmp_path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is installed: it measures the pages")
    wide = '<table style="width: 500px"><tr><td>x</td></tr></table>'
    boxed = f'<div style="overflow-x: auto">{"<p>text</p>"}</div>'
    site = _site(tmp_path, index="text", table=wide, box=boxed)
    found = [*crawl.too_wide(site, ["index.html", "table.html", "box.html"], browser)]
    assert len(found) == 2
    assert all(line.startswith("table.html: ") for line in found)


def test_pages_install_nothing_that_is_not_there():
    """No index has this package yet: a checkout has it, or an address of version control."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for line in page.read_text(encoding="utf-8").splitlines():
            assert not re.search(r"pip install (-\S+ )*['\"]?xpgrad\b(?!.* @ )", line), f"{page.name}: {line}"
    sources = [path for folder in ("src", "adapters") for path in (ROOT / folder).rglob("*.py")]
    assert not [path for path in sources if "xpgrad[" in path.read_text(encoding="utf-8")]


def test_the_page_on_installing_has_every_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.M)) >= set(project["optional-dependencies"])


@pytest.fixture
def api_links(monkeypatch):
    pytest.importorskip("sphinx", reason="sphinx is not installed: it builds the site")
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("api_links")


@pytest.mark.parametrize(
    ("code", "page", "name"),
    [
        ("xpgrad.lstm", "faq", "xpgrad.lstm"),
        ("lstm", "recurrent", "xpgrad.lstm"),
        ("lstm(X, W, R)", "recurrent", "xpgrad.lstm"),
        ("gru", "jax", "xpgrad_jax.gru"),
        ("GRUCell", "jax", None),  # Flax's and Equinox's there
        ("GRU", "pytorch", "xpgrad_torch.GRU"),
        ("functional.lstm", "pytorch", "xpgrad_torch.functional.lstm"),
        ("check_vjp", "start_numpy", "xpgrad.testing.check_vjp"),
        ("sigmoid", "own_cells", "xpgrad.cells.sigmoid"),
        ("tanh", "own_cells", None),  # xp's there
        ("tanh", "activations", "xpgrad.tanh"),
        ("torch.nn.LSTM", "pytorch", None),
        ("LSTM", "keras", "xpgrad_keras.LSTM"),
        ("xpgrad_keras.swap", "install", "xpgrad_keras.swap"),
        ("elu", "keras", None),  # Keras' there
        ("sequence_lens", "recurrent", None),
        ("W=(D, 4H)", "recurrent", None),
    ],
)
def test_names_in_the_text_of_guides_lead_to_the_reference(api_links, code, page, name):
    module = "xpgrad_keras" if page == "keras" else (name or "xpgrad").split(".")[0]
    pytest.importorskip(module, reason="its framework is not installed")
    assert api_links.full_name(code, page) == name


def test_the_template_shows_the_methods_of_a_class_alone():
    """Of a module of PyTorch `forward`, and not the methods that it inherits."""
    jinja2 = pytest.importorskip("jinja2", reason="jinja2 is not installed: Sphinx renders with it")
    template = (ROOT / "docs" / "_templates" / "autosummary" / "class.rst").read_text(encoding="utf-8")
    environment = jinja2.Environment()
    environment.filters["underline"] = lambda title: title  # Sphinx's
    inherited = ["__init__", "forward", "parameters", "to"]
    text = environment.from_string(template).render(
        objname="LSTM", module="m", methods=[*inherited, "own"], inherited_members=inherited,
        fullname="m.LSTM",
    )  # fmt: skip
    assert re.findall(r"automethod:: (\w+)", text) == ["forward", "own"]
