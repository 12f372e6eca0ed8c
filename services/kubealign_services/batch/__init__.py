"""Packed batches: the sequences of one step without padding, their columns, and their wire format."""
