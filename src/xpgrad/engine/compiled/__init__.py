"""From formulas to machine code: the address of a compiled C function for each formula and loop.

`formula_code` writes the text of a C function, and calls the formula itself once: on the numbers of
`tracing`, whose operators write LLVM instructions. `native_loops` writes the pass over vectors around them.
`cache` makes functions of the text: from a file, or by `translate` and `machine_code`. `time_loops` (with
`native_rows`) asks for loops over the rows of steps, `arrays` (with `native_arrays`) for loops over whole
arrays. `machine` decides how many threads share a loop.

`scalar_*` are the functions that take the place of ``xp``, `native` what compiled code does besides
arithmetic, `register_tiles` the innermost loops of products. `products` multiplies matrices. The engines,
`programs` and `images` call all this.
"""
