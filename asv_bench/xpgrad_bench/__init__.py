"""The benchmarks: works, their implementations, timing, and the floor of every implementation.

``python -m xpgrad bench`` and the asv suites share these definitions. The package is self-contained: only
`command`, the command line, imports xpgrad at the top; the other modules import its public names inside
functions. So it can be put on ``sys.path``, to time another version of xpgrad, or a peer in an interpreter
without xpgrad.

``recurrent``, ``convolutions`` and ``elementwise`` define works (operator, shape, dtype) with their data and
their counts of operations and bytes; ``implementations`` runs them, one file for each; ``worker`` and
``processes`` are the two ends of a process that does so; ``timing``, ``memory`` and ``floor`` measure;
``groups`` defines the comparisons; ``command`` prints them, ``plot`` draws them.
"""
