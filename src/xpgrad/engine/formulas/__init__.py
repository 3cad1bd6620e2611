"""What a kernel may say: formulas for elements and for rows, and the functions in them.

A kernel makes a `Formula` or a `RowFormula` of a function of ``xp`` and operands, and a time loop of stages:
`Elementwise` and `Product`. Nothing here knows an engine. On whole arrays of any namespace a formula is
called as it is; `arrays` and `compiled` rewrite it.
"""
