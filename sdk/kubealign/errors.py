"""Exceptions raised by the client. Each message states a remedy."""

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
