"""How long the responses are."""

from collections.abc import Iterator

from kubealign.health.case import Case, share, shown
from kubealign.health.finding import Finding, Severity

#: Shares of responses cut off: nearly all; and half of them where so much fewer were at the start.
ALL, HALF, RISEN = 0.9, 0.5, 0.3
#: Times as long as at the start, and so many tokens longer.
LONGER_TIMES, LONGER_TOKENS = 3.0, 32.0
#: Tokens, the end included: an answer without a word; where there were more at the start.
EMPTY, WORDS = 1.5, 6.0


def responses(case: Case) -> Iterator[Finding]:
    yield from _truncation(case)
    yield from _length(case)


def _truncation(case: Case) -> Iterator[Finding]:
    name = "response/truncated_share"
    first, now = case.series.at_first(name), case.series.now(name)
    if now is None:
        return
    rising = first is not None and now >= HALF and now - first >= RISEN
    if now >= ALL or rising:
        was = "" if first is None else f"; {share(first)} at the start"
        yield Finding(
            Severity.CRITICAL if now >= ALL else Severity.WARNING,
            "Answers are cut off" if now < ALL else "Nearly all answers are cut off",
            f"{share(now)} of the responses do not end within maxTokens{was}.",
            "Rewards of half an answer teach little. Raise rollout.sampling.maxTokens, give the cut ones a "
            "bad truncatedValue, and see that the first weights know how to end.",
            name,
            "answers-cut-off",
        )


def _length(case: Case) -> Iterator[Finding]:
    name = "response/length"
    first, now = case.series.at_first(name), case.series.now(name)
    if first is None or now is None:
        return
    if now >= LONGER_TIMES * first and now >= first + LONGER_TOKENS:
        yield Finding(
            Severity.WARNING,
            "Responses grow longer and longer",
            f"They have {shown(now)} tokens, and had {shown(first)} at the start.",
            "If the score under val/ does not grow with them, length itself is being rewarded: look at "
            "long samples, and balance the reward's data by length.",
            name,
            "length-growing",
        )
    if now <= EMPTY and first >= WORDS:
        yield Finding(
            Severity.WARNING,
            "Responses have become empty",
            f"They have {shown(now)} tokens, the end included, and had {shown(first)} at the start.",
            "Saying nothing is safest for the policy: look at what the reward says of empty answers, and set "
            "rollout.sampling.minTokens.",
            name,
            "responses-empty",
        )
