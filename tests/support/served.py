"""Serves a dashboard application over real sockets during a test."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import FastAPI

from kubealign_dashboard.server import DashboardServer

_SECONDS = 30.0


@contextmanager
def served(app: FastAPI, port: int = 0) -> Iterator[str]:
    """Serve the application in a thread with its own event loop; yield its URL, such as http://127.0.0.1:4321."""
    listener = socket.create_server(("127.0.0.1", port), backlog=256)
    server = DashboardServer(app)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + _SECONDS
        while not server.started:
            assert thread.is_alive() and time.monotonic() < deadline, "the server did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(_SECONDS)
        listener.close()
        assert not thread.is_alive(), "the server did not end"
