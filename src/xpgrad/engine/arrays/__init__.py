"""Formulas over whole NumPy arrays: compiled, or without llvmlite in blocks that stay in the cache.

The NumPy engine passes a formula and its arrays to `array_loops`, which returns the result. Without llvmlite,
`tape` records a formula as calls of NumPy's functions. `traced_formula` turns them into a Python function
that writes into as few buffers as possible.
"""
