"""How a request can end other than well. Each text says what to do about it."""

from collections.abc import Sequence

from kubealign.spec.errors import SpecError


class KubealignError(Exception):
    """All that a client raises."""


class JobNotFound(KubealignError):
    """There is no such job."""


class JobExists(KubealignError):
    """There is a job of this name already."""


class JobInvalid(KubealignError):
    """The job, or a change to it, is refused. `errors`: place by place, where they are known."""

    def __init__(self, message: str, errors: Sequence[SpecError] = ()) -> None:
        super().__init__(message)
        self.errors = list(errors)


class Conflict(KubealignError):
    """The job has changed meanwhile, or is in a state that does not allow it."""


class Unauthenticated(KubealignError):
    """Nobody knows who asks: a token is missing, wrong or expired."""


class Forbidden(KubealignError):
    """Whoever asks may not do this here."""


class Unavailable(KubealignError):
    """What was asked did not answer in time. The request may have been carried out or not."""


class NotPossible(KubealignError):
    """It cannot be done with this job, or here."""


class JobFailed(KubealignError):
    """The job that was waited for has failed; the text is its cause."""


class WaitTimeout(KubealignError):
    """The job was not there in time; the text says what it waits for."""
