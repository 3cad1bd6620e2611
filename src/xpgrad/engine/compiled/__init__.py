"""Formulas as machine code: a formula enters, the address of a compiled C function leaves.

`source` turns a formula into the text of a scalar function, `tracing` that into LLVM instructions, and
`native_loops` the pass over vectors around them. `time_loops` (with `native_rows`) loops over the rows of
steps, `arrays` (with `native_arrays`) over whole arrays. `scalar_*` are the functions that take the place
of ``xp``, `native` what compiled code does besides arithmetic, `register_tiles` the innermost loops of
products. `products` multiplies matrices. `cache` keeps texts and machine code on disk. `machine` is what all
of this runs on: threads. All but `machine` needs llvmlite; the engines and the rooms `arrays`,
`programs` and `images` call it.
"""
