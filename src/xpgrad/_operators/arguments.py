"""Argument checks that every operator shares: namespace, device, dtype, shapes, choices.

Every message names the operator, the argument, the rule and both values.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index as operator_index
from typing import Any

import array_api_compat
import numpy as np
from array_api_compat import device

from xpgrad.engine import of_type

_FLOATS = ("float16", "bfloat16", "float32", "float64")


def explain(error: Exception) -> None:
    """Add a note with the call of `help` to an error whose message begins with a kernel's name.

    Any other name is the name of a user's cell. Errors of settings have no name.
    """
    operator, colon, _ = str(error.args[0] if error.args else "").partition(":")
    if not colon or " " in operator:
        return
    name = operator if hasattr(sys.modules["xpgrad"], operator) else "Cell"
    note = f"help(xpgrad.{name}) explains what is expected."
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def explained(function: Callable) -> Callable:
    """Apply `explain` to a function's ValueError and TypeError."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (TypeError, ValueError) as error:
            explain(error)
            raise

    return call


def check_arrays(operator: str, floats: dict[str, Any], integers: dict[str, Any] | None = None) -> Any:
    """Return the namespace that all given arrays share; TypeError if arrays do not agree.

    `floats` share one real floating-point dtype and one device; the first is not None. `integers` have an
    integer dtype, on any device.
    """
    given = {name: array for name, array in floats.items() if array is not None}
    numbers = {name: array for name, array in (integers or {}).items() if array is not None}
    leader, first = next(iter(given.items()))
    check_array(operator, leader, first)
    xp = array_api_compat.array_namespace(first)
    for name, array in (given | numbers).items():
        if type(array) is type(first):  # the usual case: one type has one namespace
            continue
        check_array(operator, name, array)
        other = array_api_compat.array_namespace(array)
        if other is not xp:
            raise TypeError(
                f"{operator}: {name} is an array of {_short_name(other)}, expected {_short_name(xp)}, "
                f"the namespace of {leader}"
            )
    known = _floats_of(xp)  # compare the others with the leader only if its dtype is right
    if not any(first.dtype == dtype for dtype in known.values()):
        text = f"{operator}: {leader} has dtype {first.dtype}, expected one of {', '.join(known)}"
        if array_api_compat.is_numpy_namespace(xp) and not first.dtype.isnative:
            text += f"; convert it: {leader}.astype({leader}.dtype.newbyteorder('='))"
        raise TypeError(text)
    one_device = array_api_compat.is_numpy_namespace(xp) or len(given) == 1
    place = None if one_device else _place(first)
    for name, array in given.items():
        if array is first:
            continue
        if array.dtype != first.dtype:
            raise TypeError(
                f"{operator}: {name} has dtype {array.dtype}, expected {first.dtype}, the dtype of {leader}"
            )
        own = None if one_device else _place(array)
        if own is not None and place is not None and own != place:  # under a trace a device is unknown
            raise TypeError(
                f"{operator}: {name} is on device {own}, expected {place}, the device of {leader}"
            )
    for name, array in numbers.items():
        if not xp.isdtype(array.dtype, "integral"):
            raise TypeError(f"{operator}: {name} has dtype {array.dtype}, expected an integer dtype")
    return xp


@functools.cache
def _floats_of(xp: Any) -> dict[str, Any]:
    """The real floating-point dtypes of a namespace by name."""
    return {name: getattr(xp, name) for name in _FLOATS if hasattr(xp, name)}


def _place(array: Any) -> Any:
    """The array's device; None for arrays in memory that all devices share."""
    try:
        return device(array) if of_type(array) is None else array.device
    except AttributeError:
        return None


def check_array(operator: str, name: str, array: Any) -> None:
    """Raise TypeError for a non-array, and for NumPy's subclasses, whose masks or units would be lost."""
    kind = type(array)
    if kind is np.ndarray or of_type(array) is not None:
        return
    if not array_api_compat.is_array_api_obj(array) and not isinstance(array, np.ndarray):
        raise TypeError(f"{operator}: {name} is a {kind.__name__}, expected an array")
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"{operator}: {name} is a {kind.__name__}, whose mask would have no effect, expected a plain "
            f"array: {name}.filled(...) gives one"
        )
    if isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        raise TypeError(
            f"{operator}: {name} is a {kind.__name__}, whose own meaning would be lost, expected a plain "
            f"array: numpy.asarray({name}) gives one"
        )


