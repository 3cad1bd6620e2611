"""The accuracy of kernels, ours and other libraries', against references that share no code with them.

`references` computes a case in float64 from its definition. `callers` is a package for another interpreter;
it computes cases with only one peer and NumPy. `matrix` sends the cases there and compares. `page` writes the
findings, with the programs of `reproducers`, which show the errors. `command` is the command line.
"""
