"""xpgrad in PyTorch."""