def _short_name(xp: Any) -> str:
    return getattr(xp, "__name__", str(xp)).removeprefix("array_api_compat.")


def check_given(operator: str, arrays: Mapping[str, Any]) -> None:
    """Raise TypeError for a required array that is None."""
    for name, array in arrays.items():
        if array is None:
            raise TypeError(f"{operator}: {name} is None, expected an array")


def check_cotangents(operator: str, cotangents: Mapping[str, Any]) -> None:
    """Raise ValueError if a gradient gets no cotangent: its zeros would look like a result."""
    if cotangents and all(cotangent is None for cotangent in cotangents.values()):
        names = ", ".join(cotangents)
        raise ValueError(f"{operator}: no cotangent is given, expected one or more of {names}")


def check_rank(operator: str, name: str, array: Any, symbols: str) -> None:
    """Raise ValueError unless the array has as many dimensions as there are symbols, like ``"T, N, I"``."""
    rank = len(symbols.split(","))
    if array.ndim != rank:
        raise ValueError(
            f"{operator}: {name} has {array.ndim} dimensions with shape {tuple(array.shape)}, "
            f"expected {rank}, ({symbols})"
        )


def check_shape(operator: str, name: str, array: Any, symbols: str, expected: Sequence[int]) -> None:
    """Raise ValueError unless the array is None or has the expected shape."""
    if array is not None and tuple(array.shape) != tuple(expected):
        raise ValueError(
            f"{operator}: {name} has shape {tuple(array.shape)}, expected ({symbols}) = {tuple(expected)}"
        )


def check_known(operator: str, name: str, size: Any) -> None:
    """Raise ValueError for a symbolic size, as in JAX's exports."""
    try:
        operator_index(size)
    except Exception as error:
        raise ValueError(
            f"{operator}: {name} is {size}, expected a number: the rows of each step depend on it"
        ) from error


def check_broadcast(operator: str, name: str, array: Any, leader: str, shape: Sequence[int]) -> None:
    """Raise ValueError unless the array is None or broadcasts to exactly the leader's shape."""
    if array is None:
        return
    own = tuple(array.shape)
    padded = (1,) * (len(shape) - len(own)) + own
    if len(own) > len(shape) or any(n not in (1, whole) for n, whole in zip(padded, shape, strict=True)):
        raise ValueError(
            f"{operator}: {name} has shape {own}, expected one that broadcasts to {tuple(shape)}, "
            f"the shape of {leader}"
        )


def check_out(operator: str, out: Any, shape: Sequence[int]) -> None:
    """Raise ValueError unless `out` is None or has the result's shape and is writable."""
    check_shape(operator, "out", out, "the shape of the result", shape)
    if not getattr(getattr(out, "flags", None), "writeable", True):
        raise ValueError(f"{operator}: out is read-only, expected an array that can be written to")


def check_axis(operator: str, axis: Any, name: str, shape: Sequence[int], past_end: bool = False) -> int:
    """Return an axis of the array counted from the front; `past_end` also allows its rank."""
    number = check_integer(operator, "axis", axis)
    rank = len(shape)
    if not -rank <= number < rank + past_end:
        raise ValueError(
            f"{operator}: axis is {number}, expected {-rank} to {rank - 1 + past_end} for {name} of shape "
            f"{tuple(shape)}"
            if rank + past_end
            else f"{operator}: {name} has no axes, expected at least one"
        )
    return number + rank if number < 0 else number


