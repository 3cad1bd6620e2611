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
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xpgrad.engine import special
from xpgrad.engine.compile_cache import load, one_at_a_time
from xpgrad.engine.formula import Elementwise, Operand, Product, as_text


class Place(NamedTuple):
    """What the generated text depends on of a formula's operand."""

    blocks: int
    at: str
    absent: bool
    same_as: int | None  # number of the input whose very rows an output replaces
    order: tuple[int, ...]


class FormulaText(NamedTuple):
    """What the generated text depends on of a formula's stage."""

    function: Callable
    constants: tuple
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]


class ProductText(NamedTuple):
    """What the generated text depends on of a product's stage."""

    at: str
    form: str  # of the weight


def operands_of(stages: Sequence[Elementwise | Product]) -> list[Any]:
    """The matrices that a compiled loop takes, in its order."""
    taken = []
    for stage in stages:
        if isinstance(stage, Product):
            taken += [stage.source.rows, stage.weight, stage.target]
            continue
        replaced = {(id(o.rows), o.at) for o in stage.inputs}
        taken += [o.rows for o in stage.inputs if o.rows is not None]
        taken += [o.rows for o in stage.outputs if o.rows is not None and (id(o.rows), o.at) not in replaced]
    return taken


def _stage_text(stage: Elementwise | Product) -> FormulaText | ProductText:
    """An output that replaces an input must be the same vector in the generated text.

    As two vectors they would overlap, and the loop that LLVM made for that case is not vectorized.
    """
    if isinstance(stage, Product):
        return ProductText(stage.source.at, stage.weight.form)
    replaced = {(id(o.rows), o.at): number for number, o in reversed(list(enumerate(stage.inputs)))}
    function, constants = stage.formula.key
    return FormulaText(
        function,
        constants,
        tuple(_place(o, None) for o in stage.inputs),
        tuple(_place(o, None if o.rows is None else replaced.get((id(o.rows), o.at))) for o in stage.outputs),
    )


def _place(operand: Operand, same_as: int | None) -> Place:
    return Place(operand.blocks, operand.at, operand.rows is None, same_as, tuple(operand.places))


def compiled_loop(stages: Sequence[Elementwise | Product], dtype: str) -> int:
    """The address of ``loop(data, part)``, which runs a time loop on one part of the rows.

    Parameters
    ----------
    stages : sequence of Elementwise or Product
        What a step does.
    dtype : str
        ``"float32"`` or ``"float64"``.

    Returns
    -------
    int
        Of a C function. `data` points to 64-bit integers: how many steps there are, the address of their
        spans (rows, now, before, local), those of the parts' bounds, of BLAS's gemm and of the one with a
        packed weight, of our own products' tiles and what multiplies with panels, their height; and of each
        matrix of `operands_of` its address, rows, columns and the length of a
        whole row.
    """
    return _compiled_loop(tuple(_stage_text(stage) for stage in stages), dtype)


@functools.cache
def _compiled_loop(stages: tuple[FormulaText | ProductText, ...], dtype: str) -> int:
    name = next(stage.function.__name__ for stage in stages if isinstance(stage, FormulaText))
    return load(f"{name.strip('_')}_{dtype}", _source(stages, dtype)).loop.address


@functools.cache
def compiled_share() -> int:
    """The address of native.share_parts, with the integers that it takes behind a pointer."""
    text = f"""# one thread's share of a team's work; generated, {versions()}
from numba import carray, cfunc
import numpy as np

from xpgrad.engine.native import share_parts


@cfunc("void(voidptr)", cache=True)
def share(work):
    share_parts(carray(work, (5,), np.int64))
"""
    return load("share", text).share.address


@functools.cache
def compiled_executor(dtype: str) -> int:
    """The address of native_program.execute for arrays of a dtype, as ``(code, begin, end)``."""
    text = f"""# walks through a program's instructions on {dtype}; generated, {versions()}
from numba import cfunc
import numpy as np

from xpgrad.engine.native_program import execute

one = np.{dtype}(1)


@cfunc("void(int64, int64, int64)", cache=True, error_model="numpy")
def run(code, begin, end):
    execute(code, begin, end, one)
"""
    return load(f"program_{dtype}", text).run.address


