"""Cases: every kernel with its options and independent oracles.

`kernels.KERNELS` is the table. `python -m xpgrad check` runs the cases in each namespace against all oracles,
`xpgrad.testing.vectors` hands them out for the tests of other people's kernels, and `check --peers` gives
them to other libraries.
"""
