"""The reference role: log-probabilities of the frozen policy for the KL penalty."""