@functools.cache
def compiled_arithmetic(dtype: str) -> int:
    """The address of native_program.arithmetic for arrays of a dtype, as ``function(data, part)``."""
    text = f"""# part of an array's arithmetic in {dtype}; generated, {versions()}
from numba import carray, cfunc
import numpy as np

from xpgrad.engine.native_program import arithmetic

real = np.{dtype}(0)


@cfunc("void(voidptr, int64)", cache=True, error_model="numpy")
def run(data, part):
    arithmetic(carray(data, (17,), np.int64), part, real)
"""
    return load(f"arithmetic_{dtype}", text).run.address


@functools.cache
def compiled_schedule() -> int:
    """The address of native_timeline.schedule, as ``function(data, part)``."""
    text = f"""# what sequences' lengths decide; generated, {versions()}
from numba import carray, cfunc
import numpy as np

from xpgrad.engine.native_timeline import schedule


@cfunc("void(voidptr, int64)", cache=True)
def run(data, part):
    schedule(carray(data, (1 << 60,), np.int64))
"""
    return load("schedule", text).run.address


@functools.cache
def compiled_rows(dtype: str) -> int:
    """The address of native_timeline.move_rows for arrays of a dtype, as ``function(data, part)``."""
    text = f"""# part of the rows of {dtype} that change their order; generated, {versions()}
from numba import carray, cfunc
import numpy as np

from xpgrad.engine.native_timeline import move_rows

real = np.{dtype}(0)


@cfunc("void(voidptr, int64)", cache=True, error_model="numpy")
def run(data, part):
    move_rows(carray(data, (26,), np.int64), part, real)
"""
    return load(f"rows_{dtype}", text).run.address


# --- the source ---------------------------------------------------------------------------------


def _source(stages: tuple[FormulaText | ProductText, ...], dtype: str) -> str:
    formulas = [stage for stage in stages if isinstance(stage, FormulaText)]
    constants: dict[str, Any] = {}
    for name, value in (item for stage in formulas for item in stage.constants):
        if constants.setdefault(name, value) != value:
            raise ValueError(f"two formulas of one loop have a constant {name}")
    parts = [
        preamble([stage.function for stage in formulas], constants, dtype),
        "import numpy as np\nfrom numba import carray, cfunc\n",
        "from xpgrad.engine.native import multiply_rows, multiply_rows_by_panels, multiply_rows_packed",
        "from xpgrad.engine.native import numbers, pointer\n",
        "real = xp.real",
        _loop(stages, dtype),
    ]
    return "\n".join(parts) + "\n"


@one_at_a_time
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
    found: dict[str, Callable] = {}
    for function in functions:
        _collect(function, found)
    settings = []
    for name, value in constants.items():
        if callable(value):
            _collect(value, found)
            settings.append(f"{name} = {value.__name__}")
        else:
            text = as_text(value)
            settings.append(
                f"{name} = {text}" if text in ("None", "True", "False") else f"{name} = xp.real({text})"
            )
    needed = [f for f in reversed(found.values()) if f not in functions]
    names = ", ".join(f"{f.__module__}.{f.__name__}" for f in dict.fromkeys(functions))
    parts = [
        f"# {names} for {dtype}; generated, {versions()}",
        f"from numba import njit\n\nfrom xpgrad.engine import scalar_{dtype} as xp\n",
        *(_scalar_function(f) for f in needed),
        *settings,
        *(_scalar_function(f, (parameters or {}).get(f.__name__, ())) for f in dict.fromkeys(functions)),
    ]
    return "\n".join(parts) + "\n"


def _sources() -> str:
    """A hash of those modules of ours whose code generated text holds copies of."""
    here = Path(__file__).parent
    patterns = (
        "scalar_*.py", "special.py", "native*.py", "register_tiles.py", "products.py", "schedule.py",
    )  # fmt: skip
    copied = [path for pattern in patterns for path in sorted(here.glob(pattern))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in copied)).hexdigest()[:20]


