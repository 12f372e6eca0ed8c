"""The job's NATS server in a container: `python -m kubealign_services.bus.nats_pod`.

Whoever deletes the pod while it begins would wait for the whole grace period: the kernel drops signals that a
container's first process does not handle, and what the start needs takes a second or more to import.
"""

import importlib
import signal
import sys
from types import FrameType


def _stop(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> None:
    """Become the server; until then a SIGTERM ends the process."""
    signal.signal(signal.SIGTERM, _stop)
    importlib.import_module("kubealign_services.bus.nats_start").main()


if __name__ == "__main__":
    main()
