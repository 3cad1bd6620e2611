"""One pass of a loop over vectors, as LLVM instructions around a traced formula; needs llvmlite.

Every loop that evaluates a formula consists of such passes: time loops (`native_rows`), loops over arrays
(`native_arrays`), and loops over images.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from xpgrad.engine.compiled.llvm_code import variable
from xpgrad.engine.compiled.tracing import Emitter, Number, Scalars


class Reduction(ABC):
    """A variable of the loop, or memory at a `place`, that reduces numbers to one number."""

    def __init__(self, emitter: Emitter, place: ir.Value | None = None) -> None:
        self._emitter = emitter
        self._first = self._neutral()
        self._variable = variable(emitter.builder, self.kept_type) if place is None else place

    @property
    def kept_type(self) -> ir.Type:
        """The type of the memory."""
        return self._first.type

    def begin(self) -> None:
        """Forget all numbers."""
        self._emitter.builder.store(self._first, self._variable)

    def add(self, number: Any) -> None:
        """Add a number."""
        self._add(self._to_kept(Number(self._emitter, self._emitter.value(number))))

    def merge(self, part: Reduction) -> None:
        """Add all numbers of another reduction of this kind."""
        self._add(part._kept)

    def result(self) -> Number:
        """The reduced number."""
        return Number(self._emitter, self._kept)

    @property
    def _kept(self) -> ir.Value:
        return self._emitter.builder.load(self._variable)

    def _add(self, value: ir.Value) -> None:
        self._emitter.builder.store(self._both(self._kept, value), self._variable)

    def _to_kept(self, number: Number) -> ir.Value:
        """The form in which numbers are kept."""
        return number.value

    @abstractmethod
    def _neutral(self) -> ir.Constant:
        """The value that changes no other."""

    @abstractmethod
    def _both(self, kept: ir.Value, value: ir.Value) -> ir.Value:
        """The reduction of two values."""


class UnorderedSum(Reduction):
    """A sum in any order, as vector instructions need it."""

    def _neutral(self) -> ir.Constant:
        return ir.Constant(self._emitter.type, 0.0)

    def _both(self, kept: ir.Value, value: ir.Value) -> ir.Value:
        return self._emitter.builder.fadd(kept, value, flags=["reassoc", "nsz", "contract"])


class Greatest(Reduction):
    """The greatest number; NaN does not count.

    Numbers are kept as integers in the same order, for which vector instructions find the greatest.
    """

    @property
    def _scalars(self) -> Scalars:
        return Scalars(np.dtype(self._emitter.real).name)

    def result(self) -> Number:
        """See Reduction."""
        return self._scalars.from_ordered(super().result())

    def _to_kept(self, number: Number) -> ir.Value:
        return self._scalars.to_ordered(number).value

    def _neutral(self) -> ir.Constant:
        return self._emitter.value(self._scalars.LOWEST)

    def _both(self, kept: ir.Value, value: ir.Value) -> ir.Value:
        builder = self._emitter.builder
        return builder.select(builder.icmp_signed(">", value, kept), value, kept)


class Vectors:
    """Vectors that a loop reads and writes, by their keys.

    A written vector shares no memory with any other. Each load and store tells LLVM so; otherwise the code
    would check each pair of vectors for every row.
    """

    def __init__(self, emitter: Emitter, keys: Iterable[Hashable]) -> None:
        self._emitter, module = emitter, emitter.builder.module
        # a domain for each loop: its vectors may share memory with another loop's
        name = f"{emitter.builder.function.name} {module.get_unique_name('vectors')}"
        domain = module.add_metadata([name])
        self._scopes = {key: module.add_metadata([f"{key}", domain]) for key in keys}

    def element(
        self,
        function: Callable[..., Iterable[Any]],
        operands: Sequence[Any],
        results: Sequence[Any],
        begins: Mapping[Any, ir.Value],
        index: ir.Value,
    ) -> None:
        """A formula on element `index` of each vector; `begins` has pointers to the first elements.

        The formula takes traced numbers. An operand is a vector's key, a Number, or None if it is absent. A
        result is a vector's key, a Reduction, or None to drop it.
        """
        builder, emitter = self._emitter.builder, self._emitter
        used = dict.fromkeys(key for key in (*operands, *results) if _is_vector(key))
        at = {key: builder.gep(begins[key], [index]) for key in used}
        read = {key: Number(emitter, self._set_apart(builder.load(at[key]), key))
                for key in dict.fromkeys(filter(_is_vector, operands))}  # fmt: skip
        values = [read[key] if _is_vector(key) else key for key in operands]
        for target, result in zip(results, function(*values), strict=True):
            if _is_vector(target):
                self._set_apart(builder.store(emitter.value(result), at[target]), target)
            elif target is not None:
                target.add(result)

    def _set_apart(self, access: Any, key: Any) -> Any:
        """Declare that the vector of a load or store shares no memory with the loop's others."""
        module = self._emitter.builder.module
        others = [scope for other, scope in self._scopes.items() if other != key]
        access.set_metadata("alias.scope", module.add_metadata([self._scopes[key]]))
        if others:
            access.set_metadata("noalias", module.add_metadata(others))
        return access


def _is_vector(key: Any) -> bool:
    """Whether an operand or result of `Vectors.element` is a vector's key."""
    return key is not None and not isinstance(key, (Number, Reduction))
