"""Where in a job's figures a reader is."""

import re
from dataclasses import dataclass, replace

from kubealign.read_model import BEGINNING
from kubealign_services.dashboard.parameters import ENTRY

#: An entry of the metrics and one of the samples, or the former alone.
CURSOR = rf"{ENTRY.rstrip('$')}(,{ENTRY.strip('^$')})?$"


def order(entry: str) -> tuple[int, int]:
    """What entries are compared by."""
    time, _, number = entry.partition("-")
    return int(time), int(number or 0)


def newest(*entries: str) -> str:
    """The last one of some entries."""
    return max(entries, key=order)


@dataclass(frozen=True)
class Cursor:
    """The last entries that were seen."""

    metrics: str = BEGINNING
    samples: str = BEGINNING

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """METRICS,SAMPLES; METRICS alone: with all samples. Raises ValueError."""
        if not re.match(CURSOR, text):
            raise ValueError(
                f"{text!r} is not an event id of this stream, such as 1763740800000-0,1763740800000-3"
            )
        metrics, _, samples = text.partition(",")
        return cls(metrics, samples or BEGINNING)

    def __str__(self) -> str:
        return f"{self.metrics},{self.samples}"

    def at(self, kind: str) -> str:
        """The entry of `metrics` or `samples`."""
        return self.metrics if kind == "metrics" else self.samples

    def moved(self, kind: str, entry: str) -> "Cursor":
        """Not back."""
        entry = newest(self.at(kind), entry)
        return replace(self, metrics=entry) if kind == "metrics" else replace(self, samples=entry)
