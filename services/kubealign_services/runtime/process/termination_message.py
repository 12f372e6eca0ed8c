"""Kubernetes termination message of a process that failed permanently."""

import logging
from pathlib import Path

from kubealign.pod_contract import TERMINATION_BYTES

log = logging.getLogger(__name__)

_ELLIPSIS = " [...] "


def write_termination_message(path: Path, message: str) -> None:
    """Write the cause, shortened to the size that Kubernetes keeps. Errors are logged."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written in place: in a container the file is a mount, which cannot be replaced by a rename.
        path.write_bytes(truncate_message(message, TERMINATION_BYTES))
    except OSError as error:
        extra = {"path": str(path), "error": str(error)}
        log.error("the termination message could not be written", extra=extra)


def truncate_message(message: str, limit: int) -> bytes:
    """Return the message as UTF-8 in at most `limit` bytes; a longer one keeps its beginning and its end,
    which say what failed and why.
    """
    encoded = message.encode(errors="replace")
    if len(encoded) <= limit:
        return encoded
    room = limit - len(_ELLIPSIS)
    # Characters that the cut splits are dropped.
    first = encoded[: room - room // 2].decode(errors="ignore")
    last = encoded[len(encoded) - room // 2 :].decode(errors="ignore")
    return f"{first}{_ELLIPSIS}{last}".encode()
