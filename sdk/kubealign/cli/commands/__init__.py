"""Commands, by their object: the spec, jobs, and the machine."""
