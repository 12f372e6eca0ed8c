"""Mismatch between sampled and trained-on tokens: log-probability gap and staleness."""

from collections.abc import Iterator

from kubealign.health.case import Case, shown
from kubealign.health.finding import Finding, Severity
from kubealign.spec.rollout import MismatchGate

#: Share of the gate above which a gap is no coincidence.
NEAR = 0.5


def engine(case: Case) -> Iterator[Finding]:
    yield from _mismatch(case)
    yield from _staleness(case)


def _mismatch(case: Case) -> Iterator[Finding]:
    name = "rollout/logprob_gap_mean"
    gate = case.setting(MismatchGate().mean, "rollout", "mismatchGate", "mean")
    gap = case.series.now(name)
    if gap is None or gap < NEAR * gate:
        return
    above = gap > gate
    yield Finding(
        Severity.CRITICAL if above else Severity.WARNING,
        "Engine and trainer disagree",
        f"Their log-probabilities of the same tokens differ by {shown(gap)} nats on average; the gate is at "
        f"{shown(gate)}, above which the job fails.",
        "Check that both compute in the same precision and at the same temperature, and that refits arrive "
        "(refit/canary_gap, weights/version). The samples show at which tokens.",
        name,
        "engine-mismatch",
    )


def _staleness(case: Case) -> Iterator[Finding]:
    name = "rollout/staleness_max"
    allowed = case.of_algorithm("maxStaleness", 0)
    oldest = case.series.now(name)
    if oldest is not None and oldest > allowed:
        yield Finding(
            Severity.WARNING,
            "Samples are staler than they may be",
            f"They are {shown(oldest)} weight versions old where {shown(allowed)} are allowed.",
            "A rollout worker has other weights than it reports: compare the versions of the samples' "
            "tokens, and look at its refits.",
            name,
            "staleness",
        )
