"""Formulas compiled by numba: from the one source to loops over scalars.

A formula's source is read, its parameter ``xp`` is dropped (the scalar functions of the dtype's module take
its place), its constants become globals, and a loop over rows and columns is put around it. The text goes
into a file of the cache folder, named by its hash: numba's own cache lies beside it, no variant can be taken
for another, and a change of a formula makes a new file.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
import os
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from xpgrad.engine import special
from xpgrad.engine.formula import Formula, Operand


class Place(NamedTuple):
    """What the generated text depends on of an operand."""

    blocks: int
    at: str
    absent: bool
    same_as: int | None  # number of the input whose very rows an output replaces


Layout = tuple[Place, ...]


def layouts(inputs: Sequence[Operand], outputs: Sequence[Operand]) -> tuple[Layout, Layout]:
    """The places of a formula's operands.

    An output that replaces an input must be the same vector in the generated text: as two vectors they
    would overlap, and the loop that LLVM made for that case is not vectorized.
    """
    taken = [Place(o.blocks, o.at, o.rows is None, None) for o in inputs]
    replaced = {(id(o.rows), o.at): number for number, o in reversed(list(enumerate(inputs)))}
    made = [
        Place(o.blocks, o.at, o.rows is None, None if o.rows is None else replaced.get((id(o.rows), o.at)))
        for o in outputs
    ]
    return tuple(taken), tuple(made)


def compiled(formula: Formula, inputs: Layout, outputs: Layout, dtype: str) -> Callable[..., None]:
    """Return ``loop(count, width, now, before, local, first, *arrays)`` that evaluates the formula on rows.

    Parameters
    ----------
    formula : Formula
        What to evaluate.
    inputs, outputs : Layout
        The operands' places; absent ones, and outputs that are an input, have no place in the call.
    dtype : str
        ``"float32"`` or ``"float64"``.

    Returns
    -------
    callable
        A numba dispatcher. The rows are the first ones to touch of the operands so marked.
    """
    return _compiled(formula.function, formula.key[1], inputs, outputs, dtype)


@functools.cache
def _compiled(function: Callable, constants: tuple, inputs: Layout, outputs: Layout, dtype: str) -> Callable:
    text = _source(function, dict(constants), inputs, outputs, dtype)
    return load(f"{function.__name__.strip('_')}_{dtype}", text).loop


def cache_folder() -> Path:
    """Where compiled formulas are kept: ``XPGRAD_CACHE_DIR``, else the user's cache folder."""
    chosen = os.environ.get("XPGRAD_CACHE_DIR")
    if chosen:
        return Path(chosen)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return base / "xpgrad"


