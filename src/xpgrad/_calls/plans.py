"""Calls of one form are checked and planned once; later calls run the form's program.

A form is what a call depends on besides its numbers: the shapes, strides and dtype of its arrays, and its
attributes. If the engine has programs, the first call of a form writes one, and runs it as all later calls
do: the same call gives the same bits every time.

A public function passes all its arguments to `planned_call`. What follows at the first call of a form: the
operation's ``compute`` (of recurrent operators `_recurrent/operator.py`) checks the arguments and computes,
but with a `Recorder` in the engine's place (`call_arrays.py`). So the kernel's requests become instructions,
and these a `Program`. The first call and all later ones end in `Program.run`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from xpgrad import engine as engines
from xpgrad._calls import families
from xpgrad._calls.adapter_calls import PLAIN, Foreign
from xpgrad._calls.families import CallFamily, PlannedCall
from xpgrad._calls.new_sizes import Plan
from xpgrad._operators.arguments import check_choice, check_cotangents, check_number, check_wrt, explain
from xpgrad._operators.resets import has_resets, with_resets
from xpgrad._recurrent.per_sample import PER_SAMPLE
from xpgrad.engine import Adapter
from xpgrad.engine.process.garbage import without_collections
from xpgrad.engine.process.memory import address_of
from xpgrad.engine.programs.instructions import CannotRecordError, Quantity
from xpgrad.engine.programs.program import Form
from xpgrad.engine.programs.recorder import Joined, Recorder

recording_for_host: ContextVar[Callable[..., Any] | None] = ContextVar("xpgrad_recording", default=None)
"""Takes the calls in the place of the engine while a host's program is written (`host_programs.py`)."""
_NEW = object()
_HALF = ("float16", "bfloat16")
_CONSTANT = {type(None), bool, int, str, frozenset}  # kinds of options that stay what they are


class Lengths(NamedTuple):
    """The lengths of a call's sequences.

    `usable` says whether they are valid and a program can take them. `numbers` are contiguous 64-bit
    integers, with resets (N, 1 + T), None if all sequences are full and have none. `is_full` says whether
    all are full beside resets.
    """

    usable: bool
    numbers: np.ndarray | None
    is_full: bool = False

    @property
    def kind(self) -> int:
        """One, two with resets, three where all are full beside these, zero for none: programs differ."""
        return 0 if self.numbers is None else self.numbers.ndim + self.is_full


class Asked(NamedTuple):
    """What a caller asked of a kernel: the kernel's name, all arrays by name, None for those left out.

    Where the call is recorded, its recorder stands in the engine's place: `call_arrays` sees to that.
    """

    operator: str
    arrays: Mapping[str, Any]
    recorder: Recorder | None = None


class Operation(NamedTuple):
    """An operator, or its gradient, as `planned_call` runs it.

    Parameters
    ----------
    operator : str
        Its name, for messages too.
    compute : callable
        ``compute(asked, **options)`` checks and computes, or records.
    arrays : tuple of str
        The names of its arrays.
    graded : tuple of str
        Of a gradient: the arguments that have one, in the order of the results.
    optional : tuple of str
        Those of them that have one only where they are given.
    sized : tuple of str
        The arrays whose sizes vary from call to call where others stay, on all axes but the second.
    """

    operator: str
    compute: Callable[..., Any]
    arrays: tuple[str, ...]
    graded: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    sized: tuple[str, ...] = ()


@dataclass(frozen=True)
class TracedKernel:
    """What a call computes, for other arrays in the place of its own."""

    compute: Callable[..., Any]
    operator: str
    options: Mapping[str, Any]

    def __call__(self, arrays: Mapping[str, Any]) -> Any:
        """The call's named tuple for these arrays."""
        return self.compute(Asked(self.operator, arrays), **self.options)

    @property
    def owner(self) -> Any:
        """The object whose method computes, a `Cell` for the user's own operators; None if there is none."""
        return getattr(self.compute, "__self__", None)


