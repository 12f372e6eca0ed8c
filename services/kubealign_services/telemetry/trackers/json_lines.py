"""Tracker that writes JSON lines."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kubealign_services.telemetry.json_values import to_json
from kubealign_services.telemetry.trackers.completions import TABLE
from kubealign_services.telemetry.trackers.contract import RunOutcome


class JsonLinesWriter:
    """Writes one object a line: step, fence, time (seconds since the epoch), metrics.

    The last line of a step is the valid one. NaN and infinity are the texts nan, inf and -inf. Responses are
    in another file, one object a line.
    """

    def __init__(self, folder: Path) -> None:
        # Line-buffered, so that readers of the growing file see complete lines.
        self._completions = folder / f"{TABLE}.jsonl"
        self._file = (folder / "metrics.jsonl").open("a", buffering=1, encoding="utf-8")

    def step(self, step: int, fence: int, metrics: Mapping[str, float]) -> None:
        line = {"step": step, "fence": fence, "time": time.time(), "metrics": dict(metrics)}
        self._file.write(to_json(line) + "\n")

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        with self._completions.open("a", encoding="utf-8") as file:
            file.write("".join(to_json(dict(row)) + "\n" for row in rows))

    def close(self, outcome: RunOutcome) -> None:
        self._file.close()
