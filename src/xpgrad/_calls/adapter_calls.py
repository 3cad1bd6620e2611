"""How an adapter calls a planned operator: with more options and arrays than its public function has."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from xpgrad._calls.families import PlannedCall


class Foreign(NamedTuple):
    """What a framework's adapter adds to a call: more options and arrays, and see `run_foreign`."""

    options: Mapping[str, Any] = {}
    arrays: Mapping[str, Any] = {}
    plans_out: list[PlannedCall] | None = None
    joined: Mapping[str, Sequence[Any]] = {}


PLAIN = Foreign()


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
        Of arguments that are several arrays, joined along the first axis: these. A program takes them
        instead, and its results for them, tuples, have their shapes. The argument itself is any array of the
        joined shape, of which nobody reads the elements.
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
