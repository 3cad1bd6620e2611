"""Parts of the convolutions: one geometry, the methods, and the rule that chooses a method."""
