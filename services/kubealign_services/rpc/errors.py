"""What can go wrong between processes: each kind is one exception, with the same name at both ends of a call.

A handler raises it, the server sends its name and a status code, the client raises it again.
"""

import errno
from dataclasses import dataclass

import grpc

from kubealign_services.batch.codec import CorruptBatch
from kubealign_services.training.contract import Diverged, NonFiniteLoss

Code = grpc.StatusCode


class StaleFence(RuntimeError):
    """The caller's fence is older than one seen already: another driver has taken over."""


class OutOfOrder(RuntimeError):
    """The request does not fit what was done before: a step that is not the next, a model that is not
    loaded."""


class InvalidRequest(ValueError):
    """A field of the request holds what it may not."""


class NotFound(LookupError):
    """What the request names is not there: a version that is no longer served, a folder."""


class StorageFull(OSError):
    """No room on a disk."""


class Refused(PermissionError):
    """The caller's certificate does not let it call this."""


class Unreachable(ConnectionError):
    """No answer: nobody there, the connection broke, the deadline passed, or it is about to start again. The
    message says which."""


class RemoteFailure(RuntimeError):
    """The called process failed in a way that it has no name for. Its log has the traceback."""


@dataclass(frozen=True)
class Status:
    """What goes over the wire about an exception. kind: the name of its class, or empty."""

    code: grpc.StatusCode
    kind: str
    message: str


_CODES: dict[type[Exception], grpc.StatusCode] = {
    StaleFence: Code.FAILED_PRECONDITION,
    OutOfOrder: Code.FAILED_PRECONDITION,
    InvalidRequest: Code.INVALID_ARGUMENT,
    NotFound: Code.NOT_FOUND,
    CorruptBatch: Code.DATA_LOSS,
    NonFiniteLoss: Code.ABORTED,
    Diverged: Code.ABORTED,
    StorageFull: Code.RESOURCE_EXHAUSTED,
    Unreachable: Code.UNAVAILABLE,
    Refused: Code.PERMISSION_DENIED,
}
_KINDS = {kind.__name__: kind for kind in _CODES}
# For statuses that our own servers do not make: gRPC's, or another implementation's.
_WITHOUT_KIND: dict[grpc.StatusCode, type[Exception]] = {
    Code.INVALID_ARGUMENT: InvalidRequest,
    Code.NOT_FOUND: NotFound,
    Code.PERMISSION_DENIED: Refused,
    Code.UNAUTHENTICATED: Refused,
    Code.DATA_LOSS: CorruptBatch,
    Code.UNAVAILABLE: Unreachable,
    Code.DEADLINE_EXCEEDED: Unreachable,
    Code.CANCELLED: Unreachable,
}


def status_of(error: Exception) -> Status:
    """The status of an exception. One that is not listed is INTERNAL, with its type in the message."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return Status(code, kind.__name__, str(error))
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Status(Code.RESOURCE_EXHAUSTED, StorageFull.__name__, str(error))
    return Status(Code.INTERNAL, "", f"{type(error).__name__}: {error}")


def exception_of(status: Status) -> Exception:
    """The exception of a status."""
    kind = _KINDS.get(status.kind) or _WITHOUT_KIND.get(status.code)
    if kind is None:
        return RemoteFailure(
            status.message if status.code is Code.INTERNAL else f"{status.code.name}: {status.message}"
        )
    return kind(status.message)
