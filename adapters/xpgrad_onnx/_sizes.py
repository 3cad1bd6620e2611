"""Sizes that are known only when a graph runs: integer polynomials of symbols.

A kernel computes with sizes as with numbers: their sums, products and quotients are sizes. Two sizes are
equal if their difference is zero for all values of the symbols. An inferred symbol, which is no size of the
model's inputs, is equal to every value from 1 on that it may have, so checks pass. Only `same_size` may
decide to omit an operation that does nothing for equal sizes. Sizes are ordered as for large values of all
symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

_LARGE = 1 << 20  # the value of a symbol in the order of sizes


class Symbol(NamedTuple):
    """A size by name; an inferred symbol may be any number."""

    name: str
    inferred: bool = False


class Quotient(NamedTuple):
    """A size divided by a number, rounded down."""

    size: Size
    divisor: int


Atom = Symbol | Quotient
Terms = Mapping[tuple[Atom, ...], int]


class Size:
    """An integer polynomial that is not a number: coefficients of products of symbols or quotients."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Terms) -> None:
        self.terms = dict(terms)
        self._hash = hash(frozenset(self.terms.items()))

    @classmethod
    def of(cls, atom: Atom) -> Size:
        """The size that is one atom."""
        return cls({(atom,): 1})

    def evaluate(self, value_of: Callable[[Atom], Any]) -> Any:
        """The value for given values of the atoms, of any type with addition and multiplication."""
        total: Any = None
        for product, coefficient in self.terms.items():
            term: Any = None
            for atom in product:
                term = value_of(atom) if term is None else term * value_of(atom)
            term = coefficient if term is None else term if coefficient == 1 else term * coefficient
            total = term if total is None else total + term
        return total

    def _large(self) -> int:
        def value_of(atom: Atom) -> int:
            return _LARGE if isinstance(atom, Symbol) else atom.size._large() // atom.divisor

        return int(self.evaluate(value_of))

    def __add__(self, other: Any) -> Any:
        given = _terms(other)
        if given is None:
            return NotImplemented
        keys = {**self.terms, **given}
        return made({key: self.terms.get(key, 0) + given.get(key, 0) for key in keys})

    def __mul__(self, other: Any) -> Any:
        given = _terms(other)
        if given is None:
            return NotImplemented
        terms: dict[tuple[Atom, ...], int] = {}
        for mine, a in self.terms.items():
            for theirs, b in given.items():
                key = tuple(sorted((*mine, *theirs), key=repr))
                terms[key] = terms.get(key, 0) + a * b
        return made(terms)

    def __neg__(self) -> Any:
        return self * -1

    def __sub__(self, other: Any) -> Any:
        return NotImplemented if _terms(other) is None else self + other * -1

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    __radd__, __rmul__ = __add__, __mul__

    def __floordiv__(self, other: Any) -> Any:
        if isinstance(other, Size):
            known = _divided(self.terms, other.terms)
            return NotImplemented if known is None else made(known)
        if not isinstance(other, int):
            return NotImplemented
        whole = {key: c // other for key, c in self.terms.items() if c % other == 0}
        rest = made({key: c for key, c in self.terms.items() if key not in whole})
        if isinstance(rest, int):
            return made(whole) + rest // other
        return made(whole) + Size.of(Quotient(rest, other))

    def __mod__(self, other: Any) -> Any:
        return self - (self // other) * other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Size | int):
            return NotImplemented
        rest = self - other
        if isinstance(rest, int):
            return rest == 0
        if isinstance(other, int) and other < 1:  # a size below 1 is never inferred
            return False
        return _is_inferred(rest)

    def __hash__(self) -> int:
        return self._hash

    def __lt__(self, other: Any) -> bool:
        return _number(self - other) < 0

    def __le__(self, other: Any) -> bool:
        return _number(self - other) <= 0

    def __gt__(self, other: Any) -> bool:
        return _number(self - other) > 0

    def __ge__(self, other: Any) -> bool:
        return _number(self - other) >= 0

    def __repr__(self) -> str:
        return " + ".join("*".join(_parts(key, c)) for key, c in self.terms.items())


def same_size(size: Size | int, other: Size | int) -> bool:
    """Whether two sizes are equal for all values of the symbols, including inferred symbols."""
    rest = size - other
    return isinstance(rest, int) and rest == 0


def same_shape(shape: Sequence[Size | int], other: Sequence[Size | int]) -> bool:
    """The same for two shapes."""
    return len(shape) == len(other) and all(map(same_size, shape, other))


def symbol(name: str, inferred: bool = False) -> Size:
    """The size of that name."""
    return Size.of(Symbol(name, inferred))


def made(terms: Terms) -> Size | int:
    """The size with these terms, a number if it is one."""
    kept = {key: c for key, c in terms.items() if c}
    return kept.get((), 0) if not kept or set(kept) == {()} else Size(kept)


def _terms(value: Any) -> Terms | None:
    if isinstance(value, Size):
        return value.terms
    return {(): value} if isinstance(value, int) else None


def _divided(terms: Terms, by: Terms) -> Terms | None:
    """The quotient by a single product of atoms, if it divides all terms."""
    if len(by) != 1:
        return None
    ((divisor, number),) = by.items()
    quotient = {}
    for key, c in terms.items():
        left = list(key)
        for atom in divisor:
            if atom not in left:
                return None
            left.remove(atom)
        if c % number:
            return None
        quotient[tuple(left)] = c // number
    return quotient


def _is_inferred(size: Size) -> bool:
    """Whether the size contains an inferred symbol."""
    atoms = [atom for product in size.terms for atom in product]
    return any(atom.inferred if isinstance(atom, Symbol) else _is_inferred(atom.size) for atom in atoms)


def _number(size: Size | int) -> int:
    return size if isinstance(size, int) else size._large()


def _parts(key: tuple[Atom, ...], coefficient: int) -> list[str]:
    names = [a.name if isinstance(a, Symbol) else f"(({a.size!r}) // {a.divisor})" for a in key]
    return names if coefficient == 1 and names else [str(coefficient), *names]
