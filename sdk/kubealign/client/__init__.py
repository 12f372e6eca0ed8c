"""Client of jobs on a cluster or on this machine."""
