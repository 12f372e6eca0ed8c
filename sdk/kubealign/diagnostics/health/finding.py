"""A problem of a job that needs attention."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Critical: the job's current work is or will be lost. Warning: it may be wasted."""

    CRITICAL = "Critical"
    WARNING = "Warning"
    INFO = "Info"


@dataclass(frozen=True)
class HealthFinding:
    """An observed problem and its usual remedy."""

    severity: Severity
    title: str
    #: The observed numbers.
    detail: str
    remedy: str
    #: Name of the metric that shows the problem; empty if there is none.
    metric: str
    #: Anchor of the section in docs/cookbook.md.
    anchor: str
