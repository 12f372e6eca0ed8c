"""Errors that end the job. Other errors are recovered by a restart from the last checkpoint."""


class UnrecoverableError(Exception):
    """The job cannot succeed, and a retry would not help. The message is the cause in plain English."""


class ShutdownRequested(Exception):
    """The driver was asked to stop: leave the step, save a checkpoint of verified weights, end."""
