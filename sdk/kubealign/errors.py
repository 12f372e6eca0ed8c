"""Exceptions raised by the client. Each message states a remedy."""

from collections.abc import Sequence

from kubealign.spec.errors import SpecError


class KubealignError(Exception):
    """Base class of all errors raised by the client."""


class JobNotFound(KubealignError):
    """The job does not exist."""


class JobExists(KubealignError):
    """A job with this name already exists."""


class JobInvalid(KubealignError):
    """The job, or a change to a job, was rejected.

    `errors` holds one entry per invalid field where the fields are known.
    """

    def __init__(self, message: str, errors: Sequence[SpecError] = ()) -> None:
        super().__init__(message)
        self.errors = list(errors)


class InputInvalid(KubealignError):
    """A Python object cannot be an input of a job."""


class Conflict(KubealignError):
    """The job has changed since it was read, or its state does not allow the request."""


class Unauthenticated(KubealignError):
    """The caller could not be identified: a token is missing, wrong or expired."""


class Forbidden(KubealignError):
    """The caller is not permitted to do this."""


class Unavailable(KubealignError):
    """The server did not respond in time. The request may or may not have been carried out."""


class MetricsUnreadable(Unavailable):
    """A process of the job has stored metrics that cannot be read. The message names the key."""


class NotPossible(KubealignError):
    """The request is not possible for this job or in this environment."""


class JobFailed(KubealignError):
    """The awaited job has failed; the message is the cause."""


class WaitTimeout(KubealignError):
    """The job did not reach the awaited phase in time; the message states what the job is waiting for."""
