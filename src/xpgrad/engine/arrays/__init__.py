"""Formulas over whole NumPy arrays: compiled, or without numba in blocks that stay in the cache.

A formula and its arrays enter `array_loops`, the result leaves; the NumPy engine calls it. Without numba,
`tape` writes a formula down as calls of NumPy's functions. `traced_formula` makes of them a Python function
that writes into as few buffers as it takes.
"""
