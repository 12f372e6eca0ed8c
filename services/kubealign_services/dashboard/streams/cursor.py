"""The position of a reader in a job's metrics and samples."""

import re
from dataclasses import dataclass, replace

from kubealign.read_model import BEGINNING
from kubealign_services.dashboard.parameters import ENTRY

#: An entry of the metrics and one of the samples, or only the first.
CURSOR = rf"{ENTRY.rstrip('$')}(,{ENTRY.strip('^$')})?$"


def order(entry: str) -> tuple[int, int]:
    """Return the sort key of an entry."""
    time, _, number = entry.partition("-")
    return int(time), int(number or 0)


def newest(*entries: str) -> str:
    """Return the latest of some entries."""
    return max(entries, key=order)


@dataclass(frozen=True)
class Cursor:
    """The last entries that a reader has received."""

    metrics: str = BEGINNING
    samples: str = BEGINNING

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """METRICS,SAMPLES; METRICS alone: from the first sample. Raises ValueError."""
        if not re.match(CURSOR, text):
            raise ValueError(
                f"{text!r} is not an event id of this stream, such as 1763740800000-0,1763740800000-3"
            )
        metrics, _, samples = text.partition(",")
        return cls(metrics, samples or BEGINNING)

    def __str__(self) -> str:
        return f"{self.metrics},{self.samples}"

    def at(self, kind: str) -> str:
        """Return the entry of `metrics` or `samples`."""
        return self.metrics if kind == "metrics" else self.samples

    def moved(self, kind: str, entry: str) -> "Cursor":
        """Return the cursor advanced to this entry; it never moves back."""
        entry = newest(self.at(kind), entry)
        return replace(self, metrics=entry) if kind == "metrics" else replace(self, samples=entry)
