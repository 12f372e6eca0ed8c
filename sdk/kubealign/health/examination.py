"""Evaluation of all health rules for one job."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kubealign.client.records import ProcessRecord
from kubealign.health.case import Case
from kubealign.health.critic import critic
from kubealign.health.divergence import divergence
from kubealign.health.engine import engine
from kubealign.health.finding import Finding, Severity
from kubealign.health.processes import processes as of_processes
from kubealign.health.responses import responses
from kubealign.health.rewards import rewards
from kubealign.health.series import Series
from kubealign.health.traffic import traffic
from kubealign.health.update import update
from kubealign.read_model import StepMetrics

_RULES: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    of_processes,
    engine,
    divergence,
    rewards,
    update,
    responses,
    critic,
    traffic,
)
_ORDER = list(Severity)


def findings(
    resource: Mapping[str, Any], steps: Sequence[StepMetrics], processes: Sequence[ProcessRecord]
) -> list[Finding]:
    """Return the problems of a job, worst first. Pure.

    `resource` as in a JobRecord, `steps` in the order of their reports. The rules use medians over steps,
    so that a single outlier triggers nothing.
    """
    case = Case(resource, Series(steps), processes)
    problems = [finding for rule in _RULES for finding in rule(case)]
    return sorted(problems, key=lambda finding: _ORDER.index(finding.severity))
