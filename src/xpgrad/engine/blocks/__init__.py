"""Formulas without numba, in blocks of NumPy arrays that stay in the cache.

A formula enters; `tape` writes it down as calls of NumPy's functions, and a Python function leaves that makes
these calls with as few buffers as it takes. The NumPy engine calls it where numba is missing or switched off.
"""
