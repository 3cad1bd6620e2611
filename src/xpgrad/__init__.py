"""Gradient kernels written once against the Python array API standard."""
