"""Variables, loops and declarations in LLVM's code; needs llvmlite."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from llvmlite import ir

INT64 = ir.IntType(64)
SYSTEM = "xpgrad_system_calls"
"""The name of the integers of this system's SystemCalls."""


def variable(builder: ir.IRBuilder, kind: ir.Type) -> ir.Value:
    """Memory on the stack for one value, which LLVM makes a register, or for an array."""
    with builder.goto_entry_block():
        return builder.alloca(kind)


def advise(branch: ir.Instruction, name: str, *values: ir.Value) -> None:
    """Set one of LLVM's options, by its name, for the loop that the branch goes back to."""
    module = branch.function.module
    option = module.add_metadata([f"llvm.loop.{name}", *values])
    options = module.add_metadata([module.get_unique_name("loop"), option])
    options.operands = (options, option)  # a loop's list of options begins with itself
    branch.set_metadata("llvm.loop", options)


@contextlib.contextmanager
def loop(
    builder: ir.IRBuilder,
    stop: ir.Value,
    start: ir.Value | None = None,
    step: ir.Value | None = None,
) -> Iterator[ir.Value]:
    """A loop from `start`, or 0, up to `stop`, with its body in the context."""
    head, body, end = (builder.append_basic_block(f"loop.{name}") for name in ("head", "body", "end"))
    before = builder.block
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(stop.type)
    index.add_incoming(stop.type(0) if start is None else start, before)
    builder.cbranch(builder.icmp_signed("<", index, stop), body, end)
    builder.position_at_end(body)
    yield index
    following = builder.add(index, stop.type(1) if step is None else step)
    index.add_incoming(following, builder.block)
    builder.branch(head)
    builder.position_at_end(end)


def declared(module: ir.Module, kind: ir.FunctionType, name: str) -> ir.Function:
    """The function of that name in another module, or in LLVM."""
    return module.globals.get(name) or ir.Function(module, kind, name)


def words_by_name(module: ir.Module, name: str) -> ir.Value:
    """The integers that `machine_code.name_memory` gave this name."""
    return module.globals.get(name) or ir.GlobalVariable(module, INT64, name)
