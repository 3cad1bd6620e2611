"""What is benchmarked: the works, who runs them, how they are timed, and what no implementation can beat.

``python -m xpgrad bench`` and the asv suites share these definitions. The package stands alone: it imports
xpgrad by its public names only, inside functions, and nothing of xpgrad relatively. So it can be put on
``sys.path`` under its own name, to time another version of xpgrad, or a peer in an interpreter without it.

``recurrent``, ``convolutions`` and ``elementwise`` define works (operator, shape, dtype) with their data and
their counts of operations and bytes; ``implementations`` runs them, one file for each; ``worker`` and
``processes`` are the two ends of a process that does so; ``timing``, ``memory`` and ``floor`` measure;
``groups`` says what is compared with what.
"""