def check_choice(operator: str, name: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise ValueError unless the value is one of the choices."""
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise ValueError(f"{operator}: {name} is {value!r}, expected one of {', '.join(map(repr, choices))}")


def check_number(operator: str, name: str, value: Any) -> float:
    """Return a real number as a float; TypeError for anything else."""
    if type(value) is float:
        return value
    if getattr(value, "requires_grad", False):
        raise TypeError(
            f"{operator}: {name} is {_shown(value)} that requires a gradient, expected a number: it has none"
        )
    number = hasattr(value, "__float__") and not isinstance(value, (bool, complex))
    if isinstance(value, np.ndarray | np.generic):
        number = value.dtype.kind in "iuf"
    if number and not getattr(value, "ndim", 0):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(
                f"{operator}: {name} is an integer of {value.bit_length()} bits, expected one that a float "
                "can hold"
            ) from None
        except (TypeError, ValueError):
            pass  # an object of a number type without a value
    raise TypeError(f"{operator}: {name} is {_shown(value)}, expected a number")


def check_integer(operator: str, name: str, value: Any) -> int:
    """Return an integer as an int; TypeError for anything else."""
    number = as_integer(value)
    if number is None:
        raise TypeError(f"{operator}: {name} is {_shown(value)}, expected an integer")
    return number


def as_integer(value: Any) -> int | None:
    """An integer as an int; None for anything else, including booleans."""
    if isinstance(value, (bool, np.bool_)):
        return None
    if hasattr(value, "ndim") and value.ndim:
        return None
    try:
        return operator_index(value)
    except TypeError:
        return None


def is_list(value: Any) -> bool:
    """Whether it is a list, a tuple or another sequence, but not text or bytes."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def check_integers(operator: str, name: str, values: Any, count: int | None = None) -> list[int]:
    """Return the integers of a sequence, or of an array of any namespace, as a list.

    TypeError for other types; ValueError unless they are `count` integers.
    """
    if array_api_compat.is_array_api_obj(values):
        check_array(operator, name, values)
        xp = array_api_compat.array_namespace(values)
        if not xp.isdtype(values.dtype, "integral"):
            raise TypeError(f"{operator}: {name} has dtype {values.dtype}, expected an integer dtype")
        check_shape(operator, name, values, "N", values.shape[:1] if count is None else (count,))
        if hasattr(values, "tolist"):
            return list(values.tolist())
        return [int(values[number]) for number in range(values.shape[0])]
    if not is_list(values):
        raise TypeError(
            f"{operator}: {name} is a {type(values).__name__}, expected integers in a sequence or an array"
        )
    if count is not None and len(values) != count:
        raise ValueError(f"{operator}: {name} has length {len(values)}, expected N = {count}")
    return [check_integer(operator, f"{name}[{number}]", value) for number, value in enumerate(values)]


def check_lengths_within(operator: str, name: str, lengths: Sequence[int], longest: int) -> None:
    """Raise ValueError unless each length is from 0 to `longest`."""
    for number, length in enumerate(lengths):
        if not 0 <= length <= longest:
            raise ValueError(f"{operator}: {name}[{number}] is {length}, expected 0 to T = {longest}")


def check_lengths(operator: str, sequence_lens: Any, N: int, T: int) -> list[int]:
    """The lengths of N sequences, each from 0 to T, as a list."""
    lengths = check_integers(operator, "sequence_lens", sequence_lens, N)
    check_lengths_within(operator, "sequence_lens", lengths, T)
    return lengths


def _shown(value: Any) -> str:
    """A value in messages, in one short line."""
    shape = getattr(value, "shape", ())
    if array_api_compat.is_array_api_obj(value) and tuple(shape):
        return f"an array of shape {tuple(shape)}"
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= 60 else text[:57] + '...'} of type {type(value).__name__}"


def check_wrt(
    operator: str, wrt: Iterable[str] | None, names: Sequence[str], given: dict[str, Any] | None = None
) -> frozenset[str]:
    """Return the names among `names` of the arguments whose gradients are wanted; None wants all.

    Arguments in `given` have a gradient only if they are not None.
    """
    left_out = {name for name, array in (given or {}).items() if array is None}
    if wrt is None:
        return frozenset(names) - left_out
    try:
        wanted = frozenset([wrt] if isinstance(wrt, str) else wrt)
    except TypeError:  # not iterable, or its elements are not hashable
        raise TypeError(
            f"{operator}: wrt is {_shown(wrt)}, expected names of {', '.join(map(repr, names))}"
        ) from None
    unknown = sorted(map(repr, wanted - frozenset(names)))
    if unknown:
        raise ValueError(
            f"{operator}: wrt has {', '.join(unknown)}, expected names of {', '.join(map(repr, names))}"
        )
    for name in sorted(wanted & left_out):
        raise ValueError(f"{operator}: wrt has {name!r}, expected {name} to be given, it is None")
    return wanted
