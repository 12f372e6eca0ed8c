"""What looks sick in a job, in words, and what people do about it."""

from kubealign.health.examination import findings
from kubealign.health.finding import Finding, Severity

__all__ = ["Finding", "Severity", "findings"]
