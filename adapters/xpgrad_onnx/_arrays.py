"""Arrays that stand for tensors of an ONNX graph: operations on them become nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from xpgrad_onnx._scopes import reads
from xpgrad_onnx._sizes import Atom, Quotient, Size, Symbol, same_shape, same_size

_current: ContextVar[Scope] = ContextVar("xpgrad_onnx_scope")
_MOST_PARTS = 8  # the most equal parts of an axis for one Split; more parts are single slices

Dimension = int | Size


class Scope:
    """Nodes of a graph, or of a loop's body.

    `opset` is the version of ONNX's operators. `fresh` returns an unused name for a hint, and `put_constant`
    adds an initializer to the outermost graph. Nodes can read the tensors of the scope around this, `parent`.
    """

    def __init__(
        self,
        opset: int,
        fresh: Callable[[str], str],
        put_constant: Callable[[onnx.TensorProto], None],
        parent: Scope | None = None,
    ) -> None:
        self.opset, self.fresh, self.put_constant, self.parent = opset, fresh, put_constant, parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.nodes: list[onnx.NodeProto] = []
        self._made: dict[tuple[Any, ...], GraphArray] = {}
        self._sources: dict[Symbol, tuple[GraphArray, int]] = {}

    def inner(self) -> Scope:
        """A scope inside of this one."""
        return Scope(self.opset, self.fresh, self.put_constant, self)

    def root(self) -> Scope:
        """The outermost scope."""
        return self if self.parent is None else self.parent.root()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Context in which this scope makes the arrays that depend on no others."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    # --- tensors

    def tensor(self, name: str, dtype: Any, shape: Sequence[Dimension]) -> GraphArray:
        """The array of an existing tensor; its axes define the values of their symbols."""
        array = GraphArray(self, np.dtype(dtype), tuple(shape), name)
        for axis, size in enumerate(array.shape):
            if isinstance(size, Size) and len(size.terms) == 1:
                ((atoms, coefficient),) = size.terms.items()
                if coefficient == 1 and len(atoms) == 1 and isinstance(atoms[0], Symbol):
                    self._sources.setdefault(atoms[0], (array, axis))
        return array

    def constant(self, values: Any, dtype: Any) -> GraphArray:
        """An array of known numbers; equal arrays share an initializer."""
        root, array = self.root(), np.asarray(values, dtype=dtype)
        key = "constant", array.dtype.str, array.shape, array.tobytes()
        if key not in root._made:
            name = self.fresh("xpgrad/constant")
            self.put_constant(numpy_helper.from_array(array, name))
            root._made[key] = GraphArray(root, array.dtype, array.shape, name)
        return root._made[key]

    def cached(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """The array that was made for this key before, else a new one."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def emit(
        self,
        op_type: str,
        inputs: Sequence[GraphArray | None],
        dtype: Any,
        *shapes: Sequence[Dimension],
        **attributes: Any,
    ) -> tuple[GraphArray, ...]:
        """A node in the innermost scope of its inputs; an array for each of its outputs' shapes."""
        given = ["" if array is None else array.name for array in inputs]
        scope = max((i.scope for i in inputs if i is not None), key=lambda s: s.depth, default=self.root())
        names = [self.fresh(f"xpgrad/{op_type}") for _ in shapes]
        scope.nodes.append(
            helper.make_node(op_type, given, names, name=self.fresh(f"xpgrad/{op_type}_node"), **attributes)
        )
        return tuple(
            GraphArray(scope, np.dtype(dtype), tuple(s), n) for s, n in zip(shapes, names, strict=True)
        )

    # --- sizes as tensors

    def size(self, size: Dimension) -> GraphArray:
        """A size as a tensor (1,)."""
        if isinstance(size, int):
            return self.constant([size], np.int64)
        return self.cached(("size", size), lambda: size.evaluate(self._atom))

    def _atom(self, atom: Atom) -> Any:
        if isinstance(atom, Quotient):
            return self.size(atom.size) // atom.divisor
        array, axis = self._source(atom)
        key = "shape of", array.name

        def shape() -> GraphArray:
            return self.emit("Shape", [array], np.int64, (array.ndim,))[0]

        scope, place = array.scope, self.constant([axis], np.int64)
        return scope.cached(
            ("size of", *key, axis),
            lambda: self.emit("Gather", [scope.cached(key, shape), place], np.int64, (1,), axis=0)[0],
        )

    def _source(self, symbol: Symbol) -> tuple[GraphArray, int]:
        if symbol in self._sources:
            return self._sources[symbol]
        if self.parent is None:
            raise ValueError(f"gradient_model: no tensor has the size {symbol.name!r}, expected one")
        return self.parent._source(symbol)

    def shape(self, sizes: Sequence[Dimension]) -> GraphArray:
        """A shape as a tensor."""
        if all(isinstance(size, int) for size in sizes):
            return self.constant(list(sizes), np.int64)
        pieces = [self.size(size) for size in sizes]
        return (
            pieces[0] if len(pieces) == 1 else self.emit("Concat", pieces, np.int64, (len(sizes),), axis=0)[0]
        )


