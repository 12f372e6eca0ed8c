"""Health of refits, prompts and samples in flight."""

from collections.abc import Iterator

from kubealign.diagnostics.health.finding import HealthFinding, Severity
from kubealign.diagnostics.health.observed_job import ObservedJob, format_number

#: Window of steps, and the number of them with a retried refit that is no coincidence.
WATCHED, RETRIED = 20, 2
#: Within the window: number of abandoned prompts that indicates a cause, and discarded groups per step.
GIVEN_UP, DISCARDED_A_STEP = 3, 1.0


def check_data_flow(job: ObservedJob) -> Iterator[HealthFinding]:
    yield from _refits(job)
    yield from _prompts(job)


def _refits(job: ObservedJob) -> Iterator[HealthFinding]:
    retried = sum(value > 0 for value in job.series.values("refit/retries")[-WATCHED:])
    quarantined = job.series.recent_median("refit/quarantined_workers", 1)
    if retried >= RETRIED or quarantined:
        yield HealthFinding(
            Severity.WARNING,
            "Refits fail",
            f"{retried} of the last {WATCHED} steps needed a retry; {format_number(quarantined or 0)} "
            "rollout workers are quarantined.",
            "The log of a quarantined worker shows what it waited for: a timeout "
            "(rollout.refit.timeoutSeconds), a checksum, or the canary.",
            "refit/retries" if retried >= RETRIED else "refit/quarantined_workers",
            "refits-fail",
        )


def _prompts(job: ObservedJob) -> Iterator[HealthFinding]:
    given_up = job.series.values("data/given_up_prompts")
    if given_up and given_up[-1] > 0:
        lately = given_up[-1] - given_up[-WATCHED:][0]
        yield HealthFinding(
            Severity.WARNING if lately >= GIVEN_UP else Severity.INFO,
            "Prompts were given up",
            f"{format_number(given_up[-1])} since the start, {format_number(lately)} of them in the last "
            f"{WATCHED} steps: all their retries failed, and they were replaced.",
            "The driver's log names them with the cause. The job fails after lifecycle.maxFailedGroups.",
            "data/given_up_prompts",
            "prompts-given-up",
        )
    discarded = job.series.values("data/discarded_groups")[-WATCHED:]
    if len(discarded) == WATCHED and discarded[-1] - discarded[0] >= DISCARDED_A_STEP * WATCHED:
        yield HealthFinding(
            Severity.WARNING,
            "Finished samples are thrown away",
            f"{format_number(discarded[-1] - discarded[0])} groups in the last {WATCHED} steps were "
            "generated with older weights than their requests allowed.",
            "A rollout worker has other weights than it reports: compare the versions of the samples' "
            "tokens, and look at its refits.",
            "data/discarded_groups",
            "staleness",
        )
