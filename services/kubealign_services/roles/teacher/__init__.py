"""The teacher role: top-K log-probabilities for distillation."""
