"""A uvicorn server with an orderly shutdown: streams first, then all other requests."""

import asyncio
import socket
from collections.abc import Sequence
from types import FrameType

import uvicorn
from fastapi import FastAPI

#: Time that a request other than a stream may still take after the shutdown has begun.
_GRACE_SECONDS = 10


class DashboardServer(uvicorn.Server):
    """The server of one application. SIGTERM and SIGINT stop it, a second signal at once."""

    def __init__(self, app: FastAPI, *, log_level: str = "warning", **settings: object) -> None:
        self._application = app
        super().__init__(
            uvicorn.Config(
                app,
                log_level=log_level,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_GRACE_SECONDS,
                **settings,  # type: ignore[arg-type]
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn would also raise the signal again after the shutdown, and so exit with an error.
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Before uvicorn waits for connections: nothing else ends a stream.
        self._application.state.hub.close()
        await super().shutdown(sockets)


def serve(app: FastAPI, sockets: Sequence[socket.socket], **settings: object) -> None:
    """Serve on these listening sockets until a signal arrives."""
    server = DashboardServer(app, **settings)  # type: ignore[arg-type]
    asyncio.run(server.serve(list(sockets)))
