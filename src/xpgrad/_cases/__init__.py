"""Cases: every kernel with its options and independent oracles.

`kernels.KERNELS` is the table. `python -m xpgrad check` compares the cases in each namespace with all
oracles. `xpgrad.testing.vectors` yields them for the tests of other people's kernels. `check --peers` runs
them in other libraries.
"""
