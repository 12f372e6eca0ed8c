"""Health of the responses: truncation and length."""

from collections.abc import Iterator

from kubealign.diagnostics.health.finding import HealthFinding, Severity
from kubealign.diagnostics.health.observed_job import ObservedJob, format_number, format_share

#: Shares of truncated responses: nearly all; half; and the rise since the start that makes half a problem.
ALL, HALF, RISEN = 0.9, 0.5, 0.3
#: Growth since the start, as a factor and in tokens.
LONGER_TIMES, LONGER_TOKENS = 3.0, 32.0
#: Tokens, end included: length of an empty response, and minimum length at the start.
EMPTY, WORDS = 1.5, 6.0


def check_responses(job: ObservedJob) -> Iterator[HealthFinding]:
    yield from _truncation(job)
    yield from _length(job)


def _truncation(job: ObservedJob) -> Iterator[HealthFinding]:
    name = "response/truncated_share"
    first, now = job.series.initial_median(name), job.series.recent_median(name)
    if now is None:
        return
    rising = first is not None and now >= HALF and now - first >= RISEN
    if now >= ALL or rising:
        was = "" if first is None else f"; {format_share(first)} at the start"
        yield HealthFinding(
            Severity.CRITICAL if now >= ALL else Severity.WARNING,
            "Answers are cut off" if now < ALL else "Nearly all answers are cut off",
            f"{format_share(now)} of the responses do not end within maxTokens{was}.",
            "Rewards of incomplete responses teach little. Raise rollout.sampling.maxTokens, give truncated "
            "ones a low truncatedValue, and check that the initial weights end their responses.",
            name,
            "answers-cut-off",
        )


def _length(job: ObservedJob) -> Iterator[HealthFinding]:
    name = "response/length"
    first, now = job.series.initial_median(name), job.series.recent_median(name)
    if first is None or now is None:
        return
    if now >= LONGER_TIMES * first and now >= first + LONGER_TOKENS:
        yield HealthFinding(
            Severity.WARNING,
            "Responses grow longer and longer",
            f"They have {format_number(now)} tokens, and had {format_number(first)} at the start.",
            "If the score under val/ does not grow with them, length itself is being rewarded: look at "
            "long samples, and balance the reward's data by length.",
            name,
            "length-growing",
        )
    if now <= EMPTY and first >= WORDS:
        yield HealthFinding(
            Severity.WARNING,
            "Responses have become empty",
            f"They have {format_number(now)} tokens, the end included, and had {format_number(first)} at "
            "the start.",
            "An empty response is safest for the policy: check the reward of empty responses, and set "
            "rollout.sampling.minTokens.",
            name,
            "responses-empty",
        )
