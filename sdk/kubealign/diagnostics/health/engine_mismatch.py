"""Mismatch between sampled and trained-on tokens: log-probability gap and staleness."""

from collections.abc import Iterator

from pydantic import ValidationError

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
    gate = _mismatch_gate(job)
    gap = job.series.recent_median(name)
    if gap is None or gap < NEAR * gate.mean:
        return
    yield HealthFinding(
        Severity.CRITICAL if gap > gate.mean else Severity.WARNING,
        "Engine and trainer disagree",
        f"Their log-probabilities of the same tokens differ by {format_number(gap)} nats on average; "
        f"the gate is at {format_number(gate.mean)}, and above {format_number(gate.effective_fail_mean)} "
        "the job fails.",
        "Check that both compute in the same precision and at the same temperature, and that refits arrive "
        "(refit/canary_gap, weights/version). The samples show at which tokens.",
        name,
        "engine-mismatch",
    )


def _mismatch_gate(job: ObservedJob) -> MismatchGateSpec:
    entry = job.spec_field("rollout", "mismatchGate")
    try:
        return MismatchGateSpec.model_validate(entry or {})
    except ValidationError:
        # A job that was admitted by another version.
        return MismatchGateSpec()


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
