"""The decisions of each phase of a job."""
