"""Which operators of ai.onnx have a gradient, and why others have none."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from onnx import defs

from xpgrad_onnx import _control_flow as _control_flow  # registers its rules
from xpgrad_onnx import _sampling as _sampling  # and its bodies
from xpgrad_onnx._bodies import BODIES, has_body
from xpgrad_onnx._rules.table import FIXED, FLAT, REASONS, RULES

_FLOATS = {"tensor(float)", "tensor(double)", "tensor(float16)", "tensor(bfloat16)"}


class Coverage(NamedTuple):
    """How `gradient_model` treats an operator."""

    operator: str
    since: int
    gradient: bool
    how: str


@cache
def newest() -> int:
    """The newest version of ai.onnx that the installed onnx has."""
    return int(defs.onnx_opset_version())


def coverage(opset: int) -> list[Coverage]:
    """Every operator of a version of ai.onnx that takes or returns floating-point numbers, by name."""
    found: dict[str, Any] = {}
    for schema in defs.get_all_schemas_with_history():
        known = found.get(schema.name)
        old = known is not None and known.since_version > schema.since_version
        if schema.domain == "" and schema.since_version <= opset and not old:
            found[schema.name] = schema
    rows = [schema for schema in found.values() if not schema.deprecated and _takes_floats(schema)]
    return [_of(schema, opset) for schema in sorted(rows, key=lambda schema: schema.name)]


def _takes_floats(schema: Any) -> bool:
    """Whether a floating-point result may depend on floating-point operands; always true for branches."""
    if any(a.type == defs.OpSchema.AttrType.GRAPH for a in schema.attributes.values()):
        return True
    return all(any(_has_floats(one) for one in side) for side in (schema.inputs, schema.outputs))


def _has_floats(parameter: Any) -> bool:
    return any(kind in text for text in parameter.types for kind in _FLOATS)


def _of(schema: Any, opset: int) -> Coverage:
    name, since = schema.name, schema.since_version
    if ("", name) in RULES:
        return Coverage(name, since, True, "a rule")
    if name in REASONS:
        return Coverage(name, since, False, REASONS[name])
    if name in FLAT:
        return Coverage(name, since, False, "its result stays, or jumps, when operands change a little")
    if name in FIXED and FIXED[name].first == 0:
        return Coverage(name, since, False, f"its operands are {FIXED[name].what}")
    if name in BODIES:
        return Coverage(name, since, True, "through a body of ours")
    if has_body(name, opset):
        return Coverage(name, since, True, "through ONNX's body")
    return Coverage(name, since, False, "")
