"""Formulas as machine code: a formula enters, the address of a compiled C function leaves.

`source` turns a formula into the text of a scalar function. `time_loops` and `arrays` put loops around it,
over the rows of steps and over whole arrays; `tracing` and `native_rows` write a time loop's instructions.
`scalar_*` are the functions that take the place of ``xp``, `native` what compiled code does besides
arithmetic, `register_tiles` the innermost loops of products. `products` multiplies matrices. `cache` keeps
texts and machine code on disk. Needs numba; the engines and the rooms `arrays`, `programs` and `images` call
it.
"""
