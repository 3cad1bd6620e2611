"""Resources of this process: threads, memory, llvmlite, settings, and messages to a waiting person.

It imports no other sub-package of the engine, except the compiled code that a team's threads run (at first
use).
"""
