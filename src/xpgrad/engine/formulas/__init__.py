"""What a kernel may say: formulas for elements and for rows, and the functions in them.

A kernel makes a `Formula` or a `RowFormula` of a function of ``xp`` and operands, and a time loop of stages:
`Elementwise` and `Product`. Nothing here computes or knows an engine. `tape` writes a formula down as calls,
for the two rooms that rewrite it: `blocks` and `compiled`.
"""
