"""Runs a refit benchmark in its own process: `python -m tests.bench.peers.refit_figures WHAT SIZE RESULT`.

WHAT: shared (SIZE bytes), delta (SIZE weights), senders, streams, checksum (SIZE bytes).
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests.bench import checksum_speed, refit_delta, refit_speed

_RATE = 1e-6
#: Receivers that one sender streams to. None: to all eight.
_FAN_OUTS = (None, 2, 1)


def shared(size_bytes: int) -> dict[str, Any]:
    return dict(refit_speed.measure(size_bytes))


def delta(count: int) -> dict[str, Any]:
    """Measure deltas of `count` weights with random gradients, and of a small model with its own
    gradients."""
    return {
        "random": refit_delta.measure(count, _RATE),
        "model": refit_delta.compare(*refit_delta.model_versions(_RATE)),
    }


def senders(size_bytes: int) -> dict[str, Any]:
    """Return the sender's processor seconds over shared memory, by number of receivers."""
    return {str(count): seconds for count, seconds in refit_speed.sender_seconds(size_bytes).items()}


def streams(size_bytes: int) -> dict[str, Any]:
    """Return the sender's streaming cost of eight receivers relative to one, by fan-out."""
    return {str(most): refit_delta.sender_cost(most, size_bytes) for most in _FAN_OUTS}


def checksum(size_bytes: int) -> dict[str, Any]:
    """Measure the copy with checksum by case. size_bytes: size of the largest tensor."""
    return dict(checksum_speed.measure(size_bytes))


if __name__ == "__main__":
    measures = {
        "shared": shared,
        "delta": delta,
        "senders": senders,
        "streams": streams,
        "checksum": checksum,
    }
    measure = measures[sys.argv[1]]
    Path(sys.argv[3]).write_text(json.dumps(measure(int(sys.argv[2]))))
