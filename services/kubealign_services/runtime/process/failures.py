"""Failures of a process: those that a restart would not repair, and those of its storage."""

from kubealign.storage_errors import StorageFull, is_storage_error


class PermanentFailure(Exception):
    """A failure that a restart would not repair. It fails the job, with its message as the cause."""


def find_permanent_failure(error: BaseException) -> PermanentFailure | None:
    """Return the error, or the first error of a group, if it is a PermanentFailure; None when it is
    transient.
    """
    if isinstance(error, PermanentFailure):
        return error
    if isinstance(error, BaseExceptionGroup):
        causes = (find_permanent_failure(inner) for inner in error.exceptions)
        return next((cause for cause in causes if cause is not None), None)
    return None


def find_storage_failure(error: BaseException) -> str | None:
    """Return the description of the error, or of the first error of a group, that is one of storage.

    None: it is another error.
    """
    if isinstance(error, StorageFull):
        return str(error)
    if is_storage_error(error):
        location = f" at {error.filename}" if isinstance(error, OSError) and error.filename else ""
        return f"{getattr(error, 'strerror', None) or error}{location}"
    if isinstance(error, BaseExceptionGroup):
        causes = (find_storage_failure(inner) for inner in error.exceptions)
        return next((cause for cause in causes if cause is not None), None)
    return None
