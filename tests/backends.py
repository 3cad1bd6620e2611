"""The backend variants on which kernels are tested, each by name, so that none is left out silently."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np

import xpgrad
from xpgrad._calls import families
from xpgrad._calls import plans as _plans

FULL = ("float64", "float32")


@contextmanager
def without_programs() -> Iterator[None]:
    """Every call asks its engine, as one does that no program can be written for."""
    with (
        mock.patch.object(_plans, "_recorded", return_value=None),
        mock.patch.object(families, "known", families.CallCache()),
    ):
        yield


@dataclass(frozen=True)
class Backend:
    """One way in which arrays reach a kernel."""

    name: str
    module: str = "array_api_compat.numpy"
    dtypes: tuple[str, ...] = FULL
    engine: str | None = None
    needs: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    readonly: bool = False
    noncontiguous: bool = False
    planned: bool = True

    def missing(self) -> str | None:
        """Why the variant cannot run here, or None."""
        absent = [module for module in self.needs if importlib.util.find_spec(module) is None]
        return f"{', '.join(absent)} not installed" if absent else None

    @property
    def xp(self) -> Any:
        return importlib.import_module(self.module)

    @contextmanager
    def active(self) -> Iterator[None]:
        """The variant's environment and engine; the automatic choice of engine where it names none.

        Calls run from programs, unless the variant says otherwise.
        """
        with (
            mock.patch.dict(os.environ, self.environment),
            nullcontext() if self.planned else without_programs(),
            xpgrad.use_engine(self.engine),
        ):
            yield

    def array(self, values: Any, dtype: str | None = None) -> Any:
        """The values as an array of this variant; whole numbers keep their dtype."""
        if values is None:
            return None
        values = np.asarray(values)
        given = None if values.dtype.kind != "f" else getattr(self.xp, dtype or "float64")
        if self.noncontiguous and values.ndim:
            return self._spread(values, given)
        array = self.xp.asarray(np.array(values), dtype=given)
        if self.readonly:
            array.flags.writeable = False
        return array

    def arrays(self, values: Mapping[str, Any], dtype: str | None = None) -> dict[str, Any]:
        return {name: self.array(value, dtype) for name, value in values.items()}

    def _spread(self, values: np.ndarray, dtype: Any) -> Any:
        """Every other element of a larger array, in every axis, with its axes stored in reverse order."""
        large = np.zeros([2 * size for size in values.shape[::-1]], dtype=values.dtype)
        every_other = (slice(None, None, 2),) * values.ndim
        large[every_other] = values.T
        stored = self.xp.asarray(large, dtype=dtype)
        axes = tuple(range(values.ndim))[::-1]
        return self.xp.permute_dims(stored[every_other], axes)


BACKENDS = (
    Backend("numpy", dtypes=(*FULL, "float16"), planned=False),
    Backend("numpy-readonly", readonly=True),
    Backend("numpy-noncontiguous", noncontiguous=True),
    Backend("numpy-without-jit", environment={"XPGRAD_JIT": "0"}),
    Backend("numpy-standard", engine="standard", dtypes=(*FULL, "float16")),
    Backend("array-api-strict", module="array_api_strict", needs=("array_api_strict",)),
    Backend("ndonnx", module="ndonnx", needs=("ndonnx", "onnx")),
    Backend(
        "torch",
        module="array_api_compat.torch",
        needs=("torch",),
        dtypes=(*FULL, "float16", "bfloat16"),
        planned=False,
    ),
    Backend("torch-noncontiguous", module="array_api_compat.torch", needs=("torch",), noncontiguous=True),
    Backend(
        "torch-standard",
        module="array_api_compat.torch",
        needs=("torch",),
        engine="standard",
        dtypes=(*FULL, "float16", "bfloat16"),
    ),
)

UNCOMPILED = tuple(
    backend
    for backend in BACKENDS
    if backend.name in ("numpy-without-jit", "numpy-standard", "array-api-strict", "torch-standard")
)
"""The variants that compile no formulas: for tests that go through many different ones."""
