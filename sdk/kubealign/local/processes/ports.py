"""Free loopback ports for the servers of a run."""

import random
import socket
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

from kubealign.local.errors import RunRefused

LOOPBACK = "127.0.0.1"
_LOWEST = 15_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ATTEMPTS = 200


class PortAllocator:
    """Allocates each port once, and on Linux to one run of the machine only.

    A port stays bound until this object is collected: a port that was merely probed could be taken by
    another run before the server listens. Ports are below the ephemeral range of outgoing connections, so
    that a server that died finds its port free on restart.
    """

    def __init__(self, candidates: Iterator[int] | None = None) -> None:
        self._candidates = _random_ports() if candidates is None else candidates
        self._sockets: dict[int, socket.socket] = {}
        weakref.finalize(self, _close_all, self._sockets)

    def allocate(self) -> int:
        """Allocate a port. Raises RunRefused when no free port is found."""
        for _ in range(_ATTEMPTS):
            port = next(self._candidates, None)
            if port is None:
                break
            if port not in self._sockets and (keeper := _bind_port(port)) is not None:
                self._sockets[port] = keeper
                return port
        raise RunRefused(f"no free port was found on {LOOPBACK}: all ports that were tried are in use")


def _bind_port(port: int) -> socket.socket | None:
    """Bind the port and return the socket that reserves it; None if the port is in use."""
    keeper = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        keeper.bind((LOOPBACK, port))
    except OSError:
        keeper.close()
        return None
    # Set only after an exclusive bind: on Linux a server may then bind the same port while this socket does
    # not listen. Other systems never allow a second bind, so the socket is closed.
    if sys.platform == "linux":
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    else:
        keeper.close()
    return keeper


def _close_all(taken: dict[int, socket.socket]) -> None:
    for keeper in taken.values():
        keeper.close()


def _random_ports() -> Iterator[int]:
    highest = int(_EPHEMERAL.read_text().split()[0]) if _EPHEMERAL.exists() else 32_768
    choose = random.SystemRandom()
    while True:
        # With an ephemeral range widened downwards any port may collide, so any is as good.
        yield (
            choose.randrange(_LOWEST, highest)
            if highest > _LOWEST + 1000
            else choose.randrange(_LOWEST, 60_000)
        )
