"""Evaluation of all health rules for one job."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kubealign.client.records import ProcessRecord
from kubealign.health.case import ObservedJob
from kubealign.health.critic import check_critic
from kubealign.health.divergence import check_kl_divergence
from kubealign.health.engine import check_engine_mismatch
from kubealign.health.finding import HealthFinding, Severity
from kubealign.health.processes import check_processes as of_processes
from kubealign.health.responses import check_responses
from kubealign.health.rewards import check_rewards
from kubealign.health.series import MetricSeries
from kubealign.health.traffic import check_data_flow
from kubealign.health.update import check_policy_update
from kubealign.read_model import StepMetrics

_RULES: tuple[Callable[[ObservedJob], Iterator[HealthFinding]], ...] = (
    of_processes,
    check_engine_mismatch,
    check_kl_divergence,
    check_rewards,
    check_policy_update,
    check_responses,
    check_critic,
    check_data_flow,
)
_ORDER = list(Severity)


def check_health(
    resource: Mapping[str, Any], steps: Sequence[StepMetrics], processes: Sequence[ProcessRecord]
) -> list[HealthFinding]:
    """Return the problems of a job, worst first. Pure.

    `resource` as in a JobRecord, `steps` in the order of their reports. The rules use medians over steps,
    so that a single outlier triggers nothing.
    """
    case = ObservedJob(resource, MetricSeries(steps), processes)
    problems = [finding for rule in _RULES for finding in rule(case)]
    return sorted(problems, key=lambda finding: _ORDER.index(finding.severity))
