"""Free loopback ports for the servers of a run."""

import random
import socket
from collections.abc import Iterator
from pathlib import Path

from kubealign.local.failure import RunRefused

LOOPBACK = "127.0.0.1"
_LOWEST = 15_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ATTEMPTS = 200


class Ports:
    """Hands out each port once.

    They lie below those that the kernel gives to outgoing connections, so that a server which died finds its
    port free when it is started again."""

    def __init__(self, candidates: Iterator[int] | None = None) -> None:
        self._candidates = _random_ports() if candidates is None else candidates
        self._taken: set[int] = set()

    def take(self) -> int:
        """Raises RunRefused when no free one is found."""
        for _ in range(_ATTEMPTS):
            port = next(self._candidates, None)
            if port is None:
                break
            if port not in self._taken and is_free(port):
                self._taken.add(port)
                return port
        raise RunRefused(f"no free port was found on {LOOPBACK}: other programs use those that were tried")


def is_free(port: int) -> bool:
    """Whether a server could listen on it now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections that are closing do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
        return True


def _random_ports() -> Iterator[int]:
    highest = int(_EPHEMERAL.read_text().split()[0]) if _EPHEMERAL.exists() else 32_768
    choose = random.SystemRandom()
    while True:
        # Where the range has been widened downwards, anything may collide: any port is as good.
        yield (
            choose.randrange(_LOWEST, highest)
            if highest > _LOWEST + 1000
            else choose.randrange(_LOWEST, 60_000)
        )
