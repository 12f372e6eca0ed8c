"""Talking to what runs jobs: a cluster, or this machine."""
