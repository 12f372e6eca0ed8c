"""Container entry point of the job's NATS server: `python -m
kubealign_services.messaging.jetstream.nats_entrypoint`.

Handles SIGTERM before the slow imports: the kernel drops signals that a container's first process does not
handle, and the imports take a second or more, so a pod deleted meanwhile would wait for the whole grace
period.
"""

import importlib
import signal
import sys
from types import FrameType


def _stop(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> None:
    """Run the server in this process; until it has started, SIGTERM ends the process."""
    signal.signal(signal.SIGTERM, _stop)
    importlib.import_module("kubealign_services.messaging.jetstream.nats_server").main()


if __name__ == "__main__":
    main()
