"""What elementwise and row kernels share: their formulas, and the way of a call."""