def _check_rank_of_lengths(operator: str, lengths: Any) -> None:
    """Raise ValueError unless lengths have one axis: with two they would be lengths with resets."""
    if getattr(lengths, "ndim", 1) != 1:
        raise ValueError(f"{operator}: sequence_lens has shape {tuple(lengths.shape)}, expected (N,)")


def planned_call(operation: Operation, arguments: dict[str, Any]) -> Any:
    """Return the operation's result, from a program where there is one.

    Parameters
    ----------
    operation : Operation
        What to run.
    arguments : dict of str to object
        Everything that the public function was called with, and `_foreign`. It is taken apart.
    """
    foreign, reset = arguments.pop("_foreign"), arguments.pop("reset", None)
    operator = operation.operator
    arrays = {name: arguments.pop(name) for name in operation.arrays}
    if operation.graded:
        check_choice(operator, "per_sample", arguments["per_sample"], PER_SAMPLE)
        given = {name: arrays[name] for name in operation.optional}
        arguments["wanted"] = check_wrt(operator, arguments.pop("wrt"), operation.graded, given)
    if foreign is not PLAIN:
        arguments |= foreign.options
        arrays |= foreign.arrays
    try:
        if foreign is PLAIN:
            _check_rank_of_lengths(operator, arrays.get("sequence_lens"))
        if reset is not None:
            lengths, layout = arrays["sequence_lens"], arguments["layout"]
            arrays["sequence_lens"] = with_resets(operator, arrays["X"], lengths, reset, layout)
        if foreign is PLAIN:  # an adapter's framework may have no cotangent, which is a gradient of zero
            check_cotangents(operator, {name: arrays[name] for name in arrays if name.startswith("grad_")})
        options = _as_numbers(operator, arguments)
        return planned(operation, arrays, options, foreign)
    except (TypeError, ValueError) as error:
        explain(error)
        raise


def planned(
    operation: Operation, arrays: Mapping[str, Any], options: Mapping[str, Any], foreign: Foreign = PLAIN
) -> Any:
    """Return what the operation's ``compute(asked, **options)`` returns, by a program if there is one.

    Parameters
    ----------
    operation : Operation
        What to run.
    arrays : mapping of str to array or None
        All arrays of the call; `sequence_lens` are its lengths.
    options : mapping of str to object
        Everything else that the result depends on.
    foreign : Foreign, optional
        What an adapter adds. `plans_out` gets the call's plan. `joined` has the parts of each array that is
        joined along the first axis: a program takes these, and returns their gradients (the field d + name)
        as tuples of arrays of the parts' shapes. Only without a program they are really joined.
    """
    compute, operator, joined = operation.compute, operation.operator, foreign.joined
    if (record := recording_for_host.get()) is not None:
        return record(compute, operator, _whole(arrays, joined), options)
    given = {name: array for name, array in arrays.items() if array is not None and name != "sequence_lens"}
    engine = engines.of_type(next(iter(given.values()), None))
    flat = (
        [x for name, array in given.items() for x in joined.get(name, (array,))] if joined else given.values()
    )
    look = None if engine is None else engine.look(flat)
    lens = arrays.get("sequence_lens")
    if look is not None and lens is not None and engines.is_traced(lens):
        look = None
    if engine is not None and look is None and (xp := _half_precision(engine, flat)) is not None:
        return _in_float32(xp, engine, operation, arrays, options, joined)
    if engine is None or look is None:
        arrays = _whole(arrays, joined)
        given = {name: arrays[name] for name in given}
        if (tracing := engines.traced_by((*given.values(), lens))) is not None:
            kernel = TracedKernel(compute, operator, options)
            outputs = tracing.traced_kernel(operator, arrays, options, kernel)
            if outputs is not None:
                return outputs
        return compute(Asked(operator, arrays), **options)
    lengths = lengths_of(engine, arrays, options)
    if not lengths.usable:
        return compute(Asked(operator, _whole(arrays, joined)), **options)
    numbers = lengths.numbers
    if numbers is None and "sequence_lens" in arrays:
        arrays = {**arrays, "sequence_lens": None}
    try:
        counts = tuple([(len(joined[name]), given[name].shape) if name in joined else None for name in given])
        own = options_key(options)
        key = (compute, look.form, lengths.kind, tuple(given), counts, own)
        known = families.known.calls.get(key, _NEW)
    except TypeError:  # an option has no hash; `compute` may refuse it
        known = None
    if known is _NEW or foreign.plans_out is not None:
        layouts = _layouts(look.form, given, joined)
        form = look.form.dtype, look.form.machine, look.form.threads, lengths.kind
        sized = operation.sized if joined.keys().isdisjoint(operation.sized) else ()
        axes = 0 if numbers is None else numbers.ndim
        family = CallFamily(compute, form, options, own, sized, "sequence_lens" in arrays, axes)
    if known is _NEW:
        record = functools.partial(_recorded, operation, look.form, lengths.is_full, arrays, options)
        plan = without_collections(family.plan)
        known = families.known.calls[key] = plan(family.with_lengths(layouts), record)
    if known is None:
        return compute(Asked(operator, _whole(arrays, joined)), **options)
    program, result = known
    if foreign.plans_out is not None:
        foreign.plans_out.append(PlannedCall(program, result, layouts, family))
    if numbers is not None:
        look.addresses.append(address_of(numbers))
    return result(program.run(look.addresses, look.fresh))


