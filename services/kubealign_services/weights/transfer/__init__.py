"""Transports and encodings of weights: shared memory, streams with a relay tree, collectives, deltas."""
