"""Errors of storage that pass: a full volume, an exhausted quota, a server that does not answer.

A job waits for storage instead of failing: its checkpoints are intact, and whoever makes room does not know
the job.
"""

import errno
import re

#: https://man7.org/linux/man-pages/man3/errno.3.html
STORAGE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE})
#: Beginning of the driver's `waiting_for` while it waits for storage.
STORAGE_WAIT_PREFIX = "storage: "

# Form in which libraries in Rust (safetensors, tokenizers) report an error of the system.
_RUST_ERROR = re.compile(r"\(os error (\d+)\)")


class StorageFull(OSError):
    """A disk is full, or storage does not answer: the same operation may succeed later."""


def is_storage_error(error: BaseException) -> bool:
    """Return True for an error of storage that may pass without a change to the job."""
    return _find_errno(error) in STORAGE_ERRNOS


def _find_errno(error: BaseException) -> int | None:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    match = _RUST_ERROR.search(str(error))
    return int(match[1]) if match else None
