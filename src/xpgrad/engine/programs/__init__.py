"""Programs: a kernel's work, recorded once, and run without Python for every call of the same form.

`recorder` is an engine that records what a kernel asks for, as `instructions`; `schedule` has the
instructions for sequences of uneven lengths. The result is a `Program`: integers that `native_program`
executes, compiled. `foreign` makes programs that another runtime calls without Python.
"""
