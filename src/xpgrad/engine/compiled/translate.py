"""Functions of a small part of Python as LLVM's code, without inferring types; needs llvmlite.

A function is translated line by line. Python itself computes every known value: sizes, places in records,
which of two branches is taken. Only values that are known at run time become instructions: integers of 64
bits, truth values, real numbers, and memory by its address. Calls of other such functions are inlined.

Such a function may contain ``for`` over ``range`` or over a known tuple, ``while``, ``if``, ``return``,
assignments, arithmetic, comparisons, and calls of such functions, of `Intrinsic`, ``min``, ``max``, ``abs``,
``len`` and NumPy's dtypes. A name for memory or for a tuple has one meaning within a block and is unknown
behind it. Steps of ``range`` are positive unless they are known.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import linecache
import operator
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from xpgrad.engine.compiled.llvm_code import INT64, declared, loop, variable
from xpgrad.engine.process.remembered import remembered

_BIT = ir.IntType(1)
_REALS = {np.float32: ir.FloatType(), np.float64: ir.DoubleType()}
_INTEGERS = {int: 64, np.int64: 64, np.int32: 32, np.uint8: 8}


class Function:
    """A function that is inlined into compiled code; Python calls it like any other function.

    `flags` are LLVM's flags for its arithmetic on real numbers: ``("contract",)``.
    """

    def __init__(self, function: Callable[..., Any], flags: Sequence[str] = ()) -> None:
        self.py_func, self.flags = function, tuple(flags)
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        """Call the Python function."""
        return self.py_func(*arguments)


class Intrinsic:
    """An instruction that Python writes: ``write(code, *arguments)`` returns its value."""

    def __init__(self, write: Callable[..., Any]) -> None:
        self.write = write


class Memory:
    """Contiguous elements, or contiguous rows of `columns` elements."""

    def __init__(self, pointer: ir.Value, count: Any = None, columns: Any = None) -> None:
        self.pointer, self.count, self.columns = pointer, count, columns

    def part(self, code: Code, first: Any, behind: Any) -> Memory:
        """The elements, or the rows, of a slice."""
        first = 0 if first is None else first
        behind = self.count if behind is None else behind
        count = None if behind is None else code.binary("-", behind, first)
        begin = first if self.columns is None else code.binary("*", first, self.columns)
        return Memory(self._at(code, begin), count, self.columns)

    def row(self, code: Code, number: Any) -> Memory:
        """One of the rows."""
        return Memory(self._at(code, code.binary("*", number, self.columns)), self.columns)

    def place(self, code: Code, index: Any) -> ir.Value:
        """A pointer to an element."""
        if isinstance(index, tuple):
            row, column = index
            index = code.binary("+", code.binary("*", row, self.columns), column)
        return self._at(code, index)

    def _at(self, code: Code, number: Any) -> ir.Value:
        return code.builder.gep(self.pointer, [code.integer(number)])

    def address(self, code: Code) -> ir.Value:
        """The address of the first element."""
        return code.builder.ptrtoint(self.pointer, INT64)


def is_known(value: Any) -> bool:
    """Whether a value is known to Python, before run time."""
    if isinstance(value, tuple):
        return all(map(is_known, value))
    return not isinstance(value, (ir.Value, Memory))


class Code:
    """Where instructions are written; `flags` as in Function."""

    def __init__(self, builder: ir.IRBuilder, flags: Sequence[str] = ()) -> None:
        self.builder, self.flags = builder, tuple(flags)

    @property
    def module(self) -> ir.Module:
        """The module that is being written."""
        return self.builder.module

    # --- values

    def integer(self, value: Any, width: int = 64) -> ir.Value:
        """A number or truth value as an integer."""
        kind = ir.IntType(width)
        if not isinstance(value, ir.Value):
            return kind(int(value))
        if not isinstance(value.type, ir.IntType):
            return self.builder.fptosi(value, kind)
        if value.type.width == 1:
            return self.builder.zext(value, kind)
        if value.type.width == width:
            return value
        return (self.builder.trunc if value.type.width > width else self.builder.sext)(value, kind)

    def real(self, value: Any, kind: ir.Type) -> ir.Value:
        """A number as a real number."""
        if not isinstance(value, ir.Value):
            return kind(float(value))
        if isinstance(value.type, ir.IntType):
            return self.builder.sitofp(self.integer(value, max(value.type.width, 32)), kind)
        if value.type == kind:
            return value
        return (self.builder.fptrunc if kind == _REALS[np.float32] else self.builder.fpext)(value, kind)

    def truth(self, value: Any) -> Any:
        """Whether a value is true: a truth value of Python's, or 1 bit."""
        if is_known(value):
            return bool(value)
        if value.type == _BIT:
            return value
        if isinstance(value.type, ir.IntType):
            return self.builder.icmp_signed("!=", value, value.type(0))
        return self.builder.fcmp_unordered("!=", value, value.type(0.0))

    def alike(self, values: Sequence[Any], *, of_bits: bool = False) -> list[ir.Value]:
        """Numbers of one type: the type of the real numbers, else the widest integer; or bits, if all are."""
        if of_bits and all(self.kind_of(value) == _BIT for value in values):
            return [self.value(value, _BIT) for value in values]
        kinds = [value.type for value in values if isinstance(value, ir.Value)]
        reals = [kind for kind in kinds if not isinstance(kind, ir.IntType)]
        reals += [_REALS[type(value)] for value in values if type(value) in _REALS]
        if reals:
            if any(kind != reals[0] for kind in reals):
                raise TypeError("real numbers of two types")
            return [self.real(value, reals[0]) for value in values]
        width = max((kind.width for kind in kinds), default=64)
        return [self.integer(value, width if width > 1 else 64) for value in values]

    def value(self, value: Any, like: ir.Type) -> ir.Value:
        """A number in the type `like`, if that is exact; other conversions need one of NumPy's dtypes."""
        kind = self.kind_of(value)
        if not isinstance(like, ir.IntType):
            return self.real(value, like)
        if not isinstance(kind, ir.IntType) or (like == _BIT and kind != _BIT):
            raise TypeError(f"a value of {kind} where one of {like} is expected")
        if like == _BIT:
            return value if isinstance(value, ir.Value) else _BIT(int(value))
        return self.integer(value, like.width)

    def kind_of(self, value: Any) -> ir.Type:
        """The type of a number."""
        if isinstance(value, ir.Value):
            return value.type
        if isinstance(value, (bool, np.bool_)):
            return _BIT
        return _REALS.get(type(value)) or (_REALS[np.float64] if isinstance(value, float) else INT64)

    # --- arithmetic

    def binary(self, sign: str, a: Any, b: Any) -> Any:
        """``a + b`` and so on."""
        if is_known(a) and is_known(b):
            return _OPERATORS[sign](a, b)
        a, b = self.alike([a, b], of_bits=sign in "&|^")
        if not isinstance(a.type, ir.IntType):
            return getattr(self.builder, _OF_REALS[sign])(a, b, flags=self.flags)
        if sign in ("//", "%"):
            return self._divided(sign, a, b)
        return getattr(self.builder, _OF_INTEGERS[sign])(a, b)

    def _divided(self, sign: str, a: ir.Value, b: ir.Value) -> ir.Value:
        """A quotient rounded towards minus infinity, or its remainder, as in Python."""
        builder = self.builder
        quotient, rest = builder.sdiv(a, b), builder.srem(a, b)
        differs = builder.icmp_signed("<", builder.xor(a, b), a.type(0))
        moves = builder.and_(differs, builder.icmp_signed("!=", rest, a.type(0)))
        if sign == "%":
            return builder.add(rest, builder.select(moves, b, a.type(0)))
        return builder.sub(quotient, builder.zext(moves, a.type))

    def compared(self, sign: str, a: Any, b: Any) -> Any:
        """``a < b`` and so on."""
        if sign in ("is", "is not") or (is_known(a) and is_known(b)):
            return _OPERATORS[sign](a, b)
        a, b = self.alike([a, b])
        if isinstance(a.type, ir.IntType):
            return self.builder.icmp_signed(sign, a, b)
        return (self.builder.fcmp_unordered if sign == "!=" else self.builder.fcmp_ordered)(sign, a, b)

    def negative(self, a: Any) -> Any:
        """``-a``."""
        if is_known(a):
            return -a
        if isinstance(a.type, ir.IntType):
            return self.builder.neg(a)
        return self.builder.fneg(a, flags=self.flags)

    def chosen(self, condition: Any, a: Any, b: Any) -> Any:
        """``a if condition else b``; both are computed."""
        if isinstance(condition, bool):
            return a if condition else b
        if isinstance(a, tuple):
            return tuple(self.chosen(condition, *pair) for pair in zip(a, b, strict=True))
        return self.builder.select(condition, *self.alike([a, b], of_bits=True))

    def least(self, values: Sequence[Any], sign: str = "<") -> Any:
        """The least number, or with the sign ">" the greatest."""
        found = values[0]
        for value in values[1:]:
            found = self.chosen(self.compared(sign, value, found), value, found)
        return found

    # --- memory

    def load(self, place: ir.Value) -> ir.Value:
        """Read an element; bytes and integers of 32 bits become integers of 64 bits."""
        value = self.builder.load(place)
        if isinstance(value.type, ir.IntType) and value.type.width < 64:
            return (self.builder.zext if value.type.width == 8 else self.builder.sext)(value, INT64)
        return value

    def store(self, value: Any, place: ir.Value) -> None:
        """Write an element."""
        self.builder.store(self.value(value, place.type.pointee), place)

    def memory(self, address: Any, kind: Any, count: Any = None, columns: int | None = None) -> Memory:
        """The memory at an address, of a dtype."""
        element = _REALS.get(kind) or ir.IntType(_INTEGERS[kind])
        pointer = self.builder.inttoptr(self.integer(address), element.as_pointer())
        return Memory(pointer, count, columns)

    # --- functions

    def call(self, function: Any, arguments: Sequence[Any]) -> Any:
        """Call a function; return its result."""
        if isinstance(function, Intrinsic):
            return function.write(self, *arguments)
        if isinstance(function, Function):
            code = Code(self.builder, function.flags)
            return _Body(code, function.py_func, arguments).result()
        if isinstance(function, CFunction):
            return function.called(self, arguments)
        known = _KNOWN_CALLS.get(function)
        if known is not None:
            return known(self, *arguments)
        if all(map(is_known, arguments)):
            return function(*arguments)
        if isinstance(function, FunctionType):
            return _Body(self, function, arguments).result()
        raise TypeError(f"{function} cannot be called by compiled code")


