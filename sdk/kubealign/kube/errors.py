"""Translates failed calls of the API server to exceptions. Pure.

There are two translations. `USER_ERRORS` are the public exceptions of the SDK: each message states a remedy.
`STATUS_ERRORS` keep the server's status and reason, on which a controller decides what to do next.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from kubealign.bounded_json import BoundedJsonError, parse_bounded_json
from kubealign.errors import (
    Conflict,
    Forbidden,
    JobExists,
    JobInvalid,
    JobNotFound,
    KubealignError,
    NotPossible,
    Unauthenticated,
    Unavailable,
)
from kubealign.kube.resources import JOBS
from kubealign.spec.errors import SpecError

_INSTALL = "helm install kubealign charts/kubealign -n kubealign-system --create-namespace"
#: Matches `Invalid value: "VALUE": ERROR`. Objects and values of a wrong type appear by their type only.
_INVALID_VALUE = re.compile(
    r'^(?:Invalid|Unsupported) value: (?P<value>"(?:[^"\\]|\\.)*"|[^\s:]+): (?P<text>.+)$', re.S
)
_UNKNOWN_FIELD = re.compile(r'unknown field "([^"]+)"')
_COMPOUND_TYPES = ("object", "array", "null")
#: Accompanies the errors that prevented the evaluation of the rules.
_RULES_SKIPPED = "some validation rules were not checked"
_MAX_VALUE_CHARS = 60
_MAX_EXCERPT_BYTES = 300
_MAX_STATUS_BYTES, _MAX_STATUS_DEPTH = 4 << 20, 32


class ObjectNotFound(NotPossible):
    """An object of a kind other than AlignmentJob does not exist."""


class ResponseTooLarge(NotPossible):
    """A response is longer than this process reads: a list needs smaller pages."""


class WatchExpired(Conflict):
    """The requested resource version is too old: a new list is required."""


class ApiStatusError(KubealignError):
    """The API server refused a call. `retry_after`: seconds that the server asked for, if any."""

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
        return self.status == HTTPStatus.TOO_MANY_REQUESTS or self.status >= HTTPStatus.INTERNAL_SERVER_ERROR

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


@dataclass(frozen=True)
class ErrorResponse:
    """Unsuccessful response of the API server at `server`.

    `retry_after`: seconds that the server asked for, if any.
    """

    server: str
    status: int
    body: bytes = b""
    retry_after: float | None = None


@dataclass(frozen=True)
class ApiCall:
    """API call, as described in error messages. `verb` is an RBAC verb."""

    verb: str
    path: str

    @property
    def _parts(self) -> list[str]:
        parts = [unquote(part) for part in self.path.strip("/").split("/")]
        return parts[2:] if parts[0] == "api" else parts[3:]

    @property
    def namespace(self) -> str:
        rest = self._parts
        return rest[1] if len(rest) > 2 and rest[0] == "namespaces" else ""

    @property
    def target(self) -> tuple[str, str]:
        """Resource (with its subresource) and object name."""
        rest = self._parts[2:] if self.namespace else self._parts
        resource, name, below = ([*rest, "", ""])[0], ([*rest, "", ""])[1], "/".join(rest[2:3])
        return f"{resource}/{below}" if below else resource, name

    @property
    def resource(self) -> str:
        """Plural of the resource, without its subresource."""
        return self.target[0].partition("/")[0]

    @property
    def is_job_call(self) -> bool:
        return self.path.startswith(f"{JOBS.base}/")

    def __str__(self) -> str:
        resource, name = self.target
        location = f" in namespace {self.namespace}" if self.namespace else " in every namespace"
        return f"{self.verb} {resource}{f' {name}' if name else ''}{location}"


def user_error(call: ApiCall, response: ErrorResponse) -> KubealignError:
    """Return the public exception for an unsuccessful response."""
    status, server = response.status, response.server
    status_object = _parse_status(response.body)
    text = _excerpt(response.body).strip()
    message = str(status_object.get("message") or text or _status_phrase(status, "unknown status"))
    if status == HTTPStatus.UNAUTHORIZED:
        return Unauthenticated(
            f"the API server at {server} could not identify the caller: the credentials are missing, wrong "
            "or expired. Log in to the cluster again, or name another context"
        )
    if status == HTTPStatus.FORBIDDEN:
        return _forbidden(call, status_object, message)
    if status == HTTPStatus.NOT_FOUND:
        return _not_found(call, status_object, message)
    if status == HTTPStatus.CONFLICT:
        return _conflict(call, status_object, message)
    if status == HTTPStatus.GONE:
        return WatchExpired(f"{call}: {message}")
    if status in (
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ):
        return _invalid(call, status_object, message)
    if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Unavailable(
            f"the API server at {server} could not {call}: {status} {message}; try again later"
        )
    return NotPossible(f"the API server at {server} did not {call}: {status} {message}")


def user_unavailable(call: ApiCall, server: str, error: BaseException) -> Unavailable:
    """Return the public exception for a call without a complete response."""
    reason = str(error) or type(error).__name__
    return Unavailable(
        f"the API server at {server} did not answer ({call}): {reason}. Is the cluster reachable from here?"
    )


def status_error(call: ApiCall, response: ErrorResponse) -> ApiStatusError:
    """Return the exception with status and reason of an unsuccessful response."""
    status_object = _parse_status(response.body)
    reason = str(status_object.get("reason") or _status_phrase(response.status, "Unknown"))
    message = str(status_object.get("message") or "") if status_object else _excerpt(response.body)
    return ApiStatusError(f"{call.verb} {call.path}", response.status, reason, message, response.retry_after)


def incomplete_response(call: ApiCall, server: str, error: BaseException) -> Unavailable:
    """Return the exception that names the request and the cause of a missing or incomplete response."""
    return Unavailable(f"{call.verb} {call.path}: no complete answer: {type(error).__name__}: {error}")


@dataclass(frozen=True)
class ErrorTranslation:
    """Exceptions that a client raises.

    Attributes:
        from_response: Returns the exception for an unsuccessful response.
        from_failure: Returns the exception for a call of this server without a complete response.
    """

    from_response: Callable[[ApiCall, ErrorResponse], KubealignError]
    from_failure: Callable[[ApiCall, str, BaseException], KubealignError]


USER_ERRORS = ErrorTranslation(user_error, user_unavailable)
STATUS_ERRORS = ErrorTranslation(status_error, incomplete_response)


def is_watch_expired(error: KubealignError) -> bool:
    """Return True when a watch cannot be resumed: a new list is required."""
    return isinstance(error, WatchExpired) or (isinstance(error, ApiStatusError) and error.is_expired)


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Parse Retry-After in seconds; None when it is missing or a date."""
    try:
        return max(0.0, float(headers.get("Retry-After", "")))
    except ValueError:
        return None


