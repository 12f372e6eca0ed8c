"""Mismatch between sampled and trained-on tokens: log-probability gap and staleness."""

from collections.abc import Iterator

from kubealign.diagnostics.health.finding import HealthFinding, Severity
from kubealign.diagnostics.health.observed_job import ObservedJob, format_number
from kubealign.spec.sections.rollout import MismatchGateSpec

#: Share of the gate above which a gap is no coincidence.
NEAR = 0.5


def check_engine_mismatch(job: ObservedJob) -> Iterator[HealthFinding]:
    yield from _mismatch(job)
    yield from _staleness(job)


def _mismatch(job: ObservedJob) -> Iterator[HealthFinding]:
    name = "rollout/logprob_gap_mean"
    gate = job.spec_number(MismatchGateSpec().mean, "rollout", "mismatchGate", "mean")
    gap = job.series.recent_median(name)
    if gap is None or gap < NEAR * gate:
        return
    above = gap > gate
    yield HealthFinding(
        Severity.CRITICAL if above else Severity.WARNING,
        "Engine and trainer disagree",
        f"Their log-probabilities of the same tokens differ by {format_number(gap)} nats on average; "
        f"the gate is at {format_number(gate)}, above which the job fails.",
        "Check that both compute in the same precision and at the same temperature, and that refits arrive "
        "(refit/canary_gap, weights/version). The samples show at which tokens.",
        name,
        "engine-mismatch",
    )


def _staleness(job: ObservedJob) -> Iterator[HealthFinding]:
    name = "rollout/staleness_max"
    allowed = job.algorithm_number("maxStaleness", 0)
    oldest = job.series.recent_median(name)
    if oldest is not None and oldest > allowed:
        yield HealthFinding(
            Severity.WARNING,
            "Samples are staler than they may be",
            f"They are {format_number(oldest)} weight versions old where {format_number(allowed)} are "
            "allowed.",
            "A rollout worker has other weights than it reports: compare the versions of the samples' "
            "tokens, and look at its refits.",
            name,
            "staleness",
        )
