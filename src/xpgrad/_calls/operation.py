"""How a planned operator is called: what a public function does with its arguments, and what adapters add.

The public function of such an operator passes all that it was given to `planned_call`, which looks for the
program of the call. Adapters call it by `run_foreign`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from xpgrad._calls.plans import Lengths, PlannedCall, planned
from xpgrad._operators.arguments import check_choice, check_cotangents, check_number, check_wrt, explain
from xpgrad._operators.resets import has_resets, with_resets
from xpgrad._recurrent.per_sample import PER_SAMPLE
from xpgrad.engine import Adapter


class Foreign(NamedTuple):
    """What a framework's adapter adds to a call: more options and arrays, and see `run_foreign`."""

    options: Mapping[str, Any] = {}
    arrays: Mapping[str, Any] = {}
    plans_out: list[PlannedCall] | None = None
    joined: Mapping[str, Sequence[Any]] = {}


PLAIN = Foreign()


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
    """

    operator: str
    compute: Callable[..., Any]
    arrays: tuple[str, ...]
    graded: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


Function = TypeVar("Function", bound=Callable[..., Any])


def public(kernel: Function) -> Function:
    """Hide the argument `_foreign` of a kernel, which only `run_foreign` passes, from its signature."""
    signature = inspect.signature(kernel)
    shown = [p for p in signature.parameters.values() if p.name != "_foreign"]
    kernel.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    kernel.takes_foreign = True  # type: ignore[attr-defined]
    return kernel


def run_foreign(
    kernel: Callable[..., Any],
    *arrays: Any,
    gate_order: Sequence[int] | None = None,
    input_major: bool = False,
    products: Any = None,
    keep_products: bool = False,
    rows_of: Sequence[str] = (),
    packed: bool = False,
    plans_out: list[PlannedCall] | None = None,
    joined: Mapping[str, Sequence[Any]] | None = None,
    **keywords: Any,
) -> Any:
    """What the kernel returns for a framework's own layout of weights, and with more kept for the gradient.

    Parameters
    ----------
    kernel, *arrays, **keywords
        A planned kernel or gradient, and what it takes.
    gate_order : sequence of int, optional
        Which block of rows each of ONNX's gates is, in weights, their gradients and the saved gates: they
        need no copies then. The GRU's candidate is always the last.
    input_major : bool
        W and R, and their gradients, have their last two axes swapped, as Keras' weights: (D, I, GH) and
        (D, H, GH) for G gates. They need no copies then.
    keep_products : bool
        Let `gru` return one more output, the candidate's recurrent products (T, D, N, H).
    products : array, optional
        These, for `gru_grad`, which else makes them anew.
    rows_of : sequence of str, optional
        Names of saved arrays that go from a forward to its gradient and nowhere else, where both are told
        the same. They hold the rows of the time loop, one behind the other, in the shape (D, T * N, width):
        with lengths nothing is unpacked, cleared and packed again.
    packed : bool, optional
        In layout 0: the sequences are in order from long to short, and X, H_all, its cotangent and dX hold
        the rows of a packed sequence, step by step and one behind the other, in arrays of the shape (T, N,
        width). Of two directions each row of H_all has both states. Nobody reads or writes what is behind
        the last row: there need be no memory.
    plans_out : list, optional
        Takes the program from which the call ran.
    joined : mapping of str to sequence of array, optional
        Of arguments that were joined from several arrays along the first axis: these. A program then takes
        them instead, and its results for them, tuples, have their shapes.
    """
    options: dict[str, Any] = {} if gate_order is None else {"gate_order": tuple(gate_order)}
    if input_major:
        options["input_major"] = True
    if keep_products:
        options["keep_products"] = True
    if rows_of:
        options["rows_of"] = tuple(rows_of)
    if packed:
        options["packed"] = True
    foreign = Foreign(options, {} if products is None else {"products": products}, plans_out, joined or {})
    # A function in a kernel's place can do without the program, but must not ignore the rest.
    if foreign.options or foreign.arrays or getattr(kernel, "takes_foreign", False):
        keywords["_foreign"] = foreign
    return kernel(*arrays, **keywords)


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
        if reset is not None:
            lengths, layout = arrays["sequence_lens"], arguments["layout"]
            arrays["sequence_lens"] = with_resets(operator, arrays["X"], lengths, reset, layout)
        if foreign is PLAIN:  # an adapter's framework may have no cotangent, which is a gradient of zero
            check_cotangents(operator, {name: arrays[name] for name in arrays if name.startswith("grad_")})
        options = _as_numbers(operator, arguments)
        return planned(
            operation.compute, operator, arrays, options, lengths_of, foreign.plans_out, foreign.joined
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        explain(error)
        raise


def _as_numbers(operator: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options with those that are numbers as floats: a tensor that has changed is another form."""
    for name in ("clip", "epsilon"):
        if name in options and (name != "clip" or options[name] is not None):
            options[name] = check_number(operator, name, options[name])
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
        is_plain = all(type(length) is int and 0 <= length < 1 << 62 for length in lengths)
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
