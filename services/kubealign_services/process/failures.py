"""How a process says that starting it again would not help."""

import errno

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class PermanentFailure(Exception):
    """Nothing that a restart would mend. The message is the cause, as a person would say it; it fails the
    job."""


def permanent_cause(error: BaseException) -> PermanentFailure | None:
    """The error itself, or the first within a group of errors, if it is permanent. A full disk is: nothing
    is deleted by starting again."""
    if isinstance(error, PermanentFailure):
        return error
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        where = f" at {error.filename}" if error.filename else ""
        return PermanentFailure(f"{error.strerror}{where}; once there is room, the same command goes on")
    if isinstance(error, BaseExceptionGroup):
        causes = (permanent_cause(inner) for inner in error.exceptions)
        return next((cause for cause in causes if cause is not None), None)
    return None
