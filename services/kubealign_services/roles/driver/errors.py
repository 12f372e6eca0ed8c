"""Errors that end the job. Other errors are recovered by a restart from the last checkpoint."""

from kubealign.storage_errors import is_storage_error
from kubealign_services.runtime.rpc.errors import StorageFull


class UnrecoverableError(Exception):
    """The job cannot succeed, and a retry would not help. The message is the cause in plain English."""


class ShutdownRequested(Exception):
    """The driver was asked to stop: leave the step, save a checkpoint of verified weights, end."""


def disk_error(message: str, error: OSError) -> StorageFull | UnrecoverableError:
    """Return the exception for a file operation that failed: StorageFull where it may succeed later."""
    return StorageFull(message) if is_storage_error(error) else UnrecoverableError(message)
