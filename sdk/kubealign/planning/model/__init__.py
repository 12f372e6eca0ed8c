"""Model shapes, parameter counts, and their division over a trainer's ranks."""
