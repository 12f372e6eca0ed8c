"""Program of the pod that reads a result; it runs from its source text, so the image only needs Python.

`hold` is the pod's main process, and exits when no download starts. `send FOLDER` is run in addition: it
writes the folder to stdout as tar, then {sha256, bytes} of the archive to stderr.
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

_IDLE_TIMEOUT_SECONDS = 300
_BLOCK_BYTES = 1 << 20
#: Signals to `hold`: a download has started, or ended.
_BUSY_SIGNAL, _IDLE_SIGNAL = signal.SIGUSR1, signal.SIGUSR2


class HashingWriter:
    """Writable file that computes the size and digest of the data written."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size += len(data)
        return self._out.write(data)


def send(folder: str, out: BinaryIO) -> dict[str, str | int]:
    """Write `folder` as tar; return the digest and size."""
    writer = HashingWriter(out)
    with tarfile.open(
        fileobj=writer,  # type: ignore[call-overload]
        mode="w|",
        format=tarfile.PAX_FORMAT,
        bufsize=_BLOCK_BYTES,
    ) as archive:
        archive.add(folder, arcname=".")
    out.flush()
    return {"sha256": writer.digest.hexdigest(), "bytes": writer.size}


def hold(idle_seconds: float = _IDLE_TIMEOUT_SECONDS) -> None:
    """Wait for SIGTERM, or until no download has run for `idle_seconds`."""
    signals = {signal.SIGTERM, _BUSY_SIGNAL, _IDLE_SIGNAL}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    busy = False
    while True:
        received = signal.sigwaitinfo(signals) if busy else signal.sigtimedwait(signals, idle_seconds)
        if received is None or received.si_signo == signal.SIGTERM:
            return
        busy = received.si_signo == _BUSY_SIGNAL


@contextlib.contextmanager
def _serving(holder: int) -> Iterator[None]:
    # The download proceeds even if signalling is not permitted, as with a shared process namespace.
    with contextlib.suppress(OSError):
        os.kill(holder, _BUSY_SIGNAL)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.kill(holder, _IDLE_SIGNAL)


def main(arguments: list[str]) -> None:
    if arguments[0] == "hold":
        hold()
        return
    with _serving(holder=1):
        summary = send(arguments[1], sys.stdout.buffer)
    sys.stderr.write(json.dumps(summary) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