def current() -> Scope:
    """The scope of arrays that depend on no others."""
    return _current.get()


def _operator(op_type: str, dtype: Any = None) -> Callable[..., Any]:
    """A method that is one operator on elements."""
    return lambda array, *others: elementwise(op_type, [array, *others], dtype)


def _reflected(op_type: str) -> Callable[..., Any]:
    """A method that is one operator on elements, with the array as the second operand."""
    return lambda array, other: elementwise(op_type, [other, array])


class GraphArray:
    """A tensor of a graph, made in a scope, with the interface of the array API standard.

    `fill` is the value of all elements, if they are equal: then the tensor gets its name only when a node
    needs its elements.
    """

    __slots__ = ("_name", "dtype", "fill", "scope", "shape")
    __array_priority__ = 1000
    device = "cpu"

    def __init__(
        self, scope: Scope, dtype: np.dtype, shape: tuple[Dimension, ...], name: str = "", fill: Any = None
    ) -> None:
        self.scope, self.dtype, self.shape, self._name, self.fill = scope, dtype, shape, name, fill

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        return import_module("xpgrad_onnx._namespace")

    @property
    def name(self) -> str:
        """The tensor's name."""
        if not self._name:
            scope = self.scope
            value = numpy_helper.from_array(np.asarray([self.fill], dtype=self.dtype))
            shape = scope.shape(self.shape)
            (made,) = scope.emit("ConstantOfShape", [shape], self.dtype, self.shape, value=value)
            self._name, self.scope = made.name, made.scope
        return self._name

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> Any:
        """The number of elements."""
        total: Any = 1
        for size in self.shape:
            total = total * size
        return total

    @property
    def T(self) -> GraphArray:
        """The transposed matrix."""
        return self.transposed(range(self.ndim)[::-1])

    def transposed(self, axes: Sequence[int]) -> GraphArray:
        """The array with its axes in this order."""
        axes = [int(axis) for axis in axes]
        if axes == list(range(self.ndim)):
            return self
        shape = [self.shape[axis] for axis in axes]
        return self.scope.emit("Transpose", [self], self.dtype, shape, perm=axes)[0]

    def reshaped(self, shape: Sequence[Dimension]) -> GraphArray:
        """The array in another shape; one size may be -1."""
        sizes = list(shape)
        if -1 in sizes:
            rest: Any = 1
            for size in sizes:
                rest = rest if size == -1 else rest * size
            sizes[sizes.index(-1)] = self.size // rest
        if same_shape(sizes, self.shape):
            return self
        if self.fill is not None:
            return GraphArray(self.scope, self.dtype, tuple(sizes), fill=self.fill)
        unknown = [axis for axis, size in enumerate(sizes) if not isinstance(size, int)]
        free = 0 not in sizes and len(unknown) == 1
        target = [-1 if free and axis in unknown else size for axis, size in enumerate(sizes)]
        allow = {"allowzero": 1} if 0 in sizes and self.scope.opset >= 14 else {}
        return self.scope.emit("Reshape", [self, self.scope.shape(target)], self.dtype, sizes, **allow)[0]

    # --- elements

    def __getitem__(self, key: Any) -> GraphArray:
        items = list(key) if isinstance(key, tuple) else [key]
        if Ellipsis in items:
            at = items.index(Ellipsis)
            known = sum(item is not None and item is not Ellipsis for item in items)
            items[at : at + 1] = [slice(None)] * (self.ndim - known)
        items += [slice(None)] * (self.ndim - sum(item is not None for item in items))
        array = self._sliced([item for item in items if item is not None])
        if all(isinstance(item, slice) for item in items):
            return array
        sizes = iter(array.shape)
        each = [(item, 1 if item is None else next(sizes)) for item in items]
        return array.reshaped([size for item, size in each if item is None or isinstance(item, slice)])

    def _sliced(self, items: Sequence[Any]) -> GraphArray:
        """The elements within these slices; a number is a slice of one."""
        found: list[tuple[int, Dimension, Dimension, int]] = []
        shape = list(self.shape)
        for axis, (item, size) in enumerate(zip(items, self.shape, strict=True)):
            if not isinstance(item, slice):
                number = int(item)
                item = slice(number, None if number == -1 else number + 1)
            start, stop, step, count = _bounds(item, size)
            if step != 1 or start != 0 or not same_size(count, size):
                found.append((axis, start, stop, step))
                shape[axis] = count
        if not found:
            return self
        if self.fill is not None:
            return GraphArray(self.scope, self.dtype, tuple(shape), fill=self.fill)
        part = self._equal_part(found, shape)
        if part is not None:
            return part
        scope = self.scope
        starts, ends = (scope.shape([row[k] for row in found]) for k in (1, 2))
        axes, steps = (scope.constant([row[k] for row in found], np.int64) for k in (0, 3))
        return scope.emit("Slice", [self, starts, ends, axes, steps], self.dtype, shape)[0]

    def _equal_part(self, found: Any, shape: Sequence[Dimension]) -> GraphArray | None:
        """One of equal parts of the last axis; all parts are outputs of one node."""
        axis, start, stop, step = found[0]
        whole, width = self.shape[-1], shape[-1]
        if len(found) > 1 or axis != self.ndim - 1 or step != 1 or isinstance(stop, Size):
            return None
        if not isinstance(whole, int) or not isinstance(width, int) or not width:
            return None
        if start % width or whole % width or whole // width > _MOST_PARTS:
            return None
        count = whole // width

        def split() -> tuple[GraphArray, ...]:
            sizes = self.scope.constant([width] * count, np.int64)
            return self.scope.emit("Split", [self, sizes], self.dtype, *[shape] * count, axis=axis)

        parts = self.scope.cached(("split", self.name, width), split)
        return parts[start // width]

    # --- arithmetic

    __add__, __radd__ = _operator("Add"), _reflected("Add")
    __sub__, __rsub__ = _operator("Sub"), _reflected("Sub")
    __mul__, __rmul__ = _operator("Mul"), _reflected("Mul")
    __truediv__, __rtruediv__ = _operator("Div"), _reflected("Div")
    __floordiv__ = _operator("Div")  # only of sizes, which are not negative
    __pow__, __neg__, __abs__ = _operator("Pow"), _operator("Neg"), _operator("Abs")
    __lt__, __le__ = _operator("Less", np.bool_), _operator("LessOrEqual", np.bool_)
    __gt__, __ge__ = _operator("Greater", np.bool_), _operator("GreaterOrEqual", np.bool_)
    __and__, __or__ = _operator("And", np.bool_), _operator("Or", np.bool_)
    __invert__ = _operator("Not", np.bool_)
    __eq__ = _operator("Equal", np.bool_)
    __hash__ = object.__hash__

    def __ne__(self, other: Any) -> GraphArray:  # type: ignore[override]
        return ~(self == other)

    def __matmul__(self, other: GraphArray) -> GraphArray:
        return matmul(self, other)

    def __bool__(self) -> bool:
        raise TypeError("an array of an ONNX graph has no values while the graph is made")

    def __repr__(self) -> str:
        return f"GraphArray({self._name or self.fill!r}, {self.dtype}, {self.shape})"


def _bounds(item: slice, size: Dimension) -> tuple[Dimension, Dimension, int, Dimension]:
    """Start, stop, step and length of a slice of an axis."""
    step = 1 if item.step is None else int(item.step)
    least = int(np.iinfo(np.int64).min)
    if isinstance(size, int) and not any(isinstance(n, Size) for n in (item.start, item.stop)):
        first, last, step = item.indices(size)
        return first, last if last >= 0 else least, step, len(range(first, last, step))
    if step < 1:
        if item.start is not None or item.stop is not None or step != -1:
            raise TypeError(f"an axis of unknown size has no slice {item}")
        return -1, least, -1, size
    start, stop = (
        default if n is None else n if n >= 0 else size + n
        for n, default in ((item.start, 0), (item.stop, size))
    )
    beyond = stop - size
    if isinstance(beyond, int) and beyond > 0:
        stop = size
    count: Any = stop - start
    return start, stop, step, count if step == 1 else (count + step - 1) // step


# --- operations -------------------------------------------------------------------------------------------

_NUMBERS: dict[str, Callable[..., Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Neg": np.negative,
}  # fmt: skip


def elementwise(op_type: str, operands: Sequence[Any], dtype: Any = None) -> GraphArray:
    """A node on broadcast operands; numbers get the dtype of the arrays."""
    arrays = [operand for operand in operands if isinstance(operand, GraphArray)]
    like = arrays[-1]
    given = [as_array(operand, like) for operand in operands]
    kinds = {array.dtype for array in (given[1:] if op_type == "Where" else given)}
    if len(kinds) > 1:
        raise TypeError(f"{op_type} has arrays of {sorted(map(str, kinds))}, expected one dtype")
    shape = broadcast_shape(*(array.shape for array in given))
    kind = np.dtype(next(iter(kinds)) if dtype is None else dtype)
    if op_type in _NUMBERS and all(array.fill is not None for array in given):
        fill = _NUMBERS[op_type](*(array.dtype.type(array.fill) for array in given))
        return GraphArray(like.scope, kind, shape, fill=fill)
    enough = any(array.fill is None and same_shape(array.shape, shape) for array in given)
    inputs = [
        array.scope.constant(array.fill, array.dtype) if enough and array.fill is not None else array
        for array in given
    ]
    return like.scope.emit(op_type, inputs, kind, shape)[0]


def as_array(value: Any, like: GraphArray) -> GraphArray:
    """A number as an array without axes, of another array's dtype."""
    if isinstance(value, GraphArray):
        return value
    if isinstance(value, Size):
        size = like.scope.size(value).reshaped(())
        return size if like.dtype == np.int64 else cast(size, like.dtype)
    return GraphArray(like.scope.root(), like.dtype, (), fill=value)


def cast(array: GraphArray, dtype: Any) -> GraphArray:
    """The array in another dtype."""
    kind = np.dtype(dtype)
    if array.dtype == kind:
        return array
    if array.fill is not None:
        return GraphArray(array.scope, kind, array.shape, fill=array.fill)
    return array.scope.emit("Cast", [array], kind, array.shape, to=helper.np_dtype_to_tensor_dtype(kind))[0]


def broadcast_shape(*shapes: Sequence[Dimension]) -> tuple[Dimension, ...]:
    """The broadcast shape of all."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(_broadcast_size(sizes) for sizes in zip(*padded, strict=True))


def _broadcast_size(sizes: Sequence[Dimension]) -> Dimension:
    wide = [size for size in sizes if not (isinstance(size, int) and size == 1)]
    if not wide:
        return 1
    if any(size != wide[0] for size in wide):
        raise ValueError(f"sizes {sizes} cannot be broadcast")
    return next((size for size in wide if isinstance(size, int)), wide[0])


def matmul(a: GraphArray, b: GraphArray) -> GraphArray:
    """The matrix product."""
    lead = broadcast_shape(a.shape[:-2], b.shape[:-2])
    return a.scope.emit("MatMul", [a, b], a.dtype, (*lead, a.shape[-2], b.shape[-1]))[0]


def used(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    """The nodes on which these outputs depend."""
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if needed.isdisjoint(node.output):
            continue
        kept.append(node)
        needed.update(reads(node))
    return kept[::-1]


def tensor_info(array: GraphArray, name: str = "") -> onnx.ValueInfoProto:
    """The description of an input or output in a graph, for an array, under another name if given."""
    sizes = [size if isinstance(size, int) else None for size in array.shape]
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name or array.name, kind, sizes)
