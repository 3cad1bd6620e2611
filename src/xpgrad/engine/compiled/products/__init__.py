"""Matrix products: `matrix` plans them, `native_products` has the loops around the tiles.

Addresses of matrices and their sizes enter, sums are written. The engines call them for single products,
time loops and programs for those inside. Needs llvmlite.
"""
