"""JSON logs: one line per event, with the fields of `extra`."""

import json
import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

#: Standard attributes of a record; any other attribute came from `extra`. uvicorn adds color_message.
_RECORD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}


class JsonLogFormatter(logging.Formatter):
    """Formats a record as one JSON object: time, level, logger, message and the fields of `extra`.

    Args:
        fields: Fields of every line, such as the name of the process.
        encode: Encoder of the object.
    """

    def __init__(
        self,
        fields: Mapping[str, str] | None = None,
        encode: Callable[[dict[str, Any]], str] = lambda line: json.dumps(line, default=str),
    ) -> None:
        super().__init__()
        self._fields = dict(fields or {})
        self._encode = encode

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            **self._fields,
            "message": record.getMessage(),
            "logger": record.name,
        }
        line.update({name: value for name, value in vars(record).items() if name not in _RECORD_ATTRIBUTES})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return self._encode(line)


def configure_logging(level: str) -> None:
    """Send all logs of this process to standard error as JSON, including the warnings module's.

    Args:
        level: Name of the lowest level that is logged, such as INFO.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLogFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
