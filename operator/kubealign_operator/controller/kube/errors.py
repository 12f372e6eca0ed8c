"""Errors of calls to the API server."""

from collections.abc import Mapping
from http import HTTPStatus

_SERVER_ERRORS = 500


class ApiStatusError(Exception):
    """The API server refused a call. `retry_after`: the seconds that it asked for, if any."""

    def __init__(self, call: str, status: int, reason: str, message: str, retry_after: float | None) -> None:
        super().__init__(f"{call}: {status} {reason}: {message}")
        self.status = status
        #: Machine-readable reason, such as AlreadyExists.
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    @property
    def is_transient(self) -> bool:
        """True when a retry may succeed: too many requests, or a server error."""
        return self.status == HTTPStatus.TOO_MANY_REQUESTS or self.status >= _SERVER_ERRORS

    @property
    def is_not_found(self) -> bool:
        """True when the object does not exist."""
        return self.status == HTTPStatus.NOT_FOUND

    @property
    def is_conflict(self) -> bool:
        """True when a precondition failed or the object already exists."""
        return self.status == HTTPStatus.CONFLICT

    @property
    def is_expired(self) -> bool:
        """True when the resourceVersion is too old to resume a watch."""
        return self.status == HTTPStatus.GONE


class ApiUnavailable(Exception):
    """No answer: the connection broke, or the deadline passed. The call may or may not have taken effect."""


class NotLeader(Exception):
    """The lease may have expired: nothing may be written."""


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Parse Retry-After in seconds; None when it is missing or a date."""
    try:
        return max(0.0, float(headers.get("Retry-After", "")))
    except ValueError:
        return None
