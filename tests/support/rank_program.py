"""A role process without a role: `python -m support.rank_program SETTINGS`.

What it does is in the variable of its name in the environment, such as RANK_0. It imports only the standard
library, so that it starts at once.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

SETTINGS = json.loads(Path(sys.argv[1]).read_text())
BEHAVIOUR = os.environ[SETTINGS["name"].upper().replace("-", "_")]


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    request = await reader.readuntil(b"\r\n\r\n")
    refused = {"loads": b"/readyz", "hangs": b"/livez"}.get(BEHAVIOUR)
    code = b"503" if refused is not None and refused in request else b"200"
    writer.write(b"HTTP/1.1 " + code + b" \r\nContent-Length: 0\r\n\r\n")
    await writer.drain()
    writer.close()


async def run() -> int:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    host, _, port = SETTINGS["health"].rpartition(":")
    async with await asyncio.start_server(answer, host, int(port)):
        match BEHAVIOUR:
            case "crashes":
                return 3
            case "fails":
                return 78
            case "is_killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "writes":
                for _ in range(100):
                    # The other rank writes between the two halves of a line.
                    print(SETTINGS["name"][-1] * 5_000, end="", flush=True)
                    await asyncio.sleep(0.01)
                    print(SETTINGS["name"][-1] * 5_000, flush=True)
                return 0
            case "ignores_the_signal":
                await asyncio.Event().wait()
        await stop.wait()
    print("stopped", flush=True)
    return 143


if __name__ == "__main__":
    print(json.dumps({"process": SETTINGS["name"], "devices": os.environ["DEVICES"]}), flush=True)
    if BEHAVIOUR == "fails":
        Path(SETTINGS["termination"]).write_text("the learning rate is not a number")
    sys.exit(asyncio.run(run()))
