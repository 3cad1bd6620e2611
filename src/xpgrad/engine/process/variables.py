"""Context variables that are set for one call."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any, TypeVar

_Result = TypeVar("_Result")


def with_value(
    variable: contextvars.ContextVar[Any], value: Any, function: Callable[..., _Result], *arguments: Any
) -> _Result:
    """What the function returns while the variable has this value.

    No context manager: an interrupt (Ctrl-C) within its functions would leave the variable set. What the
    function itself sets is gone at its end, too.
    """
    context = contextvars.copy_context()
    context.run(variable.set, value)
    return context.run(function, *arguments)
