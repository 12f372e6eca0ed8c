"""Structured logs: the standard library's logging, one JSON line for each event; keeps the last error.

`log.info("step done", extra={"step": 7})` gives
{"time":"2026-01-31T12:00:00.000Z","level":"info","job":...,"role":...,"process":...,"message":"step
done","step":7}.
"""

import logging
from datetime import UTC, datetime
from typing import TextIO

from kubealign_services.telemetry.json_values import to_json

# Longest text of the last error.
_MAX_ERROR_CHARACTERS = 500
# Standard attributes of a record; any other attribute came from `extra`.
_RECORD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# These log every request at INFO; only their warnings and errors are kept.
_VERBOSE_LOGGERS = ("asyncio", "datasets", "filelock", "fsspec", "grpc", "httpx", "nats", "urllib3")


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON line with the names of the job, role and process."""

    def __init__(self, job: str, role: str, process: str) -> None:
        super().__init__()
        self._names = {"job": job, "role": role, "process": process}

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        event = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            **self._names,
            "message": record.getMessage(),
            "logger": record.name,
        }
        event.update({name: value for name, value in vars(record).items() if name not in _RECORD_ATTRIBUTES})
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            event["stack"] = record.stack_info
        return to_json(event)


def set_up_logs(job: str, role: str, process: str, stream: TextIO, level: int = logging.INFO) -> None:
    """Send all logs of this process to `stream`, including warnings of the warnings module. Replaces the
    previous configuration.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter(job, role, process))
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
