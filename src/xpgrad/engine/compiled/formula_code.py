"""The parts of compiled code: formulas, and generated texts that call them.

A formula is a Python function, which is called once on the numbers of `tracing`. A generated text names and
describes it: the text is the key of the cache, so a changed formula needs another text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from xpgrad.engine.compiled.cache import Loaded, load
from xpgrad.engine.compiled.folder import versions
from xpgrad.engine.formulas.formula import constant_of
from xpgrad.engine.process.remembered import remembered


class ScalarFormula(NamedTuple):
    """A formula for compiled code: a `Formula.key` with the names of its parts."""

    function: Callable[..., tuple]
    constants: tuple[tuple[str, Any], ...]
    parameters: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """A line that only equal formulas share."""
        constants = [f"{name}={_constant(value)}" for name, value in self.constants]
        return " ".join([_constant(self.function), *constants, *self.parameters])

    def on_scalars(self, dtype: str) -> Callable[..., tuple]:
        """The formula on traced numbers of a dtype."""
        from xpgrad.engine.compiled.tracing import Scalars

        xp, settings = Scalars(dtype), {name: constant_of(key) for name, key in self.constants}

        def formula(*given: Any) -> tuple:
            count = len(given) - len(self.parameters)
            numbers = dict(zip(self.parameters, given[count:], strict=True))
            return self.function(xp, *given[:count], **settings, **numbers)

        return formula


def load_with(name: str, text: str, formulas: Sequence[ScalarFormula], dtype: str) -> Loaded:
    """Load a text in which `formulas` are these formulas on traced numbers, and `real` is the dtype."""
    lines = [f"# {formula.description}" for formula in formulas]
    head = [f"# for {dtype}; generated, {versions()}", *lines, "import numpy as np", f"real = np.{dtype}"]
    text = "\n".join([*head, text]) + "\n"
    return load(name, text, lambda: {"formulas": [formula.on_scalars(dtype) for formula in formulas]})


@remembered
def c_function(
    label: str,
    module: str,
    arguments: str,
    call: str,
    made: str = "",
    formulas: tuple[ScalarFormula, ...] = (),
    dtype: str = "float64",
) -> int:
    """The address of a C function without a result that makes one call.

    The call uses the names of `module`, below `xpgrad.engine`. ``fields(data)`` are the integers at an
    address, and ``np`` is NumPy. `arguments` are as in C, with pointers as integers of 64 bits:
    ``"int64 data, int64 part"``. If a function has variants, the expression `made` makes one, perhaps from
    `formulas` of the dtype, and the call calls it ``made``. `label` is a name for the generated file.
    """
    kinds, names = zip(*(argument.split() for argument in arguments.split(", ")), strict=True)
    text = f"""# {call}

from xpgrad.engine.{module} import *
from xpgrad.engine.compiled.cache import cfunc
from xpgrad.engine.compiled.native import fields

{made and f"made = {made}"}


@cfunc("void({", ".join(kinds)})")
def run({", ".join(names)}):
    {call}
"""
    return load_with(label, text, formulas, dtype).run.address


# --- the behaviour of a function, as text


def _constant(value: Any) -> str:
    """A formula's constant as text."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    return f"{_described(value)} {_digest(value)}" if callable(value) else value


@remembered
def _digest(function: Callable[..., Any]) -> str:
    """A hash of a function and of everything that it calls and reads by name."""
    parts = [part for found in _reached(function) for part in _parts_of(found)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


def _reached(function: Any) -> Iterator[FunctionType]:
    """The function, and the Python functions that it reaches, each once."""
    todo, seen = [function], set()
    while todo:
        one = todo.pop()
        if not isinstance(one, FunctionType) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        todo += [value for _, value in _read_by(one)]


def _read_by(function: FunctionType) -> list[tuple[str, Any]]:
    """The outer names that a function reads, and their values: its module's, and its enclosing functions'."""
    names = dict.fromkeys(name for code in _codes(function.__code__) for name in code.co_names)
    read = [(name, function.__globals__[name]) for name in names if name in function.__globals__]
    package = function.__module__.partition(".")[0]  # of other packages the version decides
    found = [value for _, value in read if isinstance(value, ModuleType)]
    modules = [vars(module) for module in found if module.__name__.partition(".")[0] == package]
    within = [(name, own[name]) for own in modules for name in names if name in own]
    around = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return [*read, *within, *((name, cell.cell_contents) for name, cell in around)]


def _parts_of(function: FunctionType) -> Iterator[str]:
    yield f"{function.__name__} {function.__defaults__!r} {function.__kwdefaults__!r}"
    for code in _codes(function.__code__):
        constants = [_described(one) for one in code.co_consts if not isinstance(one, CodeType)]
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_flags
        yield f"{code.co_code.hex()} {names} {constants}"
    for name, value in _read_by(function):
        yield f"{name} {_described(value)}"


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of the functions and comprehensions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _described(value: Any) -> str:
    """A value that a function reads; functions and modules by name."""
    if isinstance(value, (set, frozenset)):  # in an order that does not change from process to process
        return f"{{{', '.join(sorted(map(_described, value)))}}}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_described, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_described(k)}: {_described(v)}' for k, v in value.items())}}}"
    if isinstance(value, FunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    return f"{type(value).__name__} {getattr(value, '__name__', '')}"
