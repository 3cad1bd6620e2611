"""What this process has: threads, memory, a BLAS, settings, and a person who may be waiting.

It imports no other room, but for the compiled code that a thread of a team runs (when it first runs).
"""