def _whole(arrays: Mapping[str, Any], joined: Mapping[str, Sequence[Any]]) -> Mapping[str, Any]:
    """The arrays; what stands for joined arrays becomes such an array."""
    if not joined:
        return arrays
    found = dict(arrays)
    for name, parts in joined.items():
        xp = array_namespace(*parts)
        found[name] = xp.reshape(xp.concat(list(parts), axis=0), tuple(arrays[name].shape))
    return found


def _half_precision(engine: Adapter, arrays: Collection[Any]) -> Any:
    """The namespace of arrays in one dtype of half precision that the engine computes with; else None."""
    dtype = next(iter(arrays)).dtype
    if str(dtype).rpartition(".")[2] not in _HALF or any(array.dtype != dtype for array in arrays):
        return None
    xp = array_namespace(next(iter(arrays)))
    return xp if engine.takes(xp, list(arrays)) else None


def _in_float32(
    xp: Any, engine: Adapter, operation: Operation, arrays: Mapping[str, Any], options: Mapping[str, Any],
    joined: Mapping[str, Sequence[Any]],
) -> Any:  # fmt: skip
    """The result of a call in half precision: of a program in float32, rounded once."""
    dtype = next(x.dtype for name, x in arrays.items() if x is not None and name != "sequence_lens")

    def rounded(result: Any) -> Any:
        if isinstance(result, tuple):
            return tuple(map(rounded, result))
        return result if result is None else xp.astype(result, dtype)

    wide = {
        name: x if x is None or name == "sequence_lens" or name in joined else xp.astype(x, xp.float32)
        for name, x in arrays.items()
    }
    for name in joined:  # nobody reads its elements
        nothing = xp.zeros((), dtype=xp.float32, device=device(arrays[name]))
        wide[name] = xp.broadcast_to(nothing, tuple(arrays[name].shape))
    parts = {name: [xp.astype(x, xp.float32) for x in each] for name, each in joined.items()}
    results = planned(operation, wide, options, Foreign(joined=parts))
    with engine.quiet():  # values too large or small for half precision become inf or 0
        return results._make(map(rounded, results))


