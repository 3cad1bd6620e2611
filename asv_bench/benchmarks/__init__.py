"""Benchmarks for asv: ours beside the peer's, in the same parametrisation."""
