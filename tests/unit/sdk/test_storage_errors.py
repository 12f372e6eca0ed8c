"""Errors of storage that may pass."""

import errno
import os

import pytest

from kubealign.storage_errors import is_storage_error

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE])
def test_errors_that_may_pass(number: int) -> None:
    assert is_storage_error(OSError(number, os.strerror(number), "/runs/x"))


@pytest.mark.parametrize(
    "error",
    [
        OSError("no number"),
        PermissionError(errno.EACCES, "Permission denied"),
        ValueError("28"),
        RuntimeError("I/O error: Permission denied (os error 13)"),
    ],
)
def test_other_errors(error: Exception) -> None:
    assert not is_storage_error(error)


def test_an_error_of_a_library_in_rust() -> None:
    assert is_storage_error(RuntimeError("Error while serializing: No space left on device (os error 28)"))
