"""How tensors travel: the protocols and their implementations, all held to the same contract tests."""