_OPERATORS: dict[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod, "&": operator.and_, "|": operator.or_,
    "^": operator.xor, "<<": operator.lshift, ">>": operator.rshift,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq,
    "!=": operator.ne, "is": operator.is_, "is not": operator.is_not,
}  # fmt: skip
_OF_REALS = {"+": "fadd", "-": "fsub", "*": "fmul", "/": "fdiv"}
_OF_INTEGERS = {
    "+": "add", "-": "sub", "*": "mul", "&": "and_", "|": "or_", "^": "xor", "<<": "shl", ">>": "ashr",
}  # fmt: skip
_SIGNS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.Is: "is", ast.IsNot: "is not",
}  # fmt: skip


def _converted(kind: Any, code: Code, value: Any) -> Any:
    if is_known(value):
        return kind(value)
    return code.real(value, _REALS[kind]) if kind in _REALS else code.integer(value, _INTEGERS[kind])


def _root(code: Code, value: Any) -> Any:
    if is_known(value):
        return np.sqrt(value)
    kind = ir.FunctionType(value.type, [value.type])
    name = f"llvm.sqrt.{'f32' if value.type == ir.FloatType() else 'f64'}"
    return code.builder.call(declared(code.module, kind, name), [value])


_KNOWN_CALLS: dict[Any, Callable[..., Any]] = {
    np.sqrt: _root,
    min: lambda code, *values: code.least(values),
    max: lambda code, *values: code.least(values, ">"),
    len: lambda code, value: value.count if isinstance(value, Memory) else len(value),
    abs: lambda code, value: code.chosen(code.compared("<", value, 0), code.negative(value), value),
    bool: lambda code, value: code.truth(value),
    **{kind: functools.partial(_converted, kind) for kind in (*_REALS, *_INTEGERS)},
}


