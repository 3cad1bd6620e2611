"""What an operator is: its arguments and their checks, axes, types, docs; what adapters read."""
