"""uvicorn, ended in good order: streams first, then whatever else is under way."""

import asyncio
import socket
from collections.abc import Sequence
from types import FrameType

import uvicorn
from fastapi import FastAPI

#: What a request that is no stream may still take once the end has come.
_GRACE_SECONDS = 10


class Server(uvicorn.Server):
    """Of one application. SIGTERM and SIGINT end it, a second one at once."""

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
        # Without what uvicorn does besides: raise the signal again when all is over, and so fail by it.
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Before connections are waited for: a stream ends by nothing else.
        self._application.state.hub.close()
        await super().shutdown(sockets)


def serve(app: FastAPI, sockets: Sequence[socket.socket], **settings: object) -> None:
    """Serve on these listening sockets until a signal comes."""
    server = Server(app, **settings)  # type: ignore[arg-type]
    asyncio.run(server.serve(list(sockets)))
