"""Matrix products: our own in `matrix` and `native_products`, and in `choice` whether a BLAS is faster here.

Addresses of matrices and their sizes enter, sums are written. The engines call them for single products,
time loops and programs for those inside. Needs llvmlite.
"""
