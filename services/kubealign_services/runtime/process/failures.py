"""Failures that a restart would not repair."""

import errno

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class PermanentFailure(Exception):
    """A failure that a restart would not repair. It fails the job, with its message as the cause."""


def find_permanent_failure(error: BaseException) -> PermanentFailure | None:
    """Return the error, or the first error of a group, as a PermanentFailure; None when it is transient.

    A full disk is permanent: a restart deletes nothing.
    """
    if isinstance(error, PermanentFailure):
        return error
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        location = f" at {error.filename}" if error.filename else ""
        return PermanentFailure(f"{error.strerror}{location}; once there is room, the same command goes on")
    if isinstance(error, BaseExceptionGroup):
        causes = (find_permanent_failure(inner) for inner in error.exceptions)
        return next((cause for cause in causes if cause is not None), None)
    return None
