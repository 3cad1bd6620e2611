"""The structure of the source: no circle of imports, what adapters take of the core, names of classes."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import xpgrad
import xpgrad_jax
import xpgrad_onnx
import xpgrad_torch

PACKAGES = {package.__name__: Path(package.__file__).parent for package in (
    xpgrad, xpgrad_jax, xpgrad_onnx, xpgrad_torch
)}  # fmt: skip

Graph = dict[str, set[str]]


def modules() -> dict[str, Path]:
    found = {}
    for package, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            parts = (package, *path.relative_to(folder).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def run(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run some time: imports for types alone never do."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from run(node)


def imported(tree: ast.Module, module: str, is_package: bool) -> Iterator[str]:
    """Yield the dotted names of all imports, those inside functions too."""
    for node in run(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = module.split(".")[: len(module.split(".")) + is_package - node.level] if node.level else []
            base = ".".join([*up, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def loaded(name: str, known: set[str]) -> set[str]:
    """Return the module of a dotted name and its packages, which Python loads first."""
    parts = name.split(".")
    return {".".join(parts[:k]) for k in range(1, len(parts) + 1)} & known


def graph_of(sources: dict[str, tuple[str, bool]]) -> Graph:
    """Return which modules each module loads; its own packages do not count."""
    known = set(sources)
    graph: Graph = {}
    for module, (text, is_package) in sources.items():
        graph[module] = set()
        for name in imported(ast.parse(text), module, is_package):
            below = loaded(name, known)
            # `import xpgrad` and `from xpgrad import x` read the package itself
            named = {name} & known or {name.rpartition(".")[0]} & known
            graph[module] |= {m for m in below if not module.startswith(f"{m}.") or m in named} - {module}
    return graph


def circles(graph: Graph) -> list[set[str]]:
    """Return the sets of modules that load each other."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen, waiting = set(), [start]
        while waiting:
            new = graph[waiting.pop()] - seen
            seen |= new
            waiting += new
        reached[start] = seen
    found = [{a for a in reached[b] if b in reached[a]} for b in graph if b in reached[b]]
    return [circle for k, circle in enumerate(found) if circle not in found[:k]]


def test_no_circle_of_imports():
    sources = {
        name: (path.read_text(encoding="utf-8"), path.name == "__init__.py")
        for name, path in modules().items()
    }
    graph = graph_of(sources)
    assert len(graph) > 180
    found = [
        {module: sorted(graph[module] & circle) for module in sorted(circle)} for circle in circles(graph)
    ]
    assert found == []


def test_the_search_sees_circles():
    lazy = {"p": ("", True), "p.a": ("def f():\n    from . import b", False), "p.b": ("import p.a", False)}
    assert circles(graph_of(lazy)) == [{"p.a", "p.b"}]
    through_package = {"p": ("from p.a import f", True), "p.a": ("import p", False)}
    assert circles(graph_of(through_package)) == [{"p", "p.a"}]
    through_other = {
        "p": ("", True), "p.q": ("from p.q.x import y", True), "p.q.x": ("from ..a import f", False),
        "p.a": ("from p.q.z import g", False), "p.q.z": ("", False),
    }  # fmt: skip
    assert circles(graph_of(through_other)) == [{"p.q", "p.q.x", "p.a"}]
    assert circles(graph_of({"p": ("", True), "p.a": ("from p.b import f", False), "p.b": ("", False)})) == []


ADAPTERS = Path(__file__).parent.parent / "adapters"


