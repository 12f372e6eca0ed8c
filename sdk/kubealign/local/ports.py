"""Free loopback ports for the servers of a run."""

import random
import socket
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

from kubealign.local.failure import RunRefused

LOOPBACK = "127.0.0.1"
_LOWEST = 15_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ATTEMPTS = 200


class Ports:
    """Hands out each port once, and on Linux to one run of the machine: it stays bound as long as this is
    there, as a port that was only looked at may be another run's by the time that the server listens.

    They lie below those that the kernel gives to outgoing connections, so that a server which died finds its
    port free when it is started again."""

    def __init__(self, candidates: Iterator[int] | None = None) -> None:
        self._candidates = _random_ports() if candidates is None else candidates
        self._taken: dict[int, socket.socket] = {}
        weakref.finalize(self, _let_go, self._taken)

    def take(self) -> int:
        """Raises RunRefused when no free one is found."""
        for _ in range(_ATTEMPTS):
            port = next(self._candidates, None)
            if port is None:
                break
            if port not in self._taken and (keeper := _kept(port)) is not None:
                self._taken[port] = keeper
                return port
        raise RunRefused(f"no free port was found on {LOOPBACK}: other programs use those that were tried")


def _kept(port: int) -> socket.socket | None:
    """What keeps it; None: somebody has it."""
    keeper = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        keeper.bind((LOOPBACK, port))
    except OSError:
        keeper.close()
        return None
    # Said only now: to have the port it asked for it alone, and beside one who does not listen a server may.
    # Elsewhere the same port is not given twice whatever is said: there it is let go.
    if sys.platform == "linux":
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    else:
        keeper.close()
    return keeper


def _let_go(taken: dict[int, socket.socket]) -> None:
    for keeper in taken.values():
        keeper.close()


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
