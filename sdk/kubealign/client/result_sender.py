"""Runs in the pod that a result is fetched through, by its source: the image needs Python and nothing else.

`hold` is the pod's own process and ends by itself when nobody comes. `send FOLDER` is run beside it, writes
the folder to stdout as tar, then {sha256, bytes} of what it wrote to stderr.
"""

import contextlib
import hashlib
import json
import os
import signal
import sys
import tarfile
from collections.abc import Iterator
from typing import BinaryIO

_IDLE_SECONDS = 300
_BLOCK = 1 << 20
#: To `hold`: somebody is being served, and is not any more.
_BUSY, _IDLE = signal.SIGUSR1, signal.SIGUSR2


class Counted:
    """A file for writing that knows the digest of what went through."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size += len(data)
        return self._out.write(data)


def send(folder: str, out: BinaryIO) -> dict[str, str | int]:
    """Write `folder` as tar; what to tell of it."""
    counted = Counted(out)
    with tarfile.open(
        fileobj=counted,  # type: ignore[call-overload]
        mode="w|",
        format=tarfile.PAX_FORMAT,
        bufsize=_BLOCK,
    ) as archive:
        archive.add(folder, arcname=".")
    out.flush()
    return {"sha256": counted.digest.hexdigest(), "bytes": counted.size}


def hold(idle_seconds: float = _IDLE_SECONDS) -> None:
    """Until SIGTERM, or until nobody has been served for a while."""
    awaited = {signal.SIGTERM, _BUSY, _IDLE}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    busy = False
    while True:
        got = signal.sigwaitinfo(awaited) if busy else signal.sigtimedwait(awaited, idle_seconds)
        if got is None or got.si_signo == signal.SIGTERM:
            return
        busy = got.si_signo == _BUSY


@contextlib.contextmanager
def _serving(holder: int) -> Iterator[None]:
    # Who may not signal it, as in a pod whose containers share one namespace, is served all the same.
    with contextlib.suppress(OSError):
        os.kill(holder, _BUSY)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.kill(holder, _IDLE)


def main(arguments: list[str]) -> None:
    if arguments[0] == "hold":
        hold()
        return
    with _serving(holder=1):
        told = send(arguments[1], sys.stdout.buffer)
    sys.stderr.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
