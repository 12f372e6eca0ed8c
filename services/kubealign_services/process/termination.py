"""The last words of a process that a restart would not mend, for whoever started it."""

import logging
from pathlib import Path

from kubealign.pod import TERMINATION_BYTES

log = logging.getLogger(__name__)

_CUT = " [...] "


def write_termination(path: Path, message: str) -> None:
    """Write the cause, shortened to what Kubernetes keeps. What cannot be written is logged."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # In place: in a container the file is a mount of its own, which nothing can be renamed onto.
        path.write_bytes(fitted(message, TERMINATION_BYTES))
    except OSError as error:
        log.error("the cause could not be written down", extra={"path": str(path), "error": str(error)})


def fitted(message: str, limit: int) -> bytes:
    """The message as UTF-8 in `limit` bytes at most; a longer one keeps its beginning and its end, which say
    what failed and why."""
    whole = message.encode(errors="replace")
    if len(whole) <= limit:
        return whole
    room = limit - len(_CUT)
    # Characters that the cut goes through are left out.
    first = whole[: room - room // 2].decode(errors="ignore")
    last = whole[len(whole) - room // 2 :].decode(errors="ignore")
    return f"{first}{_CUT}{last}".encode()
