"""What convolutions ask of an engine: blocks of a batch, products, shifted sums, windows, spectra.

`methods` is pure array API and the oracle; `numpy_images` works in place, in threads, and compiled where
numba is installed. Images enter as arrays (N, C, *spatial); whoever calls uses what is returned.
"""
