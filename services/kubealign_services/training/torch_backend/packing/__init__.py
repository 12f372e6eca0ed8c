"""Packing of sequences into microbatches, and attention over packed sequences."""
