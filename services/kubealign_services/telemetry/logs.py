"""Structured logs: the standard library's logging, one JSON line for each event; keeps the last error.

`log.info("step done", extra={"step": 7})` gives
{"time":"2026-01-31T12:00:00.000Z","level":"info","job":...,"role":...,"process":...,"message":"step
done","step":7}.
"""

import logging
from typing import TextIO

from kubealign.json_logs import JsonLogFormatter
from kubealign_services.telemetry.json_values import to_json

# Longest text of the last error.
_MAX_ERROR_CHARACTERS = 500
# These log every request at INFO; only their warnings and errors are kept.
_VERBOSE_LOGGERS = ("asyncio", "datasets", "filelock", "fsspec", "grpc", "httpx", "nats", "urllib3")


def set_up_logs(job: str, role: str, process: str, stream: TextIO, level: int = logging.INFO) -> None:
    """Send all logs of this process to `stream`, including warnings of the warnings module.

    Replaces the previous configuration.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLogFormatter({"job": job, "role": role, "process": process}, to_json))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    for name in _VERBOSE_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)


class LastError(logging.Handler):
    """Keeps the text of the newest record of level ERROR or above; empty before the first one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        self.text = (
            message if len(message) <= _MAX_ERROR_CHARACTERS else message[: _MAX_ERROR_CHARACTERS - 3] + "..."
        )