@functools.cache
def _writable_folder(folder: Path) -> Path:
    """The folder, made; or a temporary one of this process where it can't be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return Path(tempfile.mkdtemp(prefix="xpgrad-"))


def load(name: str, text: str) -> Any:
    """Write the text to the cache folder, unless it is there, and import it."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:20]
    path = _writable_folder(cache_folder()) / f"{name}_{digest}.py"
    if not path.exists():
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
            file.write(text)
        os.replace(file.name, path)  # another process may be writing the same text
    spec = importlib.util.spec_from_file_location(f"xpgrad_compiled_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import the compiled formula at {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where numba looks for the globals of a function from its cache
    spec.loader.exec_module(module)
    return module


# --- the source ---------------------------------------------------------------------------------


def _source(function: Callable, constants: dict, inputs: Layout, outputs: Layout, dtype: str) -> str:
    parts = [preamble([function], constants, dtype), _loop(function.__name__, inputs, outputs)]
    return "\n".join(parts) + "\n"


def preamble(
    functions: Sequence[Callable],
    constants: dict,
    dtype: str,
    parameters: Mapping[str, tuple[str, ...]] | None = None,
) -> str:
    """The scalar functions that a loop calls, and the constants as globals.

    `parameters` tells by the name of a function which of its keywords are no constants but come with each
    call, behind its operands.
    """
    import numba

    found: dict[str, Callable] = {}
    for function in functions:
        _collect(function, found)
    settings = []
    for name, value in constants.items():
        if callable(value):
            _collect(value, found)
            settings.append(f"{name} = {value.__name__}")
        elif isinstance(value, (bool, type(None))):
            settings.append(f"{name} = {value!r}")
        else:
            settings.append(f"{name} = xp.real({float(value)!r})")
    needed = [f for f in reversed(found.values()) if f not in functions]
    parts = [
        f"# {functions[-1].__module__}.{functions[-1].__name__} for {dtype}; generated, "
        f"numba {numba.__version__}, scalar functions {_scalar_functions_hash()}",
        f"from numba import njit\n\nfrom xpgrad.engine import scalar_{dtype} as xp\n",
        *(_scalar_function(f) for f in needed),
        *settings,
        *(_scalar_function(f, (parameters or {}).get(f.__name__, ())) for f in dict.fromkeys(functions)),
    ]
    return "\n".join(parts) + "\n"


@functools.cache
def _scalar_functions_hash() -> str:
    """Hash of the scalar functions' sources: a compiled formula holds copies of them."""
    here = Path(__file__).parent
    text = b"".join(path.read_bytes() for path in sorted(here.glob("scalar_*.py")))
    return hashlib.sha256(text).hexdigest()[:20]


def _parse(function: Callable) -> ast.FunctionDef:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    if not isinstance(tree, ast.FunctionDef):
        raise TypeError(f"formula {function.__name__}: a function by 'def' is needed")
    return tree


def _collect(function: Any, found: dict[str, Callable]) -> None:
    """Find the functions that a formula calls with xp first, each before what it calls itself."""
    if found.get(function.__name__, function) is not function:
        raise ValueError(f"two functions of one formula are named {function.__name__}")
    found.pop(function.__name__, None)  # and again behind its later caller
    found[function.__name__] = function
    for node in ast.walk(_parse(function)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and _passes_xp(node):
            callee = function.__globals__.get(node.func.id)
            if callee is not None and not _is_special(callee):  # else a constant of the formula
                _collect(callee, found)


def _passes_xp(call: ast.Call) -> bool:
    return bool(call.args) and isinstance(call.args[0], ast.Name) and call.args[0].id == "xp"


def _is_special(function: Callable) -> bool:
    """Whether the dtype's module of scalar functions has a version of its own of the function."""
    return function.__module__ == special.__name__


class _ToScalars(ast.NodeTransformer):
    """Drop xp from parameters and calls, and give every number the dtype."""

    def __init__(self, parameters: Sequence[str] = ()) -> None:
        self._parameters = parameters

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        numbers = [arg for arg in node.args.kwonlyargs if arg.arg in self._parameters]
        node.args.args = [*(arg for arg in node.args.args if arg.arg != "xp"), *numbers]
        node.args.kwonlyargs, node.args.kw_defaults = [], []
        for arg in node.args.args:
            arg.annotation = None
        node.returns = None
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if _passes_xp(node):
            node.args = node.args[1:]
            if isinstance(node.func, ast.Name) and node.func.id in special.__all__:
                node.func = ast.Attribute(ast.Name("xp", ast.Load()), node.func.id, ast.Load())
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
            return ast.parse(f"xp.real({node.value!r})", mode="eval").body
        return node


def _scalar_function(function: Callable, parameters: Sequence[str] = ()) -> str:
    tree = ast.fix_missing_locations(_ToScalars(parameters).visit(_parse(function)))
    return f"@njit(forceinline=True, error_model='numpy', fastmath={{'contract'}})\n{ast.unparse(tree)}\n"


def _loop(name: str, inputs: Layout, outputs: Layout) -> str:
    """A loop over rows and columns that calls the scalar function `name`.

    Every operand gets a view of its row first: the inner loop then runs over plain vectors.
    """
    parameters = ["count", "width", "now", "before", "local", "first"]
    views: list[str] = []
    arguments: list[str] = []
    targets: list[str] = []
    for kind, layout, elements in (("x", inputs, arguments), ("y", outputs, targets)):
        for number, (blocks, at, absent, same_as) in enumerate(layout):
            if absent:
                elements += ["None"] * blocks
                continue
            if same_as is not None:
                elements += [f"x{same_as}_{block}[j]" for block in range(blocks)]
                continue
            array, row = f"{kind}{number}", "0" if at == "every" else f"{at} + k"
            parameters.append(array)
            for block in range(blocks):
                view = f"{array}_{block}"
                views.append(f"{view} = {array}[{row}, {block} * width:{block + 1} * width]")
                elements.append(f"{view}[j]")
    results = [f"r{number}" for number in range(len(targets))]
    lines = [
        "@njit(nogil=True, cache=True, error_model='numpy', fastmath={'contract'})",
        f"def loop({', '.join(parameters)}):",
        "    for k in range(count):",
        *(f"        {view}" for view in views),
        "        for j in range(width):",
        f"            {', '.join(results)}, = {name}({', '.join(arguments)})",
        *(
            f"            {target} = {result}"
            for target, result in zip(targets, results, strict=True)
            if target != "None"
        ),
    ]
    return "\n".join(lines)
