"""Alias of `kubealign.errors`."""

from kubealign.errors import (
    Conflict,
    Forbidden,
    InputInvalid,
    JobExists,
    JobFailed,
    JobInvalid,
    JobNotFound,
    KubealignError,
    MetricsUnreadable,
    NotPossible,
    Unauthenticated,
    Unavailable,
    WaitTimeout,
)

__all__ = [
    "Conflict",
    "Forbidden",
    "InputInvalid",
    "JobExists",
    "JobFailed",
    "JobInvalid",
    "JobNotFound",
    "KubealignError",
    "MetricsUnreadable",
    "NotPossible",
    "Unauthenticated",
    "Unavailable",
    "WaitTimeout",
]
