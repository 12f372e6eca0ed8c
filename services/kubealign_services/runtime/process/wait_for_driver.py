"""Hook that a trainer's container runs before it gets SIGTERM (preStop). Arguments: HOST PORT SECONDS.

Keeps the processes of an evicted pod running while the driver, which the operator ends, saves a checkpoint
with them. Ends when the driver has ended, at the latest after SECONDS. Imports the standard library only.
"""

import socket
import sys
import time

_CONNECT_SECONDS = 2.0
_POLL_SECONDS = 0.5
#: A name server that does not answer for a moment is not the end of the driver.
_FAILURES = 3


def wait_for_end(host: str, port: int, seconds: float) -> bool:
    """Wait until the driver's health port refuses connections. Return False if it still accepts them.

    Args:
        host: Host name of the driver's pod; it may not resolve any more.
        port: Health port of the driver.
        seconds: Longest time to wait.
    """
    deadline = time.monotonic() + seconds
    failures = 0
    while time.monotonic() < deadline:
        if _answers(host, port):
            failures = 0
        else:
            failures += 1
            if failures == _FAILURES:
                return True
        # The end of a process in another pod is no event here.
        time.sleep(_POLL_SECONDS)
    return False


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    wait_for_end(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
