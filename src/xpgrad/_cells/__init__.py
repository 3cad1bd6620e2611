"""Users' cells: from a step's formula to the stages of a time loop and of its gradient.

`trace` makes a graph of the formula, `reverse` adds the cotangents, `build` decides which values are saved
and in which buffers, and `stages` writes the formulas of the stages.
"""
