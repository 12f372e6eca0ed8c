"""Every rule over one job."""

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
    """What looks sick, worst first. Pure; `resource` as in a JobRecord, `steps` in the order in which they
    were reported. The rules look at medians over steps, so that one odd step finds nothing."""
    case = Case(resource, Series(steps), processes)
    found = [finding for rule in _RULES for finding in rule(case)]
    return sorted(found, key=lambda finding: _ORDER.index(finding.severity))
