"""Programs: a kernel's work written down once, run again without Python for every call of the same form.

`recorder` stands in the place of an engine and writes down what a kernel asks for; a `Program` of
instructions leaves, in numbers that `native_program` walks through, compiled. `schedule` writes those for
sequences of uneven lengths. `foreign` makes programs that another runtime calls without Python.
"""
