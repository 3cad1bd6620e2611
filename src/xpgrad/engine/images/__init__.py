"""The engines' part of convolutions: blocks of a batch, products, shifted sums, windows, spectra.

`methods` is pure array API and the oracle; `numpy_images` works in place, in threads, and compiled if
llvmlite is there. Images enter as arrays (N, C, *spatial); the caller uses the returned arrays.
"""
