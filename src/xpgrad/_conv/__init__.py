"""Parts of the convolutions: one geometry, the methods that compute, and the rule that chooses one."""
