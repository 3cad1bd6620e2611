"""Formulas without numba, in blocks of NumPy arrays that stay in the cache.

A formula enters; a list of calls that write into buffers leaves, with as few buffers as it takes. The NumPy
engine calls it where numba is missing or switched off, and an adapter may lend its framework's functions.
"""
