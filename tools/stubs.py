"""Write type stubs for users' type checkers, from the functions' own signatures.

    python tools/stubs.py            # write src/xpgrad/__init__.pyi and adapters/xpgrad_jax/__init__.pyi
    python tools/stubs.py --check    # exit with 1 if a file is not up to date

The kernels work on arrays of any namespace, so their source says `Any`. A user passes arrays of one kind and
gets arrays of that kind. The stubs state this with overloads:

- NumPy arrays of one dtype give NumPy arrays of that dtype, of any shape (NumPy's types include the number of
  axes, which differs between arguments and results);
- arrays of another class give arrays of this class;
- a result that may be None (a gradient that `wrt` did not ask for, dP without P) has the array's type or
  `MaybeNone`, which is `Any`: a checker knows the array's methods and requires no test for None.
"""

from __future__ import annotations

import argparse
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import xpgrad
from xpgrad import _words
from xpgrad._vjp import _RULES

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "src" / "xpgrad" / "__init__.pyi"
JAX = ROOT / "adapters" / "xpgrad_jax" / "__init__.pyi"

NOTE = "# Written by tools/stubs.py from the functions' signatures. Do not edit."
BY_HAND = ("convert", "use_engine", "vjp", "__version__")
"""Public names of xpgrad that are no kernels."""

LENGTHS = "Sequence[int] | _IntegerArray"
SPECIAL = {
    "sequence_lens": lambda array: LENGTHS,
    "labels": lambda array: _INTEGERS.get(array, "NDArray[np.integer[Any]]"),
}
"""Arguments that are no arrays of the others' dtype: their type where the others' is `array`."""

_NUMPY, _OTHER, _JAX = "NDArray[_S]", "_A", "ArrayLike"
_INTEGERS = {_OTHER: _OTHER, _JAX: _JAX}

WORDS = ", ".join(sorted(set(_words.BY_ARGUMENT.values())))

CORE_HEAD = f"""{NOTE}
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from xpgrad._version import __version__ as __version__
from xpgrad._words import {WORDS}
{{imports}}

class _Array(Protocol):
    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...

class _IntegerArray(Protocol):
    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...

_T = TypeVar("_T", default=Any)
_S = TypeVar("_S", bound=np.generic)
_A = TypeVar("_A", bound=_Array)
_Lengths: TypeAlias = {LENGTHS}
_MaybeNone: TypeAlias = Any
"""

CONVERT = """
@overload
def convert({numpy}) -> dict[str, NDArray[_S]]: ...
@overload
def convert({other}) -> dict[str, _A]: ...
"""

JAX_HEAD = f"""{NOTE}
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import jax
from numpy.typing import NDArray

from xpgrad._words import Approximate, AutoPad, Direction, Method, Peephole, Reduction
from xpgrad_jax._ffi import why_not as why_plain

__all__ = {{names}}

class _IntegerArray(Protocol):
    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...

ArrayLike: TypeAlias = jax.Array | NDArray[Any]
_Lengths: TypeAlias = {LENGTHS}
"""


def _annotation(annotation: Any) -> str:
    """An annotation as in the source."""
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _parameters(function: Callable, array: str, replaced: Mapping[str, str] | None = None) -> str:
    """A signature's parameters, with `array` for `Any`; parameters with a replaced type have no default."""
    parts, keyword_only = [], False
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.KEYWORD_ONLY and not keyword_only:
            parts.append("*")
            keyword_only = True
        if replaced and p.name in replaced:
            parts.append(f"{p.name}: {replaced[p.name]}")
            continue
        source = _annotation(p.annotation)
        type_ = re.sub(r"\bAny\b", array, source)
        if p.name in _words.BY_ARGUMENT:
            type_ = _words.BY_ARGUMENT[p.name]
        if p.name in SPECIAL:
            type_ = SPECIAL[p.name](array).replace(LENGTHS, "_Lengths")
        if p.default is None and not source.endswith("None"):
            type_ += " | None"
        parts.append(f"{p.name}: {type_}" + ("" if p.default is p.empty else f" = {p.default!r}"))
    return ", ".join(parts)


def _result(function: Callable, array: str, element: str | None = None) -> str:
    """The type of a result with arrays of type `array`; a named tuple's fields are `element`."""
    source = _annotation(inspect.signature(function).return_annotation)
    if source == "Any":
        return array
    if not hasattr(getattr(xpgrad, source, None), "_fields"):
        raise TypeError(f"{function.__name__} returns {source}, expected Any or a public named tuple")
    return f"{source}[{element or array}]"


def _named_tuple(cls: type) -> Iterator[str]:
    yield f"class {cls.__name__}(NamedTuple, Generic[_T]):"
    for name, annotation in cls.__annotations__.items():
        source = getattr(annotation, "__forward_arg__", None) or _annotation(annotation)
        type_ = source.replace("Any", "_T").replace("None", "_MaybeNone")
        yield f"    {name}: {type_}"
    yield ""