def _forbidden(call: ApiCall, status: Mapping[str, Any], message: str) -> KubealignError:
    # Admission plugins (quotas, Pod Security, policies) refuse with the same status as missing rights.
    if "cannot" not in message and status.get("reason") == "Forbidden" and call.verb in ("create", "patch"):
        return Forbidden(f"the admission rules of the cluster do not allow you to {call}: {message}")
    remedy = (
        "ask its administrator for the role `edit` there" if call.namespace else "name a namespace of yours"
    )
    return Forbidden(f"you may not {call}: {message}; {remedy}")


def _not_found(call: ApiCall, status: Mapping[str, Any], message: str) -> KubealignError:
    details = status.get("details") or {}
    name = str(details.get("name") or "")
    if details.get("kind") == "namespaces":
        problem = "no such namespace in this cluster: name another, or kubectl create namespace"
        return JobInvalid(
            f"metadata.namespace: {problem} {name}", [SpecError(problem, "metadata.namespace", name)]
        )
    if not name and call.is_job_call:
        return NotPossible(
            "kubealign is not installed in this cluster, which has no AlignmentJob resource. "
            f"Install it: {_INSTALL}"
        )
    if call.is_job_call:
        return JobNotFound(f"there is no job {call.target[1] or name} in namespace {call.namespace}")
    return ObjectNotFound(f"{call}: {message}")


def _conflict(call: ApiCall, status: Mapping[str, Any], message: str) -> KubealignError:
    name = str((status.get("details") or {}).get("name") or call.target[1])
    if status.get("reason") == "AlreadyExists" and call.is_job_call:
        return JobExists(
            f"there is a job {name} in namespace {call.namespace} already: choose another name, or "
            "delete it first"
        )
    return Conflict(f"{call}: {message}")


def _invalid(call: ApiCall, status: Mapping[str, Any], message: str) -> KubealignError:
    if not call.is_job_call:
        return NotPossible(f"{call}: {message}")
    name = str((status.get("details") or {}).get("name") or call.target[1]) or None
    errors = list(_field_errors(status, message, name))
    text = "\n".join(str(error) for error in errors)
    return JobInvalid(text or message, errors)


def _field_errors(status: Mapping[str, Any], message: str, job: str | None) -> Iterator[SpecError]:
    for cause in (status.get("details") or {}).get("causes") or ():
        text_of_cause = str(cause.get("message") or "")
        if "unknown field" in text_of_cause or text_of_cause.startswith(_RULES_SKIPPED):
            continue
        field = str(cause.get("field") or "")
        text, value = _split_invalid_value(text_of_cause)
        yield SpecError(
            text.removeprefix(f"{field} in body "), "" if field == "<nil>" else field, value, job=job
        )
    for field in _UNKNOWN_FIELD.findall(message):
        remedy = "the kubealign version of this cluster has no such field: upgrade it, or remove the field"
        yield SpecError(remedy, field, job=job)


def _split_invalid_value(text: str) -> tuple[str, str]:
    """Split a validation message into the error text and the invalid value."""
    matched = _INVALID_VALUE.match(text)
    if matched is None:
        return text.removeprefix("Invalid value: "), ""
    value, error_text = matched["value"], matched["text"]
    by_type = value.strip('"') in _COMPOUND_TYPES or "must be of type" in error_text
    return error_text, "" if by_type else value[:_MAX_VALUE_CHARS]


def _parse_status(body: bytes) -> Mapping[str, Any]:
    try:
        status_object = parse_bounded_json(body, _MAX_STATUS_BYTES, _MAX_STATUS_DEPTH)
    except BoundedJsonError:
        return {}
    return status_object if isinstance(status_object, dict) else {}


def _excerpt(body: bytes) -> str:
    return body[:_MAX_EXCERPT_BYTES].decode(errors="replace")


def _status_phrase(status: int, unknown: str) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return unknown
