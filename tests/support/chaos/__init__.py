"""Fault injection into a running job: the job, the seeded schedule of faults, and an independent checker."""
