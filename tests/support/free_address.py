"""Ports of this machine that nobody else gets."""

import socket

# Bound, and never listened at: the kernel gives such a port to nobody who asks for any, nor to a connection
# out, but to whoever names it, as all servers do (SO_REUSEADDR). Of ports that are only looked at, one in
# seven thousand is the same as the last.
_kept: list[socket.socket] = []


def free_port() -> int:
    """Of 127.0.0.1; kept for this test process until its end."""
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(("127.0.0.1", 0))
    _kept.append(keeper)
    return int(keeper.getsockname()[1])


def free_address() -> str:
    """host:port, as a rendezvous is told."""
    return f"127.0.0.1:{free_port()}"
