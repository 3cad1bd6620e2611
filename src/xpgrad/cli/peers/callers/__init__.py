"""Computes cases with other libraries, each called as its documentation says.

`matrix` runs this package in an interpreter of the peer's own, where it is a package by itself: it needs the
peer and NumPy, nothing of xpgrad. A case that a peer has no operator or option for is absent; one that it
turns down is a refusal, with its message. There is a module for each peer, and `case` for what they share.
"""
