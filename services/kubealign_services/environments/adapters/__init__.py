"""Adapters of environment packages to the environment protocol. Each imports its package when it is used."""
