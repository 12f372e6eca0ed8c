"""The position of a reader in a job's metrics and samples."""

import re
from dataclasses import dataclass, replace

from kubealign.read_model import STREAM_START
from kubealign_dashboard.web.parameters import ENTRY_PATTERN

#: An entry of the metrics and one of the samples, or only the first.
CURSOR_PATTERN = rf"{ENTRY_PATTERN.rstrip('$')}(,{ENTRY_PATTERN.strip('^$')})?$"


def stream_id_sort_key(entry: str) -> tuple[int, int]:
    """Return (milliseconds, sequence number) of a Redis stream ID such as 1700000000000-3, in whose order the
    entries were added. Without a sequence number it is the first ID of its millisecond.
    """
    milliseconds, _, sequence = entry.partition("-")
    return int(milliseconds), int(sequence or 0)


def latest_entry(*entries: str) -> str:
    """Return the latest of some entries."""
    return max(entries, key=stream_id_sort_key)


@dataclass(frozen=True)
class StreamCursor:
    """The last entries that a reader has received."""

    metrics: str = STREAM_START
    samples: str = STREAM_START

    @classmethod
    def parse(cls, text: str) -> "StreamCursor":
        """METRICS,SAMPLES; METRICS alone: from the first sample. Raises ValueError."""
        if not re.match(CURSOR_PATTERN, text):
            raise ValueError(
                f"{text!r} is not an event id of this stream, such as 1763740800000-0,1763740800000-3"
            )
        metrics, _, samples = text.partition(",")
        return cls(metrics, samples or STREAM_START)

    def __str__(self) -> str:
        return f"{self.metrics},{self.samples}"

    def entry(self, kind: str) -> str:
        """Return the entry of `metrics` or `samples`."""
        return self.metrics if kind == "metrics" else self.samples

    def advanced(self, kind: str, entry: str) -> "StreamCursor":
        """Return the cursor advanced to this entry; it never moves back."""
        entry = latest_entry(self.entry(kind), entry)
        return replace(self, metrics=entry) if kind == "metrics" else replace(self, samples=entry)
