"""Errors of replays."""


class CannotReplay(Exception):
    """Part of the recorded run is missing, or has changed. The message names the part."""
