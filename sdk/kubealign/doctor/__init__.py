"""What this machine or a cluster lacks for running jobs, and the remedy."""
