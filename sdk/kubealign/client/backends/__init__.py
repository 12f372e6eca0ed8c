"""Backends that run jobs, behind the protocol of `base`: a cluster, or this machine."""
