"""The tools of `xpgrad.testing`, which share no code with the kernels: a file for each operator."""
