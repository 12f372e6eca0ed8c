"""Runs AlignmentJobs on one machine: role processes, a NATS and a Redis server, kept running to the end."""
