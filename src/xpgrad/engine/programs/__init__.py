"""Programs: a kernel's work written down once, run again without Python for every call of the same form.

`recorder` stands in the place of an engine and writes down what a kernel asks for, in `instructions`; those
for sequences of uneven lengths are in `schedule`. A `Program` leaves: numbers that `native_program` walks
through, compiled. `foreign` makes programs that another runtime calls without Python.
"""
