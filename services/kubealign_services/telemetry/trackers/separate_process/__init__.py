"""Trackers whose libraries conflict with the driver's packages: each runs in another environment."""
