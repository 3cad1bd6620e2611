"""Descriptions of operators: arguments and their checks, axes, types, docs; descriptions for adapters."""
