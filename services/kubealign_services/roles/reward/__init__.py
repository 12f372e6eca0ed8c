"""The reward role: scores samples with a reward model or a function."""