class _FunctionTree:
    """The tree of a function, and what each of its calls asks of it."""

    def __init__(self, tree: ast.FunctionDef) -> None:
        self.tree = tree

    @functools.cached_property
    def assigned(self) -> dict[str, int]:
        """How often each name is assigned to; names that a block within the function assigns count twice."""
        counts: dict[str, int] = {}
        for statement in self.tree.body:
            times = 2 if isinstance(statement, (ast.For, ast.While, ast.If)) else 1
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    counts[node.id] = counts.get(node.id, 0) + times
        return counts

    @functools.cached_property
    def returns_early(self) -> bool:
        """Whether it returns elsewhere than in its last statement."""
        returns = [node for node in _without_expressions(self.tree) if isinstance(node, ast.Return)]
        return bool(returns) and not (len(returns) == 1 and returns[0] is self.tree.body[-1])


def _without_expressions(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below a node; with those of expressions a file has eight times as many."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from _without_expressions(child)


@remembered
def _definitions(file: str) -> dict[int, _FunctionTree]:
    """The functions of a file by their first lines."""
    nodes = _without_expressions(ast.parse("".join(linecache.getlines(file))))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    return {min([f.lineno, *(one.lineno for one in f.decorator_list)]): _FunctionTree(f) for f in functions}


class _Variable(NamedTuple):
    """A number that the function may change."""

    place: ir.Value


class _Expressions:
    """The names and the expressions of one call of a function."""

    def __init__(self, code: Code, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self._code, self._builder, self._function = code, code.builder, function
        own, defaults = function.__code__, function.__defaults__ or ()
        self._definition = _definitions(own.co_filename)[own.co_firstlineno]
        cells = zip(own.co_freevars, function.__closure__ or (), strict=True)
        self._free = {name: cell.cell_contents for name, cell in cells}
        self._scopes: list[dict[str, Any]] = [{}]
        names = own.co_varnames[: own.co_argcount]
        values = [*arguments, *defaults[len(defaults) + len(arguments) - len(names) :]]
        for name, value in zip(names, values, strict=True):
            changes = name in self._definition.assigned and isinstance(value, (ir.Value, int, np.number))
            self._scopes[0][name] = self._variable(value) if changes else value

    def _variable(self, value: Any) -> _Variable:
        kind = self._code.kind_of(value)
        place = variable(self._builder, kind)
        self._code.store(value, place)
        return _Variable(place)

    def _ends(self, index: ast.Slice) -> tuple[Any, Any]:
        return tuple(None if end is None else self._value(end) for end in (index.lower, index.upper))  # type: ignore[return-value]

    def _new(self, *names: str) -> Iterator[ir.Block]:
        return (self._builder.append_basic_block(name) for name in names)

    # --- expressions

    def _value(self, node: ast.expr) -> Any:
        return getattr(self, f"_of_{type(node).__name__.lower()}")(node)

    def _of_constant(self, node: ast.Constant) -> Any:
        return node.value

    def _of_name(self, node: ast.Name) -> Any:
        for names in (*reversed(self._scopes), self._free, self._function.__globals__):
            if node.id in names:
                found = names[node.id]
                return self._builder.load(found.place) if isinstance(found, _Variable) else found
        return getattr(builtins, node.id)

    def _of_tuple(self, node: ast.Tuple) -> tuple:
        return tuple(map(self._value, node.elts))

    def _of_attribute(self, node: ast.Attribute) -> Any:
        if node.attr == "data" and isinstance(node.value, ast.Attribute) and node.value.attr == "ctypes":
            memory = self._value(node.value.value)
            if isinstance(memory, Memory):
                return memory.address(self._code)
        return getattr(self._value(node.value), node.attr)

    def _of_subscript(self, node: ast.Subscript) -> Any:
        base = self._value(node.value)
        if not isinstance(base, Memory):
            return base[self._value(node.slice)]
        if isinstance(node.slice, ast.Slice):
            return base.part(self._code, *self._ends(node.slice))
        index = self._value(node.slice)
        if base.columns is not None and not isinstance(index, tuple):
            return base.row(self._code, index)
        return self._code.load(base.place(self._code, index))

    def _of_binop(self, node: ast.BinOp) -> Any:
        a, b = self._value(node.left), self._value(node.right)
        return self._code.binary(_SIGNS[type(node.op)], a, b)

    def _of_unaryop(self, node: ast.UnaryOp) -> Any:
        value = self._value(node.operand)
        if isinstance(node.op, ast.USub):
            return self._code.negative(value)
        if isinstance(node.op, ast.Not):
            found = self._code.truth(value)
            return not found if isinstance(found, bool) else self._builder.not_(found)
        raise TypeError(f"operator {type(node.op).__name__}")

    def _of_compare(self, node: ast.Compare) -> Any:
        left, found = self._value(node.left), None
        for sign, right_node in zip(node.ops, node.comparators, strict=True):
            right = self._value(right_node)
            one = self._code.compared(_SIGNS[type(sign)], left, right)
            found = one if found is None else self._code.binary("&", found, one)
            left = right
        return found

    def _of_boolop(self, node: ast.BoolOp) -> Any:
        """A truth value; later operands are computed only if they decide it."""
        is_and = isinstance(node.op, ast.And)
        found = self._code.truth(self._value(node.values[0]))
        for other in node.values[1:]:
            if isinstance(found, bool):
                if found is not is_and:
                    return found
                found = self._code.truth(self._value(other))
            else:
                if_true = other if is_and else ast.Constant(True)
                if_false = ast.Constant(False) if is_and else other
                found = self._branched(found, if_true, if_false, to_truth=True)
        return found

    def _of_ifexp(self, node: ast.IfExp) -> Any:
        condition = self._code.truth(self._value(node.test))
        if isinstance(condition, bool):
            return self._value(node.body if condition else node.orelse)
        return self._branched(condition, node.body, node.orelse)

    def _branched(self, condition: Any, body: ast.expr, other: ast.expr, *, to_truth: bool = False) -> Any:
        """One of two values; the other is not computed, unless it can be without harm."""
        made = self._code.truth if to_truth else lambda value: value
        if _is_plain(body) and _is_plain(other):
            return self._code.chosen(condition, made(self._value(body)), made(self._value(other)))
        places = [*self._new("then", "else", "end")]
        self._builder.cbranch(condition, *places[:2])
        values, ends = [], []
        for place, node in zip(places, (body, other), strict=False):
            self._builder.position_at_end(place)
            values.append(made(self._value(node)))
            ends.append(self._builder.block)
        kinds = [self._code.kind_of(value) for value in values]
        integer = _BIT if kinds == [_BIT, _BIT] else INT64
        kind = next((kind for kind in kinds if not isinstance(kind, ir.IntType)), integer)
        numbers = []
        for end, value in zip(ends, values, strict=True):
            self._builder.position_at_end(end)
            numbers.append(self._code.value(value, kind))
            self._builder.branch(places[2])
        self._builder.position_at_end(places[2])
        found = self._builder.phi(kind)
        for number, end in zip(numbers, ends, strict=True):
            found.add_incoming(number, end)
        return found

    def _of_call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "view":
            value = self._value(node.func.value)
            if not is_known(value):
                kind = self._value(node.args[0])
                return self._builder.bitcast(value, _REALS.get(kind) or ir.IntType(_INTEGERS[kind]))
            return value.view(self._value(node.args[0]))
        function = self._value(node.func)
        return self._code.call(function, [self._value(argument) for argument in node.args])


class _Body(_Expressions):
    """The statements of one call of a function."""

    def __init__(self, code: Code, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
        super().__init__(code, function, arguments)
        self._loops: list[ir.Block] = []  # where ``continue`` goes
        self._results: Any = None  # the variables of the results, if several statements return them
        self._returned: Any = None
        self._end: ir.Block | None = None

    def result(self) -> Any:
        """Write the function; return its results."""
        if self._definition.returns_early:
            self._end = self._builder.append_basic_block("returned")
        self._statements(self._definition.tree.body)
        if self._end is not None:
            if not self._builder.block.is_terminated:
                self._builder.branch(self._end)
            self._builder.position_at_end(self._end)
            if self._results is not None:
                self._returned = _mapped(self._builder.load, self._results)
        return self._returned

    # --- assignments

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Tuple):
            values = value
            if isinstance(value, Memory):
                values = [self._code.load(value.place(self._code, k)) for k in range(value.count)]
            if len(values) != len(target.elts):
                raise TypeError("a tuple of as many values is needed")
            for one, part in zip(target.elts, values, strict=True):
                self._assign(one, part)
        elif isinstance(target, ast.Subscript):
            self._write(self._value(target.value), target.slice, value)
        else:
            self._bind(target.id, value)  # type: ignore[attr-defined]

    def _bind(self, name: str, value: Any) -> None:
        found = self._scopes[0].get(name)
        if isinstance(found, _Variable):
            self._code.store(value, found.place)
            return
        changes = isinstance(value, ir.Value) or (
            self._definition.assigned[name] > 1 and isinstance(value, (int, float, np.number, np.bool_))
        )
        if changes:
            self._scopes[0][name] = self._variable(value)
        else:
            self._scopes[-1][name] = value

    def _write(self, memory: Memory, index: ast.expr, value: Any) -> None:
        code = self._code
        if not isinstance(index, ast.Slice):
            code.store(value, memory.place(code, self._value(index)))
            return
        part = memory.part(code, *self._ends(index))
        with loop(code.builder, code.integer(part.count)) as number:
            element = code.load(value.place(code, number)) if isinstance(value, Memory) else value
            code.store(element, part.place(code, number))

    # --- statements

    def _statements(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if self._builder.block.is_terminated:
                return
            try:
                getattr(self, f"_do_{type(statement).__name__.lower()}")(statement)
            except TranslationError:
                raise
            except Exception as error:
                where = f"{self._function.__code__.co_filename}:{statement.lineno}"
                raise TranslationError(f"{where}: {type(error).__name__}: {error}") from error

    @contextlib.contextmanager
    def _block(self, place: ir.Block, behind: ir.Block) -> Iterator[None]:
        """Write a block; unless it ends by itself, the block `behind` follows."""
        self._builder.position_at_end(place)
        self._scopes.append({})
        yield
        self._scopes.pop()
        if not self._builder.block.is_terminated:
            self._builder.branch(behind)

    def _do_assign(self, statement: ast.Assign) -> None:
        value = self._value(statement.value)
        for target in statement.targets:
            self._assign(target, value)

    def _do_augassign(self, statement: ast.AugAssign) -> None:
        sign, target = _SIGNS[type(statement.op)], statement.target
        if isinstance(target, ast.Subscript):
            place = self._value(target.value).place(self._code, self._value(target.slice))
            value = self._code.binary(sign, self._code.load(place), self._value(statement.value))
            self._code.store(value, place)
            return
        self._assign(target, self._code.binary(sign, self._value(target), self._value(statement.value)))

    def _do_expr(self, statement: ast.Expr) -> None:
        self._value(statement.value)

    def _do_return(self, statement: ast.Return) -> None:
        value = None if statement.value is None else self._value(statement.value)
        if self._end is None:
            self._returned = value
            return
        if value is not None:
            if self._results is None:
                self._results = _mapped(lambda one: variable(self._builder, self._code.kind_of(one)), value)
            _mapped(self._code.store, value, self._results)
        self._builder.branch(self._end)

    def _do_if(self, statement: ast.If) -> None:
        condition = self._code.truth(self._value(statement.test))
        if isinstance(condition, bool):
            self._statements(statement.body if condition else statement.orelse)
            return
        then, other, end = self._new("then", "else", "end")
        self._builder.cbranch(condition, then, other)
        for place, statements in ((then, statement.body), (other, statement.orelse)):
            with self._block(place, end):
                self._statements(statements)
        self._builder.position_at_end(end)

    def _do_while(self, statement: ast.While) -> None:
        head, body, end = self._new("head", "body", "end")
        self._builder.branch(head)
        self._builder.position_at_end(head)
        condition = self._code.truth(self._value(statement.test))
        self._builder.cbranch(self._code.value(condition, _BIT), body, end)
        self._loops.append(head)
        with self._block(body, head):
            self._statements(statement.body)
        self._loops.pop()
        self._builder.position_at_end(end)

    def _do_for(self, statement: ast.For) -> None:
        call = statement.iter
        if not (isinstance(call, ast.Call) and self._value(call.func) is range):
            for value in self._value(call):
                self._assign(statement.target, value)
                self._statements(statement.body)
            return
        numbers = [self._value(argument) for argument in call.args]
        start, stop, step = (0, numbers[0], 1) if len(numbers) == 1 else (*numbers, 1)[:3]
        code, builder = self._code, self._builder
        stop, step_value = code.integer(stop), code.integer(step)
        counter = variable(builder, INT64)
        builder.store(code.integer(start), counter)
        head, body, following, end = self._new("head", "body", "following", "end")
        builder.branch(head)
        builder.position_at_end(head)
        sign = ">" if is_known(step) and step < 0 else "<"
        builder.cbranch(builder.icmp_signed(sign, builder.load(counter), stop), body, end)
        self._loops.append(following)
        with self._block(body, following):
            self._assign(statement.target, builder.load(counter))
            self._statements(statement.body)
        self._loops.pop()
        builder.position_at_end(following)
        builder.store(builder.add(builder.load(counter), step_value), counter)
        builder.branch(head)
        builder.position_at_end(end)

    def _do_continue(self, statement: ast.Continue) -> None:
        self._builder.branch(self._loops[-1])


def _mapped(function: Callable[..., Any], value: Any, *others: Any) -> Any:
    """The function of a value, or of each value of a tuple."""
    if isinstance(value, tuple):
        return tuple(_mapped(function, *parts) for parts in zip(value, *others, strict=True))
    return function(value, *others)


_PLAIN = (
    ast.Name, ast.Constant, ast.UnaryOp, ast.BinOp, ast.Compare, ast.IfExp, ast.Tuple, ast.Attribute,
    ast.operator, ast.unaryop, ast.cmpop, ast.expr_context,
)  # fmt: skip


def _is_plain(node: ast.expr) -> bool:
    """Whether an expression can be computed needlessly: it reads no memory and divides no integers."""
    return all(
        isinstance(part, _PLAIN) and not isinstance(part, (ast.FloorDiv, ast.Mod)) for part in ast.walk(node)
    )


class TranslationError(TypeError):
    """A line is outside the part of Python that can be translated."""


class CFunction:
    """A function of Python that becomes a C function of the types in `signature`.

    Other functions of its module call it; callers from elsewhere use its address.
    """

    def __init__(self, function: Callable[..., Any], signature: str) -> None:
        result, _, arguments = signature.rstrip(")").partition("(")
        self.name, self._function = function.__name__, Function(function)
        self._result = _TYPES[result]
        self._kinds = [_TYPES[argument.strip()] for argument in arguments.split(",") if argument.strip()]
        self._made: ir.Function | None = None

    def write(self, module: ir.Module, name: str) -> None:
        """Write it into a module, under this name."""
        self._made = ir.Function(module, ir.FunctionType(self._result, self._kinds), name)
        code = Code(ir.IRBuilder(self._made.append_basic_block("entry")))
        found = code.call(self._function, self._made.args)
        if isinstance(self._result, ir.VoidType):
            code.builder.ret_void()
        else:
            code.builder.ret(code.value(found, self._result))

    def called(self, code: Code, arguments: Sequence[Any]) -> ir.Value:
        """A call from a later function of the module."""
        values = [code.value(value, kind) for value, kind in zip(arguments, self._kinds, strict=True)]
        return code.builder.call(self._made, values)


_TYPES = {
    "void": ir.VoidType(), "int64": INT64, "int32": ir.IntType(32), "float32": ir.FloatType(),
    "float64": ir.DoubleType(),
}  # fmt: skip
