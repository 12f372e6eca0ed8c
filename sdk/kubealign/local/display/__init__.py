"""Display of a run's progress on a terminal."""
