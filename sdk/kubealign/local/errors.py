"""Errors of local runs, each with a message for the user."""


class RunFailed(Exception):
    """The job has failed, or cannot be started. The message gives the cause and the remedy."""


class RunRefused(RunFailed):
    """Nothing was started: the run directory, a setting or a missing program prevents it."""
