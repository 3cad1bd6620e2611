"""A formula's source as scalar functions: the text that every compiled loop begins with.

The source is read, its parameter ``xp`` is dropped (the scalar functions of the dtype's module take its
place), and its constants become globals.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xpgrad.engine.compiled.cache import load, one_at_a_time
from xpgrad.engine.compiled.folder import versions
from xpgrad.engine.formulas import special
from xpgrad.engine.formulas.formula import as_text


@one_at_a_time
def preamble(
    functions: Sequence[Callable],
    constants: dict,
    dtype: str,
    parameters: Mapping[str, tuple[str, ...]] | None = None,
) -> str:
    """The scalar functions that a loop calls, and the constants as globals.

    `parameters` maps a function's name to the keywords that each call passes, after the operands. The loop
    calls the functions once, on the numbers of `tracing`.
    """
    found: dict[str, Callable] = {}
    for function in functions:
        _collect(function, found)
    settings = [f"{name} = {_setting(value, found)}" for name, value in constants.items()]
    needed = [f for f in reversed(found.values()) if f not in functions]
    names = ", ".join(f"{f.__module__}.{f.__name__}" for f in dict.fromkeys(functions))
    parts = [
        f"# {names} for {dtype}; generated, {versions()}",
        "from types import SimpleNamespace\n\nfrom xpgrad.engine.compiled.tracing import Scalars\n",
        f"xp = Scalars({dtype!r})\n",
        *(_scalar_function(f) for f in needed),
        *settings,
        *(_scalar_function(f, (parameters or {}).get(f.__name__, ())) for f in dict.fromkeys(functions)),
    ]
    return "\n".join(parts) + "\n"


def _setting(value: Any, found: dict[str, Callable]) -> str:
    """A constant as an expression, its functions among those found."""
    if isinstance(value, tuple):
        fields = zip(value._fields, value, strict=True)  # type: ignore[attr-defined]
        return f"SimpleNamespace({', '.join(f'{name}={_setting(one, found)}' for name, one in fields)})"
    if callable(value):
        _collect(value, found)
        return value.__name__
    text = as_text(value)
    return text if text in ("None", "True", "False") else f"xp.real({text})"


@functools.cache
def c_function(label: str, module: str, arguments: str, call: str, made: str = "", before: str = "") -> int:
    """The address of a C function without a result that makes one call.

    `module` is where the called function is, below `xpgrad.engine`; `arguments` are as in C, with pointers as
    integers of 64 bits: ``"int64 data, int64 part"``. In the call ``fields(data)`` are the integers at an
    address, and ``np`` is NumPy. A function that has variants is `made` by another one of the module, perhaps
    of what the text `before` defines; the call calls it ``made``. `label` is a name for the generated file.
    """
    kinds, names = zip(*(argument.split() for argument in arguments.split(", ")), strict=True)
    text = f"""# {call}; generated, {versions()}
{before}
import numpy as np

from xpgrad.engine.compiled.cache import cfunc
from xpgrad.engine.compiled.native import fields
from xpgrad.engine.{module} import {(made or call).partition("(")[0]}

{made and f"made = {made}"}


@cfunc("void({", ".join(kinds)})")
def run({", ".join(names)}):
    {call}
"""
    return load(label, text).run.address


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
    return f"{ast.unparse(tree)}\n"
