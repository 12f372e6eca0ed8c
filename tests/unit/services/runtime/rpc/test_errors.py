"""Exceptions keep their class and message over the wire."""

import errno

import grpc
import pytest

from kubealign_services.batch.codec import CorruptBatch
from kubealign_services.checkpoints.fence import StaleFence
from kubealign_services.runtime.rpc.errors import (
    InvalidRequest,
    NotFound,
    OutOfOrder,
    Refused,
    RemoteFailure,
    RpcStatus,
    StorageFull,
    Unreachable,
    to_exception,
    to_status,
)
from kubealign_services.training.contract import NonFiniteLoss

Code = grpc.StatusCode


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (StaleFence, Code.FAILED_PRECONDITION),
        (Unreachable, Code.UNAVAILABLE),
        (OutOfOrder, Code.FAILED_PRECONDITION),
        (InvalidRequest, Code.INVALID_ARGUMENT),
        (NotFound, Code.NOT_FOUND),
        (CorruptBatch, Code.DATA_LOSS),
        (NonFiniteLoss, Code.ABORTED),
        (StorageFull, Code.RESOURCE_EXHAUSTED),
        (Refused, Code.PERMISSION_DENIED),
    ],
)
def test_round_trip(kind: type[Exception], code: grpc.StatusCode) -> None:
    status = to_status(kind("fence 3 is older than 4"))
    assert status == RpcStatus(code, kind.__name__, "fence 3 is older than 4")
    again = to_exception(status)
    assert type(again) is kind
    assert str(again) == "fence 3 is older than 4"


def test_subclass_is_sent_as_its_base_class() -> None:
    class Mangled(CorruptBatch):
        pass

    assert to_status(Mangled("x")).kind == "CorruptBatch"


def test_full_disk_becomes_storage_full() -> None:
    status = to_status(OSError(errno.ENOSPC, "No space left on device", "/runs/commits/7"))
    assert status.code is Code.RESOURCE_EXHAUSTED
    assert "/runs/commits/7" in status.message
    assert isinstance(to_exception(status), StorageFull)
    assert to_status(OSError(errno.EIO, "Input/output error")).kind == "StorageFull"
    assert to_status(OSError(errno.EACCES, "Permission denied")).code is Code.INTERNAL


def test_unlisted_exception_is_internal_with_its_type() -> None:
    status = to_status(KeyError("advantages"))
    assert status == RpcStatus(Code.INTERNAL, "", "KeyError: 'advantages'")
    again = to_exception(status)
    assert type(again) is RemoteFailure
    assert str(again) == "KeyError: 'advantages'"


def test_statuses_of_grpc_itself() -> None:
    assert type(to_exception(RpcStatus(Code.UNAVAILABLE, "", "gone"))) is Unreachable
    assert type(to_exception(RpcStatus(Code.UNAUTHENTICATED, "", "who"))) is Refused
    unknown = to_exception(RpcStatus(Code.UNIMPLEMENTED, "", "Method not found!"))
    assert type(unknown) is RemoteFailure
    assert str(unknown) == "UNIMPLEMENTED: Method not found!"


def test_an_unknown_kind_falls_back_on_its_code() -> None:
    """A newer peer may send kinds that this version does not know."""
    assert type(to_exception(RpcStatus(Code.INVALID_ARGUMENT, "NewerKind", "x"))) is InvalidRequest
