"""Alias of `kubealign.errors`."""

from kubealign.errors import (
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
