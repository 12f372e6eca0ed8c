"""A real Redis server with the configuration of a local run."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kubealign.local.servers.redis import LocalRedisServer


@asynccontextmanager
async def running_redis(server: LocalRedisServer) -> AsyncIterator[LocalRedisServer]:
    """Run the server, with its log in its folder, until the block ends."""
    with (server.folder / "redis.log").open("ab") as log:
        process = subprocess.Popen(server.command(), stdout=log, stderr=log)  # noqa: ASYNC220
    try:
        await asyncio.wait_for(server.wait_ready(), 20)
        yield server
    finally:
        process.kill()
        process.wait(timeout=20)
