"""Errors of replays."""


class ReplayError(Exception):
    """Part of the recorded run is missing, or has changed. The message names the part."""
