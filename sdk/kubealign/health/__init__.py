"""Health rules: problems of a job in plain words, with the usual remedies."""

from kubealign.health.examination import findings
from kubealign.health.finding import Finding, Severity

__all__ = ["Finding", "Severity", "findings"]
