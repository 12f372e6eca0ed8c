"""What a process logged last as an error, for its heartbeat."""

import logging

_LONGEST = 500


class LastError(logging.Handler):
    """Keeps the text of the newest record of level ERROR or above; empty: there was none."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        self.text = message if len(message) <= _LONGEST else message[: _LONGEST - 3] + "..."