def _as_numbers(operator: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options with those that are numbers as floats: a tensor that has changed is another form."""
    clip = options.get("clip")
    if clip is not None:
        options["clip"] = check_number(operator, "clip", clip)
    if "epsilon" in options:
        options["epsilon"] = check_number(operator, "epsilon", options["epsilon"])
    for name in ("activation_alpha", "activation_beta"):
        if isinstance(options.get(name), list | tuple):
            options[name] = [check_number(operator, name, value) for value in options[name]]
    return options


def lengths_of(engine: Adapter, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Lengths:
    """The lengths of a call as its program takes them, if they are right; without them, where all are T."""
    lengths, X = arrays.get("sequence_lens"), arrays["X"]
    if lengths is None:
        return Lengths(True, None)
    if type(lengths) in (list, tuple):
        is_plain = all(
            (type(length) is int or isinstance(length, np.integer)) and 0 <= length < 1 << 62
            for length in lengths
        )
        numbers = np.asarray(lengths, dtype=np.int64) if is_plain else None
    else:
        numbers = engine.integers(lengths)
    if numbers is None or X is None or X.ndim != 3 or type(options["layout"]) is not int:
        return Lengths(False, None)
    T, N = (X.shape[1], X.shape[0]) if options["layout"] else X.shape[:2]
    resets = has_resets(numbers)
    if numbers.shape != ((N, 1 + T) if resets else (N,)) or not numbers.size:
        return Lengths(False, None)
    own = numbers[:, 0] if resets else numbers
    least, most = int(own.min()), int(own.max())
    if least < 0 or most > T:
        return Lengths(False, None)
    # packed rows are as few as the lengths say, whatever T is
    is_full = least == T and not options.get("packed")
    return Lengths(True, None if is_full and not resets else numbers, is_full and resets)


def _layouts(form: Form, given: Mapping[str, Any], joined: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The layout of each array by name; of an array that was joined, those of its parts."""
    each = iter(form.layouts)
    return {
        name: Joined(tuple([next(each) for _ in joined[name]]), tuple(array.shape))
        if name in joined
        else next(each)
        for name, array in given.items()
    }


def options_key(options: Mapping[str, Any]) -> tuple[Any, ...]:
    """The names and values of options, as a part of a form; TypeError if an option may change.

    It has the types of the values, because 1, 1.0 and True are equal.
    """
    return *options, *map(_typed, options.values())


def _typed(value: Any) -> Any:
    """An option with its type: 1, 1.0 and True are equal, but not all of them are allowed.

    Floats become text, because 0.0 equals -0.0 and NaN does not equal itself.
    """
    kind = type(value)
    if isinstance(value, list | tuple):
        return kind, tuple(map(_typed, value))
    if kind is float:
        return kind, value.hex()
    if kind not in _CONSTANT:  # the number in an array may change
        raise TypeError(f"{kind.__name__} is no part of a form")
    return kind, value


def _recorded(
    operation: Operation, form: Form, is_full: bool, arrays: Mapping[str, Any], options: Mapping[str, Any],
    layouts: Mapping[str, Any], has_symbols: bool = False, steps: Quantity | None = None,
) -> Plan | None:  # fmt: skip
    """Record a call of these layouts; None if it has no program. For the rest see `Recorder`."""
    recorder = Recorder(form.machine, layouts, form.dtype, steps, is_full, has_symbols)
    try:
        result = operation.compute(Asked(operation.operator, arrays, recorder), **options)
        joined = {f"d{name}": name for name, layout in layouts.items() if isinstance(layout, Joined)}
        fields = getattr(result, "_fields", ())
        if not joined.keys() & fields:
            return Plan(recorder.program(result), type(result)._make)
        results: list[Any] = []
        counts: list[int] = []
        for field, array in zip(fields, result, strict=True):
            pieces = recorder.pieces(joined[field], array) if field in joined else [array]
            results += pieces
            counts.append(len(pieces) if field in joined else 0)
        return Plan(recorder.program(results), functools.partial(_grouped, type(result), counts))
    except CannotRecordError:
        return None


def _grouped(kind: Any, counts: Sequence[int], results: Sequence[Any]) -> Any:
    """A named tuple of that kind; a count above 0 groups as many results into a tuple."""
    each = iter(results)
    return kind._make(
        [tuple([next(each) for _ in range(count)]) if count else next(each) for count in counts]
    )
