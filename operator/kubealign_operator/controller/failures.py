"""How a call to the API server can end other than well."""

from collections.abc import Mapping
from http import HTTPStatus

_SERVER_ERRORS = 500


class ApiFailure(Exception):
    """The API server answered and did not do it. `retry_after`: the seconds that it asked for, if any."""

    def __init__(self, call: str, status: int, reason: str, message: str, retry_after: float | None) -> None:
        super().__init__(f"{call}: {status} {reason}: {message}")
        self.status = status
        #: The machine's word for it, such as AlreadyExists.
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    @property
    def passing(self) -> bool:
        """The same call may do better later: too many requests, or the server's own trouble."""
        return self.status == HTTPStatus.TOO_MANY_REQUESTS or self.status >= _SERVER_ERRORS

    @property
    def missing(self) -> bool:
        """There is no such object."""
        return self.status == HTTPStatus.NOT_FOUND

    @property
    def conflict(self) -> bool:
        """It is no longer, or already, as the call says."""
        return self.status == HTTPStatus.CONFLICT

    @property
    def expired(self) -> bool:
        """The resourceVersion is too old to go on from."""
        return self.status == HTTPStatus.GONE


class ApiAway(Exception):
    """No answer: the connection broke, or the deadline passed. What was asked may have been done or not."""


class NotLeading(Exception):
    """The lease is no longer certainly ours: nothing may be written."""


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Retry-After in seconds; None where it is missing or a date."""
    try:
        return max(0.0, float(headers.get("Retry-After", "")))
    except ValueError:
        return None
