"""All that a client raises; each text says what to do about it."""

from kubealign.client.errors import (
    Conflict,
    Forbidden,
    JobExists,
    JobFailed,
    JobInvalid,
    JobNotFound,
    KubealignError,
    NotPossible,
    Unauthenticated,
    Unavailable,
    WaitTimeout,
)

__all__ = [
    "Conflict",
    "Forbidden",
    "JobExists",
    "JobFailed",
    "JobInvalid",
    "JobNotFound",
    "KubealignError",
    "NotPossible",
    "Unauthenticated",
    "Unavailable",
    "WaitTimeout",
]
