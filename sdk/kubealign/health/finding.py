"""Something about a job that a person should look at."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Critical: what the job does now is lost, or will be. Warning: it may come to nothing. Info: good to
    know."""

    CRITICAL = "Critical"
    WARNING = "Warning"
    INFO = "Info"


@dataclass(frozen=True)
class Finding:
    """What was seen, and what people do about it."""

    severity: Severity
    title: str
    #: The numbers that were seen.
    detail: str
    remedy: str
    #: The figure that shows it; empty: none does.
    metric: str
    #: Its section of docs/cookbook.md.
    anchor: str
