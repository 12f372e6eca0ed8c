"""What the benchmarks of the refit measure, in a process of its own: `python -m
tests.bench.peers.refit_figures WHAT SIZE RESULT`.

WHAT: shared (SIZE bytes), delta (SIZE weights), senders, streams, checksum (SIZE bytes).
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests.bench import checksum_speed, refit_delta, refit_speed

_RATE = 1e-6
#: Receivers that one sender streams to. None: to all of the eight.
_FAN_OUTS = (None, 2, 1)


def shared(size_bytes: int) -> dict[str, Any]:
    return dict(refit_speed.measure(size_bytes))


def delta(count: int) -> dict[str, Any]:
    """Of random gradients in so many weights, and of a small model's own."""
    return {
        "random": refit_delta.measure(count, _RATE),
        "model": refit_delta.compare(*refit_delta.model_versions(_RATE)),
    }


def senders(size_bytes: int) -> dict[str, Any]:
    """Over shared memory, the sender's processor seconds by the number of receivers."""
    return {str(count): seconds for count, seconds in refit_speed.sender_seconds(size_bytes).items()}


def streams(size_bytes: int) -> dict[str, Any]:
    """By streams, what eight receivers cost beside one, by the fan-out."""
    return {str(most): refit_delta.sender_cost(most, size_bytes) for most in _FAN_OUTS}


def checksum(size_bytes: int) -> dict[str, Any]:
    """By case, the copy with its checksum. size_bytes: of the largest tensor."""
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