# Taken when this module is imported, with the others: an upgrade while a process runs changes the files, and
# what the process compiles from the old modules must not be kept under the new ones' hash.
_LOADED = _sources()


def versions() -> str:
    """What generated text holds copies of: numba's compiling, our own functions, and their constants."""
    import numba

    return f"numba {numba.__version__}, functions {_LOADED}"


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


_HEAD = 8  # integers in front of the matrices
_MATRIX = 4  # integers of each


# How a product is begun, by the form of its weight.
_PRODUCTS = {
    "rows": "multiply_rows(head[3], real(1), ",
    "blas": "multiply_rows_packed(head[4], real(1), ",
    "panels": "multiply_rows_by_panels(head[5], head[6], head[7], ",
}


def _loop(stages: tuple[FormulaText | ProductText, ...], dtype: str) -> str:
    """A loop over steps; a step is one stage after the other, on the rows low .. high that are the part's."""
    matrices = iter(range(_HEAD, 1 << 30, _MATRIX))
    before: list[str] = []
    body: list[str] = []
    for number, stage in enumerate(stages):
        if isinstance(stage, ProductText):
            source, *_ = (next(matrices) for _ in range(3))
            call = f"{np.dtype(dtype).itemsize}, count, {stage.at}, first, head, {source})"
            body.append(_PRODUCTS[stage.form] + call)
        else:
            made, loops = _rows_loop(stage, f"s{number}", matrices)
            before += made
            body += loops
    indented = [f"        {line}" for line in body]
    lines = [
        "",
        "@cfunc('void(voidptr, int64)', cache=True, error_model='numpy', fastmath={'contract'})",
        "def loop(data, part):",
        "    xp.wide_vectors()",
        f"    head = carray(data, ({next(matrices)},), np.int64)",
        "    steps, bounds = numbers(head[1], head[0], 4), numbers(head[2], 1, part + 2)[0]",
        "    low, high = bounds[part], bounds[part + 1]",
        *(f"    {line}" for line in before),
        "    for step in range(head[0]):",
        "        count = min(steps[step, 0], high) - low",
        "        if count <= 0:",
        "            continue",
        "        first, now, before = low, low + steps[step, 1], low + steps[step, 2]",
        "        local = low + steps[step, 3]",
        *indented,
    ]
    return "\n".join(lines)


def _rows_loop(stage: FormulaText, prefix: str, matrices: Iterator[int]) -> tuple[list[str], list[str]]:
    """Its matrices by name; and the loop over rows and columns that calls a formula's scalar function.

    Every operand gets a view of its row first: the inner loop then runs over plain vectors.
    """
    made: list[str] = []
    views: list[str] = []
    arguments: list[str] = []
    targets: list[str] = []
    width = f"{prefix}_width"
    for kind, places, elements in (("x", stage.inputs, arguments), ("y", stage.outputs, targets)):
        for number, (blocks, at, absent, same_as, order) in enumerate(places):
            if absent:
                elements += ["None"] * blocks
                continue
            if same_as is not None:
                elements += [f"{prefix}x{same_as}_{block}[j]" for block in order]
                continue
            array, m = f"{prefix}{kind}{number}", next(matrices)
            made.append(f"{array} = carray(pointer(head[{m}]), (head[{m + 1}], head[{m + 3}]), real)")
            if not any(line.startswith(width) for line in made):
                made.append(f"{width} = head[{m + 2}] // {blocks}")
            row = "0" if at == "every" else f"{at} + k"
            for block in range(blocks):
                view = f"{array}_{block}"
                views.append(f"{view} = {array}[{row}, {block} * {width}:{block + 1} * {width}]")
            elements += [f"{array}_{block}[j]" for block in order]
    results = [f"r{number}" for number in range(len(targets))]
    call = f"{', '.join(results)}, = {stage.function.__name__}({', '.join(arguments)})"
    loops = [
        "for k in range(count):",
        *(f"    {view}" for view in views),
        f"    for j in range({width}):",
        f"        {call}",
        *(
            f"        {target} = {result}"
            for target, result in zip(targets, results, strict=True)
            if target != "None"
        ),
    ]
    return made, loops
