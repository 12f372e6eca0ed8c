"""Health rules: problems of a job in plain words, with the usual remedies."""

from kubealign.diagnostics.health.checks import check_health
from kubealign.diagnostics.health.finding import HealthFinding, Severity

__all__ = ["HealthFinding", "Severity", "check_health"]
