"""An address of this machine at which nobody listens."""

import socket


def free_address() -> str:
    """host:port, as a rendezvous is told."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"
