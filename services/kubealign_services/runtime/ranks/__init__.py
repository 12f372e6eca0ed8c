"""Process groups of the ranks of one role."""
