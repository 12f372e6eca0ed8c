"""The dashboard of a cluster: who may see what, and a memory of all jobs that it lists from."""
