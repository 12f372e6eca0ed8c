"""Modules that run within a sandbox, where they see the standard library and each other, and nothing else."""
