"""Exceptions that cross process boundaries. Each has the same name at both ends of a call.

A handler raises the exception, the server sends its class name and a status code, and the client raises it
again.
"""

from dataclasses import dataclass

import grpc

from kubealign.storage_errors import StorageFull as StorageFull
from kubealign.storage_errors import is_storage_error
from kubealign_services.batch.codec import CorruptBatch
from kubealign_services.checkpoints.fence import StaleFence
from kubealign_services.training.contract import ModelDiverged, NonFiniteLoss

Code = grpc.StatusCode


class OutOfOrder(RuntimeError):
    """The request does not fit the present state: a step is not the next one, a model is not loaded."""


class InvalidRequest(ValueError):
    """A field of the request has an invalid value."""


class NotFound(LookupError):
    """The request names something that does not exist, such as a version that is no longer served or a
    folder.
    """


class Refused(PermissionError):
    """The caller's certificate does not permit the call."""


class Unreachable(ConnectionError):
    """No answer: nothing listens, the connection broke, the deadline passed, or the process is about to
    restart. The message says which.
    """


class RemoteFailure(RuntimeError):
    """The called process failed with an unlisted exception. Its log has the traceback."""


@dataclass(frozen=True)
class RpcStatus:
    """Wire form of an exception. kind: the name of its class, or empty."""

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
    ModelDiverged: Code.ABORTED,
    StorageFull: Code.RESOURCE_EXHAUSTED,
    Unreachable: Code.UNAVAILABLE,
    Refused: Code.PERMISSION_DENIED,
}
_KINDS = {kind.__name__: kind for kind in _CODES}
# For statuses without a kind, made by gRPC itself or another implementation.
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


def to_status(error: Exception) -> RpcStatus:
    """Return the status of an exception. Unlisted ones become INTERNAL, with their type in the message."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return RpcStatus(code, kind.__name__, str(error))
    if is_storage_error(error):
        return RpcStatus(Code.RESOURCE_EXHAUSTED, StorageFull.__name__, str(error))
    return RpcStatus(Code.INTERNAL, "", f"{type(error).__name__}: {error}")


def to_exception(status: RpcStatus) -> Exception:
    """Return the exception that a status represents."""
    kind = _KINDS.get(status.kind) or _WITHOUT_KIND.get(status.code)
    if kind is None:
        return RemoteFailure(
            status.message if status.code is Code.INTERNAL else f"{status.code.name}: {status.message}"
        )
    return kind(status.message)
