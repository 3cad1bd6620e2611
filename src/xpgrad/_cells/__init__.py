"""Cells that a user wrote.

A step's formula goes in, the stages of its time loop and of its gradient's come out: `trace` makes a graph of
the formula, `reverse` adds the cotangents to it, `build` says what is saved and what stands where, `stages`
writes the formulas of the stages, and `kernel` runs them over sequences.
"""
