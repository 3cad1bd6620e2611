"""The language of kernels: formulas for elements and for rows, and the functions in them.

A kernel makes a `Formula` or a `RowFormula` from a function of ``xp`` and operands, and a time loop from
stages: `Elementwise` and `Product`. Nothing here depends on an engine. A formula can be called on whole
arrays of any namespace; `array_loops` and `compiled` run it in other ways.
"""
