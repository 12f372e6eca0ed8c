"""Log-probabilities from hidden states, in chunks of the vocabulary projection."""
