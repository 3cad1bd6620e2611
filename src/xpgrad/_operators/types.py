"""The types of arrays in public signatures, and what signatures say about arrays and results.

A kernel takes arrays of any namespace, and returns arrays of the same class. A public function tells this to
a user's type checker: ``X: Array[A]`` is an argument, and `A` the type of results. A gradient with `wrt` has
results that may be None: ``wrt: Wanted[MaybeNone] | None`` makes its results ``A | MaybeNone``. Named tuples
of results are generic over `AnyArray`, which a user may omit.

`array_arguments` lists the arguments that are annotated by `Array` or `Lengths`. Adapters, and tools that
make random calls, use it to find an operator's arrays.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from typing import Never

    from typing_extensions import TypeVar  # known to checkers; Python 3.11's has no `default`

    A = TypeVar("A")
    AnyArray = TypeVar("AnyArray", default=Any)
    MaybeNone = TypeVar("MaybeNone", default=Never)
    A_co = TypeVar("A_co", covariant=True, default=Any)
    MaybeNone_co = TypeVar("MaybeNone_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    A = TypeVar("A")
    AnyArray = TypeVar("AnyArray")
    MaybeNone = TypeVar("MaybeNone")
    A_co = TypeVar("A_co", covariant=True)
    MaybeNone_co = TypeVar("MaybeNone_co", covariant=True)

__all__ = ["A", "AnyArray", "Array", "Lengths", "MaybeNone", "Wanted", "array_arguments", "result_type"]


class _Shaped(Protocol):
    @property
    def shape(self) -> Any:
        """The sizes of its axes."""

    @property
    def dtype(self) -> Any:
        """The type of its elements."""


class Array(_Shaped, Protocol[A_co]):
    """An argument that is an array; `A_co` is the type of results.

    A checker finds `A_co` as the type of ``X[...]``: a tensor for a parameter of PyTorch. NumPy's types
    include the number of axes; there it is an array of any number of axes, because results have other axes.
    """

    def __getitem__(self, key: EllipsisType, /) -> A_co:
        """Return the array itself, as the array API standard requires."""


class IntegerArray(_Shaped, Protocol):
    """An array of integers, of any namespace and class."""


class Wanted(Protocol[MaybeNone_co]):
    """Names of arguments, for `wrt`: gradients of others are None.

    For a checker these gradients have the type ``A | Any``: they have the methods of an array and need no
    test for None. The checker finds `Any` for `MaybeNone_co` as the result of `__getattribute__`, which every
    object has. Without `wrt` it takes the default of `MaybeNone`, `Never`, which leaves `A`.
    """

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""

    def __getattribute__(self, name: str, /) -> MaybeNone_co:
        """Return an attribute, as every object does."""


Lengths: TypeAlias = Sequence[int] | IntegerArray
"""The lengths of sequences."""


def array_arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's arguments that are arrays, without `out`, in their order."""
    hints = get_type_hints(function) if inspect.isfunction(function) else {}
    parameters = inspect.signature(function).parameters.values()
    found = {p.name for p in parameters if _has_array(hints.get(p.name, p.annotation))}
    # The caller or the framework chooses memory for the result.
    return tuple(p.name for p in parameters if p.name in found and p.name != "out")


def result_type(function: Callable[..., Any]) -> Any:
    """Return the class of the named tuple that a function returns; None if it returns another type."""
    hint = str(getattr(function, "__annotations__", {}).get("return", "")).partition("[")[0]
    result = getattr(function, "__globals__", {}).get(hint)
    return result if hasattr(result, "_fields") else None


def _has_array(hint: Any) -> bool:
    """Whether an annotation is an array, or an optional array."""
    return hint in (Array, IntegerArray) or get_origin(hint) is Array or any(map(_has_array, get_args(hint)))
