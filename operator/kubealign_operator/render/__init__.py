"""From a job and what exists of it to what should be: pure, without I/O and without a clock."""
