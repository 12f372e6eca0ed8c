"""Local runner: executes AlignmentJobs on one machine as supervised role processes with a NATS and a Redis
server.
"""
