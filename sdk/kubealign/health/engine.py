"""Whether what is trained on is what was sampled."""

from collections.abc import Iterator

from kubealign.health.case import Case, shown
from kubealign.health.finding import Finding, Severity
from kubealign.spec.rollout import MismatchGate

#: Share of the gate: a gap does not get there by chance.
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
        f"{shown(gate)}, where the job fails.",
        "See that both compute in the same precision and at the same temperature, and whether refits arrive "
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
            "A rollout worker holds other weights than it says: compare the versions of the samples' tokens, "
            "and look at its refits.",
            name,
            "staleness",
        )
