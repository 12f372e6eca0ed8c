"""Health rules: problems of a job in plain words, with the usual remedies."""

from kubealign.health.examination import check_health
from kubealign.health.finding import HealthFinding, Severity

__all__ = ["HealthFinding", "Severity", "check_health"]
