"""Log handler that keeps the last error, for the heartbeat."""

import logging

_MAX_CHARACTERS = 500


class LastError(logging.Handler):
    """Keeps the text of the newest record of level ERROR or above; empty before the first one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        self.text = message if len(message) <= _MAX_CHARACTERS else message[: _MAX_CHARACTERS - 3] + "..."
