"""Shared parts of elementwise and row kernels: their formulas, and the path of a call."""
