"""Diagnostics: prerequisites of a machine or cluster, and health of a job."""
