"""Resources of this process: threads, memory, llvmlite, settings, and messages to a waiting person.

It imports no other sub-package of the engine, except, at first use, the compiled code of a team's threads.
"""