def taken_of_the_core(tree: ast.Module, module: str, is_package: bool) -> set[str]:
    """Return the dotted names that a module imports of the core, or reads of it as attributes."""
    names = {name for name in imported(tree, module, is_package) if name.partition(".")[0] == "xpgrad"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.fullmatch(r"xpgrad(\.\w+)+", ast.unparse(node)):
            names.add(ast.unparse(node))
    return names


def is_open_to_adapters(name: str) -> bool:
    """Tell whether a name is public, of `xpgrad.engine`, or of the package that describes operators."""
    if name.startswith(("xpgrad.engine.", "xpgrad._operators.")):
        return True
    parts = name.split(".")
    if any(part.startswith("_") and part != "__version__" for part in parts):
        return False
    if len(parts) < 3:
        return True
    module = sys.modules.get(".".join(parts[:2]))  # else it is an attribute of a public name
    return module is None or parts[2] in getattr(module, "__all__", xpgrad.__all__)


def test_adapters_take_public_names_the_engine_and_one_private_package():
    closed = set()
    for path in ADAPTERS.rglob("*.py"):
        module = ".".join(path.relative_to(ADAPTERS).with_suffix("").parts)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        taken = taken_of_the_core(tree, module, path.name == "__init__.py")
        closed |= {f"{module}: {name}" for name in taken if not is_open_to_adapters(name)}
    assert closed == set()


def test_what_is_closed_to_adapters():
    text = """
from xpgrad import cells, lstm
from xpgrad._calls.plans import planned
from xpgrad._operators.units import UNITS
from xpgrad.engine.process import memory
from xpgrad.gru_d import FILL
import xpgrad._conv
xpgrad._cases.KERNELS, xpgrad.gru.Chunk, xpgrad.cells.sigmoid, xpgrad.Cell.check, xpgrad.lstm
"""
    taken = taken_of_the_core(ast.parse(text), "xpgrad_torch.x", False)
    assert {name for name in taken if not is_open_to_adapters(name)} == {
        "xpgrad._calls.plans.planned", "xpgrad.gru_d.FILL", "xpgrad._conv", "xpgrad._cases.KERNELS",
        "xpgrad._cases", "xpgrad.gru.Chunk",
    }  # fmt: skip


def test_a_class_name_means_one_thing():
    """`xpgrad_keras` has the names of Keras' layers, and `SwapReport` as `xpgrad_torch` has it."""
    places = defaultdict(set)
    for root in (Path(xpgrad.__file__).parent, ADAPTERS):
        for path in root.rglob("*.py"):
            for name in re.findall(r"^ *class (\w+)[(:\[]", path.read_text(encoding="utf-8"), re.M):
                places[name.strip("_")].add(str(path))
    assert {name for name, files in places.items() if len(files) > 1} == {"GRU", "LSTM", "SwapReport"}


def test_what_architecture_sends_readers_to_is_there():
    """Each row of two sections' tables names files that are there, and names that occur in these."""
    page = (ADAPTERS.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    sections = [
        page.partition(f"\n## {name}\n")[2].partition("\n## ")[0] for name in ("Where to look", "Threads")
    ]
    files = {path.as_posix(): path for root in PACKAGES.values() for path in root.rglob("*.py")}
    rows = 0
    for row in "\n".join(sections).splitlines():
        named = re.findall(r"`([\w/]+\.py)`", row) if row.startswith("| ") else []
        found = {name: [path for file, path in files.items() if file.endswith(f"/{name}")] for name in named}
        assert all(found.values()), found
        text = "".join(path.read_text(encoding="utf-8") for paths in found.values() for path in paths)
        missing = [name for name in re.findall(r"`(\w+)`", row) if not re.search(rf"\b{name}\b", text)]
        assert not named or not missing, f"{row}: {missing}"
        rows += bool(named)
    assert rows > 15


def test_scripts_import_names_that_are_there():
    """No test runs every script of these folders."""
    known = modules()
    missing = set()
    for folder in ("asv_bench", "docs", "examples", "tools"):
        for path in (ADAPTERS.parent / folder).rglob("*.py"):
            for name in imported(ast.parse(path.read_text(encoding="utf-8")), path.stem, False):
                module, _, own = name.rpartition(".")
                if name in known or name.partition(".")[0] not in PACKAGES:
                    continue
                text = known[module].read_text(encoding="utf-8") if module in known else ""
                public = getattr(sys.modules.get(module), "__all__", ())
                if own not in public and not re.search(rf"\b{own}\b", text):
                    missing.add(f"{path.name}: {name}")
    assert missing == set()
