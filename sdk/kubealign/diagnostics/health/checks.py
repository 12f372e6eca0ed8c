"""Evaluation of all health rules for one job."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kubealign.client.records import ProcessRecord
from kubealign.diagnostics.health.critic import check_critic
from kubealign.diagnostics.health.data_flow import check_data_flow
from kubealign.diagnostics.health.engine_mismatch import check_engine_mismatch
from kubealign.diagnostics.health.finding import HealthFinding, Severity
from kubealign.diagnostics.health.kl_divergence import check_kl_divergence
from kubealign.diagnostics.health.observed_job import ObservedJob
from kubealign.diagnostics.health.policy_update import check_policy_update
from kubealign.diagnostics.health.processes import check_processes
from kubealign.diagnostics.health.responses import check_responses
from kubealign.diagnostics.health.rewards import check_rewards
from kubealign.diagnostics.health.series import MetricSeries
from kubealign.read_model import StepMetrics

_RULES: tuple[Callable[[ObservedJob], Iterator[HealthFinding]], ...] = (
    check_processes,
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
    job = ObservedJob(resource, MetricSeries(steps), processes)
    problems = [finding for rule in _RULES for finding in rule(job)]
    return sorted(problems, key=lambda finding: _ORDER.index(finding.severity))
