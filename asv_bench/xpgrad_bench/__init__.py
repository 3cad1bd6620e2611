"""The benchmarks: works (operator, shape, dtype), their implementations, timing, and the floor of their time.

``python -m xpgrad bench`` and the asv suites share these definitions. The package is self-contained: only
`command`, the command line, imports xpgrad at the top; the other modules import its public names inside
functions. So another version of xpgrad, or an interpreter without xpgrad, can import it from ``sys.path``.

``recurrent``, ``convolutions`` and ``elementwise`` define works with their data and their counts of
operations and bytes. ``implementations`` runs them, with a file for each implementation. ``worker`` and
``processes`` are the two ends of such a process. ``timing``, ``memory`` and ``floor`` measure. ``groups``
defines the comparisons, ``command`` prints them, ``plot`` draws them.
"""
