"""Computes cases with other libraries, called as their documentation says.

`matrix` runs this package in the peer's own interpreter, as a top-level package: it needs the peer and NumPy,
and nothing of xpgrad. A case is absent if a peer has no operator or option for it. A case that the peer
rejects is a refusal, with its message. There is a module for each peer; `case` has the shared parts.
"""