def _overloads(name: str, function: Callable) -> Iterator[str]:
    asks = "wrt" in inspect.signature(function).parameters
    for array in (_NUMPY, _OTHER):
        forms: list[tuple[Mapping[str, str], str]] = [({}, array)]
        if asks:
            forms = [
                ({"wrt": "None = None"}, array),
                ({"wrt": "Iterable[str]"}, f"{array} | _MaybeNone"),
            ]
        for replaced, element in forms:
            parameters = _parameters(function, array, replaced)
            yield "@overload"
            yield f"def {name}({parameters}) -> {_result(function, array, element)}: ..."


def _vjp() -> Iterator[str]:
    """`vjp`: an overload for each function with special operands or results, and one for the others.

    A function is identified by its signature for one type of arrays. Protocols with `Any` would match each
    other's functions, and checkers would then infer `Any`.
    """
    example = "NDArray[np.float64]"
    protocols: list[str] = []
    # a cell's results are known at run time, not to checkers
    overloads = [
        "@overload\ndef vjp(fn: Cell, *args: Any, **kwargs: Any) -> tuple[Any, Callable[..., Any]]: ..."
    ]
    # those with more parameters first: they also match in place of those with fewer
    for forward in sorted(_RULES, key=lambda forward: -len(inspect.signature(forward).parameters)):
        if _is_plain(forward):
            continue
        of, gradients = _result(forward, "{array}"), _result(_RULES[forward].gradient, "{array}", "{element}")
        name = "_" + forward.__name__.title().replace("_", "")
        protocols += [
            f"class {name}(Protocol):",
            f"    def __call__(self, {_parameters(forward, example)}) -> {of.format(array=example)}: ...",
            "",
        ]
        for array in (_NUMPY, _OTHER):
            forms = [("", array)]
            if gradients != "{array}":
                forms = [("wrt: Iterable[str], ", f"{array} | _MaybeNone"), *forms]
            for wrt, element in forms:
                pullback = gradients.format(array=array, element=element)
                overloads.append(_vjp_overload(name, array, wrt, of.format(array=array), pullback))
    plain = f"Callable[[{example}], {example}]"
    overloads += [_vjp_overload(plain, array, "", array, array) for array in (_NUMPY, _OTHER)]
    return iter([*protocols, *overloads])


def _is_plain(forward: Callable) -> bool:
    """From one array to one, as `relu` does."""
    parameters = inspect.signature(forward).parameters.values()
    required = [p for p in parameters if p.default is p.empty]
    return len(required) == 1


def _vjp_overload(fn: str, array: str, wrt: str, outputs: str, gradients: str) -> str:
    return (
        f"@overload\ndef vjp(fn: {fn}, X: {array}, *args: Any, {wrt}**kwargs: Any) -> "
        f"tuple[{outputs}, Callable[..., {gradients}]]: ..."
    )


def core() -> str:
    """Text of src/xpgrad/__init__.pyi."""
    lines: list[str] = []
    imported: dict[str, list[str]] = {"xpgrad.engine": ["use_engine"]}
    functions: list[str] = []
    for name in xpgrad.__all__:
        value = getattr(xpgrad, name)
        if name in BY_HAND:
            continue
        if hasattr(value, "_fields"):
            lines += _named_tuple(value)
        elif inspect.isclass(value):
            imported.setdefault(value.__module__, []).append(name)
        else:
            functions += _overloads(name, value)
    imports = "\n".join(
        f"from {module} import {name} as {name}"
        for module, names in sorted(imported.items())
        for name in names
    )
    convert = CONVERT.format(
        numpy=_parameters(xpgrad.convert, _NUMPY), other=_parameters(xpgrad.convert, _OTHER)
    )
    names = f"__all__ = {xpgrad.__all__!r}"
    return "\n".join([CORE_HEAD.format(imports=imports), names, *lines, *functions, convert, *_vjp()])


def jax() -> str:
    """Text of adapters/xpgrad_jax/__init__.pyi."""
    import xpgrad_jax

    lines = [JAX_HEAD.format(names=repr(list(xpgrad_jax.__all__)))]
    for name in xpgrad_jax.__all__:
        if name == "why_plain":
            continue
        function = getattr(xpgrad_jax, name)
        returns = _annotation(inspect.signature(function).return_annotation)
        lines.append(f"def {name}({_parameters(function, _JAX)}) -> {returns}: ...")
    return "\n".join(lines)


def formatted(text: str, path: Path) -> str:
    """A text formatted by ruff."""
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(path), "-"]
    return subprocess.run(command, input=text, text=True, capture_output=True, check=True, cwd=ROOT).stdout


def main() -> int:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    check = parser.parse_args().check
    stale = []
    for path, write in ((CORE, core), (JAX, jax)):
        text = formatted(write(), path)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
            if not check:
                path.write_text(text, encoding="utf-8")
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'not current, run tools/stubs.py' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
