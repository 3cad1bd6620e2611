"""How right kernels are: ours and other people's, against references that share no code with any of them.

`references` computes a case in float64, by definition. `callers` is a package for another interpreter, which
computes cases with one peer and NumPy alone. `matrix` sends the cases there and compares; `page` writes what
was found, with the programs of `reproducers`, which show what is wrong; `command` is the command line.
"""
